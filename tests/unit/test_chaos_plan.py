"""What chaos does follows from its seed: every role is struck in every way, every server goes away."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from fencepost.testing import POINTS, parse_faults
from fencepost_ops.chaos_plan import (
    POINTS_OF,
    PRODUCER,
    SCALE,
    SERVERS,
    Arm,
    Doze,
    HostDeath,
    Weather,
    described,
    make_chaos,
)
from fencepost_ops.chaos_takeovers import Struck, Takeovers, merged, told
from fencepost_ops.demo_plan import Kill

SEEDS = range(10)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_seed_gives_the_same_plan_again_and_another_seed_another() -> None:
    assert make_chaos(7, 200) == make_chaos(7, 200)
    assert make_chaos(7, 200) != make_chaos(8, 200)


@pytest.mark.parametrize("runs", [1, 12, 60, 200, 1000])
def test_there_are_as_many_orders_as_asked_for_each_under_a_key_of_its_own(runs: int) -> None:
    found = [order.id for order in make_chaos(1, runs).orders]
    assert len(found) == len(set(found)) == runs


@pytest.mark.parametrize("seed", SEEDS)
def test_every_role_is_killed_frozen_and_armed_and_every_server_goes_away(seed: int) -> None:
    plan = make_chaos(seed, 200)
    assert len(plan.waves) == len(plan.gaps) == len(plan.strikes)
    killed = Counter(one.role for one in plan.strikes if isinstance(one, Kill))
    frozen = Counter(one.role for one in plan.strikes if isinstance(one, Doze) and not one.host)
    armed = Counter(one.role for one in plan.strikes if isinstance(one, Arm))
    assert set(killed) == set(frozen) == set(SCALE)
    assert set(armed) == {*SCALE, PRODUCER}
    assert sorted(one.server for one in plan.strikes if isinstance(one, Weather)) == sorted(SERVERS)
    assert {one.role for one in plan.strikes if isinstance(one, HostDeath)} <= set(SCALE) - {"relay"}
    assert described(plan.strikes).keys() == {
        "kills",
        "freezes",
        "host freezes",
        "host deaths",
        "armed",
        "weather",
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_armed_exists_and_is_passed_by_its_role(seed: int) -> None:
    for one in make_chaos(seed, 400).strikes:
        if isinstance(one, Arm):
            (fault,) = parse_faults(one.spec)
            assert fault.point in POINTS_OF[one.role]
            assert one.role != PRODUCER or fault.action == "error"


def test_every_point_belongs_to_a_role() -> None:
    assert {point for points in POINTS_OF.values() for point in points} == POINTS


class FakeReader:
    """Answers when something was taken over, and how much its holder still recorded, in order."""

    def __init__(self, *answers: tuple[datetime | None, int]) -> None:
        self.answers = list(answers)

    def execute(self, *_: Any) -> Any:
        return self

    def fetchone(self) -> Any:
        return self.answers.pop(0)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def takeovers(*answers: tuple[datetime | None, int]) -> Takeovers:
    return Takeovers(FakeReader(*answers))  # type: ignore[arg-type]


def held(count: int) -> Any:
    return tuple((uuid4(), uuid4(), 1) for _ in range(count))


def test_a_takeover_counts_from_the_strike_unless_the_holder_recorded_after_all() -> None:
    found = takeovers((after(0.5), 0), (after(0.7), 1), (None, 0))
    found.struck.append(Struck("kill", NOW, held(3)))
    assert found.seconds() == {"kill": [0.5]}


def test_whoever_woke_first_was_not_taken_over() -> None:
    found = takeovers((after(2), 0), (after(4), 0))
    found.struck.append(Struck("freeze", NOW, held(2), until=after(3)))
    assert found.seconds() == {"freeze": [2.0]}


def test_a_strike_beside_an_outage_measures_the_outage_and_does_not_count() -> None:
    found = takeovers((after(9), 0))
    found.struck.append(Struck("kill", NOW, held(1)))
    found.outages.append(after(3))
    assert found.seconds() == {}


def test_seconds_are_told_as_median_and_most() -> None:
    assert told([]) == "none"
    assert told([3.0, 1.0, 2.0]) == "p50 2.0 s, max 3.0 s, of 3"
    assert merged([{"kill": [1.0]}, {"kill": [2.0], "freeze": [3.0]}]) == {
        "kill": [1.0, 2.0],
        "freeze": [3.0],
    }
