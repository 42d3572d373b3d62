"""Connections to the broker that never last."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import redis

from tests.acceptance.stage import ROLES, Stage

OURS = "tests"
"""The name of connections that are the tests' own, and are let be."""
PATIENCE_S = 2.0  # for consumers to come back; on a machine that is slow enough none ever would


def broker(stage: Stage) -> "redis.Redis":
    """A connection of the tests' own to Redis; close it."""
    return redis.Redis.from_url(stage.fleet.valkey.url(), client_name=OURS)


@contextmanager
def connections_reset(stage: Stage, every_s: float) -> Iterator[None]:
    """Every connection to the broker is cut, again and again, until the block ends: after `every_s`, but not
    before consumers have come back, since where nobody is connected nothing is cut.
    """
    over = threading.Event()
    thread = threading.Thread(target=_cut, args=(stage, every_s, over), name="resets", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _cut(stage: Stage, every_s: float, over: threading.Event) -> None:
    with broker(stage) as client:
        while not over.wait(every_s):
            with suppress(redis.RedisError):  # a test may have stopped or killed it
                _await_consumers(client, over)
                for one in client.client_list():
                    if one["name"] != OURS:
                        client.client_kill_filter(_id=one["id"])


def _await_consumers(client: "redis.Redis", over: threading.Event) -> None:
    for _ in range(int(PATIENCE_S / 0.02)):
        if client.info("clients")["blocked_clients"] >= len(ROLES) or over.wait(0.02):
            return
