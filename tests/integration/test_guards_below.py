"""What the children of a run hold and have used moves with the events that say so, in plain SQL."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from fencepost.events import EventType
from tests.integration.guards_bench import WORKER, CallTarget, attack
from tests.integration.ledger_bench import Bench

E = EventType
PIECE = {"turns": 4, "calls": 8}
OTHERS = str(uuid4())
"""A call of the run whose child goes on."""
USED = {"turns": 2}
MOVES = "what its children hold and have used moves"
HELD = "from their start to their end"


class Below:
    """A run whose call starts and ends runs."""

    def __init__(self, target: CallTarget) -> None:
        self.attack, self.run, self.call = target.attack, target.run, target.call

    def refused(
        self,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
        event: tuple[EventType, dict[str, Any]],
    ) -> str | None:
        """Why Postgres refuses that the run's `below` moves with this event of its call; None: it does."""
        texts = [None if one is None else json.dumps(one) for one in (before, after)]
        first = next(self.attack.numbers)
        self.attack.put("runs", self.run, below=texts[0], seq=first)
        seq, _, head = self.attack.event(self.run, self.call, event[0], body=event[1])
        change = {"below": texts[1], "seq": seq, "head_hash": head}
        code = self.attack.update("runs", self.run, change, WORKER)
        assert code in {None, "FP004"}, self.attack.said
        return None if code is None else MOVES if MOVES in self.attack.said else HELD


@pytest.fixture
def below(module_bench: Bench, planned: tuple[UUID, UUID, UUID, int]) -> Iterator[Below]:
    with attack(module_bench) as opened:
        yield Below(CallTarget(planned, opened))


def test_it_moves_with_no_other_event(below: Below) -> None:
    held = {"held": {OTHERS: PIECE}}
    said: tuple[EventType, dict[str, Any]] = (E.RECONCILIATION_DEFERRED, {})
    assert below.refused(held, held, said) is None
    assert below.refused(held, None, said) == MOVES
    assert below.refused(None, {"join": {"calls": []}}, said) == MOVES


def test_a_slice_is_held_from_the_event_that_names_it(below: Below) -> None:
    mine, others = {str(below.call): PIECE}, {OTHERS: PIECE}
    said = (E.CHILD_RUN_STARTED, {"child": "x", "held": PIECE})
    assert below.refused({"held": others}, {"held": others | mine}, said) is None
    assert below.refused(None, {"held": mine}, said) is None
    for wrong in (None, {"held": others}, {"held": {str(below.call): {"turns": 1}}}):
        assert below.refused(None, wrong, said) == HELD
    assert below.refused({"held": others}, {"held": mine}, said) == HELD, "another's slice is lost"
    assert below.refused(None, None, (E.CHILD_RUN_STARTED, {"child": "x"})) is None, "it holds nothing"


def test_a_slice_comes_back_with_the_end_of_its_own_call(below: Below) -> None:
    mine, others = {str(below.call): PIECE}, {OTHERS: PIECE}
    for kind in (E.CHILD_RUN_SETTLED, E.REPAIR_DECIDED, E.TOOL_EFFECT_RECONCILED):
        assert below.refused({"held": others | mine}, {"held": others, "used": USED}, (kind, {})) is None
        assert below.refused({"held": others | mine}, {"held": mine}, (kind, {})) == HELD
        assert below.refused({"held": others | mine}, None, (kind, {})) == HELD
    whole = {"held": others | mine}
    assert below.refused(whole, whole, (E.CHILD_RUN_SETTLED, {})) == HELD
    assert below.refused(whole, {"held": others}, (E.CALL_DETACHED, {})) == HELD
    grown = {"held": others | {str(below.call): {"turns": 5}}}
    assert below.refused(whole, grown, (E.CALL_DETACHED, {})) == HELD


def test_what_was_used_stays_used(below: Below) -> None:
    said: tuple[EventType, dict[str, Any]] = (E.REPAIR_DECIDED, {})
    used = {"used": {"turns": 2, "calls": 3}}
    assert below.refused(used, {"used": {"turns": 2, "calls": 10}}, said) is None
    for less in ({"turns": 1, "calls": 3}, {"turns": 2}, {}):
        assert below.refused(used, {"used": less} if less else None, said) == HELD
