"""I13: what a run has used is what its events say, and no more than its producer lets it use.

The stated overshoot is none: turns, calls and the wall clock are looked at under the run's lock before each
step. The budget of attempts is I9's. What compensates or settles is bound by deadlines of its own instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fencepost.states import CallState
from fencepost_ops.checker.facts import EventRow, Key, RunRow
from fencepost_ops.checker.report import Violation, at
from fencepost_ops.checker.story import ENDED, CallStory, RunStory

C = CallState

_UNSETTLED = frozenset({C.DISPATCHING, C.UNKNOWN})


def spent(story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
    """Each turn asked for, each call proposed and each first attempt, against what was left before it."""
    if event.type == "ModelRequestStarted":
        if (turn := story.requests + story.beneath("turns") + 1) > story.budgets.turns:
            yield at(event, f"turn {turn} of a run whose budget is {story.budgets.turns} turns")
    elif event.type == "ToolProposalRecorded":
        if body.get("compensates"):
            return
        if (number := len(story.calls) + story.beneath("calls") + 1) > story.budgets.calls:
            yield at(event, f"call {number} of a run whose budget is {story.budgets.calls} calls")
    elif event.type == "ChildRunStarted":
        yield from _carved(story, event, body)
        return
    else:
        call = story.calls.get(event.call) if event.call is not None else None
        if call is None or call.doubt or call.compensates:
            return
    yield from _late(story, event)


def _carved(story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
    """What a run is started with is there to be used, beside what its parent and the others use and hold."""
    piece = body.get("held")
    if not isinstance(piece, dict):  # what offsets an effect is not held back by a budget
        return
    own = {"turns": story.requests, "calls": len(story.calls), "attempts": story.attempts, "children": 0}
    for name, has in own.items():
        may, holds = getattr(story.budgets, name), piece.get(name)
        total = has + story.beneath(name) + (holds if isinstance(holds, int) else 0)
        if total > may:
            yield at(event, f"it may use {holds} {name}, which makes {total} of {may} that its parent has")


def _late(story: RunStory, event: EventRow) -> Iterator[Violation]:
    clock = story.budgets.wall_clock
    if clock is None or story.created_at is None:
        return
    used = event.recorded_at - story.created_at
    if used >= clock:
        yield at(event, f"{used} after its run was created, whose budget is {clock} of wall clock")


def counters(key: Key, run: RunRow | None, events: int, story: RunStory) -> Iterator[Violation]:
    """What the run's row counts, counted anew. A history that is not whole tells no counts: that is I6's."""
    if run is None or run.seq != events:
        return
    tenant, run_id = key
    for name, told in _told(story).items():
        if (has := getattr(run, name)) != told:
            text = f"run {run_id}: its row counts {has} {_NAMES[name]}, its history tells of {told}"
            yield Violation(text, tenant, run_id)


_NAMES = {
    "turn": "turns",
    "requests": "questions to its planner",
    "calls": "calls",
    "attempts": "attempts",
    "open": "open calls",
    "unsettled": "calls that are not settled",
    "repairs": "calls that need repair",
    "awaiting": "calls that wait for an approval",
    "effects": "effects that are not offset",
    "unknowns": "effects nobody knows of",
    "failures": "failures of its planner in a row",
}


def _told(story: RunStory) -> dict[str, int]:
    states = [call.state for call in story.calls.values()]
    return {
        "turn": story.turns,
        "requests": story.requests,
        "calls": len(states),
        "attempts": story.attempts,
        "open": sum(state not in ENDED for state in states),
        "unsettled": sum(state in _UNSETTLED for state in states),
        "repairs": states.count(C.NEEDS_REPAIR),
        "awaiting": states.count(C.AWAITING_APPROVAL),
        "effects": sum(_effect(call) for call in story.calls.values()),
        "unknowns": story.unknowns,
        "failures": story.failures,
    }


def _effect(call: CallStory) -> int:
    if call.state != C.SUCCEEDED or call.effect == "read" or call.reused:
        return 0
    return -1 if call.compensates else 1
