"""Hosts whose clocks are wrong, and one that was suspended: only Postgres says what time it is (R6)."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.acceptance.clock_shim import WrongClock, built, why_not
from tests.acceptance.conftest import checked
from tests.acceptance.stage import Stage, staged, step
from tests.acceptance.weather import long_only

pytestmark = [long_only, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

TEN_MINUTES = 600
WRONG = {"planner": -TEN_MINUTES, "dispatcher": TEN_MINUTES, "reconciler": -TEN_MINUTES, "relay": TEN_MINUTES}
PRICE = {"currency": "EUR", "amount_minor": 100, "scale": 2}

_numbers = itertools.count(1)
Clocks = dict[str, WrongClock]


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, Clocks]]:
    """A fleet each of whose hosts has the time wrong in its own way."""
    folder = tmp_path_factory.mktemp("clocks")
    library = built(folder)
    with ExitStack() as stack:
        clocks = {
            role: stack.enter_context(WrongClock(library, folder / f"{role}.clock", wall_s))
            for role, wall_s in WRONG.items()
        }
        env_of = {role: clock.env for role, clock in clocks.items()}
        stage = stack.enter_context(staged(folder / "fleet", env_of=env_of))
        yield stage, clocks


@pytest.fixture
def stage(wrong: tuple[Stage, Clocks]) -> Iterator[Stage]:
    yield from checked(wrong[0])


@pytest.fixture
def clocks(wrong: tuple[Stage, Clocks]) -> Clocks:
    return wrong[1]


def test_the_clocks_are_wrong(clocks: Clocks) -> None:
    question = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp())"
    known = float(subprocess.check_output([sys.executable, "-c", "import time; print(time.time())"]))
    told = subprocess.check_output(
        [sys.executable, "-c", question], env=os.environ | clocks["dispatcher"].env
    )
    for instant in map(float, told.split()):
        assert TEN_MINUTES - 60 < instant - known < TEN_MINUTES + 60


def test_clocks_ten_minutes_apart_change_nothing(stage: Stage) -> None:
    orders = [f"clock-{next(_numbers)}" for _ in range(20)]
    stage.sandbox.fault("drop_after_commit", reference=orders[0], nth=1)
    runs = [stage.order(reference) for reference in orders]
    assert stage.ended(*runs) == ["COMPLETED"] * len(runs)
    now = stage.value("SELECT fencepost.now()")
    for run, reference in zip(runs, orders, strict=True):
        assert sorted(stage.effects(reference)) == ["debit", "reservation", "shipment"]
        assert all((now - event.recorded_at).total_seconds() < TEN_MINUTES / 2 for event in stage.events(run))
        assert all(event.recorded_at <= now for event in stage.events(run))
    lost = [run for run in runs if stage.events(run, "ToolOutcomeMarkedUnknown")]
    assert lost == runs[:1]  # the answer that was dropped, and nobody's time that was up too soon


def test_a_worker_that_slept_sends_nothing_when_it_wakes(stage: Stage, clocks: Clocks) -> None:
    reference = f"clock-{next(_numbers)}"
    debit = step("wallet.debit", "debit", order_id=reference, account="acc", amount=PRICE)
    stage.arm("dispatcher", "dispatch.before_wire=pause")
    run = stage.send([debit])
    pid = stage.frozen("dispatcher")
    clocks["dispatcher"].suspend(3600)
    os.kill(pid, signal.SIGCONT)  # within milliseconds: only boot time tells that the attempt is over
    (started, *_) = [e for e in stage.events(run) if e.type == "ToolAttemptStarted"]
    assert stage.ended(run) == ["COMPLETED"]
    assert stage.attempts_sent(reference) == ["2"]
    assert stage.effects(reference) == ["debit"]
    assert started.attempt == 1
    assert pid in stage.fleet.pids().values()  # it is as healthy as before, and nobody ended it
