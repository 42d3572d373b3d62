"""Runs below runs, as lines and cells for people. Pure: members of a tree in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from fencepost.ledger.trees import Member
from fencepost_ops.commands.output import shown
from fencepost_ops.commands.sayings import cut

COLUMNS: Final = [
    "RUN!",
    "CALL",
    "PLANNER",
    "STATUS!",
    "WHY",
    "TOOK>",
    "TURNS>",
    "CALLS>",
    "TOKENS>?",
    "COST>?",
]


def rows(members: Sequence[Member]) -> Iterator[tuple[object, ...]]:
    """One line per run, set in below the one above it; the slowest of those that have ended is marked."""
    slow = {max(kin, key=lambda one: one.took).run_id for kin in _kin(members) if len(kin) > 1}
    top = members[0].depth if members else 0
    for one in members:
        left = " (left behind)" if one.detached else ""
        took = f"{one.took.total_seconds():.2f} s" + ("" if one.ended else " so far")
        yield (
            "  " * (one.depth - top) + str(one.run_id),
            f"{cut(one.label or '')} {one.call_state}{left}" if one.call_state else "",
            f"{cut(one.planner)} v{one.planner_version}",
            one.status,
            one.stop_reason,
            shown(took, "bold yellow") if one.run_id in slow else took,
            one.requests,
            one.calls,
            one.tokens,
            one.cost,
        )


def _kin(members: Sequence[Member]) -> list[list[Member]]:
    """Those that have ended, by who started them."""
    parents = dict.fromkeys(one.parent for one in members if one.parent is not None)
    return [[one for one in members if one.parent == parent and one.ended] for parent in parents]


@dataclass(frozen=True, slots=True)
class Latency:
    """How long those below a run took that have ended: the middle one, the slowest tenth, the slowest."""

    runs: int
    ended: int
    p50_s: float
    p90_s: float
    slowest_s: float
    slowest: UUID
    label: str | None

    @property
    def told(self) -> str:
        """The same in words."""
        name = f" ({cut(self.label)})" if self.label else ""
        spans = f"p50 {self.p50_s:.2f} s, p90 {self.p90_s:.2f} s, slowest {self.slowest_s:.2f} s{name}"
        return f"of {self.runs} runs below it {self.ended} have ended: {spans}"


def latency(members: Sequence[Member]) -> Latency | None:
    """Of those below the first. None: none has ended."""
    ended = sorted((one for one in members[1:] if one.ended), key=lambda one: one.took)
    if not ended:
        return None
    last = ended[-1]
    middle, tail = _at(ended, 50), _at(ended, 90)
    spans = middle, tail, round(last.took.total_seconds(), 3)
    return Latency(len(members) - 1, len(ended), *spans, last.run_id, last.label)


def _at(ended: Sequence[Member], percent: int) -> float:
    return round(ended[min(len(ended) - 1, len(ended) * percent // 100)].took.total_seconds(), 3)


def as_json(members: Sequence[Member]) -> list[dict[str, Any]]:
    """The same for machines."""
    return [
        {name: getattr(one, name) for name in Member.__slots__ if name != "read_at"}
        | {"took_s": round(one.took.total_seconds(), 3)}
        for one in members
    ]
