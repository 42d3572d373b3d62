"""Random histories of a fleet under faults, decided by the real code in memory."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.ledger_world import World

STEPS = 80


def history(seed: int, **how: Any) -> World:
    world = World(seed, **how)
    for _ in range(STEPS):
        if not world.step():
            break
        world.check()
    return world


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_history_replays_at_every_change_and_keeps_one_effect_per_key(seed: int) -> None:
    world = history(seed)
    world.drain()
    world.memory.check_histories()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_whatever_sets_one_thing_no_older_call_overwrites_a_later_one(seed: int) -> None:
    world = history(seed, tools=("shelf.price",), things="a")
    world.drain()
    world.memory.check_histories()
