"""Servers and whole processes go away under load and come back: everything settles, nothing is done twice."""

import itertools
import os
import signal
from functools import partial
from uuid import UUID

import pytest

from tests.acceptance.stage import ROLES, Stage, is_frozen, step
from tests.acceptance.weather import LONG, long_only
from tests.acceptance.weather.load import ORDER, all_settle, done, orders, under_way
from tests.acceptance.weather.resets import broker
from tests.awaiting import until

_numbers = itertools.count(1)

WORKERS = ["planner-1", "dispatcher-1", "reconciler-1", "compensator"]
if LONG:
    WORKERS += ["dispatcher-2", "planner-2"]
WASTE = {"ToolOutcomeMarkedUnknown", "ModelOutcomeUnknown", "ToolAttemptFailed"}


@long_only
def test_a_wiped_redis_loses_nothing(stage: Stage) -> None:
    sent = orders(stage, 15)
    under_way(stage, sent)
    with broker(stage) as client:
        until("half of it done", lambda: client.flushall() and done(stage, sent) >= len(sent) // 2)
        client.flushall()
    all_settle(stage, sent)


@long_only
def test_a_killed_redis_costs_time_only(stage: Stage) -> None:
    sent = orders(stage, 15)
    under_way(stage, sent)
    os.kill(stage.fleet.valkey.pid, signal.SIGKILL)
    until("a dead Valkey", lambda: not stage.fleet.valkey.is_alive())
    late = orders(stage, 2)  # taken while it is away
    assert stage.fleet.mend() == ["Valkey"]
    all_settle(stage, sent | late)


@long_only
def test_a_crashed_postgres_costs_time_only(stage: Stage) -> None:
    sent = orders(stage, 15)
    under_way(stage, sent)
    os.kill(stage.fleet.postgres.pid, signal.SIGQUIT)
    until("a dead Postgres", lambda: not stage.fleet.postgres.is_alive())
    assert stage.fleet.mend() == ["Postgres"]
    all_settle(stage, sent)


def test_a_cancel_survives_a_wiped_redis_and_workers_that_stand_still(stage: Stage) -> None:
    """A cancel is a fact of the ledger: whoever comes later finds it, and sends nothing more."""
    reference = f"cancel-{next(_numbers)}"
    stage.sandbox.fault("delay_before", reference=f"{reference}-two", delay_s=1)
    run = stage.send(
        [step("bank.debit", "one", reference=f"{reference}-one")],
        [step("bank.debit", "two", reference=f"{reference}-two")],
        [step("bank.debit", "three", reference=f"{reference}-three")],
    )
    stage.until_state(run, "two", "DISPATCHING")
    for name in (name for role in ROLES for name in stage.fleet.names(role)):
        stage.fleet.signal(name, signal.SIGSTOP)
    stage.cancel(run)
    with broker(stage) as client:
        client.flushall()
    stage.wake_all()
    assert stage.ended(run) == ["STOPPED"]
    assert stage.history(run).run.stop_reason == "cancelled"
    assert stage.effects(f"{reference}-one") == stage.effects(f"{reference}-two") == ["debit", "refund"]
    assert stage.requests(f"{reference}-three") == 0


def test_one_of_two_relays_is_enough(stage: Stage) -> None:
    sent = orders(stage, 15)
    under_way(stage, sent)
    stage.fleet.kill("relay-1")
    until("half of it done", lambda: done(stage, sent) > len(sent) // 2)
    stage.fleet.signal("relay-2", signal.SIGSTOP)
    all_settle(stage, sent)


@pytest.mark.parametrize("point", ["relay.after_take", "relay.after_publish"])
def test_a_relay_costs_a_republish_at_most_when_it_dies_at(stage: Stage, point: str) -> None:
    for relay in ("relay-1", "relay-2"):
        pid = stage.fleet.signal(relay, signal.SIGSTOP)
        until("a frozen relay", lambda pid=pid: is_frozen(pid))  # type: ignore[misc]
    reference = f"outage-{next(_numbers)}"
    run = stage.order(reference)
    with stage.dying_relay(point) as relay_that_dies:
        assert relay_that_dies.wait(20) == -signal.SIGKILL
    assert stage.status(run) in {"QUEUED", "PLANNING", "ACTING"}
    stage.wake_all()
    assert stage.ended(run) == ["COMPLETED"]
    assert sorted(stage.effects(reference)) == ORDER


def test_a_drain_of_a_worker_of_every_role_wastes_no_attempt(stage: Stage) -> None:
    """SIGTERM under load: what is in flight is finished and recorded, what is unclaimed is handed back."""
    name = f"outage-{next(_numbers)}"
    stage.sandbox.fault("delay_before", reference_prefix=name, delay_s=0.3)
    for worker in WORKERS:
        until(f"{worker} at work", partial(stage.has_stamped, worker))
        wave = {f"{name}-{worker}-{n}": two_turns(stage, f"{name}-{worker}-{n}") for n in range(5)}
        under_way(stage, wave)
        stage.fleet.signal(worker, signal.SIGTERM)
    assert stage.ended(within_s=45) == ["COMPLETED"] * 5 * len(WORKERS)
    events = [event for run in stage.sent for event in stage.events(run)]
    assert WASTE & {event.type for event in events} == set()
    assert max(event.attempt or 0 for event in events) == 1


def two_turns(stage: Stage, reference: str) -> UUID:
    debit, nap = (
        step("bank.debit", "one", reference=reference),
        step("local.await", "nap", reference=reference),
    )
    return stage.send([debit], [step("bank.debit", "two", reference=f"{reference}-two"), nap])
