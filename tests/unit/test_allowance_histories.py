"""Allowances in random histories of a fleet under faults: counters are what calls hold, limits are kept."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.allowances import GIVEN_BACK, Allowance, Share, Used, counted, taken
from fencepost.money import Money
from fencepost.tools import Tool
from tests.unit.ledger_world import APP, World

STEPS = 80
EUROS = Money(currency="EUR", amount_minor=300, scale=2)
RULES = (
    Allowance(id="ever", count=4),
    Allowance(id="cash", spend=EUROS, tool="wallet.*", window=timedelta(seconds=20), per=("tool",)),
)


class Unlocked(dict[tuple[str, str], Used]):
    """Counters that are all there: nothing is used of one that is not."""

    def get(self, key: Any, default: Any = None) -> Any:
        return self.setdefault(key, Used())


def _moves(args: Any) -> Money:
    return Money(currency="EUR", amount_minor=args.minor, scale=2)


def _tool(name: str, version: int) -> Tool | None:
    tool = APP.registry.get((name, version))
    return replace(tool, amount=_moves) if tool is not None and name.startswith("wallet.") else tool


class Limited:
    """A world under allowances, and what has been given back in it."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, runs=4)
        self.memory = self.world.memory
        self.memory.known = replace(self.memory.known, tool=_tool, allowances=RULES)
        self.memory.loaded.allowances = Unlocked()
        self.gave: set[UUID] = set()

    def check(self) -> None:
        """Counters are the sum of what calls hold or have used; beyond a limit is only what came back."""
        calls: Counter[tuple[str, str]] = Counter()
        minor: Counter[tuple[str, str]] = Counter()
        let_go: Counter[tuple[str, str]] = Counter()
        spent: Counter[tuple[str, str]] = Counter()
        limits: dict[tuple[str, str], Share] = {}
        for call in self.memory.calls():
            if call.reserved is not None and call.state in GIVEN_BACK:
                self.gave.add(call.id)
            assert call.attempts == 0 or call.compensates or call.reserved is not None
            assert not (call.reserved is not None and call.compensates)
            for share in counted(call.reserved, call.state):
                key = call.tenant, share.key
                limits[key] = share
                calls[key] += share.count
                minor[key] += share.minor
                if call.id not in self.gave:
                    let_go[key] += share.count
                    spent[key] += share.minor
        counters = self.memory.loaded.allowances
        for key, used in counters.items():
            assert used == Used(calls[key], minor[key])
        for key, share in limits.items():
            assert key in counters
            assert share.limit_count is None or let_go[key] <= share.limit_count
            assert share.limit_minor is None or spent[key] <= share.limit_minor
        for call_id, effects in self.world.downstream.of_call.items():
            call = next(call for call in self.memory.calls() if call.id == call_id)
            assert not effects or call.compensates or taken(call.reserved), "an effect nobody counted"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_in_any_history_counters_are_what_calls_hold_and_nothing_is_let_go_beyond_them(seed: int) -> None:
    limited = Limited(seed)
    for _ in range(STEPS):
        if not limited.world.step():
            break
        limited.check()
    limited.world.drain()
    limited.check()
    limited.memory.check_histories()
