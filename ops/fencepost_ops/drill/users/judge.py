"""What is wrong in one history of a user's tool: which effect is one too many, or missing. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from fencepost.contracts import Natural
from fencepost.tools import PER_PROPOSAL, Tool
from fencepost_ops.drill.users.entries import Entry
from fencepost_ops.drill.users.mistakes import why_missing, why_twice, why_unproved
from fencepost_ops.drill.users.played import Ended, Played
from fencepost_ops.drill.users.probe import differ

Kind = Literal["twice", "missing", "unproved", "shared", "endless", "invariant", "impure"]
_TWO: Final = "two receipts "
"""How the ledger begins to say that one operation has two receipts."""
_NONE: Final = frozenset({"FAILED", "CANCELLED", "REJECTED"})
_WHY: Final[dict[Kind, str]] = {
    "twice": "two effects for one intent",
    "missing": "a call ended SUCCEEDED, and its effect is not in the book",
    "unproved": "a call ended as if nothing had happened, yet its effect is in the book",
    "shared": "two intents are taken for one, and one of the two effects never happens",
    "endless": "a history came to no end",
    "invariant": "an invariant of the fleet itself is violated",
    "impure": "what has to be a function of the arguments gives another answer each time",
}


@dataclass(frozen=True)
class Finding:
    """What is wrong, in which history, with the effects it is about."""

    kind: Kind
    said: str
    mistake: str
    played: Played | None = None
    effects: tuple[Entry, ...] = ()

    @property
    def title(self) -> str:
        """In a few words."""
        return _WHY[self.kind]


def findings(tool: Tool | None, played: Played, impure: Sequence[str]) -> list[Finding]:
    """Everything that is wrong in one history."""
    found: list[Finding] = []
    if not played.outcome.settled:
        found.append(
            Finding("endless", "it came to no end", "is a time of the contract longer than a day?", played)
        )
    if violated := played.outcome.report.violated:
        said = f"{', '.join(violated)} violated"
        found.append(
            Finding("invariant", said, "this is a fault of Fencepost: please report the protocol", played)
        )
    found += _intents(tool, played)
    for operation in dict.fromkeys(call.operation for call in played.calls):
        calls = [call for call in played.calls if call.operation == operation]
        effects = _of(played, operation)
        if (one := _judged(tool, played, calls, effects, impure)) is not None:
            found.append(one)
    return found + list(_receipts(tool, played, found))


def _receipts(tool: Tool | None, played: Played, found: Sequence[Finding]) -> Iterator[Finding]:
    """The service itself named two effects, and the book shows at most one of them."""
    known = any(one.kind == "twice" for one in found)
    if known or (tool is not None and isinstance(tool.contract.repeat, Natural)):
        return
    for owed in played.outcome.owed:
        if _TWO in owed.why:
            of = next((call.operation for call in played.calls if call.id == owed.call), None)
            effects = _of(played, of)
            said = f"{owed.why}; book= shows {len(effects)} of them"
            mistake = (
                "the service did it twice, and book= does not show both: each effect has to be an entry of "
                "its own. Or receipt= and lookup_parse name one effect differently"
            )
            yield Finding("twice", said, mistake, played, effects)


def _intents(tool: Tool | None, played: Played) -> Iterator[Finding]:
    operations = {call.operation for call in played.calls}
    if played.case == "again" and len(operations) > 1 and not (tool and tool.intent is PER_PROPOSAL):
        said = "two runs asked for the same intent, and it has two names (operation keys)"
        yield Finding(
            "twice", said,
            "intent= must be a function of the arguments alone, and of those that are equal whenever the "
            "same is meant: no clock, no chance, no number of an attempt or a turn",
            played, played.entries,
        )  # fmt: skip
    if played.case == "other" and len(operations) == 1 and len(played.calls) > 1:
        one, other = (call.arguments for call in played.calls[:2])
        parts = ", ".join(line.partition(":")[0] for line in differ(one, other))
        yield Finding(
            "shared",
            f"the second call ended {played.calls[1].state}; effects in the book: {len(played.entries)}",
            f"intent= leaves out what tells the two apart; their arguments differ in {parts}", played,
            played.entries,
        )  # fmt: skip


def _of(played: Played, operation: str | None) -> tuple[Entry, ...]:
    """The effects of one operation: by their own key, by the request that made them, or as the only one."""
    operations = {call.operation for call in played.calls}
    calls = {call.id: call.operation for call in played.calls}
    found = []
    for entry in played.entries:
        maker = played.maker(entry)
        of = entry.key if entry.key in operations else None
        if of is None and maker is not None:
            of = calls.get(maker.call or "") or (maker.key if maker.key in operations else None)
        if of is None and len(operations) == 1:
            of = operation
        if of == operation:
            found.append(entry)
    return tuple(found)


def _judged(
    tool: Tool | None,
    played: Played,
    calls: Sequence[Ended],
    effects: tuple[Entry, ...],
    impure: Sequence[str],
) -> Finding | None:
    states = {call.state for call in calls}
    count = len(effects)
    if count > 1:
        if tool is not None and isinstance(tool.contract.repeat, Natural) and _same_bodies(played, effects):
            return None  # to set the same thing again changes nothing
        said = f"{count} effects of one operation; its call ended {', '.join(sorted(states))}"
        if any(one.instead is not None for one in effects):
            said += (
                "; entries of the book were replaced (one that stays the same effect keeps its id or receipt)"
            )
        return Finding("twice", said, why_twice(tool, played, effects, impure), played, effects)
    if "SUCCEEDED" in states and count == 0:
        return Finding("missing", "its call ended SUCCEEDED", why_missing(tool, played), played)
    if count == 1 and states <= _NONE:
        said = f"its call ended {', '.join(sorted(states))}"
        return Finding("unproved", said, why_unproved(tool, played, effects), played, effects)
    return None


def _same_bodies(played: Played, effects: Sequence[Entry]) -> bool:
    makers = [played.maker(entry) for entry in effects]
    return len({one.body for one in makers if one is not None}) <= 1
