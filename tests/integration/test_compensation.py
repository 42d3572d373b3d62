"""Offsetting a stopped run's effects: in reverse order, one at a time, each with its own key and outcome."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.clock import NEVER
from fencepost.ledger import connect
from fencepost.ledger.abandoned import Abandoned, abandoned
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.proposals import Rejected, Validated
from fencepost.tools import compensation_key
from tests.integration.ledger_bench import Bench

APPLIED = Applied('{"id":"r-1"}', "r-1")
LOST = Unsure("timeout", "the answer was lost")
REFUSED = Refused("http_402", "no money", retryable=False)


def effects(bench: Bench, *tools: str, **how: Any) -> tuple[UUID, list[UUID]]:
    """A run with these effects, cancelled; whatever was sent is quiet by now."""
    run = bench.start(deadline_s=600, **how)
    calls = []
    for number, tool in enumerate(tools):
        call = bench.debit(run, bench.order(), tool)
        bench.succeed(run, call, f"r-{number}")
        calls.append(call)
    assert bench.cancel(run) in {c.Done("COMPENSATING"), c.Done("STOPPED")}
    bench.ahead(4)
    return run, calls


def end(bench: Bench, run: UUID) -> dict[str, Any]:
    """The end state as its last event tells it."""
    last = bench.events(run)[-1]
    assert last.type == "RunStopped"
    return last.data


def test_effects_are_offset_in_reverse_order_one_at_a_time(bench: Bench) -> None:
    run, (first, second) = effects(bench, "wallet.debit", "wallet.hold")
    forward, undo = bench.offset(run)
    assert forward == second
    row = bench.row(run)
    assert row is not None
    assert row.due_at == NEVER, "nothing else is planned while one is on its way"
    made = bench.call(undo)
    assert made.operation == compensation_key(bench.call(second).operation or "")
    assert (made.compensates, made.required) == (bench.call(second).operation, False)
    assert bench.operation(second).status == "completed"
    send, term = bench.dispatch(run, undo)
    assert bench.operation(second).status == "compensating"
    assert send.key == made.operation
    assert bench.record(send, term, APPLIED) == c.Done("SUCCEEDED")
    assert bench.operation(second).status == "compensated"
    forward, undo = bench.offset(run)
    assert forward == first
    bench.succeed(run, undo)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    assert end(bench, run)["offset"] == [str(second), str(first)]
    assert (end(bench, run)["not_offset"], bench.run(run).effects) == ([], 0)


def test_a_run_that_is_to_leave_its_effects_ends_at_once_and_counts_them(bench: Bench) -> None:
    run, _ = effects(bench, "wallet.debit", on_stop="leave")
    assert bench.status(run) == "STOPPED"
    assert end(bench, run)["effects"] == 1


def test_a_completed_runs_effects_are_never_offset(bench: Bench) -> None:
    run = bench.start()
    bench.succeed(run, bench.debit(run, bench.order()))
    assert bench.finish(run) == c.Done("COMPLETED")
    assert bench.cancel(run) == c.Gone()


def test_a_compensation_is_not_sent_before_its_effect_is_quiet(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    bench.succeed(run, call)
    bench.cancel(run)
    _, undo = bench.offset(run)
    quiet = bench.call(call).quiet_at
    row = bench.row(undo)
    assert quiet is not None
    assert row is not None
    assert row.due_at == quiet > bench.now()
    assert bench.one(bench.claim_call(run, undo)) == c.Moved()
    bench.ahead(4)
    bench.succeed(run, undo)


def test_the_failure_of_one_compensation_does_not_stop_the_others(bench: Bench) -> None:
    run, (first, second) = effects(bench, "wallet.debit", "wallet.debit")
    _, undo = bench.offset(run)
    send, term = bench.dispatch(run, undo)
    assert bench.record(send, term, REFUSED) == c.Done("FAILED")
    assert bench.operation(second).status == "completed", "its effect is still there, and known"
    forward, undo = bench.offset(run)
    assert forward == first
    bench.succeed(run, undo)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    told = end(bench, run)
    assert told["offset"] == [str(first)]
    left = {
        "call": str(second),
        "tool": "wallet.debit",
        "why": "compensation failed: no money",
        "again": True,
        "owed": True,
    }
    assert told["not_offset"] == [left]
    assert told["effects"] == 1


def test_an_unknown_compensation_is_reconciled_and_may_be_repeated_under_its_key(bench: Bench) -> None:
    run, (call,) = effects(bench, "wallet.hold")
    _, undo = bench.offset(run)
    send, term = bench.dispatch(run, undo)
    assert bench.record(send, term, LOST) == c.Done("UNKNOWN")
    assert bench.operation(call).status == "compensating"
    answer, term = bench.reconcile(run, undo)
    assert isinstance(answer, c.Send)
    assert (answer.repeat, answer.key) == (True, send.key)
    assert bench.record(answer, term, APPLIED) == c.Done("SUCCEEDED")
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")


def test_a_compensation_nobody_can_know_waits_for_a_person_and_holds_the_run(bench: Bench) -> None:
    run, (call,) = effects(bench, "wallet.hold")
    _, undo = bench.offset(run)
    send, term = bench.dispatch(run, undo)
    bench.record(send, term, LOST)
    bench.ahead(31)
    assert bench.reconcile(run, undo)[0] == c.Done("NEEDS_REPAIR")
    assert bench.one(bench.claim_stopped(run)) == c.Done("COMPENSATING")
    row = bench.row(run)
    assert row is not None
    assert row.due_at == NEVER
    assert bench.repair(undo, "SUCCEEDED", "r-9") == c.Done("SUCCEEDED")
    assert bench.operation(call).status == "compensated"
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")


def test_an_effect_that_another_run_has_used_is_not_offset(bench: Bench) -> None:
    order, first, second = bench.order(), bench.start(), bench.start()
    call = bench.debit(first, order)
    bench.succeed(first, call)
    bench.succeed_by_reuse(second, order)
    assert bench.cancel(first) == c.Done("COMPENSATING")
    assert bench.one(bench.claim_stopped(first)) == c.Done("STOPPED")
    assert end(bench, first)["not_offset"] == [{"call": str(call), "tool": "wallet.debit", "why": "shared"}]
    assert bench.cancel(second) == c.Done("STOPPED"), "it made no effect of its own"


def test_an_effect_that_is_used_while_its_compensation_waits_is_not_offset_either(bench: Bench) -> None:
    order, first, second = bench.order(), bench.start(), bench.start()
    call = bench.debit(first, order)
    bench.succeed(first, call)
    bench.cancel(first)
    bench.ahead(4)
    _, undo = bench.offset(first)
    bench.succeed_by_reuse(second, order)
    assert bench.one(bench.claim_call(first, undo)) == c.Done("REJECTED")
    assert bench.operation(call).status == "completed"
    assert bench.one(bench.claim_stopped(first)) == c.Done("STOPPED")
    assert end(bench, first)["not_offset"][0]["why"] == "shared"


def test_once_a_compensation_is_claimed_equals_are_refused(bench: Bench) -> None:
    run, (call,) = effects(bench, "wallet.debit")
    _, undo = bench.offset(run)
    order = bench.sql("SELECT arguments::json->>'order' FROM fencepost.calls WHERE id = %s", call)[0][0]
    send, term = bench.dispatch(run, undo)
    during = bench.start()
    assert (
        bench.call(bench.debit(during, order)).error
        == "key_compensating: the effect of this key is being offset"
    )
    bench.record(send, term, APPLIED)
    after = bench.start()
    assert bench.call(bench.debit(after, order)).error == "key_compensated: the effect of this key was offset"


@pytest.mark.parametrize(
    ("tool", "why"), [("mail.send", "irreversible"), ("wallet.note", "its tool declares no compensation")]
)
def test_what_cannot_be_offset_is_listed(bench: Bench, tool: str, why: str) -> None:
    run, (call,) = effects(bench, tool)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    assert end(bench, run)["not_offset"] == [{"call": str(call), "tool": tool, "why": why}]


def test_a_compensation_function_that_breaks_is_listed_and_stops_nothing(bench: Bench) -> None:
    run, (first, second) = effects(bench, "wallet.debit", "wallet.debit")
    claim = bench.claim_stopped(run)
    order = bench.one(claim)
    broken = Rejected(5, "compensation_failed", "boom", "wallet.debit", "offset", "{}")
    record = replace(bench.compensation(claim, order), proposal=broken)
    assert bench.one(record) == c.Done("COMPENSATING")
    forward, undo = bench.offset(run)
    assert forward == first
    bench.succeed(run, undo)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    assert [left["call"] for left in end(bench, run)["not_offset"]] == [str(second)]


def test_a_compensation_is_authorised_like_any_call(bench: Bench) -> None:
    run, (call,) = effects(bench, "wallet.debit")
    bench.gate.closed.add(("wallet.refund", "claim"))
    _, undo = bench.offset(run)
    assert bench.one(bench.claim_call(run, undo)) == c.Done("REJECTED")
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    assert end(bench, run)["not_offset"][0] == {
        "call": str(call),
        "tool": "wallet.debit",
        "why": "compensation rejected: not authorised (policy_denied): the gate is closed",
        "again": True,
        "owed": True,
    }


def test_a_compensation_has_the_key_of_its_effect_and_no_other(bench: Bench) -> None:
    run, _ = effects(bench, "wallet.debit")
    claim = bench.claim_stopped(run)
    record = bench.compensation(claim, bench.one(claim))
    assert isinstance(record.proposal, Validated)
    own_intent = replace(record.proposal, operation="0" * 64)
    assert isinstance(bench.one(replace(record, proposal=own_intent)), c.Denied)
    assert bench.one(record) == c.Done("COMPENSATING")
    twice = replace(record, id=bench.base(run)["id"], call_id=bench.base(run)["id"])
    assert bench.one(twice) == c.Fenced(), "its term ended with the first"


def test_a_compensation_has_a_deadline_of_its_own(bench: Bench) -> None:
    run = bench.start(deadline_s=20)
    call = bench.debit(run, bench.order())
    bench.succeed(run, call)
    bench.ahead(20)
    assert bench.one(bench.claim_run(run)) == c.Done("COMPENSATING")
    _, undo = bench.offset(run)
    late = bench.call(undo).reconcile_until
    assert late is not None
    assert timedelta(seconds=25) < late - bench.now() < timedelta(seconds=35)
    bench.succeed(run, undo)
    run, _ = effects(bench, "wallet.debit")
    _, undo = bench.offset(run)
    bench.ahead(31)
    assert bench.one(bench.claim_call(run, undo)) == c.Done("REJECTED")


def test_the_attempt_budget_of_a_run_does_not_hold_back_its_compensations(bench: Bench) -> None:
    run, _ = effects(bench, "wallet.debit", budget='{"attempts": 1}')
    _, undo = bench.offset(run)
    bench.succeed(run, undo)
    assert bench.run(run).attempts == 2


def test_a_forward_call_is_settled_before_anything_is_offset(bench: Bench) -> None:
    run = bench.start()
    first, second = bench.plan(
        run, ("wallet.debit", {"order": bench.order()}), ("wallet.hold", {"order": bench.order()})
    )
    bench.succeed(run, first)
    send, term = bench.dispatch(run, second)
    assert bench.cancel(run) == c.Done("STOPPING")
    row = bench.row(run)
    assert row is not None
    assert row.due_at == NEVER
    assert bench.record(send, term, LOST) == c.Done("UNKNOWN")
    assert bench.status(run) == "STOPPING"
    bench.ahead(4)
    answer, term = bench.reconcile(run, second)
    assert isinstance(answer, c.Send)
    assert bench.record(answer, term, APPLIED) == c.Done("SUCCEEDED")
    bench.ahead(4)
    assert bench.offset(run)[0] == second, "a success recorded while stopping is offset as well"


def flagged(bench: Bench, run: UUID) -> list[Abandoned]:
    connection = connect.connect(bench.database.dsns["reader"], "test")
    try:
        return [found for found in abandoned(connection) if found.run == run]
    finally:
        connection.close()


GIVEN_UP = "its planning was given up after 5 lost workers in a row"


def killed_at(bench: Bench, run: UUID, deadly: UUID) -> list[UUID]:
    """Whose compensation was asked for, with a compensator that dies each time it is to offset `deadly`."""
    asked = []
    while isinstance(order := bench.one(claim := bench.claim_stopped(run)), c.Offset):
        asked.append(order.forward.id)
        if order.forward.id != deadly:
            record = bench.compensation(claim, order)
            bench.one(record)
            bench.succeed(run, record.call_id)
        bench.ahead(4)
    return asked


def test_a_compensator_that_dies_is_replaced_and_five_in_a_row_end_the_run_with_the_effect_flagged(
    bench: Bench,
) -> None:
    run, (call,) = effects(bench, "wallet.debit")
    assert killed_at(bench, run, call) == [call] * 5
    left = {"call": str(call), "tool": "wallet.debit", "why": GIVEN_UP, "again": True, "owed": True}
    assert (bench.status(run), end(bench, run)["not_offset"]) == ("STOPPED", [left])
    (found,) = flagged(bench, run)
    assert (found.run, found.call, found.why) == (run, call, GIVEN_UP)


def test_an_effect_whose_planning_kills_its_workers_does_not_hold_up_the_others(bench: Bench) -> None:
    run, (first, second) = effects(bench, "wallet.debit", "wallet.debit")
    assert killed_at(bench, run, second) == [second] * 5 + [first] + [second] * 5
    assert end(bench, run)["offset"] == [str(first)]
    assert [found.call for found in flagged(bench, run)] == [second]


def test_a_person_has_an_effect_that_was_given_up_offset_after_all(bench: Bench) -> None:
    run, (call,) = effects(bench, "wallet.debit")
    killed_at(bench, run, call)
    assert bench.repair(call, c.OFFSET) == c.Done("SUCCEEDED")
    assert (bench.status(run), flagged(bench, run)) == ("COMPENSATING", [])
    assert bench.repair(call, c.OFFSET) == c.Denied(
        "the run is COMPENSATING; only a run that stopped to offset its effects takes this up again"
    )
    assert killed_at(bench, run, UUID(int=0)) == [call]
    assert (end(bench, run)["offset"], flagged(bench, run)) == ([str(call)], [])
    assert bench.repair(call, c.OFFSET) == c.Denied("its effect is compensated already")


@pytest.mark.parametrize("tool", ["mail.send", "wallet.note"])
def test_what_cannot_be_offset_is_not_asked_for_again(bench: Bench, tool: str) -> None:
    run, (call,) = effects(bench, tool)
    bench.one(bench.claim_stopped(run))
    (found,) = flagged(bench, run)
    assert (found.call, found.again) == (call, False)
    assert isinstance(bench.repair(call, c.OFFSET), c.Denied)
    assert bench.status(run) == "STOPPED"


def test_an_offset_effect_that_comes_back_into_doubt_is_not_given_to_others(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.record(send, term, APPLIED)
    bench.cancel(run)
    bench.ahead(4)
    _, undo = bench.offset(run)
    bench.succeed(run, undo)
    bench.one(bench.claim_stopped(run))
    assert bench.one(bench.evidence(send, term, Applied("{}", "r-2"))) == c.Done("NEEDS_REPAIR")
    assert (bench.operation(call).status, bench.operation(call).doubt) == ("compensated", True)
    assert bench.repair(call, "SUCCEEDED", "r-1") == c.Done("SUCCEEDED")
    assert (bench.operation(call).status, bench.operation(call).doubt) == ("compensated", False)
