import json
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost import canonical
from fencepost.budgets import DIMENSIONS, MAX_COUNT, MAX_WALL_CLOCK, Budget, Usage, exhausted

counts = st.integers(0, MAX_COUNT)
clocks = st.none() | st.integers(1, MAX_WALL_CLOCK // timedelta(milliseconds=1)).map(
    lambda ms: timedelta(milliseconds=ms)
)
budgets = st.builds(Budget, turns=counts, calls=counts, attempts=counts, wall_clock=clocks)


@given(budgets)
def test_a_budget_survives_storage(budget: Budget) -> None:
    stored = canonical.encode(budget.to_json())
    assert Budget.from_json(json.loads(stored)) == budget


def test_absent_fields_take_their_defaults() -> None:
    assert Budget.from_json({}) == Budget() == Budget(16, 64, 256, None)
    assert Budget.from_json({"turns": 3}) == Budget(turns=3)


@pytest.mark.parametrize(
    ("stored", "complaint"),
    [
        ({"turn": 3}, "unknown turn; known are"),
        ({"turns": -1}, "turns is a whole number"),
        ({"turns": True}, "turns is a whole number"),
        ({"turns": "3"}, "turns is a whole number"),
        ({"turns": None}, "turns is a whole number"),
        ({"calls": 1.0}, "calls is a whole number"),
        ({"attempts": MAX_COUNT + 1}, "attempts is a whole number"),
        ({"wall_clock_ms": 0}, "wall_clock_ms is whole"),
        ({"wall_clock_ms": -(10**40)}, "wall_clock_ms is whole"),
        ({"wall_clock_ms": 10**40}, "wall_clock_ms is whole"),
        ({"wall_clock_ms": 1.5}, "wall_clock_ms is whole"),
        ({"wall_clock_ms": True}, "wall_clock_ms is whole"),
        ([], "an object is expected"),
    ],
)
def test_a_limit_that_would_not_hold_is_refused(stored: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Budget.from_json(stored)


@pytest.mark.parametrize(
    "wall_clock",
    [timedelta(0), timedelta(seconds=-1), timedelta(microseconds=1500), MAX_WALL_CLOCK + timedelta(days=1)],
)
def test_a_wall_clock_is_whole_milliseconds_above_zero(wall_clock: timedelta) -> None:
    with pytest.raises(ValueError, match="wall_clock is whole milliseconds"):
        Budget(wall_clock=wall_clock)


@pytest.mark.parametrize(
    ("used", "next_step", "n", "spent"),
    [
        (Usage(turns=1), "turn", 1, None),
        (Usage(turns=2), "turn", 1, "turns"),
        (Usage(calls=2), "calls", 1, None),
        (Usage(calls=2), "calls", 2, "calls"),
        (Usage(calls=3), "calls", 0, None),
        (Usage(attempts=4), "attempt", 1, "attempts"),
        (Usage(turns=9, calls=9), "attempt", 1, None),
        (Usage(wall_clock=timedelta(seconds=59)), "turn", 1, None),
        (Usage(wall_clock=timedelta(seconds=60)), "turn", 1, "wall_clock"),
        (Usage(turns=9, wall_clock=timedelta(hours=1)), "turn", 1, "wall_clock"),
    ],
)
def test_a_step_is_refused_for_the_dimension_it_would_exceed(
    used: Usage, next_step: Any, n: int, spent: str | None
) -> None:
    budget = Budget(turns=2, calls=3, attempts=4, wall_clock=timedelta(minutes=1))
    assert exhausted(budget, used, next=next_step, n=n) == spent


@given(budget=budgets, used=counts, n=st.integers(0, 10))
def test_no_admitted_step_exceeds_its_limit(budget: Budget, used: int, n: int) -> None:
    usage = Usage(turns=used, calls=used, attempts=used)
    if exhausted(budget, usage, next="calls", n=n) is None:
        assert used + n <= budget.calls
    else:
        assert used + n > budget.calls


def test_a_run_without_a_wall_clock_has_only_its_deadline() -> None:
    assert exhausted(Budget(), Usage(wall_clock=timedelta(days=999)), next="turn") is None


def test_every_dimension_of_a_budget_is_counted() -> None:
    assert DIMENSIONS == tuple(f.name for f in fields(Usage)) == ("turns", "calls", "attempts", "wall_clock")
