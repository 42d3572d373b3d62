"""What one run cost and where its time went, from its own history. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from fencepost.events import Event, EventType
from fencepost.ledger.listings import History
from fencepost.slices import amounts
from fencepost_ops.commands.durations import spoken

E = EventType

UNITS: Final = 1_000_000
"""A cost is kept in millionths of the one currency its models are priced in."""

_ANSWERS: Final = frozenset({E.MODEL_RESPONSE_RECORDED, E.MODEL_OUTCOME_UNKNOWN, E.RUN_COMPLETED})
_OUTCOMES: Final = frozenset({E.TOOL_RESULT_RECORDED, E.TOOL_ATTEMPT_FAILED, E.TOOL_OUTCOME_MARKED_UNKNOWN})


@dataclass(frozen=True, slots=True)
class Hop:
    """How often a run took one kind of step, and how long all of them took together."""

    name: str
    count: int
    total: timedelta
    longest: timedelta


@dataclass(frozen=True, slots=True)
class Used:
    """What a run's own models used, and those of the runs below it."""

    tokens: int
    cost: int
    below_tokens: int
    below_cost: int


def used(history: History) -> Used:
    """Of a run that goes on, as far as it is recorded; what runs below may still use counts as used."""
    below = amounts(history.run.below)
    return Used(history.run.tokens, history.run.cost, below["tokens"], below["cost"])


def money(millionths: int) -> str:
    """A cost for people."""
    return f"{millionths / UNITS:.6f}".rstrip("0").rstrip(".")


def hops(history: History) -> list[Hop]:
    """In which steps the time went: `queue` is what was due and not taken, `model` every question to the
    planner, `tool` every attempt, `child` every run it waited for. Steps overlap: calls go side by side.
    """
    found: dict[str, list[timedelta]] = {}
    for name, took in _steps(history):
        found.setdefault(name, []).append(took)
    order = ("queue", "model", "tool", "lookup", "child")
    return [Hop(n, len(found[n]), sum(found[n], timedelta()), max(found[n])) for n in order if n in found]


def _steps(history: History) -> Iterator[tuple[str, timedelta]]:
    before: dict[UUID | None, Event] = {}
    begun: dict[UUID | None, datetime] = {}
    previous = history.run.created_at
    for event in history.events:
        last, at = before.get(event.call), event.recorded_at
        kind = None if last is None else last.type
        if event.type == E.LEASE_ACQUIRED:
            due = previous if event.call is None else _due(last)
            if due is not None:
                yield "queue", max(at - due, timedelta())
        elif last is not None and event.type in _ANSWERS and kind == E.MODEL_REQUEST_STARTED:
            yield "model", at - last.recorded_at
        elif last is not None and event.type in _OUTCOMES and kind == E.TOOL_ATTEMPT_STARTED:
            yield "tool", at - last.recorded_at
        elif last is not None and event.type == E.TOOL_LOOKUP_RECORDED and kind == E.LEASE_ACQUIRED:
            yield "lookup", at - last.recorded_at
        elif event.type == E.CHILD_RUN_STARTED:
            begun[event.call] = at
        elif event.type == E.CHILD_RUN_SETTLED and event.call in begun:
            yield "child", at - begun[event.call]
        before[event.call] = event
        previous = at


def _due(last: Event | None) -> datetime | None:
    """Since when a call's next step could have been taken; None where its history does not say."""
    said: Any = None if last is None else last.data.get("ready_at")
    if last is None or not isinstance(said, str):
        return None
    return max(last.recorded_at, datetime.fromisoformat(said))


def told(history: History) -> Iterator[str]:
    """The same in lines; nothing for a run that used nothing and took no step."""
    spent, found = used(history), hops(history)
    if spent.tokens or spent.below_tokens:
        below = f" · below it {spent.below_tokens}, {money(spent.below_cost)}" if spent.below_tokens else ""
        yield f"tokens {spent.tokens} · cost {money(spent.cost)}{below}"
    if found:
        yield "time: " + " · ".join(f"{one.name} {spoken(one.total)} in {one.count}" for one in found)
