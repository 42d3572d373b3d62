"""Whether a wait closes a circle, by what its key's holder waits for."""

from uuid import UUID

import pytest

from fencepost.decide.circles import Circles, Key

A, B, C, D = (UUID(int=n) for n in range(1, 5))
ONE, TWO, THREE, ELSEWHERE = ("t", "one"), ("t", "two"), ("t", "three"), ("u", "one")
CHAINS = {ONE: [(A, "a"), (B, "a, which waits for b")], TWO: [(C, "c")], THREE: [(D, "d")]}


@pytest.mark.parametrize(
    ("key", "runs", "begun", "way"),
    [
        (ONE, {A}, [], "a"),
        (ONE, {C, B}, [], "a, which waits for b"),
        (ONE, {C}, [], None),
        (ONE, set(), [], None),
        (ELSEWHERE, {A}, [], None),
        (ONE, {C}, [(B, TWO)], "a, which waits for b, which waits for c"),
        (ONE, {D}, [(B, TWO), (C, THREE)], "a, which waits for b, which waits for c, which waits for d"),
        (ONE, {D}, [(D, TWO), (C, ONE)], None),
        (ONE, {D}, [(B, TWO), (C, ONE), (A, ONE)], None),
    ],
)
def test_who_waits_for_whom(
    key: Key, runs: set[UUID], begun: list[tuple[UUID, Key]], way: str | None
) -> None:
    assert Circles(CHAINS, begun).way(key, runs) == way
