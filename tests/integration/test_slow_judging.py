"""An engine, or what names amounts, that takes longer than Postgres waits: one claim's failure, no outage."""

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.allowances import Allowance
from fencepost.authority import Authority, AuthorizationDecision, AuthorizationRequest
from fencepost.clock import uuid7
from fencepost.ledger import stopwatch
from fencepost.ledger.connect import IDLE_IN_TRANSACTION_S
from fencepost.ledger.stopwatch import JUDGED_S, Stopwatch, TooSlowError
from fencepost.money import Money
from tests.integration.allowed import euros, name, under
from tests.integration.ledger_bench import TENANT, Bench


@dataclass
class Slow:
    """Takes so many seconds in the claims of these orders."""

    behind: Authority
    orders: frozenset[str]
    seconds: float
    asked: int = 0

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        if request.phase == "claim" and request.arguments.get("order") in self.orders:
            self.asked += 1
            time.sleep(self.seconds)
        return self.behind.decide(request)


@dataclass
class Three:
    """Three calls that wait in the queue, each of a run of its own."""

    bench: Bench
    orders: list[str]
    runs: list[UUID]
    calls: list[UUID]

    def claim(self) -> list[c.Answer]:
        pairs = zip(self.runs, self.calls, strict=True)
        return self.bench.ledger.apply([self.bench.claim_call(run, call) for run, call in pairs])

    def judged_by(self, orders: set[str], seconds: float) -> Slow:
        slow = Slow(self.bench.gate, frozenset(orders), seconds)
        self.bench.ledger = self.bench.ledger_as("worker", authority=slow)
        return slow


@pytest.fixture
def three(bench: Bench) -> Iterator[Three]:
    usual = bench.ledger
    orders = [bench.order() for _ in range(3)]
    runs = [bench.start(deadline_s=3600) for _ in range(3)]
    calls = [bench.debit(run, order) for run, order in zip(runs, orders, strict=True)]
    yield Three(bench, orders, runs, calls)
    bench.ledger = usual


def test_one_that_outlasts_postgres_costs_its_neighbours_no_turn(three: Three) -> None:
    slow = three.judged_by({three.orders[1]}, IDLE_IN_TRANSACTION_S + 0.5)
    first, second, third = three.claim()
    assert isinstance(first, c.Send)
    assert isinstance(third, c.Send)
    assert isinstance(second, c.Broken)
    assert "judging it took 2." in second.why
    assert "quicker" in second.why
    assert slow.asked == 1  # not once more, while its neighbours' time runs
    assert [three.bench.state(call) for call in three.calls] == [
        "DISPATCHING",
        "INTENT_RECORDED",
        "DISPATCHING",
    ]


def test_a_process_that_was_frozen_while_it_judged_blames_nobody(three: Three) -> None:
    class Frozen(Slow):
        def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
            if request.phase == "claim" and not self.asked:
                self.asked = 1
                me, seconds = os.getpid(), IDLE_IN_TRANSACTION_S + 0.5
                freeze = f"kill -STOP {me}; sleep {seconds}; kill -CONT {me}"
                subprocess.run(["sh", "-c", freeze], check=True)
            return self.behind.decide(request)

    authority = Frozen(three.bench.gate, frozenset(), 0)
    three.bench.ledger = three.bench.ledger_as("worker", authority=authority)
    assert [type(answer).__name__ for answer in three.claim()] == ["Send"] * 3
    assert authority.asked


def test_many_that_are_too_slow_together_are_asked_in_halves(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopwatch, "JUDGED_S", 0.9)
    slow = three.judged_by(set(three.orders), 0.35)
    assert [type(answer).__name__ for answer in three.claim()] == ["Send"] * 3
    assert slow.asked > 3


def test_a_slow_amount_is_told_apart_before_counters_are_locked(bench: Bench) -> None:
    order, claimed, asked = bench.order(), [False], [0]

    def amount(args: Any) -> Money:
        if args.order == order and claimed[0]:
            asked[0] += 1
            time.sleep(IDLE_IN_TRANSACTION_S + 0.5)
        return euros(args.minor)

    with under(bench, Allowance(id=name(), count=9), amount=amount) as allowed:
        calls = allowed.planned([bench.order(), order])
        claimed[0] = True
        sent, slow = bench.ledger.apply([allowed.claim(call) for call in calls])
    assert isinstance(sent, c.Send)
    assert isinstance(slow, c.Broken)
    assert "acts_on and amount" in slow.why
    assert asked == [1]


# -- the stopwatch -----------------------------------------------------------------------------------------


def command() -> c.Command:
    return c.Sweep(id=uuid7(), tenant=TENANT, run=uuid7(), subject=uuid7())


def test_whoever_makes_a_batch_too_slow_is_named_with_its_own_time() -> None:
    now = [0.0]
    watch, one, other = Stopwatch(lambda: now[0]), command(), command()
    now[0] = 100.0
    watch.begin()  # what was before the last statement is none of it
    now[0] += JUDGED_S
    watch.judged(one)
    now[0] += 0.1
    with pytest.raises(TooSlowError) as slow:
        watch.judged(other)
    assert slow.value.command is other
    assert slow.value.seconds == pytest.approx(0.1)
    assert not slow.value.alone
    watch.begin()
    now[0] += JUDGED_S + 0.1
    with pytest.raises(TooSlowError) as slow:
        watch.judged(one)
    assert slow.value.alone
