"""How much one run may use: turns, calls, attempts and wall-clock time, and which of them is spent.

Nothing is counted here: the ledger counts under its locks and asks before each step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal

MAX_COUNT = 2**31 - 1
"""The largest count the ledger's integer columns hold."""

MAX_WALL_CLOCK = timedelta(days=3650)

_MILLISECOND = timedelta(milliseconds=1)
_COUNTS = ("turns", "calls", "attempts")
_DIMENSIONS: dict[str, str] = {"turn": "turns", "calls": "calls", "attempt": "attempts"}


def _count(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"budget: {name} is a whole number from 0 to {MAX_COUNT}, not {value!r}")
    return value


def _wall_clock(value: timedelta) -> None:
    if value % _MILLISECOND or not timedelta(0) < value <= MAX_WALL_CLOCK:
        raise ValueError(f"budget: wall_clock is whole milliseconds, at most ten years, not {value}")


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one run. `wall_clock` is in whole milliseconds; None: only the run's deadline binds.

    ValueError for counts below zero, a wall clock of zero or less, and anything that is no number.
    """

    turns: int = 16
    calls: int = 64
    attempts: int = 256
    wall_clock: timedelta | None = None

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _count(name, getattr(self, name))
        if self.wall_clock is not None:
            _wall_clock(self.wall_clock)

    def to_json(self) -> dict[str, int | None]:
        """The budget as stored: counts and `wall_clock_ms`, no floats."""
        clock = None if self.wall_clock is None else self.wall_clock // _MILLISECOND
        return {"turns": self.turns, "calls": self.calls, "attempts": self.attempts, "wall_clock_ms": clock}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Budget":
        """The budget `to_json` wrote; absent fields take their defaults.

        ValueError for an unknown field, which would otherwise be a limit that silently does not hold.
        """
        if not isinstance(value, Mapping):
            raise ValueError("budget: an object is expected")  # noqa: TRY004 - one error for all bad input
        known = {*_COUNTS, "wall_clock_ms"}
        if unknown := sorted(map(str, set(value) - known)):
            raise ValueError(f"budget: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        clock = value.get("wall_clock_ms")
        if clock is not None and (type(clock) is not int or not 0 < clock <= MAX_WALL_CLOCK // _MILLISECOND):
            raise ValueError(f"budget: wall_clock_ms is whole, above zero, at most ten years, not {clock!r}")
        return cls(
            **{name: value[name] for name in _COUNTS if name in value},
            wall_clock=None if clock is None else clock * _MILLISECOND,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run has used so far; `wall_clock` is the time since it was created."""

    turns: int = 0
    calls: int = 0
    attempts: int = 0
    wall_clock: timedelta = timedelta(0)


def exhausted(
    budget: Budget,
    usage: Usage,
    *,
    next: Literal["turn", "calls", "attempt"],  # noqa: A002 - reads as the question it asks
    n: int = 1,
) -> str | None:
    """The dimension that leaves no room for `n` more of `next`, or None where there is room.

    The clock is asked first: once it has run out there is room for nothing. Names are those of `Budget`.
    """
    if budget.wall_clock is not None and usage.wall_clock >= budget.wall_clock:
        return "wall_clock"
    name = _DIMENSIONS[next]
    return name if getattr(usage, name) + n > getattr(budget, name) else None


DIMENSIONS = tuple(field.name for field in fields(Budget))
"""Every name `exhausted` can answer with."""
