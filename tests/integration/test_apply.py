"""`apply` on real Postgres: what it answers, once and again, alone and in batches."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.clock import token, uuid7
from fencepost.ledger.verify import verify_run
from fencepost.outcomes import Applied, Unsure
from fencepost.recovery import Answer
from tests.integration.ledger_bench import TENANT, Bench, kept

APPLIED = Applied('{"id":"r-1"}', "r-1")
LOST = Unsure("timeout", "the answer was lost")


def again(bench: Bench, command: c.Command) -> Any:
    """Apply a command a second time, as after a lost COMMIT reply: nothing may be written."""
    before = len(bench.events(command.run)), bench.row(command.run)
    answer = bench.one(command)
    assert (len(bench.events(command.run)), bench.row(command.run)) == before
    return answer


def test_a_run_with_one_call_completes_and_its_outbox_drains(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    bench.succeed(run, call)
    assert bench.finish(run) == c.Done("COMPLETED")
    assert bench.sql("SELECT count(*) FROM fencepost.outbox WHERE run = %s", run) == [(0,)]
    assert bench.kinds(run) == [
        "RunCreated",
        "LeaseAcquired",
        "ModelRequestStarted",
        "ModelResponseRecorded",
        "ToolProposalRecorded",
        "ArgumentsCanonicalized",
        "AuthorizationAllowed",
        "DispatchIntentRecorded",
        "LeaseAcquired",
        "AuthorizationAllowed",
        "ToolAttemptStarted",
        "ToolResultRecorded",
        "LeaseAcquired",
        "ModelRequestStarted",
        "RunCompleted",
    ]


# -- once more after a lost COMMIT reply ---------------------------------------------------------------


def test_a_claim_of_a_run_gives_its_order_again_with_the_time_that_is_left(bench: Bench) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    first = bench.one(claim)
    bench.ahead(0.5)
    second = again(bench, claim)
    assert isinstance(second, c.Plan)
    assert (second.run.id, second.run.turn) == (first.run.id, first.run.turn)
    assert timedelta(0) < second.timeout < first.timeout - timedelta(seconds=0.5)


def test_a_claim_of_a_run_is_given_again_with_the_signals_it_was_pinned_to(bench: Bench) -> None:
    runs = [bench.start() for _ in range(3)]
    for run in runs[:2]:
        signal(bench, run, "before")
    claims = [bench.claim_run(run) for run in runs]
    firsts = bench.ledger.apply(claims)
    signal(bench, runs[0], "after")  # it is for the next turn: this one is not told of it
    seconds = bench.ledger.apply(claims)
    for first, second, sent in zip(firsts, seconds, (1, 1, 0), strict=True):
        assert isinstance(first, c.Plan)
        assert isinstance(second, c.Plan)
        assert replace(second, run=first.run, timeout=first.timeout) == first
        assert second.signals == sent


def signal(bench: Bench, run: UUID, key: str) -> None:
    bench.sql("SELECT fencepost.signal_run(%s, %s, %s, 'stop', '{}', 'svc:x')", TENANT, run, key)


@pytest.mark.parametrize("budget", ["{}", '{"tainted": true}'])
def test_a_claim_of_a_call_gives_its_order_again_with_the_time_that_is_left(
    bench: Bench, budget: str
) -> None:
    run = bench.start(budget=budget)
    call = bench.debit(run, bench.order())
    claim = bench.claim_call(run, call)
    first = bench.one(claim)
    bench.ahead(0.5)
    second = again(bench, claim)
    assert isinstance(second, c.Send)
    assert replace(second, timeout=first.timeout) == first
    assert second.tainted == ("tainted" in budget)
    assert second.timeout < first.timeout - timedelta(seconds=0.5)


def test_an_attempt_made_again_after_a_doubt_is_given_again_as_one(bench: Bench) -> None:
    run = bench.start(budget='{"tainted": true}')
    call = bench.debit(run, bench.order(), "wallet.tip")
    send, term = bench.dispatch(run, call)
    bench.record(send, term, LOST)
    bench.ahead(5)
    claim = bench.claim_doubt(run, call)
    first = bench.one(claim)
    assert isinstance(first, c.Send)
    assert (first.repeat, first.tainted) == (True, True)
    assert replace(again(bench, claim), timeout=first.timeout) == first


def test_a_question_to_the_downstream_is_asked_again_and_is_as_young_as_its_asking(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.record(send, term, LOST)
    claim = bench.claim_doubt(run, call)
    first = bench.one(claim)
    bench.ahead(0.5)
    second = again(bench, claim)
    assert isinstance(second, c.Ask)
    assert second.call == first.call
    assert second.asked_at > first.asked_at


def test_a_compensation_to_plan_is_given_again(bench: Bench) -> None:
    run = bench.start()
    bench.succeed(run, bench.debit(run, bench.order()))
    bench.cancel(run)
    claim = bench.claim_stopped(run)
    first = bench.one(claim)
    second = again(bench, claim)
    assert isinstance(second, c.Offset)
    assert second.forward == first.forward
    assert timedelta(0) < second.timeout < first.timeout
    record = bench.compensation(claim, first)
    assert bench.one(record) == again(bench, record) == c.Done("COMPENSATING")


def test_a_claim_that_somebody_took_over_since_leaves_nothing_to_do(bench: Bench) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    bench.one(claim)
    bench.ahead(4)
    assert isinstance(bench.one(bench.claim_run(run)), c.Plan)
    assert again(bench, claim) == c.Done("PLANNING")


def test_records_and_offices_return_their_first_outcome(bench: Bench) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    bench.one(claim)
    turn = bench.turn(run, claim, ("wallet.debit", {"order": bench.order()}))
    assert bench.one(turn) == again(bench, turn) == c.Done("ACTING")
    (call,) = turn.call_ids
    send, term = bench.dispatch(run, call)
    lost = bench.outcome(send, term, LOST)
    assert bench.one(lost) == again(bench, lost) == c.Done("UNKNOWN")
    ask, asking = bench.reconcile(run, call)
    told = bench.looked_up(ask, asking, Answer.FOUND, "r-1")
    assert bench.one(told) == again(bench, told) == c.Done("SUCCEEDED")
    filed = bench.evidence(send, term, Applied('{"id":"r-2"}', "r-2"))
    assert bench.one(filed) == again(bench, filed) == c.Done("NEEDS_REPAIR")
    assert bench.sql("SELECT count(*) FROM fencepost.evidence WHERE call = %s", call) == [(1,)]
    cancel = c.RequestCancel(**bench.base(run), by="ann")
    assert bench.one(cancel) == again(bench, cancel) == c.Done("COMPENSATING")
    assert bench.cancel(run) == c.Done("COMPENSATING"), "a second cancel is told where the run stands"


# -- batches -------------------------------------------------------------------------------------------


def test_two_changes_of_one_run_in_one_batch_both_count(bench: Bench) -> None:
    run = bench.start()
    order = bench.order()
    calls = bench.plan(run, *[(f"wallet.{tool}", {"order": order}) for tool in ("debit", "hold")])
    sent = [bench.dispatch(run, call) for call in calls]
    answers = bench.ledger.apply([bench.outcome(send, term, APPLIED) for send, term in sent])
    assert answers == [c.Done("SUCCEEDED"), c.Done("SUCCEEDED")]
    assert (bench.run(run).effects, bench.run(run).open) == (2, 0)
    assert isinstance(bench.one(bench.claim_run(run)), c.Plan), (
        "the last success made the planner due at once"
    )


def test_a_turn_and_a_cancel_in_one_batch_both_count(bench: Bench) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    bench.one(claim)
    turn = bench.turn(run, claim, ("wallet.debit", {"order": bench.order()}))
    cancel = c.RequestCancel(**bench.base(run), by="ann")
    assert bench.ledger.apply([turn, cancel]) == [c.Done("ACTING"), c.Done("STOPPED")]
    assert bench.state(turn.call_ids[0]) == "CANCELLED"
    assert bench.operation(turn.call_ids[0]).status == "released"


def test_evidence_counts_for_a_settlement_later_in_the_same_batch(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.ahead(4)  # fenced out, and quiet: an absence would be proof
    ask, asking = bench.reconcile(run, call)
    absent = bench.looked_up(ask, asking, Answer.ABSENT)
    filed = bench.evidence(send, term, APPLIED)
    assert bench.ledger.apply([filed, absent]) == [c.Done("UNKNOWN"), c.Done("NEEDS_REPAIR")]


def test_one_refused_command_does_not_take_its_neighbours_down(bench: Bench) -> None:
    runs = [bench.start() for _ in range(7)]
    calls = [bench.debit(run, bench.order()) for run in runs]
    batch: list[c.Command] = [bench.claim_call(run, call) for run, call in zip(runs, calls, strict=True)]
    send, term = bench.dispatch(runs[3], calls[3])
    stranger = replace(term, owner=token())
    batch[3] = bench.evidence(send, stranger, APPLIED)  # no such attempt: Postgres refuses it
    answers = bench.ledger.apply(batch)
    assert isinstance(answers[3], c.Broken)
    assert all(isinstance(a, c.Send) for n, a in enumerate(answers) if n != 3)


def test_a_command_that_cannot_be_decided_does_not_take_its_neighbours_down(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    bench.sql("SET session_replication_role = replica")
    bench.sql("""UPDATE fencepost.runs SET request = '{"budget": {"bogus": 1}}' WHERE id = %s""", second)
    bench.sql("SET session_replication_role = origin")
    good, bad = bench.ledger.apply([bench.claim_run(first), bench.claim_run(second)])
    assert isinstance(good, c.Plan)
    assert isinstance(bad, c.Broken)
    assert "bogus" in bad.why


@contextmanager
def counted() -> Iterator[list[str]]:
    statements: list[str] = []
    execute = psycopg.Connection.execute

    def noting(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        statements.append(str(query))
        return execute(self, query, *args, **kwargs)

    with patch.object(psycopg.Connection, "execute", noting):
        yield statements


def test_a_hundred_claims_cost_as_many_statements_as_one(bench: Bench) -> None:
    runs = [bench.start() for _ in range(101)]
    claims = [bench.claim_run(run) for run in runs]
    with counted() as one:
        bench.one(claims[0])
    with counted() as hundred:
        answers = bench.ledger.apply(claims[1:])
    assert all(isinstance(answer, c.Plan) for answer in answers)
    assert len(hundred) == len(one) < 20
    records = [bench.turn(run, claim) for run, claim in zip(runs, claims, strict=True)]
    with counted() as statements:
        assert set(bench.ledger.apply(records)) == {c.Done("ACTING")}
    assert len(statements) < 20


def test_an_empty_batch_is_nothing(bench: Bench) -> None:
    with counted() as statements:
        assert bench.ledger.apply([]) == []
    assert statements == []


# -- what a message may not do -------------------------------------------------------------------------


def test_a_message_of_another_generation_or_queue_is_old_news(bench: Bench) -> None:
    run = bench.start()
    now = bench.generation(run)
    assert bench.one(bench.claim_run(run, generation=now - 1)) == c.Moved()
    assert bench.one(bench.claim_run(run, generation=now + 1)) == c.Moved()
    assert bench.one(bench.claim_stopped(run)) == c.Moved()
    assert isinstance(bench.one(bench.claim_run(run)), c.Plan)
    assert bench.one(bench.claim_run(run, generation=now)) == c.Moved()


def test_a_message_that_comes_early_is_dropped(bench: Bench) -> None:
    run = bench.start()
    bench.one(bench.claim_run(run))
    assert bench.one(bench.claim_run(run)) == c.Moved(), "taken over before its holder's time is over"
    bench.ahead(3.5)
    assert isinstance(bench.one(bench.claim_run(run)), c.Plan)


def test_a_message_of_something_that_ended_or_never_was_is_gone(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    bench.succeed(run, call)
    assert bench.one(bench.claim_call(run, call)) == c.Gone()
    assert bench.one(bench.claim_doubt(run, call)) == c.Gone()
    bench.finish(run)
    assert bench.one(bench.claim_run(run)) == c.Gone()
    assert bench.one(bench.claim_run(uuid7())) == c.Gone()
    assert bench.one(bench.claim_call(run, uuid7())) == c.Gone()


def test_a_worker_that_may_be_presumed_dead_claims_nothing(bench: Bench) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    assert bench.one(replace(claim, worker=token())) == c.NotAlive()
    bench.sql("UPDATE fencepost.workers SET last_seen = fencepost.now() - interval '61 minutes'")
    assert bench.one(claim) == c.NotAlive()
    bench.sql("UPDATE fencepost.workers SET last_seen = fencepost.now(), ended_at = fencepost.now()")
    assert bench.one(claim) == c.NotAlive()
    bench.owner.execute("SET session_replication_role = replica")  # it never comes back; the bench's must
    bench.sql("UPDATE fencepost.workers SET ended_at = NULL")
    bench.owner.execute("SET session_replication_role = origin")
    assert isinstance(bench.one(claim), c.Plan)


def test_a_lease_that_is_not_higher_than_the_accepted_fence_takes_nothing(bench: Bench) -> None:
    run = bench.start()
    first = bench.term()
    bench.one(bench.claim_run(run, first))
    bench.ahead(4)
    assert bench.one(bench.claim_run(run, replace(first, owner=token()))) == c.Fenced()
    assert bench.one(bench.claim_run(run, c.Term(token(), first.fence - 1))) == c.Fenced()
    assert isinstance(bench.one(bench.claim_run(run, c.Term(token(), first.fence + 1))), c.Plan)


def test_who_lost_its_term_records_nothing(bench: Bench) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    bench.one(claim)
    bench.ahead(4)
    bench.one(bench.claim_run(run))
    assert bench.one(bench.turn(run, claim)) == c.Fenced()
    lost = c.RecordPlanLost(**bench.base(run), term=claim.term, code="timeout", message="late")
    assert bench.one(lost) == c.Fenced()


def test_what_this_process_does_not_know_is_left_to_another_untouched(bench: Bench) -> None:
    run = bench.start()
    ignorant = bench.ledger_as("worker", tool=lambda _n, _v: None, planner=lambda _n, _v: False)
    (answer,) = ignorant.apply([bench.claim_run(run)])
    assert answer == c.Unfamiliar("planner p version 1")
    call = bench.debit(run, bench.order())
    before = bench.row(call), bench.call(call)
    (answer,) = ignorant.apply([bench.claim_call(run, call)])
    assert answer == c.Unfamiliar("tool wallet.debit version 1")
    assert (bench.row(call), bench.call(call)) == before
    bench.succeed(run, call)
    bench.cancel(run)
    before_run = bench.run(run)
    (answer,) = ignorant.apply([bench.claim_stopped(run)])
    assert answer == c.Unfamiliar("tool wallet.debit version 1")
    assert bench.run(run) == before_run, "an effect that could be offset is not given up"


def test_a_call_with_no_time_left_is_not_dispatched(bench: Bench) -> None:
    run = bench.start(deadline_s=30)
    call = bench.debit(run, bench.order(), "slow.pay")
    bench.ahead(26)  # the reserve of five seconds is not to be used up
    assert bench.one(bench.claim_call(run, call)) == c.Late()
    row, deadline = bench.row(call), bench.run(run).deadline
    assert row is not None
    assert row.due_at >= deadline
    assert bench.call(call).attempts == 0
    bench.ahead(5)
    quiet = len(bench.events(run))
    assert bench.one(bench.claim_call(run, call)) in {c.Late(), c.Moved()}
    assert len(bench.events(run)) == quiet, "past the deadline nothing spins"
    assert bench.one(bench.claim_run(run)) == c.Done("STOPPED")
    assert bench.state(call) == "CANCELLED"


def test_a_payload_is_kept_once_under_its_digest(bench: Bench) -> None:
    for _ in range(2):
        run = bench.start()
        bench.succeed(run, bench.debit(run, bench.order()))
    digest = kept('{"id":"r-1"}').digest
    found = bench.sql("SELECT data FROM fencepost.payloads WHERE tenant = %s AND digest = %s", TENANT, digest)
    assert found == [(b'{"id":"r-1"}',)]


def test_a_real_answer_is_recorded_under_its_term_however_late(bench: Bench) -> None:
    run = bench.start(deadline_s=30)
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.ahead(60)
    assert bench.record(send, term, APPLIED) == c.Done("SUCCEEDED")
    with psycopg.connect(bench.database.dsns["reader"]) as connection:
        assert verify_run(connection, TENANT, run).ok
