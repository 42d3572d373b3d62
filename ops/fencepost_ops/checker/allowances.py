"""I13 for allowances: each counter is what its calls hold or have used, and no attempt was let go beyond it.

The stated overshoot is none: an attempt takes its share under the counter's lock. What evidence brings back
after it had been given back counts in the counter, and is not held against the limit: it was not let go then.
Nor is what a call takes that a restored ledger marks as perhaps sent, until it is sent from here. Of such a
call only its events tell whether an allowance concerned it: where no process that knew its tool and the
allowances has said so, and it did have its effect, that is noted; it cannot be judged.
Events are held against each other by the ledger's clock: where that was set back, so is what is found here.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import UnionType
from typing import Any, Final
from uuid import UUID

from fencepost.states import CallState
from fencepost_ops.checker.bodies import moment
from fencepost_ops.checker.facts import AllowanceRow, EventRow, Tables
from fencepost_ops.checker.report import Violation, at
from fencepost_ops.checker.story import CallStory, RunStory

C = CallState

_GIVEN_BACK: Final = frozenset({C.FAILED, C.REJECTED, C.CANCELLED})
_TELL: Final = frozenset({"ToolAttemptStarted", "ToolOutcomeMarkedUnknown", "LeaseAcquired"})
"""Events that may tell what a call holds: the last two only of one that a restore has marked."""
_HAPPENED: Final = frozenset({C.SUCCEEDED, C.ACCEPTED_UNKNOWN})
_KEPT_FOR: Final = timedelta(days=1)
"""How long a counter is there at least once its window has ended."""
_PARTS: Final[Mapping[str, type | UnionType]] = {
    "allowance": str,
    "key": str,
    "count": int,
    "minor": int,
    "since": str | None,
    "until": str | None,
    "limit_count": int | None,
    "limit_minor": int | None,
    "currency": str | None,
    "subject": dict,
}
Counter = tuple[str, str]
"""A tenant and a counter's key."""


@dataclass(frozen=True, slots=True)
class _Move:
    """One change of a counter. `granted`: an attempt took it, or gives back what an attempt took."""

    event: EventRow
    count: int
    minor: int
    granted: bool
    share: Mapping[str, Any]


class Counters:
    """What histories say of the counters of allowances, run by run."""

    def __init__(self) -> None:
        self._shares: dict[UUID, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        self._counting: dict[UUID, set[str]] = defaultdict(set)
        self._came_back: set[tuple[UUID, str]] = set()
        self._moves: dict[Counter, list[_Move]] = defaultdict(list)
        self._untold: dict[UUID, tuple[CallStory, tuple[str, ...]]] = {}
        """Calls that a restore has marked, and of which allowances their share is not told; none: of all."""

    def tell(self, story: RunStory, event: EventRow, body: Mapping[str, Any]) -> Iterator[Violation]:
        """Go on by one event, which the story knows already; what is wrong with a share it takes."""
        call = story.calls.get(event.call) if event.call is not None else None
        if call is None:
            return
        said = body.get("reserved") if event.type in _TELL else None
        if "epoch" in body and event.type == "ToolOutcomeMarkedUnknown" and not call.attempts:
            self._untold[call.id] = call, ()
        if isinstance(said, list):
            self._untold.pop(call.id, None)
            if body.get("uncounted"):
                self._untold[call.id] = call, tuple(map(str, body["uncounted"]))
            for share in said:
                if (missing := _missing(share)) is not None:
                    yield at(event, f"it tells of a share of an allowance without {missing}")
                    continue
                if share["key"] not in self._shares[call.id]:
                    yield from _strange(share, event, call, story.principal or event.principal)
                elif event.type == "ToolAttemptStarted" and (call.id, share["key"]) in self._came_back:
                    self._let_go(call, share, event)
                self._shares[call.id][share["key"]] = share
        if call.id in self._shares:
            self._follow(call, event)

    def forget(self) -> None:
        """A history has ended: of its calls only what they moved is kept."""
        for kept in (self._shares, self._counting, self._came_back):
            kept.clear()

    def _let_go(self, call: CallStory, share: Mapping[str, Any], event: EventRow) -> None:
        """What it took as it was marked is from now on what an attempt took, under the limits told here."""
        event = replace(event, body="")
        self._came_back.discard((call.id, share["key"]))
        moves = self._moves[event.tenant, share["key"]]
        moves.append(_Move(event, -share["count"], -share["minor"], granted=False, share=share))
        moves.append(_Move(event, share["count"], share["minor"], granted=True, share=share))

    def _follow(self, call: CallStory, event: EventRow) -> None:
        event = replace(event, body="")
        shares = self._shares[call.id]
        now = set() if call.state in _GIVEN_BACK else set(shares)
        was = self._counting[call.id]
        for key in now ^ was:
            takes, granted = key in now, (call.id, key) not in self._came_back
            if takes and event.type != "ToolAttemptStarted":
                granted = False
                self._came_back.add((call.id, key))
            share, sign = shares[key], 1 if takes else -1
            move = _Move(event, sign * share["count"], sign * share["minor"], granted, share)
            self._moves[event.tenant, key].append(move)
        self._counting[call.id] = now

    def broken(self, tables: Tables) -> Iterator[Violation]:
        """Counters that are not the sum of their calls' shares, and shares taken beyond a limit."""
        for counter, moves in self._moves.items():
            yield from _exceeded(sorted(moves, key=lambda move: move.event.recorded_at))
            if tables.whole:
                yield from _other_than_told(counter, moves, tables)
        for counter in tables.allowances.keys() - self._moves.keys() if tables.whole else ():
            row = tables.allowances[counter]
            if (row.used_count, row.used_minor) != (0, 0):
                yield _differs(counter, row, row.allowance, 0, 0)

    def unseen(self, tables: Tables) -> Iterator[str]:
        """What cannot be judged: effects of a restored ledger's lost time of which no share is told."""
        if not tables.allowances and not self._moves:
            return
        for call, names in self._untold.values():
            own = call.effect != "read" and not (call.compensates or call.reused)
            if own and call.state in _HAPPENED and not call.attempts:
                what = f"allowance {' and '.join(names)}" if names else "any allowance"
                yield f"whether {call.named} counts in {what} is not told: a restore had lost how it was sent"

    @property
    def count(self) -> int:
        """How many counters histories tell of."""
        return len(self._moves)


def _missing(share: object) -> str | None:
    """Which part a share of an allowance lacks, or has as another kind of value; None if it is whole."""
    told = share if isinstance(share, dict) else {}
    lacking = (name for name, kinds in _PARTS.items() if not isinstance(told.get(name, ...), kinds))
    return next(lacking, None)


def _strange(
    share: Mapping[str, Any], event: EventRow, call: CallStory, principal: str
) -> Iterator[Violation]:
    """Whether a share is one that this call may take: of its own window, tenant, principal and tool."""
    begins, ends = moment(share["since"]), moment(share["until"])
    if (begins is not None and event.recorded_at < begins) or (
        ends is not None and event.recorded_at >= ends
    ):
        text = f"it took from allowance {share['allowance']} in a window from {begins} to {ends}"
        yield at(event, text)
    who = {"tenant": event.tenant, "principal": principal, "tool": call.tool}
    for part, name in who.items():
        if share["subject"].get(part, name) != name:
            text = f"it took from allowance {share['allowance']} as of {part} {share['subject'][part]}"
            yield at(event, text)
    if call.compensates is not None:
        yield at(event, f"it offsets an effect, and took from allowance {share['allowance']}")


def _exceeded(moves: list[_Move]) -> Iterator[Violation]:
    calls = minor = 0
    for _, at_once in itertools.groupby(moves, key=lambda move: move.event.recorded_at):
        together = [move for move in at_once if move.granted]
        calls += sum(move.count for move in together)
        minor += sum(move.minor for move in together)
        taken = [move for move in together if move.count > 0]
        if not taken:
            continue
        last = taken[-1]
        for used, name in ((calls, "limit_count"), (minor, "limit_minor")):
            limits = [move.share[name] for move in taken if move.share[name] is not None]
            if limits and used > max(limits):
                what = "calls" if name == "limit_count" else f"minor units of {last.share['currency']}"
                text = f"with it {used} {what} of allowance {last.share['allowance']}, whose limit is"
                yield at(last.event, f"{text} {max(limits)}, were held or used at once")


def _other_than_told(counter: Counter, moves: list[_Move], tables: Tables) -> Iterator[Violation]:
    row, share = tables.allowances.get(counter), moves[-1].share
    calls, minor = sum(move.count for move in moves), sum(move.minor for move in moves)
    ends = moment(share["until"])
    if row is None and ends is not None and _long_past(ends, tables.read_at):
        return
    if (row.used_count, row.used_minor) != (calls, minor) if row is not None else True:
        yield _differs(counter, row, share["allowance"], calls, minor)


def _long_past(ends: datetime, now: datetime | None) -> bool:
    return now is not None and ends + _KEPT_FOR <= now


def _differs(counter: Counter, row: AllowanceRow | None, name: str, calls: int, minor: int) -> Violation:
    has = f"counts {row.used_count} calls and {row.used_minor}" if row is not None else "is gone"
    tenant, key = counter
    told = f"histories tell of {calls} calls and {minor}"
    return Violation(f"the counter {key} of allowance {name} {has}; {told}", tenant)
