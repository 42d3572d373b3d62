"""How much one run may use, and which of it is spent: steps, models, time, history, patience. PURE.

Nothing is counted here: the ledger counts under its locks and asks before each step. What a model request may
use at worst is asked for, and held, before it is sent; what it really used takes the place of that.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, Literal

from fencepost.models import Spent
from fencepost.taint import BORN

MAX_COUNT = 2**31 - 1
"""The largest count the ledger's integer columns hold."""

MAX_AMOUNT = 2**53 - 1
"""The largest number of tokens, of millionths or of bytes: JSON readers agree on integers up to here."""

MAX_WALL_CLOCK = timedelta(days=3650)

_MILLISECOND = timedelta(milliseconds=1)

LIMITS: Final[Mapping[str, tuple[int, int]]] = {
    "turns": (0, MAX_COUNT),
    "calls": (0, MAX_COUNT),
    "attempts": (0, MAX_COUNT),
    "tokens": (0, MAX_AMOUNT),
    "cost": (0, MAX_AMOUNT),
    "events": (0, MAX_COUNT),
    "bytes": (0, MAX_AMOUNT),
    "depth": (0, MAX_COUNT),
    "children": (0, MAX_COUNT),
    "fruitless": (1, MAX_COUNT),
    "repeats": (2, MAX_COUNT),
}
"""The least and the greatest value of each limit that is a number, by its name in JSON."""

OPTIONAL: Final = frozenset({"tokens", "cost"})
"""Those that may be null: no limit."""

_DIMENSIONS: dict[str, str] = {"turn": "turns", "calls": "calls", "attempt": "attempts"}


def _number(name: str, value: object) -> None:
    least, most = LIMITS[name]
    if value is None and name in OPTIONAL:
        return
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"budget: {name} is a whole number from {least} to {most}, not {value!r}")


def _wall_clock(value: timedelta) -> None:
    if not isinstance(value, timedelta):
        raise ValueError(f"budget: wall_clock is a timedelta, e.g. timedelta(minutes=5), not {value!r}")  # noqa: TRY004 - one error for all bad input
    if value % _MILLISECOND or not timedelta(0) < value <= MAX_WALL_CLOCK:
        raise ValueError(f"budget: wall_clock is whole milliseconds, at most ten years, not {value}")


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one run and of all runs below it.

    `turns` counts questions to the planner, lost answers included; `calls` and `attempts` forward ones.
    `wall_clock` is in whole milliseconds; None: only the run's deadline binds. `tokens` and `cost`
    (millionths of the currency its models are priced in) are what its models may use; None: no limit.
    A run below gets its slice of `turns`, `calls`, `attempts`, `tokens`, `cost` and `children` as it is
    started (`ChildSpec`), whole only what differs from these defaults or is said to be `whole`.
    `events` and `bytes` (of the bodies of events) are how far its own history may grow before no step is
    begun any more. `depth` is how many levels of runs may be below it, `children` how many runs. After
    `fruitless` turns in a row from which no intent came, and after `repeats` turns in a row that did and
    learnt the same (`progress`), it makes no progress.

    ValueError for a number out of range, a wall clock of zero or less, and anything that is no number.
    """

    turns: int = 16
    calls: int = 64
    attempts: int = 256
    wall_clock: timedelta | None = None
    tokens: int | None = None
    cost: int | None = None
    events: int = 50_000
    bytes: int = 50 * 1024 * 1024
    depth: int = 4
    children: int = 16
    fruitless: int = 5
    repeats: int = 5

    def __post_init__(self) -> None:
        for name in LIMITS:
            _number(name, getattr(self, name))
        if self.wall_clock is not None:
            _wall_clock(self.wall_clock)

    def to_json(self) -> dict[str, int | None]:
        """The budget as stored: whole numbers, `wall_clock_ms` among them."""
        clock = None if self.wall_clock is None else self.wall_clock // _MILLISECOND
        return {name: getattr(self, name) for name in LIMITS} | {"wall_clock_ms": clock}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Budget":
        """The budget `to_json` wrote; absent fields take their defaults.

        ValueError for an unknown field, which would otherwise be a limit that silently does not hold.
        """
        if not isinstance(value, Mapping):
            raise ValueError("budget: an object is expected")  # noqa: TRY004 - one error for all bad input
        known = {*LIMITS, "wall_clock_ms"}
        if unknown := sorted(map(str, set(value) - known)):
            raise ValueError(f"budget: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        clock = value.get("wall_clock_ms")
        if clock is not None and (type(clock) is not int or not 0 < clock <= MAX_WALL_CLOCK // _MILLISECOND):
            raise ValueError(f"budget: wall_clock_ms is whole, above zero, at most ten years, not {clock!r}")
        return cls(
            **{name: value[name] for name in LIMITS if name in value},
            wall_clock=None if clock is None else clock * _MILLISECOND,
        )


_REMEMBERED = 4096
"""Characters of a request up to which its budget is remembered: a cache holds a thousand of them."""


def budget_of(request: str) -> Budget:
    """The budget in a run's stored request, as its producer gave it; what it says of taint is none of it."""
    return _remembered(request) if len(request) <= _REMEMBERED else _budget_of(request)


@lru_cache(maxsize=1024)  # each claim asks, and mostly of the same few runs
def _remembered(request: str) -> Budget:
    return _budget_of(request)


def _budget_of(request: str) -> Budget:
    limits = json.loads(request).get("budget") or {}
    return Budget.from_json({name: limit for name, limit in limits.items() if name != BORN})


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run and the runs below it have used so far, or hold; `wall_clock` is the time since it was
    created, `events` and `bytes` are its own history's.
    """

    turns: int = 0
    calls: int = 0
    attempts: int = 0
    wall_clock: timedelta = timedelta(0)
    tokens: int = 0
    cost: int = 0
    events: int = 0
    bytes: int = 0


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


def overgrown(budget: Budget, usage: Usage) -> str | None:
    """Why a history is too long to begin another step, in words; None where it is not.

    What a step that was begun records still counts beyond the limit: that, what settles and offsets, and the
    stop itself, are the overshoot. A cancel is never refused.
    """
    for name in ("events", "bytes"):
        has, may = getattr(usage, name), getattr(budget, name)
        if has >= may:
            return f"{name}: the history has {has}, and the budget is {may}"
    return None


def unaffordable(budget: Budget, usage: Usage, worst: Spent | None, model: str = "") -> str | None:
    """Why a model may not be asked that uses `worst` at most, in words; None where it may.

    `worst` None: the planner is no declared model, and what it will use is not known. It is asked as long as
    anything is left, and may overshoot by one answer.
    """
    if budget.cost is not None and worst is not None and not worst.known:
        return f"cost: model {model} has no price for today, so what it costs cannot be bounded; add a price"
    for name in ("tokens", "cost"):
        may, has = getattr(budget, name), getattr(usage, name)
        if may is None:
            continue
        need = getattr(worst, name) if worst is not None else min(has, 1)
        if has + need > may:
            return f"{name}: {has} used or held, {need} more may be needed, and the budget is {may}"
    return None
