"""One sending is one request, whatever the other side does, counted by a raw server that answers as told."""

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from httpcore2._backends.auto import AutoBackend

from fencepost.clock import boottime
from fencepost.outcomes import Answered, Lost, NotSent, Refused, Sent, Unsure, classify
from fencepost.testing import FAULTS
from fencepost.tools import Request, StoredRequest
from fencepost_workers.tools import http
from fencepost_workers.tools.http import POOL_SIZE, HttpEngine, Kind
from tests.integration.raw_server import Answer, RawServer, hangs, raw, resets, says
from tests.typing.user_code import debit

DEADLINE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CORRELATION = {"run": "r-1", "call": "c-1", "attempt": "2", "fence": "7"}


async def send(
    engine: HttpEngine,
    stored: StoredRequest,
    *,
    timeout: float = 20,  # noqa: ASYNC109 - passed on
    kind: Kind = "effect",
    **more: Any,
) -> Sent:
    return await engine.send(
        stored,
        key="key-1",
        deadline=DEADLINE,
        until=boottime() + timeout,
        correlation=CORRELATION,
        kind=kind,
        **more,
    )


def sent_to(
    *answers: Answer, timeout: float = 20, times: int = 1, **options: Any
) -> tuple[list[Sent], RawServer]:
    """The results of sending to a server with these answers; every test of the count goes through here."""

    async def scenario() -> tuple[list[Sent], RawServer]:
        async with RawServer(list(answers)) as server, HttpEngine(**options) as engine:
            results = [await send(engine, server.stored(), timeout=timeout) for _ in range(times)]
            assert engine.requests_sent["effect"] == engine.requests_sent.total() == len(server.requests)
            assert sum(result.requests for result in results) == len(server.requests)
            return results, server

    return asyncio.run(scenario())


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


def test_the_time_is_for_the_whole_answer_and_not_for_each_byte() -> None:
    async def drips(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    [result], server = sent_to(drips, timeout=0.3)
    assert isinstance(result, Lost)
    assert (result.code, len(server.requests)) == ("timeout", 1)


@pytest.mark.slow
def test_the_attempts_time_is_the_only_time_limit() -> None:
    async def late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5.3)  # the client library's own limit is five seconds
        await says("201 Created")(writer)

    [result], _ = sent_to(late, timeout=20)
    assert isinstance(result, Answered), result


@pytest.mark.parametrize("length", [20, 900_000])
def test_an_answer_that_arrived_while_the_process_was_frozen_past_its_time_is_read(length: int) -> None:
    async def scenario() -> Sent:
        async with RawServer([says("201 Created", b"x" * length)]) as server, HttpEngine() as engine:
            sending = asyncio.create_task(send(engine, server.stored(), timeout=0.2))
            await server.received.wait()
            time.sleep(0.4)  # noqa: ASYNC251 - nothing runs meanwhile, as in a frozen process
            return await sending

    result = asyncio.run(scenario())
    assert isinstance(result, Answered), result
    assert len(result.response.body) == length


@pytest.mark.parametrize(("passes", "code"), [(0, "deadline_passed"), (10, "connect_timeout")])
def test_a_process_frozen_past_its_time_while_it_connects_sends_nothing(
    monkeypatch: pytest.MonkeyPatch, passes: int, code: str
) -> None:
    connect = AutoBackend.connect_tcp

    async def stalled(self: AutoBackend, *args: Any, **options: Any) -> Any:
        stream = await connect(self, *args, **options)
        time.sleep(0.4)  # noqa: ASYNC251 - nothing runs meanwhile, as in a frozen process
        try:
            for _ in range(passes):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            await stream.aclose()
            raise
        return stream

    monkeypatch.setattr(AutoBackend, "connect_tcp", stalled)
    [result], server = sent_to(says("201 Created"), timeout=0.2)
    assert isinstance(result, NotSent)
    assert (result.code, result.requests) == (code, 0)
    assert server.connections == 1
    assert (server.requests, server.bytes_read) == ([], 0)


class Jump:
    """A clock that stands a thousand seconds later from its nth reading on."""

    def __init__(self, nth: int) -> None:
        self.left = nth - 1

    def __call__(self) -> float:
        self.left -= 1
        return boottime() + (1000 if self.left < 0 else 0)


@pytest.mark.parametrize("kind", ["effect", "lookup"])
def test_the_clock_is_looked_at_just_before_the_bytes_leave_on_a_kept_connection_too(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    async def scenario() -> None:
        async with RawServer([says("200 OK")]) as server, HttpEngine() as engine:
            await send(engine, server.stored())
            monkeypatch.setattr(http, "boottime", Jump(2))
            result = await send(engine, server.stored(), kind=kind)
            assert isinstance(result, NotSent)
            assert result.code == "deadline_passed"
            monkeypatch.undo()
            assert isinstance(await send(engine, server.stored()), Answered)  # the engine lives
            assert (len(server.requests), engine.requests_sent.total()) == (2, 2)

    asyncio.run(scenario())


def test_a_process_frozen_between_head_and_body_does_not_complete_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with RawServer([says("200 OK")]) as server, HttpEngine() as engine:
            monkeypatch.setattr(http, "boottime", Jump(3))
            result = await send(engine, server.stored())
            assert isinstance(result, Lost)
            assert (result.code, result.requests) == ("timeout", 1)
            monkeypatch.setattr(http, "boottime", Jump(3))
            # Without a body the head is all there is: its answer is waited for.
            assert isinstance(await send(engine, server.stored(Request.get("/debits"))), Answered)
            assert len(server.requests) == 1

    asyncio.run(scenario())


def test_a_fault_before_the_wire_holds_effects_back_and_leaves_lookups_alone() -> None:
    async def scenario() -> None:
        async with RawServer([says("200 OK")]) as server, HttpEngine() as engine:
            FAULTS.arm("dispatch.before_wire=error@1")
            assert isinstance(await send(engine, server.stored(), kind="lookup"), Answered)
            result = await send(engine, server.stored())
            assert isinstance(result, NotSent)
            assert (result.code, result.requests, len(server.requests)) == ("worker_error", 0, 1)

    try:
        asyncio.run(scenario())
    finally:
        FAULTS.disarm()


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


def test_without_time_left_nothing_is_sent() -> None:
    [result], server = sent_to(says("200 OK"), timeout=0)
    assert result == NotSent("deadline_passed", "the attempt had no time left")
    assert (len(server.requests), server.connections) == (0, 0)


def test_the_stored_bytes_are_sent_with_our_headers_around_them() -> None:
    async def scenario() -> bytes:
        async with RawServer([says("200 OK")]) as server, HttpEngine() as engine:
            request = Request.post(
                "/a%2Fb/ä", json={"n": "ö"}, query={"q": "x y~"}, headers={"X-Reason": "none"}
            )
            await send(engine, server.stored(request), headers=[("Authorization", "Bearer geheim")])
            return server.requests[0]

    head, body = asyncio.run(scenario()).split(b"\r\n\r\n", 1)
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /a%2Fb/%C3%A4?q=x%20y~ HTTP/1.1"
    assert body == '{"n":"ö"}'.encode()
    assert sorted(line.partition(": ")[0] for line in lines[1:]) == [
        "Accept-Encoding",
        "Authorization",
        "Content-Length",
        "Content-Type",
        "Fencepost-Attempt",
        "Fencepost-Call",
        "Fencepost-Deadline",
        "Fencepost-Fence",
        "Fencepost-Run",
        "Host",
        "Idempotency-Key",
        "User-Agent",
        "X-Reason",
    ]
    for line in (
        "Idempotency-Key: key-1",
        "Fencepost-Deadline: 2026-01-02T03:04:05.000000Z",
        "Fencepost-Run: r-1",
        "Fencepost-Attempt: 2",
        "Fencepost-Fence: 7",
        "Authorization: Bearer geheim",
        "Accept-Encoding: identity",
    ):
        assert line in lines


@pytest.mark.parametrize("path", ["/", "/100%/a'(b)%2fc;d=e,f", "/a//b/~x%7e", "/ä|b[c]^{d}"])
def test_a_target_is_sent_as_it_is_stored(path: str) -> None:
    async def scenario() -> tuple[str, bytes]:
        async with RawServer([says("200 OK")]) as server, HttpEngine() as engine:
            stored = server.stored(Request.get(path, query={"q'": "a'b%c/+ ~ä"}))
            await send(engine, stored)
            return stored.target.partition(str(server.port))[2], server.requests[0]

    target, request = asyncio.run(scenario())
    assert request.split(b" ")[1] == target.encode()


def test_a_repeat_is_the_same_request_byte_for_byte() -> None:
    _, server = sent_to(says("200 OK"), times=2)
    assert server.requests[0] == server.requests[1]


def test_no_cookie_is_carried_from_one_answer_to_another_request() -> None:
    async def scenario() -> None:
        cookie = says("200 OK", b"{}", "Set-Cookie: session=1; Path=/")
        async with RawServer([cookie]) as server, HttpEngine() as engine:
            await send(engine, server.stored())
            await send(engine, server.stored())
            assert b"cookie" not in server.requests[1].lower()
            assert [list(client.cookies.jar) for client in engine._pools._clients] == [[]]

    asyncio.run(scenario())


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


def test_proxies_and_credentials_of_the_environment_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password geheim\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    [result], server = sent_to(says("200 OK"))
    assert isinstance(result, Answered)
    assert b"authorization" not in server.requests[0].lower()


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


def test_many_sendings_share_one_engine() -> None:
    async def scenario() -> None:
        async with RawServer([says("200 OK")]) as server, HttpEngine() as engine:
            results = await asyncio.gather(*(send(engine, server.stored()) for _ in range(200)))
            assert all(isinstance(result, Answered) for result in results)
            assert len(server.requests) == engine.requests_sent["effect"] == 200

    asyncio.run(scenario())


def test_a_client_error_before_the_wire_proves_that_nothing_was_sent() -> None:
    async def scenario() -> Sent:
        async with HttpEngine() as engine:
            return await send(engine, StoredRequest("GET", "gopher://127.0.0.1/"))

    result = asyncio.run(scenario())
    assert isinstance(result, NotSent)
    assert result.code == "invalid_request"
