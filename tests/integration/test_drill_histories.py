"""The drill itself: one seed is one history, and its faults are what they are called."""

import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pydantic import ValidationError

from fencepost.clock import boottime
from fencepost.testing import FAULTS
from fencepost.tools import Response
from fencepost_ops.drill import fleet, history
from fencepost_ops.drill.drill import Drill
from fencepost_ops.drill.outcome import Outcome
from fencepost_ops.drill.protocol import Event, Protocol
from fencepost_ops.drill.sabotage import SABOTAGES
from fencepost_ops.drill.services import Services, Wire
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


@pytest.mark.parametrize(
    "befalls",
    [
        {"do": "lost"},
        {"do": "delay", "for_s": 40.0},
        {"do": "error"},
        *({"do": "lost", "answers": status} for status in (200, 502, 504)),
    ],
    ids=lambda befalls: "-".join(map(str, befalls.values())),
)
def test_a_question_that_is_lost_late_or_misanswered_is_asked_again(
    drill: Drill, befalls: dict[str, Any]
) -> None:
    asked = "reconcile.before_lookup"
    outcome = drill.run(
        made("lookup", faults=[fault("dispatch.response_lost", "lost"), {"at": asked, **befalls}])
    )
    assert (len(outcome.struck), outcome.passages[asked], outcome.dispatches) == (2, 2, 1)
    assert (states(outcome), dict(outcome.effects)) == ({"first": "SUCCEEDED"}, {"lookup": 1})
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


@pytest.mark.parametrize("seconds", [-60.0, 60.0])
@pytest.mark.parametrize(
    "name", ["settle_ignored", "absence_at_once", "timeout_is_failed", "late_look_removed"]
)
def test_a_clock_that_is_moved_excuses_nothing(drill: Drill, name: str, seconds: float) -> None:
    shows = SABOTAGES[name].shows
    moved = Event(at_s=0 if seconds < 0 else 5000, do="jump_clock", seconds=seconds)
    clean = drill.run(shows.model_copy(update={"events": [*shows.events, moved]}))
    assert clean.report.violated == []
    broken = drill.run(clean.protocol.model_copy(update={"sabotage": [name]}))
    assert SABOTAGES[name].invariant in broken.report.violated


@pytest.mark.parametrize("seconds", [-600.0, 600.0])
def test_of_two_calls_in_one_process_each_has_the_clock_of_its_own_claim(
    drill: Drill, seconds: float
) -> None:
    """The first is recorded after the clock was moved; the second was claimed before that, and is sent."""
    struck = fault("dispatch.response_lost", "pause", for_s=0.5)
    moved = [{"at_s": 0.014, "do": "jump_clock", "seconds": seconds}]
    one_each = {"planner": 1, "dispatcher": 1, "reconciler": 1, "compensator": 1}
    outcome = drill.run(made(planner="both", fleet=one_each, faults=[struck], events=moved))
    assert outcome.report.violated == []


def test_who_was_alone_wakes_only_where_somebody_could_have_taken_over(drill: Drill) -> None:
    """The only one of its role sleeps while Redis is away for a day: it does not wake by itself."""
    away = [{"at_s": 0.006, "do": "redis_away"}, {"at_s": 86_000, "do": "redis_back"}]
    outcome = drill.run(made(faults=[fault("dispatch.after_effect", "pause")], events=away))
    assert when(outcome, "ToolOutcomeMarkedUnknown") > 86_000


def test_a_pulse_s_words_pass_the_guards_and_rights_of_a_worker(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = "UPDATE fencepost.outbox SET due_at = due_at + interval '5 min' WHERE worker = %(token)s"
    monkeypatch.setattr(fleet, "MAKE_DUE", later)
    with pytest.raises(psycopg.Error, match="due_at only falls"):
        drill.run(made(faults=[fault("dispatch.after_effect", "crash")]))
    assert drill.run(made()).ok


def test_of_a_history_that_was_given_up_nothing_goes_on(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, over = threading.Event(), threading.Event()

    def slow(self: Services, wire: Wire) -> Response:
        started.set()
        over.wait(20)
        return Response(201, {"content-type": "application/json"}, b'{"id": "late"}')

    monkeypatch.setattr(Services, "answer", slow)
    monkeypatch.setattr(history, "ABANDON_S", 0.1)
    main = threading.get_ident()

    def give_up() -> None:
        started.wait(20)
        signal.pthread_kill(main, signal.SIGALRM)

    given_up = threading.Thread(target=give_up)
    before = signal.signal(signal.SIGALRM, _interrupt)
    try:
        given_up.start()
        with pytest.raises(InterruptedError):
            drill.run(made())
    finally:
        signal.signal(signal.SIGALRM, before)
        given_up.join()
    left = [thread for thread in threading.enumerate() if thread.name.startswith("dispatcher/")]
    monkeypatch.undo()
    over.set()
    for thread in left:
        thread.join(20)
    assert left
    assert not drill.ledger.owner.execute("SELECT 1 FROM fencepost.evidence").fetchall()
    assert states(drill.run(made())) == {"first": "SUCCEEDED"}


def _interrupt(_number: int, _frame: object) -> None:
    raise InterruptedError


def test_two_faults_at_one_passage_are_refused() -> None:
    twice = [fault("dispatch.after_effect", "crash"), fault("dispatch.after_effect", "error")]
    with pytest.raises(ValidationError, match=r"two faults strike passage 1 of dispatch\.after_effect"):
        made(faults=twice)


def test_of_a_list_the_call_that_was_struck_is_told(drill: Drill) -> None:
    outcome = drill.run(made(planner="both", faults=[fault("dispatch.after_effect", "crash", nth=2)]))
    assert (outcome.struck[0].left.label, outcome.struck[0].left.state) == ("second", "DISPATCHING")


def test_a_run_that_nobody_has_claimed_has_no_projection_to_differ(drill: Drill) -> None:
    outcome = drill.run(made(events=[{"at_s": 0.001, "do": "redis_away"}]))
    assert [problem for problem in outcome.problems if "replay" in problem] == []


def test_a_drill_asks_nobody_s_environment(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_SLOTS", "many")
    history._settings.cache_clear()
    assert drill.run(made()).ok
