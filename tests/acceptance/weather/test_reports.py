"""Failures others have reported of Celery on Redis, planted here: what each costs is time.

Those that need late acks are in `test_hostile.py`, and those that need a wire in `test_redis.py`.
"""

import itertools
import os
import signal
import time
from functools import partial

import pytest
import redis

from fencepost.errors import Unreachable
from fencepost_relay.publisher import Publisher
from tests.acceptance.stage import Stage, is_frozen, step, until
from tests.acceptance.weather import LONG, long_only, patient
from tests.acceptance.weather.forged import SUBJECT, message
from tests.acceptance.weather.load import ORDER, all_settle, orders, under_way
from tests.acceptance.weather.resets import broker
from tests.acceptance.weather.routed import RELAYS, WORKERS, routed

pytestmark = patient

_numbers = itertools.count(1)

DISPATCHERS = ("dispatcher-1", "dispatcher-2")
ROUNDS = 10 if LONG else 1


def freeze(stage: Stage, *names: str) -> list[int]:
    """Stop processes and await that they stand still; their pids."""
    pids = [stage.fleet.signal(name, signal.SIGSTOP) for name in names]
    until("frozen processes", lambda: all(map(is_frozen, pids)))
    return pids


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_a_message_given_to_a_frozen_worker_that_dies_is_sent_again_celery_7950(
    stage: Stage, round_: int
) -> None:
    """celery/celery#7950: a server pops a message into the socket of a worker that will never read it."""
    for name in DISPATCHERS:
        until(f"{name} at work", partial(stage.has_stamped, name))
    freeze(stage, *DISPATCHERS)
    reference = f"report-{next(_numbers)}"
    run = stage.order(reference)
    call = stage.until_state(run, "reserve", "INTENT_RECORDED")
    freeze(stage, *RELAYS)
    with broker(stage) as server:
        server.delete("dispatcher")
        for name in DISPATCHERS:
            stage.fleet.signal(name, signal.SIGCONT)
        # Hints at nothing: when they are gone the dispatchers ask for the next message.
        server.lpush("dispatcher", *[message("dispatcher", [["t", SUBJECT, 1]])] * 4)
        until("dispatchers that ask for messages", lambda: server.llen("dispatcher") == 0)
        freeze(stage, *DISPATCHERS)
        generation = stage.value("SELECT generation FROM fencepost.outbox WHERE subject = %s", call.id)
        server.lpush("dispatcher", message("dispatcher", [[stage.tenant, str(call.id), generation]]))
        given_away = server.llen("dispatcher") == 0  # not so if both had just had an answer
    for name in DISPATCHERS:
        stage.fleet.kill(name)
    stage.wake_all()
    assert stage.ended(run, within_s=60) == ["COMPLETED"], f"given away: {given_away}"
    assert sorted(stage.effects(reference)) == ORDER


def test_a_redis_restarted_again_and_again_is_consumed_from_celery_10205(stage: Stage) -> None:
    """celery/celery#10205, celery/celery#8030: after a reset a worker is connected and consumes nothing."""
    before = {name: pid for name, pid in stage.fleet.pids().items() if name in WORKERS}
    sent = orders(stage, 4)
    under_way(stage, sent)
    for _ in range(20 if LONG else 4):
        os.kill(stage.fleet.valkey.pid, signal.SIGKILL)
        until("a dead Valkey", lambda: not stage.fleet.valkey.is_alive())
        assert stage.fleet.mend() == ["Valkey"]
    all_settle(stage, sent)
    # Each of the very same processes consumes: of two dispatchers both.
    reference = f"report-{next(_numbers)}"
    for name in DISPATCHERS:
        (other,) = set(DISPATCHERS) - {name}
        freeze(stage, other)
        run = stage.send([step("bank.debit", "one", reference=f"{reference}-{name}")])
        assert stage.ended(run) == ["COMPLETED"]
        stage.wake_all()
    assert {name: pid for name, pid in stage.fleet.pids().items() if name in WORKERS} == before


def refusals(server: redis.Redis) -> int:
    """How often Redis had no memory for whoever had taken a message: to lease its subject or, where acks are
    late, to mark it as taken.
    """
    stats = server.info("commandstats")
    commands = (stats.get(f"cmdstat_{name}", {}) for name in ("set", "hset", "zadd"))
    return sum(command.get("rejected_calls", 0) for command in commands)


def test_messages_met_by_a_full_redis_are_sent_again_celery_5716(stage: Stage) -> None:
    """celery/celery#5716: taking a message needs memory; without, the message is lost and the worker dies."""
    pids = freeze(stage, *DISPATCHERS)
    sent = orders(stage, 3, delay_s=0)
    with broker(stage) as server:
        for run in sent.values():
            stage.until_state(run, "reserve", "INTENT_RECORDED")
        server.config_set("maxmemory", 1)
        before = refusals(server)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        until("messages for which there is no memory", lambda: refusals(server) > before)
        server.config_set("maxmemory", 0)
    all_settle(stage, sent)


@long_only
def test_nothing_depends_on_what_the_broker_restores_kombu_1816(stage: Stage) -> None:
    """celery/kombu#1816, celery/kombu#1190: the lock of the restore is left behind, and nobody restores.

    celery/celery#4976, celery/kombu#1025: a worker that is idle never brings back a dead one's messages.
    """
    with broker(stage) as server:
        server.set("unacked_mutex", "left behind", ex=300)
        sent = orders(stage, 4)
        under_way(stage, sent)
        stage.fleet.kill("dispatcher-1")
        stage.fleet.kill("dispatcher-2")
        all_settle(stage, sent)
        server.delete("unacked_mutex")


@long_only
def test_rounds_of_sigterm_under_load_lose_nothing_kombu_305(stage: Stage) -> None:
    """celery/kombu#305, celery/kombu#1405: tasks vanish around the restore of a worker that ends."""
    for round_ in range(ROUNDS):
        for name in DISPATCHERS:
            until(f"{name} at work", partial(stage.has_stamped, name))
        sent = orders(stage, 4, delay_s=0.1)
        under_way(stage, sent)
        stage.fleet.signal(DISPATCHERS[round_ % 2], signal.SIGTERM)
        all_settle(stage, sent)


@pytest.mark.parametrize(
    "number", [signal.SIGQUIT, pytest.param(signal.SIGTERM, marks=long_only)], ids=["quit", "term"]
)
def test_a_drain_cut_short_costs_no_second_effect_celery_10490(stage: Stage, number: int) -> None:
    """celery/celery#10490: a pool of threads hears of no soft shutdown, and then the grace is over."""
    until("two dispatchers", lambda: len(stage.pids("dispatcher")) == 2)
    reference = f"report-{next(_numbers)}"
    stage.sandbox.fault("delay_after_commit", reference=reference, delay_s=2)
    run = stage.send([step("patient.debit", "debit", reference=reference)])
    stage.until_event(run, "ToolAttemptStarted")
    until("its effect", lambda: stage.effects(reference))
    pid = stage.holder(run, "debit")
    os.kill(pid, number)
    time.sleep(0.3)  # a grace too short
    if pid in stage.fleet.pids().values():
        os.kill(pid, signal.SIGKILL)
    assert stage.ended(run) == ["COMPLETED"]
    assert stage.requests(reference) == 1


def test_a_broker_that_is_a_black_hole_keeps_nobody_waiting_celery_4296(stage: Stage) -> None:
    """celery/celery#4296: publishing blocks its caller for as long as the broker is away."""
    wire = routed(stage).redis
    wire.hanging = True
    wire.black_hole()
    publisher = Publisher(routed(stage).env("relay")["FENCEPOST_REDIS_URL"])
    began = time.monotonic()
    with pytest.raises(Unreachable):
        publisher.publish("planner", [("t", "00000000-0000-0000-0000-000000000001", 1)])
    assert time.monotonic() - began < 3
    publisher.close()
    began = time.monotonic()
    sent = orders(stage, 6, delay_s=0)
    assert time.monotonic() - began < 5  # a producer that waited for its ring would take a second for each
    rows = "SELECT count(*) FROM fencepost.outbox WHERE subject = ANY(%s)"
    assert stage.value(rows, list(sent.values())) == len(sent)
    wire.clear()
    all_settle(stage, sent)
