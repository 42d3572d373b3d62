"""Every client we ship asks once (R4): what fails is counted at a server that is raw, whatever way it fails.

Switched on again, any retry of a library would show as a second request here.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest
import redis

from fencepost.doorbell import Doorbell
from fencepost.errors import Unreachable
from fencepost.leases import RedisLeases, Want, connect
from fencepost.outbound import Reach
from fencepost.outcomes import Answered, Lost
from fencepost_ops.doctor.resends import look
from fencepost_relay import publisher
from fencepost_relay.publisher import Publisher
from fencepost_workers.tools.http import HttpEngine
from tests.integration.http_sending import sent_to
from tests.integration.raw_redis import Fails, RawRedis
from tests.integration.raw_server import Answer, hangs, raw, resets, says

WAYS: tuple[Fails, ...] = ("closes", "resets", "hangs", "refuses")
SHORT_S = 0.3


@pytest.mark.parametrize(
    "answer",
    [
        says("503 Service Unavailable"),
        says("429 Too Many Requests", b"{}", "Retry-After: 0"),
        says("408 Request Timeout"),
        says("409 Conflict"),
        says("307 Temporary Redirect", b"", "Location: /debits"),
        raw(b""),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"),
        resets,
        hangs,
    ],
)
def test_the_engine_puts_one_request_on_the_wire(answer: Answer) -> None:
    (sent,), server = sent_to(answer, timeout=SHORT_S if answer is hangs else 20)
    assert len(server.requests) == 1
    assert isinstance(sent, Answered | Lost)
    assert sent.requests == 1


def _lease(url: str) -> None:
    leases = RedisLeases(url, pool_size=1)
    try:
        leases.grant([Want("key", "owner", 0, None, timedelta(seconds=1))])
    finally:
        leases.close()


def _command(url: str) -> None:
    with connect(url, size=1, timeout_s=SHORT_S) as client:
        client.incr("counter")


def _ring(url: str) -> None:
    doorbell = Doorbell(url)
    try:
        doorbell._press(keys=["bell"])
    finally:
        doorbell._redis.connection_pool.disconnect()


def _await_a_ring(url: str) -> None:
    doorbell = Doorbell(url)
    assert not doorbell.wait(0.01)
    doorbell._redis.connection_pool.disconnect()


def _publish(url: str) -> None:
    relay = Publisher(url)
    try:
        relay.publish("dispatcher", [("t", "00000000-0000-0000-0000-000000000000", 1)])
    finally:
        relay.close()


ASKED: dict[Callable[[str], None], str] = {
    _lease: "EVALSHA",
    _command: "INCRBY",
    _ring: "EVALSHA",
    _await_a_ring: "BLPOP",
    _publish: "LPUSH",
}
SLOW = (_lease, _await_a_ring)
"""Waits of seconds, by the same clients as the others."""


@pytest.mark.parametrize(
    ("ask", "fails"),
    [(ask, fails) for ask in ASKED for fails in WAYS if not (fails == "hangs" and ask in SLOW)],
)
def test_a_client_of_redis_sends_each_command_once(
    ask: Callable[[str], None], fails: Fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("socket_timeout", "socket_connect_timeout"):
        monkeypatch.setitem(publisher._TRANSPORT, name, SHORT_S)
    with RawRedis(fails) as server:
        with suppress(redis.RedisError, Unreachable):
            ask(server.url)
        assert server.asked == [ASKED[ask]]


def test_the_doctor_finds_no_retry_in_what_we_ship() -> None:
    relay = Publisher("redis://127.0.0.1:1/0")
    clients = [
        connect("redis://127.0.0.1:1/0", size=1),
        Doorbell("redis://127.0.0.1:1/0")._redis,
        relay._app,
        HttpEngine()._pools._client(Reach(), 1.0),
    ]
    for client in clients:
        looked = look(client)
        assert looked is not None, client
        assert looked.resends == ()
    relay.close()
