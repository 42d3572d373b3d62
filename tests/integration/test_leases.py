"""The conformance suite of the lease port, and what is promised of Redis in particular."""

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


@pytest.fixture(scope="module")
def valkey() -> Iterator[LocalValkey]:
    with LocalValkey.start() as server:
        yield server


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


# ---- the port


def test_a_free_lease_is_granted_just_above_the_floor(leases: RedisLeases) -> None:
    assert leases.grant([want("a", floor=41)]) == [42]


def test_a_held_lease_is_refused_to_every_other_owner(leases: RedisLeases) -> None:
    leases.grant([want("a")])

    assert leases.grant([want("b"), want("c", named="b"), want("d", named="")]) == [None, None, None]


def test_the_same_owner_is_granted_again_with_a_higher_fence(leases: RedisLeases) -> None:
    first, second = leases.grant([want("a")]), leases.grant([want("a")])

    assert (first, second) == ([1], [2])


def test_a_lease_held_by_exactly_the_named_owner_is_taken_over(leases: RedisLeases) -> None:
    leases.grant([want("dead")])

    assert leases.grant([want("b", floor=1, named="dead")]) == [2]
    assert leases.grant([want("c", floor=1, named="dead")]) == [None], "one takeover for one named owner"


def test_a_lease_ends_with_its_time(leases: RedisLeases) -> None:
    leases.grant([want("a", ttl=timedelta(milliseconds=30))])

    fence, until = None, time.monotonic() + 5
    while fence is None and time.monotonic() < until:
        (fence,) = leases.grant([want("b")])
    assert fence == 2


def test_only_the_owner_releases(leases: RedisLeases) -> None:
    leases.grant([want("a")])

    leases.release([(KEY, "b")])
    assert leases.grant([want("b")]) == [None]

    leases.release([(KEY, "a")])
    assert leases.grant([want("b")]) == [2]


def test_of_two_owners_in_one_batch_the_first_is_granted(leases: RedisLeases) -> None:
    assert leases.grant([want("a"), want("b")]) == [1, None]


def test_leases_of_different_subjects_and_tenants_are_independent(leases: RedisLeases) -> None:
    keys = [lease_key(tenant, UUID(int=n)) for tenant in ("shop", "bank") for n in (1, 2)]

    assert leases.grant([want(f"owner of {key}", key=key, floor=7) for key in keys]) == [8] * 4


def test_of_many_threads_one_holds_the_lease(leases: RedisLeases) -> None:
    fences: list[int | None] = []
    start = threading.Barrier(8)

    def compete(owner: str) -> None:
        start.wait()
        fences.extend(leases.grant([want(owner)]))

    threads = [threading.Thread(target=compete, args=(f"owner {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fences, key=str) == [1, *[None] * 7]


def test_nothing_wanted_is_nothing_granted(leases: RedisLeases) -> None:
    assert leases.grant([]) == []
    leases.release([])


@pytest.mark.parametrize(
    ("owner", "floor", "ttl"),
    [("", 0, TTL), ("a", -1, TTL), ("a", 2**53 - 1, TTL), ("a", 0, timedelta(0)), ("a", 0, -TTL)],
)
def test_a_want_that_makes_no_sense_is_refused_before_it_is_sent(
    owner: str, floor: int, ttl: timedelta
) -> None:
    with pytest.raises(ValueError, match=r"owner|floor|ended"):
        Want(KEY, owner, floor, None, ttl)


def test_fences_are_exact_to_the_last_number(leases: RedisLeases) -> None:
    assert leases.grant([want("a", floor=2**53 - 3)]) == [2**53 - 2]
    assert leases.grant([want("a")]) == [2**53 - 1]


# ---- Redis


def test_after_a_wipe_the_floor_keeps_the_fences_rising(leases: RedisLeases, raw: redis.Redis) -> None:
    fences = [leases.grant([want("a")])[0] for _ in range(5)]
    raw.flushall()

    assert leases.grant([want("b", floor=fences[-1] or 0)]) == [6]


def test_without_a_wipe_the_counter_keeps_the_fences_rising_above_a_stale_floor(leases: RedisLeases) -> None:
    leases.grant([want("a", floor=9)])

    assert leases.grant([want("a", floor=3)]) == [11]


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
