"""How long takeovers took, by the clock of chaos: from the strike to the look that finds the work claimed."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from fencepost_ops.chaos_takeovers import NEVER_S, Takeovers, at, spread, told


class FakeReader:
    """Says of each thing that was held how long ago it was claimed anew, whether its holder recorded, and
    whether it has ended.
    """

    def __init__(self) -> None:
        self.since: dict[UUID, tuple[float | None, bool]] = {}
        self.ended: set[UUID] = set()
        self.asked = 0
        self._rows: list[Any] = []

    def execute(self, _statement: str, values: Any) -> Any:
        self.asked += 1
        places, runs = values[0], values[1]
        self._rows = [
            (n, *self.since.get(run, (None, False)), run in self.ended)
            for n, run in zip(places, runs, strict=True)
        ]
        return self

    def fetchall(self) -> Any:
        return self._rows


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.reader = FakeReader()
        self.takeovers = Takeovers(self.reader, lambda: self.now)  # type: ignore[arg-type]
        self.run = uuid4()

    def strike(self, fault: str = "kill") -> int:
        return self.takeovers.struck(fault, [(self.run, None, 3, 7, "t")])

    def taken_after(self, seconds: float, *, recorded: bool = False, seen_s: float = 0.0) -> None:
        """It is claimed so much later, and that is seen `seen_s` later still."""
        self.now += seconds + seen_s
        self.reader.since[self.run] = (seen_s, recorded)
        self.takeovers.look()


@pytest.fixture
def world() -> World:
    return World()


def test_a_takeover_counts_from_the_strike(world: World) -> None:
    world.strike()
    world.takeovers.look()
    assert world.takeovers.seconds() == {}
    world.taken_after(1.5)
    assert world.takeovers.seconds() == world.takeovers.seconds(calm=True) == {"kill": [1.5]}
    asked = world.reader.asked
    world.takeovers.look()
    assert world.reader.asked == asked  # nothing is waited for any more


def test_a_takeover_that_is_seen_late_counts_as_of_its_claim(world: World) -> None:
    world.strike()
    world.taken_after(1.5, seen_s=20.0)
    assert world.takeovers.seconds() == {"kill": [1.5]}


@pytest.mark.parametrize(("age", "seconds"), [(-30.0, 2.0), (30.0, 0.0)])
def test_a_clock_that_has_just_been_moved_makes_no_time_before_the_strike_or_after_now(
    age: float, seconds: float, world: World
) -> None:
    world.strike()
    world.now += 2
    world.reader.since[world.run] = (age, False)
    world.takeovers.look()
    assert world.takeovers.seconds() == {"kill": [seconds]}


def test_whoever_recorded_after_all_was_not_taken_over(world: World) -> None:
    world.strike()
    world.taken_after(1.5, recorded=True)
    assert world.takeovers.seconds() == {}


def test_whoever_woke_first_was_not_taken_over(world: World) -> None:
    strike = world.strike("freeze")
    world.takeovers.woken(strike)
    world.taken_after(1.0)
    assert world.takeovers.seconds() == {}


def test_what_was_taken_over_just_before_it_woke_counts(world: World) -> None:
    strike = world.strike("freeze")
    world.now += 2
    world.reader.since[world.run] = (0.0, False)
    world.takeovers.woken(strike)
    assert world.takeovers.seconds() == {"freeze": [2.0]}


def test_a_takeover_counts_however_late_it_is_and_meanwhile_as_none(world: World) -> None:
    world.strike()
    world.now += NEVER_S - 1
    world.takeovers.look()
    assert world.takeovers.never == 0
    world.now += 1
    world.takeovers.look()
    assert (world.takeovers.never, world.takeovers.seconds()) == (1, {})
    world.taken_after(30.0)
    assert (world.takeovers.never, world.takeovers.seconds()) == (0, {"kill": [NEVER_S + 30.0]})


def test_what_has_ended_need_not_be_claimed_and_is_counted_by_itself(world: World) -> None:
    world.strike()
    world.reader.ended.add(world.run)
    world.takeovers.look()
    world.now += NEVER_S
    assert (world.takeovers.ended, world.takeovers.never, world.takeovers.seconds()) == (1, 0, {})


def test_what_was_claimed_and_then_ended_was_claimed(world: World) -> None:
    world.strike()
    world.reader.ended.add(world.run)
    world.taken_after(1.0)
    assert (world.takeovers.ended, world.takeovers.seconds()) == (0, {"kill": [1.0]})


@pytest.mark.parametrize(
    ("begins", "ends", "calm"),
    [(-9, -5, True), (-9, -0.5, False), (-9, 9, False), (1, 1.5, False), (2.5, 3, True), (-9, None, False)],
)
def test_takeovers_beside_an_outage_are_told_apart(begins: float, ends: float | None, calm: bool) -> None:
    world = World()
    struck = world.now
    world.now = struck + begins
    over = world.takeovers.begin_outage()
    if ends is not None:
        world.now = struck + ends
        over()
    world.now = struck
    world.strike()
    world.taken_after(2)
    assert world.takeovers.seconds() == {"kill": [2.0]}
    assert world.takeovers.seconds(calm=True) == ({"kill": [2.0]} if calm else {})


def test_seconds_are_told_as_median_99th_percentile_and_most() -> None:
    seconds = [n / 10 for n in range(1, 201)]
    assert at(0.5, []) is None
    assert told([]) == "none"
    assert told(seconds) == "p50 10.1 s, p99 19.9 s, max 20.0 s, of 200"
    assert spread(seconds) == {"count": 200, "p50": 10.1, "p99": 19.9, "max": 20.0}
    assert spread([]) == {"count": 0, "p50": None, "p99": None, "max": None}
