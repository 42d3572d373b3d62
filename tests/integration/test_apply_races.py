"""`apply` among others: races for one generation, rows held elsewhere, deadlocks, sessions that freeze."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.errors import Unreachable
from fencepost.ledger.connect import connect, translate
from fencepost.outcomes import Applied
from fencepost.states import Queue
from tests.integration.ledger_bench import TENANT, Bench

APPLIED = Applied('{"id":"r-1"}', "r-1")
LOCK_RUN = "SELECT 1 FROM fencepost.runs WHERE id = %s FOR NO KEY UPDATE"
LOCK_ROW = "SELECT 1 FROM fencepost.outbox WHERE subject = %s FOR NO KEY UPDATE"
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bench' AND wait_event_type = 'Lock'"
)


@contextmanager
def holding(bench: Bench, statement: str, subject: UUID) -> Iterator[psycopg.Connection[Any]]:
    """Another session that holds a row until the end of the block, or until it commits."""
    with psycopg.connect(bench.database.owner) as connection:
        connection.execute(statement, [subject])
        yield connection
        connection.rollback()


def until_waiting(bench: Bench) -> None:
    """Until `apply` stands at somebody's lock."""
    while bench.sql(WAITING) == [(0,)]:
        time.sleep(0.005)


def at_once(what: Callable[[int], Any], many: int = 8) -> list[Any]:
    together = threading.Barrier(many)

    def one(number: int) -> Any:
        together.wait()
        return what(number)

    with ThreadPoolExecutor(many) as pool:
        return list(pool.map(one, range(many)))


# -- one generation, many claimers -----------------------------------------------------------------


def test_of_eight_claims_of_one_generation_exactly_one_wins(bench: Bench) -> None:
    for _ in range(5):
        run = bench.start()
        call = bench.debit(run, bench.order())
        claims = [bench.claim_call(run, call) for _ in range(8)]
        answers = at_once(lambda number, claims=claims: bench.one(claims[number]))  # type: ignore[misc]
        won = [n for n, answer in enumerate(answers) if isinstance(answer, c.Send)]
        assert len(won) == 1
        assert all(isinstance(answer, c.Send | c.Moved | c.Busy | c.Fenced) for answer in answers)
        assert bench.call(call).owner == claims[won[0]].term.owner
        assert bench.call(call).attempts == 1


def test_of_eight_claims_under_one_granted_fence_exactly_one_wins(bench: Bench) -> None:
    """A wiped Redis may grant one number twice; Postgres arbitrates."""
    run = bench.start()
    claims = [bench.claim_run(run, c.Term(f"owner-{n}", 7)) for n in range(8)]
    answers = at_once(lambda number: bench.one(claims[number]))
    assert sum(isinstance(answer, c.Plan) for answer in answers) == 1


def test_two_writers_of_one_run_leave_one_unbroken_history(bench: Bench) -> None:
    run = bench.start()
    calls = bench.plan(run, *[("wallet.debit", {"order": bench.order()}) for _ in range(8)])
    sent = [bench.dispatch(run, call) for call in calls]
    records = [bench.outcome(send, term, APPLIED) for send, term in sent]
    assert at_once(lambda number: bench.one(records[number])) == [c.Done("SUCCEEDED")] * 8
    assert [event.seq for event in bench.events(run)] == list(range(1, bench.run(run).seq + 1))
    assert bench.run(run).effects == 8


def test_equal_intents_of_two_runs_proposed_at_once_have_one_holder(bench: Bench) -> None:
    order = bench.order()
    runs = [bench.start() for _ in range(8)]
    claims = [bench.claim_run(run) for run in runs]
    bench.ledger.apply(claims)
    turns = [
        bench.turn(run, claim, ("wallet.debit", {"order": order}))
        for run, claim in zip(runs, claims, strict=True)
    ]
    assert set(at_once(lambda number: bench.one(turns[number]))) == {c.Done("ACTING")}
    waiting = [bench.call(turn.call_ids[0]).waits for turn in turns]
    assert sorted(waiting) == [False] + [True] * 7


# -- rows that somebody moves at this instant --------------------------------------------------------


def test_a_claim_of_a_row_that_is_being_moved_is_told_busy_at_once(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    with holding(bench, LOCK_ROW, call):
        began = time.monotonic()
        assert bench.one(bench.claim_call(run, call)) == c.Busy()
        assert time.monotonic() - began < 0.9
    assert isinstance(bench.one(bench.claim_call(run, call)), c.Send)


def test_a_batch_decides_nothing_for_a_run_of_which_a_row_is_being_moved(bench: Bench) -> None:
    run = bench.start()
    order = bench.order()
    calls = bench.plan(run, ("wallet.debit", {"order": order}), ("wallet.hold", {"order": order}))
    bench.gate.closed.add(("wallet.hold", "claim"))  # its denial stops the run and cancels the other call
    claims = [bench.claim_call(run, call) for call in calls]
    with holding(bench, LOCK_ROW, calls[0]):
        assert bench.ledger.apply(claims) == [c.Busy(), c.Busy()]
    assert bench.ledger.apply(list(reversed(claims)))[0] == c.Done("REJECTED")
    assert [bench.state(call) for call in calls] == ["CANCELLED", "REJECTED"]
    assert bench.sql("SELECT count(*) FROM fencepost.outbox WHERE run = %s", run) == [(0,)]


def test_a_cancel_beside_a_claim_waits_for_the_row_and_leaves_none_behind(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    batch = [bench.claim_call(run, call), c.RequestCancel(**bench.base(run), by="ann")]
    with holding(bench, LOCK_ROW, call) as other, ThreadPoolExecutor(1) as pool:
        applied = pool.submit(bench.ledger.apply, list(reversed(batch)))
        until_waiting(bench)
        other.rollback()
        assert applied.result()[0] == c.Done("STOPPED")
    assert bench.sql("SELECT count(*) FROM fencepost.outbox WHERE run = %s", run) == [(0,)]


# -- locks -------------------------------------------------------------------------------------------


def test_a_lock_that_is_held_for_a_moment_is_waited_for(bench: Bench) -> None:
    run = bench.start()
    with holding(bench, LOCK_RUN, run) as other, ThreadPoolExecutor(1) as pool:
        claimed = pool.submit(bench.one, bench.claim_run(run))
        until_waiting(bench)
        other.rollback()
        assert isinstance(claimed.result(), c.Plan)


def test_a_lock_that_is_held_beyond_the_lock_timeout_costs_a_rerun(bench: Bench) -> None:
    run = bench.start()
    with holding(bench, LOCK_RUN, run) as other, ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        claimed = pool.submit(bench.one, bench.claim_run(run))
        until_waiting(bench)
        while time.monotonic() - began < 1.2:  # the first try has timed out after a second
            time.sleep(0.01)
        until_waiting(bench)
        other.rollback()
        assert isinstance(claimed.result(), c.Plan)


def test_a_lock_that_is_never_given_back_is_said_to_be_postgres_that_is_busy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.ledger.apply.RERUNS", 0)
    run = bench.start()
    with holding(bench, LOCK_RUN, run), pytest.raises(Unreachable, match="busy"):
        bench.one(bench.claim_run(run))
    assert bench.run(run).seq == 0


def test_a_deadlock_is_run_again(bench: Bench) -> None:
    first, second = sorted([bench.start(), bench.start()])
    claims = [bench.claim_run(run) for run in (first, second)]
    with holding(bench, LOCK_RUN, second) as other, ThreadPoolExecutor(1) as pool:
        claimed = pool.submit(bench.ledger.apply, claims)
        until_waiting(bench)  # it holds the first and waits for the second
        with suppress(psycopg.errors.DeadlockDetected):  # Postgres chooses either of the two
            other.execute(LOCK_RUN, [first])
        other.rollback()
        assert all(isinstance(answer, c.Plan) for answer in claimed.result())


def test_a_worker_frozen_inside_a_transaction_does_not_freeze_the_others(bench: Bench) -> None:
    run = bench.start()
    frozen = connect(bench.database.dsns["worker"], "frozen")
    frozen.execute(LOCK_RUN, [run])
    assert isinstance(bench.one(bench.claim_run(run)), c.Plan), "Postgres ended the frozen session after 2 s"
    with pytest.raises(psycopg.Error) as caught:
        frozen.execute("SELECT 1")
    assert isinstance(translate(caught.value, bench.database.dsns["worker"]), Unreachable)
    frozen.close()


def test_the_sessions_of_a_ledger_are_bounded(bench: Bench) -> None:
    with connect(bench.database.dsns["worker"], "bounded") as connection:
        for name, value in {
            "idle_in_transaction_session_timeout": "2s",
            "lock_timeout": "1s",
            "transaction_timeout": "10s",
            "TimeZone": "UTC",
            "transaction_isolation": "read committed",
        }.items():
            assert connection.execute(f"SHOW {name}").fetchone() == (value,)


# -- producers ---------------------------------------------------------------------------------------

ENQUEUE = "SELECT * FROM fencepost.enqueue_run(%s, %s, 'p', 1, 'svc:checkout', %s::jsonb, '1 minute')"


def test_eight_producers_of_one_run_key_start_one_run(bench: Bench) -> None:
    key = f"key-{uuid7()}"

    def enqueue(_number: int) -> Any:
        with psycopg.connect(bench.database.dsns["producer"], autocommit=True) as connection:
            return connection.execute(ENQUEUE, [TENANT, key, '{"a": 1, "b": 2}']).fetchone()

    answers = at_once(enqueue)
    assert len({run for run, _ in answers}) == 1
    assert sorted(created for _, created in answers) == [False] * 7 + [True]
    assert bench.sql("SELECT count(*) FROM fencepost.runs WHERE run_key = %s", key) == [(1,)]
    assert bench.sql("SELECT count(*) FROM fencepost.outbox WHERE run = %s", answers[0][0]) == [(1,)]
    with pytest.raises(psycopg.Error) as caught:
        bench.producer.execute(ENQUEUE, [TENANT, key, '{"a": 1, "b": 3}'])
    assert caught.value.sqlstate == "FP409"
    same = bench.producer.execute(ENQUEUE, [TENANT, key, '{"b":2,"a":1}']).fetchone()
    assert same == (answers[0][0], False), "the same JSON in another order is the same request"
    other = bench.producer.execute(ENQUEUE, ["another", key, '{"a": 1, "b": 3}']).fetchone()
    assert other is not None
    assert other[1] is True, "a run key is a tenant's own"


def due(bench: Bench, *runs: UUID) -> list[UUID]:
    """What a relay would take, among these runs."""
    found = bench.sql(
        "SELECT subject FROM fencepost.outbox WHERE publish_at <= fencepost.now() AND subject = ANY(%s)"
        " ORDER BY publish_at",
        list(runs),
    )
    return [subject for (subject,) in found]


def test_a_run_whose_producer_commits_late_is_still_seen(bench: Bench) -> None:
    with psycopg.connect(bench.database.dsns["producer"]) as slow:
        row = slow.execute(ENQUEUE, [TENANT, f"key-{uuid7()}", "{}"]).fetchone()
        assert row is not None
        late = row[0]
        early = bench.start()
        assert due(bench, late, early) == [early]
        assert isinstance(bench.one(bench.claim_run(early)), c.Plan)
        assert bench.one(bench.claim_run(late, generation=1)) == c.Gone(), (
            "its message ran ahead of its COMMIT"
        )
        slow.commit()
    assert due(bench, late, early) == [late]
    assert isinstance(bench.one(bench.claim_run(late)), c.Plan)


def test_a_producer_that_rolls_back_leaves_nothing(bench: Bench) -> None:
    key = f"key-{uuid7()}"
    with psycopg.connect(bench.database.dsns["producer"]) as connection:
        row = connection.execute(ENQUEUE, [TENANT, key, "{}"]).fetchone()
        assert row is not None
        connection.rollback()
    assert bench.sql("SELECT count(*) FROM fencepost.outbox WHERE run = %s", row[0]) == [(0,)]
    assert bench.one(bench.claim_run(row[0], generation=1)) == c.Gone()
    bench.enqueue(key)


# -- lost rows ---------------------------------------------------------------------------------------


def lose(bench: Bench, subject: UUID) -> None:
    bench.sql("SET session_replication_role = replica")
    bench.sql("DELETE FROM fencepost.outbox WHERE subject = %s", subject)
    bench.sql("SET session_replication_role = origin")


def sweep(bench: Bench, run: UUID, subject: UUID) -> None:
    bench.one(c.Sweep(**bench.base(run), subject=subject))


def test_a_lost_row_comes_back_where_the_state_says(bench: Bench) -> None:
    run = bench.start()
    lose(bench, run)
    assert bench.one(bench.claim_run(run, generation=1)) == c.Busy()
    sweep(bench, run, run)
    call = bench.debit(run, bench.order())
    send, _ = bench.dispatch(run, call)
    lose(bench, call)
    sweep(bench, run, call)
    row = bench.row(call)
    assert row is not None
    assert (row.queue, row.due_at) == (Queue.RECONCILER, bench.call(call).ready_at)
    assert send.attempt == 1


def test_a_sweep_leaves_a_row_that_is_there_alone(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    bench.dispatch(run, call)
    bench.sql(
        "UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", call
    )  # a pulse ended
    before = bench.row(call)
    sweep(bench, run, call)
    assert bench.row(call) == before


def test_a_sweep_does_not_put_a_woken_waiter_to_sleep_again(bench: Bench) -> None:
    order, first, second = bench.order(), bench.start(), bench.start()
    held, waiter = bench.debit(first, order), bench.debit(second, order)
    bench.succeed(first, held)
    woken = bench.row(waiter)
    sweep(bench, second, waiter)
    assert bench.row(waiter) == woken
    assert bench.one(bench.claim_call(second, waiter)) == c.Done("SUCCEEDED")


def test_a_waiter_whose_row_was_lost_looks_at_its_key_at_once(bench: Bench) -> None:
    order, first, second = bench.order(), bench.start(), bench.start()
    held, waiter = bench.debit(first, order), bench.debit(second, order)
    lose(bench, waiter)
    bench.succeed(first, held)  # nobody could be woken
    sweep(bench, second, waiter)
    assert bench.one(bench.claim_call(second, waiter)) == c.Done("SUCCEEDED")


def test_nothing_that_ended_gets_a_row(bench: Bench) -> None:
    run = bench.start()
    bench.cancel(run)
    sweep(bench, run, run)
    assert bench.row(run) is None


def test_a_dead_workers_row_stays_due_when_evidence_arrives_beside_it(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.ahead(4)
    bench.reconcile(run, call)
    bench.sql(
        "UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", call
    )  # its pulse ended
    before = bench.row(call)
    bench.one(bench.evidence(send, term, APPLIED))
    assert before is not None
    after = bench.row(call)
    assert after is not None
    assert after.due_at <= before.due_at
    answer, _ = bench.reconcile(run, call)
    assert answer == c.Done("SUCCEEDED")
