"""What is promised of leases in Redis in particular; the port's own suite is `test_leases_port.py`."""

import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest
import redis

from fencepost.doorbell import Doorbell
from fencepost.errors import Unreachable
from fencepost.leases import RedisLeases, Want, connect, lease_key
from fencepost_ops.local import LocalValkey
from tests.integration.wires import Proxy

TTL = timedelta(seconds=30)
KEY = lease_key("shop", UUID(int=1))


@pytest.fixture
def raw(valkey: LocalValkey) -> Iterator[redis.Redis]:
    client = connect(valkey.url(), size=1)
    client.flushall()
    client.config_resetstat()
    yield client
    client.connection_pool.disconnect()


@pytest.fixture
def leases(valkey: LocalValkey, raw: redis.Redis) -> Iterator[RedisLeases]:
    port = RedisLeases(valkey.url())
    yield port
    port.close()


def want(
    owner: str, *, key: str = KEY, floor: int = 0, named: str | None = None, ttl: timedelta = TTL
) -> Want:
    return Want(key, owner, floor, named, ttl)


@pytest.fixture
def proxy(valkey: LocalValkey) -> Iterator[Proxy]:
    wire = Proxy(valkey.port)
    yield wire
    wire.close()


def calls(raw: redis.Redis, command: str) -> int:
    return int(raw.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


# ---- Redis


def test_the_counter_outlives_its_lease_by_a_day(leases: RedisLeases, raw: redis.Redis) -> None:
    leases.grant([want("a", ttl=timedelta(seconds=30))])

    lease, counter = (raw.pttl(f"fencepost:{kind}:{{{KEY}}}") for kind in ("lease", "fence"))
    assert 29_000 < lease <= 30_000
    assert 86_429_000 < counter <= 86_430_000


def test_a_batch_of_a_hundred_is_one_command(leases: RedisLeases, raw: redis.Redis) -> None:
    leases.grant([want("warm")])  # the script is loaded by its first use
    raw.config_resetstat()

    wants = [want("a", key=lease_key("shop", UUID(int=n))) for n in range(100, 200)]
    assert leases.grant(wants) == [1] * 100

    assert calls(raw, "evalsha") == 1
    assert calls(raw, "eval") == calls(raw, "script|load") == 0


def test_a_batch_of_releases_is_one_command(leases: RedisLeases, raw: redis.Redis) -> None:
    keys = [lease_key("shop", UUID(int=n)) for n in range(100)]
    leases.grant([want("a", key=key) for key in keys])
    leases.release([(KEY, "nobody")])
    raw.config_resetstat()

    leases.release([(key, "a") for key in keys])

    assert calls(raw, "evalsha") == 1
    assert raw.keys("fencepost:lease:*") == []


def test_a_lost_reply_never_locks_the_owner_out_and_is_not_sent_twice(
    valkey: LocalValkey, proxy: Proxy, raw: redis.Redis
) -> None:
    """redis/redis-py#4082: by default a client sends again what it has no reply to, up to ten times."""
    leases = RedisLeases(valkey.url().replace(f":{valkey.port}/", f":{proxy.port}/"))
    leases.grant([want("warm", key=lease_key("shop", UUID(int=99)))])
    raw.config_resetstat()

    proxy.swallow_replies = True
    with pytest.raises(Unreachable):
        leases.grant([want("a")])
    assert calls(raw, "evalsha") == 1, "the client's own retries are off"
    assert raw.get(f"fencepost:lease:{{{KEY}}}") == b"a", "the grant itself went through"

    proxy.swallow_replies = False
    assert leases.grant([want("a")]) == [2], "a gap in the fences, never a closed door"
    assert leases.grant([want("b")]) == [None]
    leases.close()


def test_a_forgotten_script_is_loaded_again(leases: RedisLeases, raw: redis.Redis) -> None:
    leases.grant([want("a")])
    raw.script_flush()

    assert leases.grant([want("a")]) == [2]


def test_a_full_redis_grants_nothing(leases: RedisLeases, raw: redis.Redis) -> None:
    leases.grant([want("a")])
    raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(Unreachable, match="grants no leases"):
            leases.grant([want("a")])
    finally:
        raw.config_set("maxmemory", 0)


def test_a_redis_that_refuses_connections_is_unreachable_and_release_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    leases = RedisLeases(f"redis://:secret@127.0.0.1:{port}/0")

    with pytest.raises(Unreachable) as caught:
        leases.grant([want("a")])

    assert "secret" not in str(caught.value)
    leases.release([(KEY, "a")])


def test_a_redis_that_falls_silent_is_unreachable_within_three_seconds(
    valkey: LocalValkey, leases: RedisLeases
) -> None:
    leases.grant([want("a")])
    os.kill(valkey.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(Unreachable):
            leases.grant([want("a")])
        assert time.monotonic() - began < 3
    finally:
        os.kill(valkey.pid, signal.SIGCONT)

    assert leases.grant([want("a")])[0] in {2, 3}, "what was sent into the silence may have been granted"


# ---- the doorbell


def test_a_ring_wakes_a_waiting_relay(valkey: LocalValkey, raw: redis.Redis) -> None:
    with Doorbell(valkey.url()) as writer, Doorbell(valkey.url()) as relay:
        writer.ring()
        assert relay.wait(5)
        assert not relay.wait(0.02), "one ring, one look"


def test_many_rings_that_nobody_heard_are_one(valkey: LocalValkey, raw: redis.Redis) -> None:
    with Doorbell(valkey.url()) as writer:
        for _ in range(100):
            writer.ring()
    with Doorbell(valkey.url()) as writer:
        writer.ring()

    assert raw.llen("fencepost:doorbell") == 1


def test_the_last_ring_before_closing_is_heard(valkey: LocalValkey, raw: redis.Redis) -> None:
    for _ in range(20):
        with Doorbell(valkey.url()) as writer:
            writer.ring()
            writer.ring()
        assert raw.lpop("fencepost:doorbell") is not None


def test_a_ring_made_while_closing_and_another_on_its_way_is_sent(valkey: LocalValkey) -> None:
    writer = Doorbell(valkey.url())
    sending, go_on, sent = threading.Event(), threading.Event(), []

    def press(keys: list[str]) -> None:
        sending.set()
        go_on.wait(5)
        sent.append(keys)

    writer._press = press  # type: ignore[assignment]
    writer.ring()
    sending.wait(5)
    writer.ring()
    writer.close()
    go_on.set()
    assert writer._ringer is not None
    writer._ringer.join(5)

    assert len(sent) == 2


def test_a_wait_for_no_time_does_not_wait_for_ever(valkey: LocalValkey, raw: redis.Redis) -> None:
    with Doorbell(valkey.url()) as relay:
        assert [relay.wait(seconds) for seconds in (0, -1, 0.0001)] == [False] * 3


def test_ringing_at_a_silent_redis_neither_raises_nor_waits(valkey: LocalValkey, raw: redis.Redis) -> None:
    os.kill(valkey.pid, signal.SIGSTOP)
    try:
        writer = Doorbell(valkey.url())
        slowest = 0.0
        for _ in range(50):
            began = time.monotonic()
            writer.ring()
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 0.1
        began = time.monotonic()
        writer.close()
        assert time.monotonic() - began < 0.5
    finally:
        os.kill(valkey.pid, signal.SIGCONT)


def test_waiting_for_a_dead_redis_takes_the_time_and_says_no() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Doorbell(f"redis://127.0.0.1:{port}/0") as relay:
        began = time.monotonic()
        assert not relay.wait(0.1)
        assert 0.1 <= time.monotonic() - began < 1


def test_each_subject_has_its_own_hash_slot_for_both_its_keys() -> None:
    names = [f"fencepost:{kind}:{{{KEY}}}" for kind in ("lease", "fence")]

    assert len({name[name.index("{") : name.index("}")] for name in names}) == 1
    assert len({lease_key(t, UUID(int=n)) for t, n in itertools.product(("a", "b"), range(5))}) == 10
