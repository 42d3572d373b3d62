"""A planner that asks others, in a fleet: four answers, an error and a silence; and workers that die."""

import itertools
import json
from typing import Any
from uuid import UUID

import pytest

from fencepost.budgets import Budget
from tests.acceptance.stage import Stage
from tests.acceptance.weather import long_only
from tests.awaiting import until

_numbers = itertools.count(1)
LARGE = Budget(turns=60, calls=60, attempts=100, children=16)


def asked(stage: Stage, *topics: str, **how: Any) -> UUID:
    return stage.enqueue("lead", {"topics": topics, **how}, budget=LARGE)


def seen(stage: Stage, run: UUID) -> dict[str, str]:
    """What the planner saw as it went on."""
    note = stage.until_state(run, "note", "SUCCEEDED")
    calls: dict[str, str] = json.loads(note.arguments)["calls"]
    return calls


def times(stage: Stage, run: UUID) -> dict[str, float]:
    """Seconds from the turn that asked until each call was settled, and until the next turn."""
    (turn, *later) = stage.events(run, "ModelRequestStarted")
    recorded = stage.events(run, "ModelResponseRecorded")[0].recorded_at
    labels = {call.id: call.label for call in stage.history(run).calls}
    settled = {labels[e.call]: e.recorded_at for e in stage.events(run, "ChildRunSettled") if e.call}
    assert turn.recorded_at <= recorded
    told = {label: (at - recorded).total_seconds() for label, at in settled.items()}
    return told | {"next turn": (later[0].recorded_at - recorded).total_seconds()}


def topics(*kinds: str) -> list[str]:
    return [f"{kind}-{next(_numbers)}" for kind in kinds]


def show(what: str, told: dict[str, float]) -> None:
    print(what, {name: round(seconds, 2) for name, seconds in told.items()})  # noqa: T201 - with -s, as proof


BY_S = 8.0
"""Long enough for answers and an error on a busy machine."""
LEFT = ("DISPATCHING detached", "FAILED detached")
"""How the planner sees a call that is left behind: its run may have stopped by then."""
SIX = ("answer", "answer", "answer", "answer", "error", "silence")


@long_only
def test_a_join_by_a_deadline_goes_on_with_four_answers_an_error_and_a_silence(stage: Stage) -> None:
    names = topics(*SIX)
    run = asked(stage, *names, by_s=BY_S)
    found = seen(stage, run)
    assert [found[name] for name in names[:5]] == ["SUCCEEDED"] * 4 + ["FAILED"]
    assert found[names[5]] in LEFT
    assert stage.ended(run) == ["COMPLETED"]
    told = times(stage, run)
    show(f"by a deadline of {BY_S} s", told)
    assert BY_S <= told["next turn"] < told[names[5]]
    assert stage.calls(run)[names[5]].state == "FAILED"  # told to stop, it did
    silent = stage.calls(run)[names[5]].child
    assert silent is not None
    assert stage.history(silent).run.stop_reason == "cancelled"


def test_a_quorum_of_four_waits_for_neither_the_error_nor_the_silence(stage: Stage) -> None:
    names = topics(*SIX)
    run = asked(stage, *names, need=4)
    found = seen(stage, run)
    assert [found[name] for name in names[:4]] == ["SUCCEEDED"] * 4
    assert found[names[5]] in LEFT
    assert stage.ended(run) == ["COMPLETED"]
    silent = stage.calls(run)[names[5]].id
    (left,) = [event for event in stage.events(run, "CallDetached") if event.call == silent]
    answers = [e for e in stage.events(run, "ChildRunSettled") if e.data["to"] == "SUCCEEDED"]
    assert left.causation == answers[3].causation  # in the very change that brings the fourth
    told = times(stage, run)
    show("a quorum of four", told)
    assert max(told[name] for name in names[:4]) <= told["next turn"]


@long_only
@pytest.mark.parametrize(
    ("role", "point"),
    [
        *(("dispatcher", point) for point in ("dispatch.after_lease", "dispatch.after_effect")),
        *(
            ("planner", point)
            for point in ("planner.after_claim", "planner.after_model", "planner.after_record")
        ),
        *((role, "ledger.in_transaction") for role in ("planner", "dispatcher", "reconciler", "compensator")),
        ("reconciler", "reconcile.after_lease"),
        ("relay", "relay.after_publish"),
    ],
)
def test_one_run_per_call_wherever_somebody_dies(stage: Stage, role: str, point: str) -> None:
    stage.arm(role, f"{point}=crash")
    names = topics("debit", "answer", "error", "silence")
    run = asked(stage, *names, need=2, by_s=BY_S)
    assert stage.ended(run) == ["COMPLETED"]
    counted = "SELECT count(*) FROM fencepost.runs WHERE parent = %s"
    assert stage.value(counted, run) == len({call.child for call in stage.calls(run).values()} - {None})
    done = stage.calls(run)[names[0]].state == "SUCCEEDED"
    # Whoever is left behind takes back what it did.
    assert stage.effects(names[0]) in ([["debit"]] if done else [[], ["debit", "refund"]])


def test_whoever_dies_as_it_starts_runs_leaves_one_per_call_and_one_effect_each(stage: Stage) -> None:
    dying = stage.arm("dispatcher", "ledger.in_transaction=crash")
    names = topics("debit", "debit", "answer")
    run = asked(stage, *names)
    assert stage.ended(run) == ["COMPLETED"]
    until("a dispatcher has died", lambda: dying.fired)
    assert [stage.effects(name) for name in names] == [["debit"], ["debit"], []]
    with stage.reader() as reader:
        counted = "SELECT count(*), count(DISTINCT parent_call) FROM fencepost.runs WHERE parent = %s"
        assert reader.execute(counted, [run]).fetchone() == (3, 3)
