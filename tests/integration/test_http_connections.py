"""Connections are kept, expire and are lost; one that cannot be made proves that nothing was sent."""

import asyncio
from contextlib import suppress

import pytest

from fencepost.outcomes import Answered, Lost, NotSent, Refused, Sent, classify
from fencepost.tools import Request
from fencepost_workers.tools import http
from fencepost_workers.tools.http import POOL_SIZE, HttpEngine
from tests.integration.http_sending import DEADLINE, send, sent_to
from tests.integration.raw_server import Answer, RawServer, hangs, raw, resets, says
from tests.typing.user_code import debit


def test_a_connection_is_kept_and_used_again() -> None:
    results, server = sent_to(says("200 OK"), times=3)
    assert all(isinstance(result, Answered) for result in results)
    assert (len(server.requests), server.connections) == (3, 1)


def test_a_kept_connection_expires() -> None:
    _, server = sent_to(says("200 OK"), times=3, keepalive_s=0)
    assert (len(server.requests), server.connections) == (3, 3)


def test_a_kept_connection_that_was_closed_meanwhile_is_not_used() -> None:
    async def scenario() -> None:
        closing = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        async with RawServer([closing, says("200 OK")]) as server, HttpEngine() as engine:
            first = await send(engine, server.stored())
            await asyncio.sleep(0.05)  # the loop reads the end of the kept connection
            second = await send(engine, server.stored())
            assert isinstance(first, Answered)
            assert isinstance(second, Answered)
            assert (len(server.requests), server.connections) == (2, 2)

    asyncio.run(scenario())


def test_a_request_that_nobody_could_repeat_goes_over_no_connection_that_was_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(http, "UNREPEATED_KEEPALIVE_S", 0.0)
        async with RawServer([says("200 OK")]) as server, HttpEngine() as engine:
            for unrepeated in (False, False, True, True):
                sent = await send(engine, server.stored(), unrepeated=unrepeated)
                assert isinstance(sent, Answered)
            assert server.connections == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", [raw(b""), resets])
def test_a_stale_kept_connection_loses_the_request_and_nothing_is_sent_again(answer: Answer) -> None:
    [first, second], server = sent_to(says("200 OK"), answer, times=2)
    assert isinstance(first, Answered)
    assert isinstance(second, Lost)
    assert (second.requests, len(server.requests), server.connections) == (1, 2, 1)


def test_a_refused_connection_proves_that_nothing_was_sent() -> None:
    async def scenario() -> None:
        async with RawServer([hangs]) as server:
            stored = server.stored()
        async with HttpEngine() as engine:
            result = await send(engine, stored)
            assert isinstance(result, NotSent)
            assert (result.code, result.requests) == ("connect_failed", 0)
            assert not engine.requests_sent["effect"]
            assert classify(debit.tool, result, now=DEADLINE) == Refused(
                "connect_failed", result.message, retryable=True
            )

    asyncio.run(scenario())


def test_a_name_that_does_not_resolve_proves_that_nothing_was_sent() -> None:
    async def scenario() -> Sent:
        async with HttpEngine() as engine:
            return await send(engine, Request.get("/").bind("http://no-such-host.invalid"))

    result = asyncio.run(scenario())
    assert isinstance(result, NotSent)
    assert result.code == "connect_failed"


def over_tls(reply: bytes | None, timeout: float) -> tuple[Sent, bytes]:
    """A TLS connection to a server that speaks none, and what reached it."""

    async def scenario() -> tuple[Sent, bytes]:
        seen = bytearray()
        served = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.extend(await reader.read(65536))
            if reply is not None:
                writer.write(reply)
            else:
                await reader.read()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            served.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, HttpEngine() as engine:
            port = server.sockets[0].getsockname()[1]
            stored = Request.post("/debits", json={"secret": 1}).bind(f"https://127.0.0.1:{port}")
            result = await send(engine, stored, timeout=timeout)
            await served.wait()  # ends only when the connection is closed
            return result, bytes(seen)

    return asyncio.run(scenario())


def test_a_failed_handshake_proves_that_nothing_was_sent() -> None:
    result, seen = over_tls(b"HTTP/1.1 400 Bad Request\r\n\r\n", 20)
    assert isinstance(result, NotSent)
    assert result.code == "connect_failed"
    assert b"secret" not in seen


def test_a_handshake_that_takes_too_long_proves_that_nothing_was_sent() -> None:
    result, seen = over_tls(None, 0.3)
    assert result == NotSent("connect_timeout", "no connection within 0.300 s")
    assert seen
    assert b"secret" not in seen


def test_many_requests_at_a_time_spread_over_small_pools_and_few_keep_to_one() -> None:
    async def scenario() -> None:
        async with RawServer([says("200 OK", b"{}")]) as server, HttpEngine() as engine:
            for _ in range(3):
                await send(engine, server.stored())
            assert len(engine._pools._clients) == 1
            many = 2 * POOL_SIZE + 1
            answers = await asyncio.gather(*(send(engine, server.stored()) for _ in range(many)))
            assert all(isinstance(answer, Answered) for answer in answers)
            assert len(engine._pools._clients) == 3
            assert engine._pools._busy == [0, 0, 0]

    asyncio.run(scenario())


def test_many_sendings_share_one_engine() -> None:
    async def scenario() -> None:
        async with RawServer([says("200 OK")]) as server, HttpEngine() as engine:
            results = await asyncio.gather(*(send(engine, server.stored()) for _ in range(200)))
            assert all(isinstance(result, Answered) for result in results)
            assert len(server.requests) == engine.requests_sent["effect"] == 200

    asyncio.run(scenario())
