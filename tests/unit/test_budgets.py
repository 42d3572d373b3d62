import copy
import json
import pickle
from dataclasses import asdict, astuple, dataclass, fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fencepost import canonical, slices
from fencepost.budgets import (
    LIMITS,
    MAX_AMOUNT,
    MAX_COUNT,
    MAX_WALL_CLOCK,
    OPTIONAL,
    Budget,
    Usage,
    budget_of,
    exhausted,
    overgrown,
    unaffordable,
)
from fencepost.models import Spent

counts = st.integers(0, MAX_COUNT)
clocks = st.none() | st.integers(1, MAX_WALL_CLOCK // timedelta(milliseconds=1)).map(
    lambda ms: timedelta(milliseconds=ms)
)
limits = {
    name: st.integers(least, most) | (st.none() if name in OPTIONAL else st.nothing())
    for name, (least, most) in LIMITS.items()
}
budgets = st.builds(Budget, wall_clock=clocks, **limits)


@given(budgets)
def test_a_budget_survives_storage(budget: Budget) -> None:
    stored = canonical.encode(budget.to_json())
    assert Budget.from_json(json.loads(stored)) == budget
    assert budget_of(json.dumps({"budget": budget.to_json() | {"tainted": True}})) == budget


def test_every_limit_has_a_range_a_name_in_json_and_a_field() -> None:
    named = {*LIMITS, "wall_clock"}
    assert named == {f.name for f in fields(Budget)}
    assert set(Budget().to_json()) == {*LIMITS, "wall_clock_ms"}
    assert {f.name for f in fields(Usage)} == named - {"depth", "children", "fruitless", "repeats"}


@dataclass(frozen=True, slots=True)
class Larger(Budget):
    """One of somebody who adds to it."""

    extra: int = 1


class Narrow(Budget):
    """One of somebody who makes it otherwise."""

    def __init__(self, *, t: int) -> None:
        super().__init__(turns=t)


MADE = [Budget(), Budget(16, cost=None), Budget(turns=3, tokens=5, wall_clock=timedelta(seconds=2))]


@pytest.mark.parametrize("made", MADE)
def test_a_budget_is_its_limits_and_nothing_beside_them(made: Budget) -> None:
    by_pydantic = TypeAdapter(Budget)
    again = [
        copy.copy(made),
        copy.deepcopy(made),
        replace(made),
        *(pickle.loads(pickle.dumps(made, version)) for version in (2, pickle.HIGHEST_PROTOCOL)),  # noqa: S301
        Budget(**asdict(made)),
        Budget(*astuple(made)),
        Budget.from_json(json.loads(json.dumps(made.to_json()))),
        by_pydantic.validate_python(asdict(made)),
        by_pydantic.validate_json(by_pydantic.dump_json(made)),
    ]
    assert {*again} == {made}
    for one in again:
        assert (repr(one), asdict(one), slices.named(one)) == (repr(made), asdict(made), slices.named(made))
    assert json.loads(json.dumps(asdict(made), default=str))["turns"] == made.turns
    assert {*asdict(made)} == {*LIMITS, "wall_clock"}


def test_a_budget_names_what_differs_from_the_default_however_it_was_made() -> None:
    made = [
        Budget(3),
        Budget(turns=3, calls=64),
        Narrow(t=3),
        Larger(turns=3),
        Budget.from_json({"turns": 3}),
    ]
    assert [slices.named(one) for one in made] == [{"turns"}] * 5
    assert slices.named(Budget.from_json({"turns": 16})) == slices.named(Budget(turns=16)) == set()


def test_absent_fields_take_their_defaults() -> None:
    usual = Budget(16, 64, 256, None, None, None, 50_000, 52_428_800, 4, 16, 5, 5)
    assert Budget.from_json({}) == Budget() == usual == budget_of("{}")
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
        ({"tokens": -1}, "tokens is a whole number"),
        ({"cost": 0.5}, "cost is a whole number"),
        ({"cost": MAX_AMOUNT + 1}, "cost is a whole number"),
        ({"events": None}, "events is a whole number"),
        ({"fruitless": 0}, "fruitless is a whole number from 1"),
        ({"repeats": 1}, "repeats is a whole number from 2"),
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


@pytest.mark.parametrize(
    ("used", "why"),
    [
        (Usage(events=99, bytes=999), None),
        (Usage(events=100), "events: the history has 100, and the budget is 100"),
        (Usage(events=7, bytes=1000), "bytes: the history has 1000, and the budget is 1000"),
    ],
)
def test_a_history_at_its_limit_begins_no_step(used: Usage, why: str | None) -> None:
    assert overgrown(Budget(events=100, bytes=1000), used) == why


@pytest.mark.parametrize(
    ("used", "worst", "first"),
    [
        (Usage(tokens=0), Spent(100, 10), None),
        (Usage(tokens=900), Spent(100, 10), None),
        (Usage(tokens=901), Spent(100, 10), "tokens: 901 used or held, 100 more"),
        (Usage(cost=41), Spent(100, 10), "cost: 41 used or held, 10 more"),
        (Usage(), Spent(1, 0, known=False), "cost: model gpt has no price"),
        # Of a planner that is no declared model nobody knows what it will use.
        (Usage(), None, None),
        (Usage(tokens=999, cost=49), None, None),
        (Usage(tokens=1000), None, "tokens: 1000 used or held, 1 more"),
    ],
)
def test_a_model_is_asked_only_if_the_worst_case_fits(
    used: Usage, worst: Spent | None, first: str | None
) -> None:
    why = unaffordable(Budget(tokens=1000, cost=50), used, worst, "gpt")
    assert why is None if first is None else (why or "").startswith(first)


def test_without_a_limit_anything_is_affordable_and_a_price_needs_not_be_known() -> None:
    assert unaffordable(Budget(), Usage(tokens=MAX_AMOUNT), Spent(9, 9, known=False), "gpt") is None
    assert unaffordable(Budget(tokens=10), Usage(), Spent(9, 0, known=False), "gpt") is None
