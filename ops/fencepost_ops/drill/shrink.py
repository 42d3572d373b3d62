"""From a protocol that fails to the shortest found that still fails in the same way.

Greedy, to a fixpoint: each change leaves something out or makes a value plainer, so it ends; a change is kept
where the first of the kinds in which the protocol failed (an invariant, or `unsettled`, `hung`, an
exception's name) is still among those in which the changed one fails. Not promised: the shortest there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fencepost_ops.drill.protocol import Asked, Event, Fault, Fleet, Limits, Protocol

TRIES: Final = 400
"""Histories a shrinking may take."""
_NEAR: Final = 6  # passages, seeds and schedules that are tried from the beginning

Fails = Callable[[Protocol], Sequence[str]]
"""The kinds in which a protocol fails; none where it does not."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The shortest found, in how many tries, and whether they or the time ran out before that."""

    protocol: Protocol
    kind: str
    tries: int
    cut_short: bool = False


def shrink(
    protocol: Protocol,
    kinds: Sequence[str],
    fails: Fails,
    *,
    tries: int = TRIES,
    over: Callable[[], bool] = lambda: False,
) -> Shrunk:
    """Shorten a protocol that fails in these kinds, until `over` says that it has taken long enough."""
    kind, done = kinds[0], 0
    again = True
    while again:
        again = False
        for candidate in candidates(protocol):
            if done >= tries or over():
                return Shrunk(protocol, kind, done, cut_short=True)
            done += 1
            if kind in fails(candidate):
                protocol, again = candidate, True
                break
    return Shrunk(protocol, kind, done)


def candidates(protocol: Protocol) -> Iterator[Protocol]:
    """Everything that is one change simpler, what leaves out most first. None has a Redis that never comes
    back, for it would fail for that alone.
    """
    for change in (
        _fewer,
        _plainer_schedule,
        _fewer_processes,
        _plainer_runs,
        _plainer_faults,
        _plainer_rest,
    ):
        for changed in change(protocol):
            candidate = protocol.model_copy(update=changed)
            if candidate != protocol and not _stays_away(candidate) and not _twice(candidate):
                yield candidate


def size(protocol: Protocol) -> tuple[int, int, int]:
    """How long it is: runs, faults, events."""
    return len(protocol.runs), len(protocol.faults), len(protocol.events)


def _twice(protocol: Protocol) -> bool:
    """Whether two faults strike one passage, which no file may say."""
    return len({(fault.at, fault.nth) for fault in protocol.faults}) < len(protocol.faults)


def _stays_away(protocol: Protocol) -> bool:
    away = False
    for event in sorted(protocol.events, key=lambda event: event.at_s):
        away = event.do == "redis_away" or (away and event.do != "redis_back")
    return away


Changes = Iterator[dict[str, Any]]


def _fewer(protocol: Protocol) -> Changes:
    runs, faults, events = protocol.runs, protocol.faults, protocol.events
    if len(events) > 1:
        yield {"events": []}
    if len(faults) > 1:
        yield {"faults": []}
        yield {"faults": faults[: len(faults) // 2]}
        yield {"faults": faults[len(faults) // 2 :]}
    for n in range(len(runs) if len(runs) > 1 else 0):
        yield {"runs": runs[:n] + runs[n + 1 :], "events": _without(events, n)}
    for n in range(len(faults)):
        yield {"faults": faults[:n] + faults[n + 1 :]}
    for n, event in enumerate(events):
        rest = events[:n] + events[n + 1 :]
        if event.do == "redis_away":
            back = next((m for m, one in enumerate(rest) if one.do == "redis_back"), None)
            rest = rest if back is None else rest[:back] + rest[back + 1 :]
        yield {"events": rest}


def _without(events: Sequence[Event], run: int) -> list[Event]:
    """The events once a run is left out: its cancels go with it, later runs move up."""
    kept = [event for event in events if event.run != run]
    return [e.model_copy(update={"run": e.run - 1}) if e.run is not None and e.run > run else e for e in kept]


def _plainer_schedule(protocol: Protocol) -> Changes:
    if protocol.interleave is not None:
        yield {"interleave": None}
    if protocol.persons:
        yield {"persons": False}
    yield {"limits": Limits()}
    if protocol.seed >= _NEAR:
        yield {"seed": 0}
    if protocol.interleave is not None and protocol.interleave >= _NEAR:
        yield from ({"interleave": seed} for seed in range(_NEAR))


def _fewer_processes(protocol: Protocol) -> Changes:
    least = Fleet(relay=1, planner=1, dispatcher=1, reconciler=1, compensator=1)
    yield {"fleet": least}
    for role in Fleet.model_fields:
        if getattr(protocol.fleet, role) > 1:
            yield {"fleet": protocol.fleet.model_copy(update={role: 1})}


def _plainer_runs(protocol: Protocol) -> Changes:
    for n, run in enumerate(protocol.runs):
        for changed in _plainer_run(run):
            yield {"runs": [*protocol.runs[:n], run.model_copy(update=changed), *protocol.runs[n + 1 :]]}


def _plainer_run(run: Asked) -> Changes:
    plain = Asked()
    if run.planner != plain.planner:
        yield {"planner": plain.planner}
    if "reference" in run.input:
        yield {"input": {name: value for name, value in run.input.items() if name != "reference"}}
    if run.input.get("contract", "dedupes") != "dedupes":
        yield {"input": {**run.input, "contract": "dedupes"}}
    limits = ("turns", "calls", "attempts", "tokens", "cost")
    for name in ("at_s", "deadline_s", "on_stop", *limits, "tenant", "run_key"):
        if getattr(run, name) != getattr(plain, name):
            yield {name: getattr(plain, name)}


def _plainer_faults(protocol: Protocol) -> Changes:
    for n, fault in enumerate(protocol.faults):
        for changed in _plainer_fault(fault):
            yield {
                "faults": [*protocol.faults[:n], fault.model_copy(update=changed), *protocol.faults[n + 1 :]]
            }


def _plainer_fault(fault: Fault) -> Changes:
    if fault.host:
        yield {"host": False}
    if fault.answers is not None:
        yield {"answers": None}
    if fault.do == "pause" and fault.for_s is not None:
        yield {"for_s": None}
    yield from ({"nth": nth} for nth in range(1, min(fault.nth, _NEAR + 1)))


def _plainer_rest(protocol: Protocol) -> Changes:
    events = protocol.events
    for n, event in enumerate(events):
        if event.at_s != 0 and event.do != "redis_back":
            yield {"events": [*events[:n], event.model_copy(update={"at_s": 0.0}), *events[n + 1 :]]}
        if event.at_s != round(event.at_s, 1):
            at_s = round(event.at_s, 1)
            yield {"events": [*events[:n], event.model_copy(update={"at_s": at_s}), *events[n + 1 :]]}
    for name in Limits.model_fields:
        if getattr(protocol.limits, name) is not None:
            yield {"limits": protocol.limits.model_copy(update={name: None})}
