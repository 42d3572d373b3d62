"""A demo's plan: everything follows from the seed, every fault meets an order, every role is killed."""

import itertools
from collections import Counter

import pytest

from fencepost_ops.demo_havoc import BAITS
from fencepost_ops.demo_plan import (
    FREEZES,
    HELD,
    KILLS,
    LEAST_FOR_ALL,
    STOPPING,
    Freeze,
    Kill,
    Plan,
    make_plan,
)
from fencepost_ops.sandbox.faults import Kind, parse_file

SEEDS = range(20)


def ids(plan: Plan) -> list[str]:
    return [order.id for order in plan.orders]


def test_a_seed_gives_the_same_plan_again_and_another_seed_another() -> None:
    assert make_plan(7, 200) == make_plan(7, 200)
    assert make_plan(7, 200) != make_plan(8, 200)


@pytest.mark.parametrize("runs", [1, 12, 60, 200, 1000])
def test_there_are_as_many_orders_as_asked_for_each_under_a_key_of_its_own(runs: int) -> None:
    found = ids(make_plan(1, runs))
    assert len(found) == len(set(found)) == runs


@pytest.mark.parametrize("seed", SEEDS)
def test_ten_kills_are_spread_over_the_relay_and_all_four_roles_with_two_freezes(seed: int) -> None:
    plan = make_plan(seed, 200)
    killed = Counter(act.role for act in plan.acts if isinstance(act, Kill))
    assert killed == KILLS
    assert sum(killed.values()) == 10
    assert set(killed) == {"relay", "planner", "dispatcher", "reconciler", "compensator"}
    assert sum(isinstance(act, Freeze) for act in plan.acts) == FREEZES == 2
    assert len(plan.acts) == len(plan.waves)


@pytest.mark.parametrize("seed", SEEDS)
def test_with_few_orders_each_role_is_killed_once(seed: int) -> None:
    plan = make_plan(seed, LEAST_FOR_ALL - 1)
    killed = Counter(act.role for act in plan.acts if isinstance(act, Kill))
    assert killed == dict.fromkeys(KILLS, 1)
    assert plan.kills == 5
    assert sum(isinstance(act, Freeze) for act in plan.acts) == FREEZES


@pytest.mark.parametrize("seed", SEEDS)
def test_no_role_is_killed_twice_in_a_row(seed: int) -> None:
    acts = make_plan(seed, 200).acts
    assert not [a for a, b in itertools.pairwise(acts) if a == b]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_of_fault_has_a_rule_that_some_order_meets(seed: int) -> None:
    plan = make_plan(seed, LEAST_FOR_ALL)
    rules = parse_file(list(plan.faults))
    orders = ids(plan)
    met = {
        rule.kind
        for rule in rules
        if rule.reference_prefix and any(order.startswith(rule.reference_prefix) for order in orders)
    }
    assert met == set(Kind)
    assert plan.kinds == {kind.value for kind in Kind}


def test_a_rule_is_for_the_orders_of_its_own_group_alone() -> None:
    plan = make_plan(3, 400)
    for rule in parse_file(list(plan.faults)):
        if rule.reference_prefix:
            met = {o.partition(".")[0] for o in ids(plan) if o.startswith(rule.reference_prefix)}
            assert met == {rule.reference_prefix.removesuffix(".")}


def test_orders_that_cannot_succeed_come_early_and_waves_are_equal() -> None:
    plan = make_plan(5, 200)
    half = len(plan.waves) // 2
    assert not [o.id for wave in plan.waves[half:] for o in wave if o.id.startswith(STOPPING)]
    sizes = [len(wave) for wave in plan.waves]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("runs", [LEAST_FOR_ALL, 200])
def test_each_freeze_brings_the_orders_whose_attempts_are_surely_in_flight(runs: int) -> None:
    plan = make_plan(11, runs)
    baits = [act.bait for act in plan.acts if isinstance(act, Freeze)]
    assert all(len(bait) >= BAITS for bait in baits)
    assert all(order.id.startswith(f"{HELD}.") for bait in baits for order in bait)
    assert not [o.id for wave in plan.waves for o in wave if o.id.startswith(f"{HELD}.")]


def test_fewer_goods_are_there_than_are_ordered() -> None:
    plan = make_plan(1, 200)
    name, stock = plan.scarce
    wanted = sum(o.input["quantity"] for wave in plan.waves for o in wave if o.input["sku"] == name)
    assert 0 < stock < wanted
