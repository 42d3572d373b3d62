"""I13 for models and histories: tokens and cost, what is held for the open request, fruitless turns, sizes.

The stated overshoot: what an answer used beyond what was held for it, a provider having counted more than it
was told; one answer of a planner that is no declared model, for which nothing can be held; and of a history
what the steps record that had begun, what settles and offsets, and the stop itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from fencepost_ops.checker.chain import body_digest
from fencepost_ops.checker.facts import EventRow, Key, RunRow
from fencepost_ops.checker.report import Violation, at
from fencepost_ops.checker.story import RunStory

MONEY: Final = ("tokens", "cost")
_COUNTED_FROM: Final = 2
_ENDS: Final = frozenset({"ModelResponseRecorded", "ModelOutcomeUnknown", "RunCompleted"})
_INTENTS: Final = frozenset({"DispatchIntentRecorded", "ApprovalRequested"})


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run's producer lets its models use, its history grow to, and its planner try in vain."""

    tokens: int | None = None
    cost: int | None = None
    events: int = 50_000
    bytes: int = 50 * 1024 * 1024
    fruitless: int = 5

    @classmethod
    def of(cls, run: RunRow | None) -> Limits:
        """Of a run's row; the usual ones where there is none."""
        if run is None:
            return cls()
        return cls(run.may_tokens, run.may_cost, run.may_events, run.may_bytes, run.may_try)


def _nothing() -> dict[str, int]:
    return dict.fromkeys(MONEY, 0)


@dataclass(slots=True)
class Purse:
    """What one run's models have used and hold, as its events tell. `over` is the stated overshoot so far."""

    limits: Limits = Limits()
    used: dict[str, int] = field(default_factory=_nothing)
    over: dict[str, int] = field(default_factory=_nothing)
    held: dict[str, int] | None = None
    model: str | None = None
    events: int = 0
    bytes: int = 0
    fruitless: int = 0
    edited: bool = False
    """Whether an event's body is another than it was: I6 says so, and how long it was nobody can tell."""
    change: UUID | None = None
    before: tuple[int, int] = (0, 0)
    """How many events, and bytes of them, there were before the change that is being told."""

    def tell(self, story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
        """Go on by one event, and say what it breaks. The story is as it was before it."""
        if event.causation != self.change:
            self.change, self.before = event.causation, (self.events, self.bytes)
        if event.type == "ModelRequestStarted":
            yield from self._grown(event, "a turn")
            yield from self._asked(story, event, body)
        elif event.type in _ENDS:
            yield from self._answered(event, body)
        elif event.type in ("ChildRunSettled", "RepairDecided") and event.call is not None:
            self._settled(story.held.get(event.call, {}), body)
        elif event.type == "ToolAttemptStarted" and not body.get("repeat"):
            call = story.calls.get(event.call) if event.call is not None else None
            if call is not None and not call.compensates:
                yield from self._grown(event, "an attempt")
        self._count(story, event)

    def _count(self, story: RunStory, event: EventRow) -> None:
        self.events += 1
        if event.version < _COUNTED_FROM:
            return
        self.bytes += len(event.body.encode())
        self.edited = self.edited or body_digest(event.body) != event.digest
        call = story.calls.get(event.call) if event.call is not None else None
        if event.type == "ModelResponseRecorded":
            self.fruitless += 1
        elif event.type in _INTENTS and call is not None and not call.compensates:
            self.fruitless = 0

    def _grown(self, event: EventRow, what: str) -> Iterator[Violation]:
        events, size = self.before
        if events >= (may := self.limits.events):
            yield at(event, f"{what} was begun in a history of {events} events, whose limit is {may}")
        if size >= (may := self.limits.bytes):
            yield at(event, f"{what} was begun in a history of {size} bytes, whose limit is {may}")

    def _asked(self, story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
        if self.fruitless >= (may := self.limits.fruitless):
            yield at(event, f"a turn after {self.fruitless} in a row without an intent; {may} are let go")
        if self.held is not None:
            yield at(event, "it was asked again, and what was held for the request before is not settled")
        self.model = body.get("model") if isinstance(body.get("model"), str) else None
        self.held = _amounts(body.get("held"))
        if self.model is not None and self.held is None:
            yield at(event, f"model {self.model} was asked, and nothing is held for what it may use")
        for name in MONEY:
            limit: int | None = getattr(self.limits, name)
            if limit is None:
                continue
            has, holds = self.used[name] + story.beneath(name), (self.held or {}).get(name, 0)
            if has + holds > limit or (holds == 0 and 0 < limit <= has):
                yield at(event, f"{has} {name} were used and {holds} more held, of a budget of {limit}")

    def _answered(self, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
        held, self.held = self.held, None
        said = body.get("spent")
        spent = _amounts(said)
        if held is not None and spent is None:
            yield at(
                event, f"{held['tokens']} tokens were held for what ends here, and are not accounted for"
            )
        spent, known = spent or _nothing(), not isinstance(said, dict) or said.get("known") is not False
        for name in MONEY:
            self.used[name] += spent[name]
            allowed = (held or _nothing())[name]
            if not known and held is not None and spent[name] < allowed:
                yield at(
                    event, f"nobody knows what it used, and {spent[name]} of {allowed} {name} are charged"
                )
            if spent[name] > allowed:
                self.over[name] += spent[name] - allowed

    def _settled(self, piece: dict[str, int], body: dict[str, Any]) -> None:
        """What a child used beyond its slice is stated overshoot too: it is charged as it is told."""
        for name, used in (_amounts(body.get("used")) or {}).items():
            self.over[name] += max(0, used - piece[name]) if name in piece else 0

    def ends(self, key: Key, run: RunRow | None, story: RunStory) -> Iterator[Violation]:
        """What the run's row says of all this, and whether it was more than it may."""
        tenant, run_id = key
        if run is None or run.seq != self.events:
            return  # a history that is not whole tells no sums: that is I6's
        held = self.held or _nothing()
        told = {"fruitless": self.fruitless} | ({} if self.edited else {"bytes": self.bytes})
        told |= {**self.used, **{f"held_{name}": held[name] for name in MONEY}}
        for name, has in told.items():
            if (says := getattr(run, name)) != has:
                text = f"run {run_id}: its row says {says} for {name}, its history tells of {has}"
                yield Violation(text, tenant, run_id)
        for name in MONEY:
            limit: int | None = getattr(self.limits, name)
            total = self.used[name] + held[name] + story.beneath(name)
            if limit is not None and self.model is not None and total > limit + self.over[name]:
                text = f"run {run_id}: {total} {name} used and held, of {limit} and {self.over[name]} beyond"
                yield Violation(text, tenant, run_id)


def _amounts(said: object) -> dict[str, int] | None:
    """Tokens and cost that a body tells; None where it tells none."""
    if not isinstance(said, dict):
        return None
    given = {name: said.get(name, 0) for name in MONEY}
    return {name: value if isinstance(value, int) else 0 for name, value in given.items()}
