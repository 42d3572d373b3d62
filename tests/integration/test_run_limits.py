"""How far a run may go without getting anywhere, and how long its history may grow; a cancel always works."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.ledger.connect import connect
from fencepost.ledger.reads import context_calls
from fencepost.ledger.verify import verify_run
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.progress import stuck
from fencepost.proposals import Rejected
from fencepost.recovery import Answer
from fencepost_ops.bench_measures import cpu_s
from tests.acceptance.weather import long_only
from tests.integration.ledger_bench import TENANT, Bench

ANSWER = Applied('{"n":1}', None)
AGAIN = Refused("http_503", "busy", retryable=True)


def why(bench: Bench, run: UUID) -> tuple[str | None, str]:
    row = bench.run(run)
    return row.stop_reason, row.stop_detail or ""


def rejected(bench: Bench, run: UUID) -> None:
    """A turn whose only proposal is refused."""
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    turn = bench.turn(run, claim, ("nothing", {}))
    assert isinstance(turn.proposals[0], Rejected)
    bench.one(turn)


def denied(bench: Bench, run: UUID) -> None:
    """A turn whose only proposal is not authorised; its tool is not required."""
    bench.gate.closed.add(("wallet.note", "recording"))
    bench.plan(run, ("wallet.note", {"order": bench.order()}))
    bench.gate.closed.clear()


def objected(bench: Bench, run: UUID) -> None:
    """A turn that says that it is done, and is not: the evidence is missing."""
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    turn = replace(bench.finish_with(bench.turn(run, claim)), objection="the invoice is missing")
    assert bench.one(turn) == c.Done("ACTING")


def empty(bench: Bench, run: UUID) -> None:
    bench.plan(run)


def look(bench: Bench, run: UUID) -> None:
    """A turn with one read that is answered."""
    call = bench.debit(run, bench.order(), "wallet.balance")
    assert bench.record(*bench.dispatch(run, call), ANSWER) == c.Done("SUCCEEDED")


@pytest.mark.parametrize("turn", [empty, rejected, denied, objected])
def test_turns_from_which_no_intent_comes_end_the_run(bench: Bench, turn: Any) -> None:
    run = bench.start(budget='{"fruitless": 3}')
    for _ in range(3):
        turn(bench, run)
    assert bench.one(bench.claim_run(run)) == c.Done("STOPPED")
    assert why(bench, run) == ("no_progress", "no intent came from 3 turns in a row")


def test_an_intent_begins_the_count_anew_and_nothing_else_does(bench: Bench) -> None:
    run = bench.start(budget='{"fruitless": 3}')
    for turn in (empty, rejected, look, objected):
        turn(bench, run)
    assert bench.run(run).fruitless == 1
    bench.one(bench.claim_run(run))
    bench.ahead(5)  # its worker is lost, and another one asks
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    bench.one(c.RecordPlanLost(**bench.base(run), term=claim.term, code="timeout", message="no answer"))
    bench.ahead(11)
    assert bench.run(run).fruitless == 1
    for turn in (denied, empty):
        turn(bench, run)
    assert bench.one(bench.claim_run(run)) == c.Done("STOPPED")
    assert why(bench, run)[0] == "no_progress"


def test_a_failure_is_read_with_its_code(bench: Bench) -> None:
    run = bench.start()
    failed, other = bench.plan(run, *[("wallet.note", {"order": bench.order()}) for _ in range(2)])
    bench.record(*bench.dispatch(run, failed), Refused("no_price", "none, in request 7", retryable=False))
    bench.succeed(run, other)
    with connect(bench.database.dsns["worker"], "planner") as connection:
        calls = context_calls(connection, [(TENANT, run, 0)])[TENANT, run]
    assert [(call.code, call.error) for call in calls] == [("no_price", "none, in request 7"), (None, None)]
    again = [replace(calls[0], turn=n, error=f"none, in request {n}") for n in range(3)]
    assert stuck(again, 3, lambda name, version: bench.app.registry.get((name, version))) is not None


def test_what_a_person_is_asked_about_is_an_intent(bench: Bench) -> None:
    run = bench.start(budget='{"fruitless": 2, "tainted": true}')
    empty(bench, run)
    (call,) = bench.plan(run, ("mail.send", {"order": bench.order()}))
    assert bench.state(call) == "AWAITING_APPROVAL"
    assert bench.run(run).fruitless == 0


# -- histories -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["events", "bytes"])
def test_a_history_at_its_limit_begins_no_turn_and_no_attempt(bench: Bench, what: str) -> None:
    short = {"events": 40, "bytes": 8000}[what]
    run = bench.start(budget=json.dumps({what: short, "turns": 100}))
    for _ in range(30):
        claim = bench.claim_run(run)
        if not isinstance(bench.one(claim), c.Plan):
            break
        turn = bench.turn(run, claim, ("wallet.balance", {"order": bench.order()}))
        bench.one(turn)
        sent = bench.one(bench.claim_call(run, turn.call_ids[0], term := bench.term()))
        if not isinstance(sent, c.Send):
            assert bench.call(turn.call_ids[0]).error
            break
        bench.record(sent, term, ANSWER)
    row = bench.run(run)
    assert (row.status, why(bench, run)[0]) == ("STOPPED", "history_limit")
    assert why(bench, run)[1].startswith(f"{what}: the history has")
    assert getattr(row, {"events": "seq"}.get(what, what)) < 2 * short, "what was begun is recorded, no more"


def test_turns_alone_do_not_grow_a_history_without_end(bench: Bench) -> None:
    run = bench.start(budget='{"events": 20, "turns": 100, "fruitless": 100}')
    while isinstance(bench.one(claim := bench.claim_run(run)), c.Plan):
        bench.one(bench.turn(run, claim))
    assert why(bench, run)[0] == "history_limit"
    assert bench.run(run).seq < 20 + 8, "what was begun, and the stop"


def test_an_attempt_that_fails_again_and_again_does_not_grow_a_history_without_end(bench: Bench) -> None:
    run = bench.start(budget='{"events": 14}')
    call = bench.debit(run, bench.order(), "wallet.note")
    for _ in range(10):
        term = bench.term()
        sent = bench.one(bench.claim_call(run, call, term))
        if not isinstance(sent, c.Send):
            break
        bench.record(sent, term, AGAIN)
        bench.ahead(1)
    assert why(bench, run)[0] == "history_limit"
    assert (bench.status(run), bench.state(call)) == ("STOPPED", "REJECTED")
    assert (bench.call(call).error or "").startswith("history_limit: the run may not go on (events: the hist")


@contextmanager
def overgrown(bench: Bench) -> Iterator[tuple[UUID, UUID]]:
    """A run beyond its limit with an attempt in flight that nobody knows the outcome of."""
    run = bench.start(budget='{"events": 11}')
    call = bench.debit(run, bench.order())
    bench.record(*bench.dispatch(run, call), Unsure("timeout", "no answer"))
    assert bench.run(run).seq > 11
    yield run, call


def test_a_run_at_its_limit_is_cancelled_like_any_other_and_settles_what_is_in_flight(bench: Bench) -> None:
    with overgrown(bench) as (run, call):
        assert bench.cancel(run) == c.Done("STOPPING")
        ask, term = bench.reconcile(run, call)
        assert isinstance(ask, c.Ask), ask
        bench.one(bench.looked_up(ask, term, Answer.FOUND, "r-1"))
        assert bench.state(call) == "SUCCEEDED"
        bench.ahead(5)
        _, refund = bench.offset(run)
        bench.succeed(run, refund, "r-2")
        bench.one(bench.claim_stopped(run))
        assert (bench.status(run), why(bench, run)[0]) == ("STOPPED", "cancelled")


def used(bench: Bench) -> float:
    """CPU seconds of this process and of the sessions with its database, which its pools keep."""
    sessions = bench.sql("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
    return time.process_time() + sum(cpu_s(pid) for (pid,) in sessions)


def polled(bench: Bench, steps: int, budget: str) -> tuple[UUID, list[float]]:
    """A run of so many steps, and the CPU seconds of each tenth of them, here and in Postgres."""
    run = bench.start(budget=budget, deadline_s=100_000)
    took: list[float] = []
    for _ in range(10):
        begun = used(bench)
        for _ in range(steps // 10):
            look(bench, run)
        took.append(used(bench) - begun)
    return run, took


def _grows_with_what_is_new(bench: Bench, steps: int) -> None:
    budget = json.dumps({"turns": 10**6, "calls": 10**6, "attempts": 10**6, "events": 10**6, "bytes": 10**9})
    run, took = polled(bench, steps, budget)
    row = bench.run(run)
    per_step = [
        bench.sql(
            "SELECT sum(octet_length(body::text)) FROM fencepost.events"
            " WHERE run = %s AND seq > %s AND seq <= %s",
            run, row.seq * n // 10, row.seq * (n + 1) // 10,
        )[0][0]
        for n in range(10)
    ]  # fmt: skip
    assert per_step[9] < 1.2 * per_step[1], "the last step keeps as much as the second did"
    if steps >= 1000:
        assert sorted(took[5:])[2] < 3 * sorted(took[:5])[2], "and costs as much"
    assert row.bytes == sum(per_step)
    with connect(bench.database.dsns["reader"], "verify") as connection:
        assert verify_run(connection, TENANT, run).fault is None, "within the time of one transaction"
    assert bench.cancel(run) == c.Done("STOPPED")


def test_storage_and_replay_grow_with_what_is_new(bench: Bench) -> None:
    _grows_with_what_is_new(bench, 30)


@long_only
@pytest.mark.timeout(900)
def test_storage_and_replay_of_five_thousand_steps_grow_with_what_is_new(bench: Bench) -> None:
    _grows_with_what_is_new(bench, 5000)
