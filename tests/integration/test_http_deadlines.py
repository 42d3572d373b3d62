"""One sending and its time: the clock is looked at just before the bytes leave, whatever froze meanwhile."""

import asyncio
import time
from typing import Any

import pytest
from httpcore2 import AnyIOBackend

from fencepost.clock import boottime
from fencepost.outcomes import Answered, Lost, NotSent, Sent
from fencepost.testing import FAULTS
from fencepost.tools import Request
from fencepost_workers.tools import http
from fencepost_workers.tools.http import HttpEngine, Kind
from tests.integration.http_sending import send, sent_to
from tests.integration.raw_server import RawServer, says


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
    connect = AnyIOBackend.connect_tcp

    async def stalled(self: AnyIOBackend, *args: Any, **options: Any) -> Any:
        stream = await connect(self, *args, **options)
        time.sleep(0.4)  # noqa: ASYNC251 - nothing runs meanwhile, as in a frozen process
        try:
            for _ in range(passes):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            await stream.aclose()
            raise
        return stream

    monkeypatch.setattr(AnyIOBackend, "connect_tcp", stalled)
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


@pytest.mark.parametrize("answers", [True, False])
def test_what_left_late_though_it_was_looked_at_in_time_says_so(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    async def scenario() -> None:
        reply = says("500 Internal Server Error") if answers else says("")
        async with RawServer([reply]) as server, HttpEngine() as engine:
            monkeypatch.setattr(http, "boottime", Jump(4))  # the look between head and body is the third
            result = await send(engine, server.stored())
            assert isinstance(result, Answered | Lost)
            assert result.late

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


def test_without_time_left_nothing_is_sent() -> None:
    [result], server = sent_to(says("200 OK"), timeout=0)
    assert result == NotSent("deadline_passed", "the attempt had no time left")
    assert (len(server.requests), server.connections) == (0, 0)
