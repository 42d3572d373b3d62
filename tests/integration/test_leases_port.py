"""The conformance suite of the lease port: Redis for fleets, virtual time for drills, one and the same."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import pytest

from fencepost.clock import driven
from fencepost.leases import Leases, RedisLeases, Want, connect, lease_key
from fencepost_ops.drill.redis import VirtualRedis
from fencepost_ops.drill.virtual import VirtualClock
from fencepost_ops.local import LocalValkey

TTL = timedelta(seconds=30)
KEY = lease_key("shop", UUID(int=1))


@dataclass
class Port:
    leases: Leases
    wipe: Callable[[], object]
    pass_time: Callable[[], object] = lambda: None


@pytest.fixture(params=["redis", "virtual"])
def port(request: pytest.FixtureRequest) -> Iterator[Port]:
    if request.param == "virtual":
        clock, fake = VirtualClock(1), VirtualRedis()

        def pass_time() -> None:
            clock.passed += timedelta(milliseconds=10)

        with driven(clock):
            yield Port(fake, fake.wipe, pass_time)
        return
    server: LocalValkey = request.getfixturevalue("valkey")
    raw = connect(server.url(), size=1)
    raw.flushall()
    leases = RedisLeases(server.url())
    yield Port(leases, raw.flushall)
    leases.close()
    raw.connection_pool.disconnect()


def want(
    owner: str, *, key: str = KEY, floor: int = 0, named: str | None = None, ttl: timedelta = TTL
) -> Want:
    return Want(key, owner, floor, named, ttl)


def test_a_free_lease_is_granted_just_above_the_floor(port: Port) -> None:
    assert port.leases.grant([want("a", floor=41)]) == [42]


def test_a_held_lease_is_refused_to_every_other_owner(port: Port) -> None:
    port.leases.grant([want("a")])

    assert port.leases.grant([want("b"), want("c", named="b"), want("d", named="")]) == [None, None, None]


def test_the_same_owner_is_granted_again_with_a_higher_fence(port: Port) -> None:
    first, second = port.leases.grant([want("a")]), port.leases.grant([want("a")])

    assert (first, second) == ([1], [2])


def test_a_lease_held_by_exactly_the_named_owner_is_taken_over(port: Port) -> None:
    port.leases.grant([want("dead")])

    assert port.leases.grant([want("b", floor=1, named="dead")]) == [2]
    assert port.leases.grant([want("c", floor=1, named="dead")]) == [None], "one takeover for one named owner"


def test_a_lease_ends_with_its_time(port: Port) -> None:
    port.leases.grant([want("a", ttl=timedelta(milliseconds=30))])

    fence, until = None, time.monotonic() + 5
    while fence is None and time.monotonic() < until:
        port.pass_time()
        (fence,) = port.leases.grant([want("b")])
    assert fence == 2


def test_only_the_owner_releases(port: Port) -> None:
    port.leases.grant([want("a")])

    port.leases.release([(KEY, "b")])
    assert port.leases.grant([want("b")]) == [None]

    port.leases.release([(KEY, "a")])
    assert port.leases.grant([want("b")]) == [2]


def test_of_two_owners_in_one_batch_the_first_is_granted(port: Port) -> None:
    assert port.leases.grant([want("a"), want("b")]) == [1, None]


def test_leases_of_different_subjects_and_tenants_are_independent(port: Port) -> None:
    keys = [lease_key(tenant, UUID(int=n)) for tenant in ("shop", "bank") for n in (1, 2)]

    assert port.leases.grant([want(f"owner of {key}", key=key, floor=7) for key in keys]) == [8] * 4


def test_of_many_threads_one_holds_the_lease(port: Port) -> None:
    fences: list[int | None] = []
    start = threading.Barrier(8)

    def compete(owner: str) -> None:
        start.wait()
        fences.extend(port.leases.grant([want(owner)]))

    threads = [threading.Thread(target=compete, args=(f"owner {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fences, key=str) == [1, *[None] * 7]


def test_nothing_wanted_is_nothing_granted(port: Port) -> None:
    assert port.leases.grant([]) == []
    port.leases.release([])


@pytest.mark.parametrize(
    ("owner", "floor", "ttl"),
    [("", 0, TTL), ("a", -1, TTL), ("a", 2**53 - 1, TTL), ("a", 0, timedelta(0)), ("a", 0, -TTL)],
)
def test_a_want_that_makes_no_sense_is_refused_before_it_is_sent(
    owner: str, floor: int, ttl: timedelta
) -> None:
    with pytest.raises(ValueError, match=r"owner|floor|ended"):
        Want(KEY, owner, floor, None, ttl)


def test_fences_are_exact_to_the_last_number(port: Port) -> None:
    assert port.leases.grant([want("a", floor=2**53 - 3)]) == [2**53 - 2]
    assert port.leases.grant([want("a")]) == [2**53 - 1]


def test_after_a_wipe_the_floor_keeps_the_fences_rising(port: Port) -> None:
    fences = [port.leases.grant([want("a")])[0] for _ in range(5)]
    port.wipe()

    assert port.leases.grant([want("b", floor=fences[-1] or 0)]) == [6]


def test_without_a_wipe_the_counter_keeps_the_fences_rising_above_a_stale_floor(port: Port) -> None:
    port.leases.grant([want("a", floor=9)])

    assert port.leases.grant([want("a", floor=3)]) == [11]
