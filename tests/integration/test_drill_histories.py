"""The drill itself: one seed is one history, and its faults are what they are called."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost.clock import boottime
from fencepost.testing import FAULTS
from fencepost_ops.drill.drill import Drill
from fencepost_ops.drill.outcome import Outcome
from fencepost_ops.drill.protocol import Protocol
from fencepost_ops.local import LocalPostgres


@pytest.fixture(scope="module")
def drill(postgres: LocalPostgres) -> Iterator[Drill]:
    one = Drill(postgres, "drill_histories")
    yield one
    one.close()


def made(contract: str = "dedupes", planner: str = "one", **fields: Any) -> Protocol:
    run = {"planner": planner, "input": {"contract": contract}}
    return Protocol.model_validate({"name": "test", "runs": [run], **fields})


def fault(at: str, do: str, **fields: Any) -> dict[str, Any]:
    return {"at": at, "do": do, **fields}


def states(outcome: Outcome) -> dict[str, str]:
    return {call.label: call.state for call in outcome.calls}


def when(outcome: Outcome, text: str) -> float:
    """At which second something happened first."""
    return next(float(line.split()[0]) for line in outcome.timeline if text in line)


@pytest.mark.parametrize("interleave", [None, 3])
def test_the_same_protocol_is_the_same_history_byte_for_byte(drill: Drill, interleave: int | None) -> None:
    faults = [fault("dispatch.after_effect", "pause"), fault("compensate.after_plan", "crash")]
    protocol = made(planner="stop", faults=faults, interleave=interleave)
    first, again = drill.run(protocol), drill.run(protocol)
    assert json.dumps(first.to_json()) == json.dumps(again.to_json())
    assert first.ok, first.problems
    other = drill.run(protocol.model_copy(update={"seed": 1}))
    assert other.runs[0].head != first.runs[0].head


def test_a_history_leaves_clock_and_fault_points_as_they_were(drill: Drill) -> None:
    before = boottime()
    drill.run(made())
    assert boottime() - before < 60
    assert not FAULTS.armed


def test_a_crash_loses_what_was_not_committed_and_its_pulse_hands_over_at_once(drill: Drill) -> None:
    outcome = drill.run(made(faults=[fault("dispatch.after_effect", "crash")]))
    (struck,) = outcome.struck
    assert (struck.left.state, struck.left.owner, struck.ended) == ("DISPATCHING", "reconciler", "SUCCEEDED")
    assert when(outcome, "ToolOutcomeMarkedUnknown") - struck.at_s < 0.1
    assert (outcome.dispatches, dict(outcome.effects), outcome.ok) == (2, {"dedupes": 1}, True)


def test_a_crash_within_a_transaction_leaves_nothing_of_it(drill: Drill) -> None:
    outcome = drill.run(made(faults=[fault("ledger.in_transaction", "crash")]))
    assert outcome.struck[0].left.record is None
    assert (states(outcome), outcome.ok) == ({"first": "SUCCEEDED"}, True)


def test_a_dead_host_is_found_by_its_silence(drill: Drill) -> None:
    outcome = drill.run(made(faults=[fault("dispatch.after_effect", "crash", host=True)]))
    taken = when(outcome, "ToolOutcomeMarkedUnknown") - outcome.struck[0].at_s
    assert 5 < taken < 15, "an attempt's time, or a TTL of ten seconds and a look"
    assert outcome.ok, outcome.problems


def test_who_stands_still_in_a_transaction_loses_its_session(drill: Drill) -> None:
    outcome = drill.run(made(faults=[fault("ledger.in_transaction", "pause", nth=3, for_s=8.0)]))
    assert outcome.struck[0].left.state == "INTENT_RECORDED"
    assert (outcome.dispatches, outcome.ok) == (1, True)


def test_a_zombie_wakes_once_somebody_has_taken_over_and_files_what_it_knows(drill: Drill) -> None:
    outcome = drill.run(made("lookup", faults=[fault("dispatch.after_effect", "pause")]))
    assert when(outcome, "EvidenceFiled") > when(outcome, "ToolOutcomeMarkedUnknown")
    assert (states(outcome), dict(outcome.effects)) == ({"first": "SUCCEEDED"}, {"lookup": 1})
    assert outcome.ok, outcome.problems


@pytest.mark.parametrize(
    ("at", "dispatches"),
    [("dispatch.before_wire", 1), ("dispatch.response_lost", 2), ("ledger.in_transaction", 1)],
)
def test_what_is_lost_is_lost_where_it_says(drill: Drill, at: str, dispatches: int) -> None:
    nth = 3 if at == "ledger.in_transaction" else 1
    outcome = drill.run(made(faults=[fault(at, "lost", nth=nth)]))
    assert (outcome.dispatches, dict(outcome.effects)) == (dispatches, {"dedupes": 1})
    assert outcome.ok, outcome.problems


def test_a_request_that_is_slow_in_the_network_lands_after_its_sender_has_given_up(drill: Drill) -> None:
    outcome = drill.run(made("lookup", faults=[fault("dispatch.before_wire", "delay", for_s=6.5)]))
    assert (states(outcome), dict(outcome.effects), outcome.dispatches) == (
        {"first": "SUCCEEDED"},
        {"lookup": 1},
        1,
    )
    assert 4.9 < when(outcome, "ToolOutcomeMarkedUnknown") < 5.1
    assert outcome.ok, outcome.problems


def test_lost_messages_and_a_wiped_redis_cost_time_only(drill: Drill) -> None:
    faults = [fault("relay.after_publish", "lost", nth=1)]
    events = [{"at_s": 0.004, "do": "wipe_redis"}]
    outcome = drill.run(made(faults=faults, events=events))
    assert outcome.seconds > 15
    assert (outcome.dispatches, outcome.ok) == (1, True)


def test_what_nobody_can_know_waits_for_a_person_who_looks_into_the_book(drill: Drill) -> None:
    faults = [fault("dispatch.after_effect", "crash")]
    left = drill.run(made("neither", faults=faults))
    assert (states(left), len(left.report.waiting)) == ({"first": "NEEDS_REPAIR"}, 1)
    assert left.calls[0].owner == "person"
    settled = drill.run(made("neither", faults=faults, persons=True))
    assert (states(settled)["first"], settled.report.waiting) == ("SUCCEEDED", ())
    assert settled.ok, settled.problems


def test_a_wrong_prediction_and_a_wrong_expectation_are_problems(drill: Drill) -> None:
    wrong = fault("dispatch.response_lost", "lost", predict={"call": "FAILED", "owner": "reconciler"})
    never = fault("compensate.after_plan", "crash", predict={"run": "COMPENSATING"})
    outcome = drill.run(made(faults=[wrong, never], expect={"effects": {"dedupes": 2}, "dispatches": 2}))
    assert [problem.split(":")[0] for problem in outcome.problems] == [
        "lost at dispatch.response_lost, passage 1",
        "crash at compensate.after_plan, passage 1",
        "effects of dedupes",
    ]
