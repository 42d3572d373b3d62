"""What chaos does follows from its seed: which faults, how often, in which order, and how far apart."""

from collections import Counter

import pytest

from fencepost.testing import POINTS, parse_faults
from fencepost_ops.chaos_plan import (
    FAULTS,
    OWN_ONLY,
    POINTS_OF,
    PRODUCER,
    SCALE,
    SERVER_FAULTS,
    WIRE_FAULTS,
    WIRES,
    Arm,
    Doze,
    Foul,
    HostDeath,
    Jump,
    Loss,
    fault_of,
    for_found,
    make_chaos,
)
from fencepost_ops.demo_plan import Kill

SEEDS = range(10)
LEAST_IN_TEN_MINUTES = {
    "kill": 200,
    "freeze": 50,
    "redis-flush": 5,
    "redis-restart": 5,
    "postgres-restart": 5,
}


def test_a_seed_gives_the_same_plan_again_and_another_seed_another() -> None:
    assert make_chaos(7, 200, 60) == make_chaos(7, 200, 60)
    assert make_chaos(7, 200, 60) != make_chaos(8, 200, 60)


@pytest.mark.parametrize("runs", [1, 12, 60, 200, 1000])
def test_there_are_as_many_orders_as_asked_for_each_under_a_key_of_its_own(runs: int) -> None:
    found = [order.id for order in make_chaos(1, runs, 60).orders]
    assert len(found) == len(set(found)) == runs


@pytest.mark.parametrize("seed", SEEDS)
def test_ten_minutes_have_as_many_strikes_as_are_promised(seed: int) -> None:
    counts = make_chaos(seed, 100, 600).counts
    assert tuple(counts) == FAULTS
    assert {name: least for name, least in LEAST_IN_TEN_MINUTES.items() if counts[name] < least} == {}


@pytest.mark.parametrize("seconds", [5, 60, 120, 600])
def test_every_fault_comes_however_short_the_time_is(seconds: float) -> None:
    assert min(make_chaos(3, 10, seconds).counts.values()) >= 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_asked_for_alone_comes_alone_and_just_as_in_company(fault: str) -> None:
    alone = make_chaos(5, 20, 120, [fault])
    everything = make_chaos(5, 20, 120)
    assert {fault_of(strike) for _, strike in alone.strikes} == {fault}
    assert list(alone.strikes) == [one for one in everything.strikes if fault_of(one[1]) == fault]
    assert alone.arrivals == everything.arrivals
    assert bool(alone.service_faults) is (fault == "services")


def test_a_fault_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no fault meteor"):
        make_chaos(1, 10, 60, ["kill", "meteor"])


@pytest.mark.parametrize("seed", SEEDS)
def test_orders_and_strikes_are_spread_over_the_seconds(seed: int) -> None:
    plan = make_chaos(seed, 300, 300)
    times = [at for at, _ in plan.arrivals]
    assert times == sorted(times)
    assert Counter(int(at // 60) for at in times).keys() == set(range(5))
    struck = [at for at, _ in plan.strikes]
    assert struck == sorted(struck)
    assert all(0 <= at <= 300 for at in (*times, *struck))
    for fault, count in plan.counts.items():
        # each in its own part of the time
        parts = [int(at / (300 / count)) for at, strike in plan.strikes if fault_of(strike) == fault]
        assert parts == list(range(count)), fault


@pytest.mark.parametrize("seed", SEEDS)
def test_every_role_is_killed_frozen_and_armed_and_every_wire_fouled(seed: int) -> None:
    strikes = [strike for _, strike in make_chaos(seed, 20, 600).strikes]
    killed = Counter(one.role for one in strikes if isinstance(one, Kill))
    assert killed.keys() == SCALE.keys()
    assert max(killed.values()) - min(killed.values()) <= 1
    assert {one.role for one in strikes if isinstance(one, Doze)} == SCALE.keys()
    assert {one.role for one in strikes if isinstance(one, Arm)} == {*SCALE, PRODUCER}
    assert {one.role for one in strikes if isinstance(one, HostDeath)} == SCALE.keys() - {"relay"}
    assert {one.role for one in strikes if isinstance(one, Doze) and one.host} == SCALE.keys() - {"relay"}
    assert {one.fault for one in strikes if isinstance(one, Loss)} == SERVER_FAULTS
    fouled = {(one.fault, one.wire) for one in strikes if isinstance(one, Foul)}
    assert fouled == {(fault, wire) for fault in WIRE_FAULTS for wire in WIRES}
    assert {one.silent for one in strikes if isinstance(one, Foul) and one.fault == "partition"} == {
        True,
        False,
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_on_a_fleet_that_was_found_only_workers_freeze_and_never_with_their_pulses(seed: int) -> None:
    plan = make_chaos(seed, 20, 600, set(FAULTS) - OWN_ONLY)
    found = for_found(plan)
    assert any(isinstance(one, Doze) and (one.host or one.role == "relay") for _, one in plan.strikes)
    freezes = [one for _, one in found.strikes if isinstance(one, Doze)]
    assert {one.role for one in freezes} == SCALE.keys() - {"relay"}
    assert not any(one.host for one in freezes)
    assert (found.counts, found.arrivals) == (plan.counts, plan.arrivals)
    assert [at for at, _ in found.strikes] == [at for at, _ in plan.strikes]
    assert all(
        now == was
        for (_, now), (_, was) in zip(found.strikes, plan.strikes, strict=True)
        if not isinstance(was, Doze)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_armed_exists_and_is_passed_by_its_role(seed: int) -> None:
    for _, one in make_chaos(seed, 20, 600).strikes:
        if isinstance(one, Arm):
            (fault,) = parse_faults(one.spec)
            assert fault.point in POINTS_OF[one.role]
            assert one.role != PRODUCER or fault.action == "error"


def test_every_point_belongs_to_a_role() -> None:
    assert {point for points in POINTS_OF.values() for point in points} == POINTS


@pytest.mark.parametrize("seed", SEEDS)
def test_the_clock_jumps_by_less_than_any_deadline_and_its_furthest_is_known(seed: int) -> None:
    plan = make_chaos(seed, 20, 600)
    jumps = [one.ahead_s for _, one in plan.strikes if isinstance(one, Jump)]
    assert plan.furthest_s == max(jumps) <= 30
    assert make_chaos(seed, 20, 600, ["kill"]).furthest_s == 0


def test_no_service_breaks_its_contract() -> None:
    kinds = {rule["kind"] for rule in make_chaos(1, 200, 60).service_faults}
    assert not kinds & {"ignore_keys", "forget_keys"}
    assert len(kinds) > 8


def test_what_needs_wires_points_services_or_a_clock_is_not_for_a_fleet_that_was_found() -> None:
    assert set(FAULTS) - OWN_ONLY == {
        "kill",
        "freeze",
        "host-death",
        "redis-flush",
        "redis-restart",
        "postgres-restart",
    }
