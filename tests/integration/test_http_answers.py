"""What comes back from one sending is an answer, or is unknown; nothing is sent again."""

import asyncio
from datetime import timedelta

import pytest

from fencepost.outcomes import Answered, Lost, Refused, Unsure, classify
from fencepost.tools import Request
from fencepost_workers.tools.http import HttpEngine
from tests.integration.http_sending import DEADLINE, send, sent_to
from tests.integration.raw_server import Answer, RawServer, hangs, raw, resets, says
from tests.typing.user_code import debit


def test_an_answer_comes_back_whole() -> None:
    [result], server = sent_to(says("201 Created", b'{"id": "d-1"}', "X-One: a", "x-one: b"))
    assert isinstance(result, Answered)
    assert (result.response.status, result.response.body, result.requests) == (201, b'{"id": "d-1"}', 1)
    assert result.response.headers["x-one"] == "a, b"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        ("503 Service Unavailable", ()),
        ("503 Service Unavailable", ("Retry-After: 0",)),
        ("429 Too Many Requests", ("Retry-After: 0",)),
        ("500 Internal Server Error", ()),
        ("408 Request Timeout", ()),
        ("425 Too Early", ()),
        (
            "401 Unauthorized",
            ("WWW-Authenticate: Basic realm=x", "WWW-Authenticate: Digest realm=x, nonce=y"),
        ),
        ("407 Proxy Authentication Required", ("Proxy-Authenticate: Basic realm=x",)),
        ("301 Moved Permanently", ("Location: /elsewhere",)),
        ("303 See Other", ("Location: /elsewhere",)),
        ("307 Temporary Redirect", ("Location: /elsewhere",)),
        ("308 Permanent Redirect", ("Location: /elsewhere",)),
    ],
)
def test_an_answer_is_an_answer_and_nothing_is_sent_again(status: str, headers: tuple[str, ...]) -> None:
    [result], server = sent_to(says(status, b"{}", *headers))
    assert isinstance(result, Answered)
    assert result.response.status == int(status[:3])
    assert len(server.requests) == 1


def test_a_429_delays_the_next_attempt_by_what_it_says() -> None:
    [result], _ = sent_to(says("429 Too Many Requests", b"slow down", "Retry-After: 7"))
    expected = Refused("http_429", "slow down", retryable=True, retry_after=timedelta(seconds=7))
    assert classify(debit.tool, result, now=DEADLINE) == expected


@pytest.mark.parametrize(
    ("answer", "timeout", "code"),
    [
        (raw(b""), 20, "connection_lost"),
        (resets, 20, "connection_lost"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Le"), 20, "connection_lost"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"), 20, "connection_lost"),
        (raw(b"HTTP/1.1 503 Busy\r\nContent-Length: 10\r\n\r\n{"), 20, "connection_lost"),
        (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"), 20, "connection_lost"),
        (raw(b"nonsense\r\n\r\n"), 20, "connection_lost"),
        (hangs, 0.2, "timeout"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", then_close=False), 0.2, "timeout"),
    ],
)
def test_a_lost_answer_is_unknown_and_nothing_is_sent_again(
    answer: Answer, timeout: float, code: str
) -> None:
    [result], server = sent_to(answer, timeout=timeout)
    assert isinstance(result, Lost)
    assert (result.code, result.requests, len(server.requests)) == (code, 1, 1)
    assert isinstance(classify(debit.tool, result, now=DEADLINE), Unsure)


def test_an_answer_over_the_cap_is_lost() -> None:
    fits, over = b"x" * 1000, b"x" * 1001
    [first, second], server = sent_to(
        says("200 OK", fits), says("200 OK", over), times=2, max_response_bytes=1000
    )
    assert isinstance(first, Answered)
    assert second == Lost("oversize", "_Oversize: the answer is longer than 1000 bytes", 1)
    assert len(server.requests) == 2


def test_an_endless_answer_is_given_up_at_the_cap() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x" * 65536)
            await writer.drain()

    [result], _ = sent_to(endless)
    assert isinstance(result, Lost)
    assert result.code == "oversize"


def test_lookups_are_counted_apart() -> None:
    async def scenario() -> None:
        async with RawServer([says("200 OK")]) as server, HttpEngine() as engine:
            await send(engine, server.stored())
            await send(engine, server.stored(Request.get("/debits")), kind="lookup")
            await send(engine, server.stored(Request.get("/debits")), kind="lookup")
            assert engine.requests_sent == {"effect": 1, "lookup": 2}
            assert server.requests[1].startswith(b"GET /debits HTTP/1.1\r\n")

    asyncio.run(scenario())


def test_a_cancelled_sending_is_still_counted() -> None:
    async def scenario() -> None:
        async with RawServer([hangs]) as server, HttpEngine() as engine:
            task = asyncio.create_task(send(engine, server.stored()))
            await server.received.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert engine.requests_sent == {"effect": 1}

    asyncio.run(scenario())
