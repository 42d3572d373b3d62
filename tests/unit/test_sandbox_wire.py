"""HTTP as the sandbox reads and writes it."""

import asyncio

import pytest

from fencepost_ops.sandbox.answers import Answer, Sent, problem, success
from fencepost_ops.sandbox.wire import (
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    BadRequest,
    HttpRequest,
    encode,
    read_request,
)


def read(*chunks: bytes, requests: int = 1) -> list[HttpRequest | None]:
    async def from_a_connection() -> list[HttpRequest | None]:
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
        for chunk in chunks:
            reader.feed_data(chunk)
        reader.feed_eof()
        return [await read_request(reader) for _ in range(requests)]

    return asyncio.run(from_a_connection())


def test_a_request_is_read_with_its_query_headers_and_body() -> None:
    [request] = read(b"POST /a%20b/c?since=1 HTTP/1.1\r\nHost: x\r\nX-Y:  z \r\nContent-Length: 2\r\n\r\n{}")
    assert request is not None
    assert (request.method, request.path, request.segments) == ("POST", "/a%20b/c", ("a b", "c"))
    assert request.query == {"since": "1"}
    assert request.headers["x-y"] == "z"
    assert request.body == b"{}"
    assert request.keep_alive


def test_requests_follow_each_other_on_a_connection_until_it_ends() -> None:
    one = b"GET /a HTTP/1.1\r\n\r\n"
    first, second, end = read(one + one, requests=3)
    assert first == second
    assert end is None


def test_a_request_cut_off_in_its_body_is_none() -> None:
    assert read(b"POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\n{}") == [None]


@pytest.mark.parametrize("ending", [b"Connection: close", b"connection: Close"])
def test_a_caller_may_ask_for_the_end_of_the_connection(ending: bytes) -> None:
    [request] = read(b"GET /a HTTP/1.1\r\n" + ending + b"\r\n\r\n")
    assert request is not None
    assert not request.keep_alive


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/3\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nbroken\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), 413),
        (b"GET /a HTTP/1.1\r\nX: " + b"x" * (2 * MAX_HEAD_BYTES) + b"\r\n\r\n", 431),
    ],
)
def test_what_cannot_be_read_is_answered_with_a_reason(sent: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as refused:
        read(sent)
    assert refused.value.status == status


def test_an_answer_is_encoded_with_its_length_and_headers() -> None:
    sent = encode(success(201, {"a": "é"}, {"X": "y"}), keep_alive=True)
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 201 Created",
        b"Content-Length: 10",
        b"Content-Type: application/json",
        b"X: y",
    ]
    assert body == '{"a":"é"}'.encode()
    assert b"Connection: close" in encode(problem(500, "failed", "x"), keep_alive=False)


def test_half_an_answer_claims_its_whole_length_and_nothing_is_nothing() -> None:
    assert encode(Answer(200, b"12345678", sent=Sent.HALF), keep_alive=True).endswith(b"8\r\n\r\n1234")
    assert encode(Answer(200, b"1", sent=Sent.NOTHING), keep_alive=True) == b""
    assert encode(Answer(200, b"1", sent=Sent.RESET), keep_alive=True) == b""


def test_a_status_without_a_name_is_still_sent() -> None:
    assert encode(Answer(499, b""), keep_alive=True).startswith(b"HTTP/1.1 499 ")
