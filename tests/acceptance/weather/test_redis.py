"""Every weather Redis can make, under load: orders settle, one effect per intent; only time is lost."""

import os
import signal
import time

from tests.acceptance.stage import Stage, until
from tests.acceptance.weather import LONG, OUTAGE_S, long_only, patient
from tests.acceptance.weather.load import all_settle, orders, under_way
from tests.acceptance.weather.resets import broker
from tests.acceptance.weather.routed import QUEUES, routed

pytestmark = patient

COUNT = 30 if LONG else 4
SILENCE_S = OUTAGE_S if LONG else 2.2
"""Longer than any socket waits in this fleet, so that all give up what they had."""


def test_a_full_redis_costs_time_only(stage: Stage) -> None:
    sent = orders(stage, COUNT)
    under_way(stage, sent)
    with broker(stage) as server:
        server.config_set("maxmemory", 1)
        late = orders(stage, 2)  # taken while nothing can be published
        until("a refused publication", lambda: "used memory" in (stage.folder / "fleet.log").read_text())
        time.sleep(OUTAGE_S if LONG else 0.5)
        server.config_set("maxmemory", 0)
    all_settle(stage, sent | late)


def test_a_redis_that_evicts_queues_leases_and_counters_costs_time_only(stage: Stage) -> None:
    sent = orders(stage, COUNT)
    under_way(stage, sent)
    with broker(stage) as server:
        before = server.info("stats")["evicted_keys"]
        server.config_set("maxmemory-policy", "allkeys-lru")
        server.config_set("maxmemory", server.info("memory")["used_memory"] + 200_000)
        for n in range(200):
            server.set(f"junk-{n}", b"x" * 50_000, ex=10)
        assert server.info("stats")["evicted_keys"] - before > 20
        late = orders(stage, 2)
        all_settle(stage, sent | late)


def test_a_frozen_redis_costs_time_only(stage: Stage) -> None:
    sent = orders(stage, COUNT)
    under_way(stage, sent)
    os.kill(stage.fleet.valkey.pid, signal.SIGSTOP)
    try:
        late = orders(stage, 2)
        time.sleep(SILENCE_S)
    finally:
        os.kill(stage.fleet.valkey.pid, signal.SIGCONT)
    all_settle(stage, sent | late)


@long_only
def test_connections_that_fall_silent_are_given_up_celery_10502(stage: Stage) -> None:
    """celery/celery#10502: a half-open socket; no end, no error, no byte."""
    sent = orders(stage, COUNT)
    under_way(stage, sent)
    silent = routed(stage).redis.black_hole()
    assert silent >= len(QUEUES)
    all_settle(stage, sent | orders(stage, 2))


@long_only
def test_lost_replies_make_no_second_owner_redis_py_4082(stage: Stage) -> None:
    """A lease may be granted, a message sent or taken, and nobody hears of it: fences may have gaps.

    redis/redis-py#4082: a client that by default sends again what it has no reply to, up to ten times.
    """
    sent = orders(stage, COUNT)
    under_way(stage, sent)
    wire = routed(stage).redis
    wire.swallowing = True
    late = orders(stage, 2)
    time.sleep(OUTAGE_S if LONG else 1.5)
    wire.swallowing = False
    wire.reset()  # a reply that was lost stays lost, and what comes after it belongs to nobody
    all_settle(stage, sent | late)
    for run in (sent | late).values():
        fences: dict[object, list[int]] = {}
        for event in stage.events(run, "LeaseAcquired"):
            fences.setdefault(event.call, []).append(event.fence or 0)
        assert all(found == sorted(set(found)) for found in fences.values())


@long_only
def test_a_redis_that_refuses_connections_costs_time_only(stage: Stage) -> None:
    sent = orders(stage, COUNT)
    under_way(stage, sent)
    wire = routed(stage).redis
    wire.refusing = True
    wire.reset()
    late = orders(stage, 2)
    time.sleep(OUTAGE_S if LONG else 1)
    wire.refusing = False
    all_settle(stage, sent | late)
