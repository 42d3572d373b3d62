"""Runs that stop while calls are in flight: what happened is recorded first, then offset, and stays so."""

import itertools

from fencepost.tools import OnStop
from tests.acceptance.stage import Stage, step

_numbers = itertools.count(1)


def test_a_call_in_flight_when_its_run_is_cancelled_is_recorded_and_then_offset(stage: Stage) -> None:
    reference = f"stop-{next(_numbers)}"
    stage.sandbox.fault("delay_before", reference=f"{reference}-two", delay_s=1)
    run = stage.send(
        [step("bank.debit", "one", reference=f"{reference}-one")],
        [step("bank.debit", "two", reference=f"{reference}-two")],
    )
    stage.until_state(run, "two", "DISPATCHING")
    stage.cancel(run)
    stage.cancel(run)
    assert stage.ended(run) == ["STOPPED"]
    calls = stage.calls(run)
    assert {label: call.state for label, call in calls.items()} == {
        "one": "SUCCEEDED",
        "two": "SUCCEEDED",
        "offset one": "SUCCEEDED",
        "offset two": "SUCCEEDED",
    }
    assert stage.effects(f"{reference}-one") == stage.effects(f"{reference}-two") == ["debit", "refund"]
    assert (calls["offset two"].settled_seq or 0) < (calls["offset one"].settled_seq or 0)  # latest first
    assert len(stage.events(run, "RunStopping")) == 1


def test_a_cancel_while_it_compensates_changes_nothing(stage: Stage) -> None:
    reference = f"stop-{next(_numbers)}"
    stage.sandbox.fault("delay_before", path="/wallet/refunds", reference=reference, delay_s=1)
    run = stage.send(
        [step("bank.debit", "one", reference=reference)],
        [step("local.do", "two", reference=reference, then="refuse")],
    )
    stage.until_state(run, "offset one", "DISPATCHING")
    stage.cancel(run)
    assert stage.ended(run) == ["STOPPED"]
    assert stage.history(run).run.stop_reason == "tool_failed"
    assert stage.effects(reference) == ["debit", "refund"]


def test_an_effect_that_lands_after_the_deadline_is_found_and_offset(stage: Stage) -> None:
    """The undo does not overtake what it undoes: nothing-to-undo is not believed while it may still land."""
    reference = f"stop-{next(_numbers)}"
    stage.sandbox.fault("delay_arrival", path="/wallet/debits", reference=reference, delay_s=2.8)
    run = stage.send([step("bank.debit", "debit", reference=reference)], deadline_s=2.4)
    assert stage.ended(run) == ["STOPPED"]
    assert stage.history(run).run.stop_reason == "deadline_exceeded"
    assert stage.effects(reference) == ["debit", "refund"]


def test_a_deadline_stops_what_was_not_sent(stage: Stage) -> None:
    reference = f"stop-{next(_numbers)}"
    stage.sandbox.fault("throttle_429", reference=reference, retry_after_s=30)
    run = stage.send([step("bank.debit", "debit", reference=reference)], deadline_s=2)
    assert stage.ended(run) == ["STOPPED"]
    assert stage.effects(reference) == []
    assert stage.requests(reference) == 1


def test_a_run_that_leaves_its_effects_lists_them(stage: Stage) -> None:
    reference = f"stop-{next(_numbers)}"
    run = stage.send(
        [step("bank.debit", "one", reference=reference)],
        [step("local.do", "two", reference=reference, then="refuse")],
        on_stop=OnStop.LEAVE,
    )
    assert stage.ended(run) == ["STOPPED"]
    assert stage.effects(reference) == ["debit"]
    (stopped,) = stage.events(run, "RunStopped")
    assert stopped.data["effects"] == 1
