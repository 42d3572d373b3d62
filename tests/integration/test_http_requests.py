"""The bytes of one sending: the stored ones, with our headers around them, nothing of the environment."""

import asyncio
from typing import Any

import pytest

from fencepost.outcomes import Answered, NotSent, Sent
from fencepost.tools import Request, StoredRequest
from fencepost_workers.tools.http import HttpEngine
from tests.integration.http_sending import send, sent_to
from tests.integration.raw_server import RawServer, says


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


def test_a_client_error_before_the_wire_proves_that_nothing_was_sent() -> None:
    async def scenario() -> Sent:
        async with HttpEngine() as engine:
            return await send(engine, StoredRequest("GET", "gopher://127.0.0.1/"))

    result = asyncio.run(scenario())
    assert isinstance(result, NotSent)
    assert (result.code, result.retryable) == ("outbound_refused", False)
