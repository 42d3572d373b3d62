"""Runs below runs, as lines and cells for people. Pure: members of a tree in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

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


def latency(members: Sequence[Member]) -> str | None:
    """How long those below the first took: the middle one, the slowest tenth, the slowest. None: no such."""
    spans = sorted(one.took for one in members[1:] if one.ended)
    if not spans:
        return None
    slowest = max((one for one in members[1:] if one.ended), key=lambda one: one.took)
    middle, tail = _at(spans, 50), _at(spans, 90)
    name = f" ({cut(slowest.label)})" if slowest.label else ""
    return (
        f"of {len(members) - 1} runs below it {len(spans)} have ended: p50 {middle:.2f} s, p90 {tail:.2f} s,"
        f" slowest {slowest.took.total_seconds():.2f} s{name}"
    )


def _at(spans: Sequence[timedelta], percent: int) -> float:
    return spans[min(len(spans) - 1, len(spans) * percent // 100)].total_seconds()


def as_json(members: Sequence[Member]) -> list[dict[str, Any]]:
    """The same for machines."""
    return [
        {name: getattr(one, name) for name in Member.__slots__ if name != "read_at"}
        | {"took_s": round(one.took.total_seconds(), 3)}
        for one in members
    ]
