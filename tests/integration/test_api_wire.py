"""The HTTP interface on raw sockets: who finishes nothing, and requests that could be read in two ways."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from fencepost_ops.api.waiting import room
from fencepost_ops.local import LocalPostgres
from tests.awaiting import until
from tests.integration.api_process import RUN, Api, frames, start, started, token
from tests.integration.conftest import copied

FILES = 160
PATIENCE_S = 2.0
CROWD = 300
UNREAD = 4
WITHIN_S = 12.0


@pytest.fixture(scope="module")
def api(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[Api]:
    env = {
        "FENCEPOST_API_TIMEOUT_S": str(PATIENCE_S),
        "FENCEPOST_API_HEARTBEAT_S": "0.2",
        "FENCEPOST_LOG_LEVEL": "error",  # nobody reads its log meanwhile
    }
    with copied(postgres, template) as database, started(Api(database, env, FILES)) as process:
        yield process
        process.end()
        assert "out of system resource" not in process.log, "it accepted more than it could hold"


@pytest.fixture(scope="module")
def bearer(api: Api) -> str:
    return token(api.database)


def connected(api: Api, said: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", api.port), WITHIN_S)
    client.sendall(said)
    return client


def open_files(api: Api) -> int:
    return len(os.listdir(f"/proc/{api.child.pid}/fd"))  # noqa: PTH208 - of a process that may open few


def held(api: Api) -> int:
    """Connections that the process still holds a file for."""
    lines = Path(f"/proc/{api.child.pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    found = [line.split() for line in lines]
    listening = "0" * 8
    return sum(
        one[1].endswith(f":{api.port:04X}") and one[9] != "0" and not one[2].startswith(listening)
        for one in found
    )


def half_written(api: Api, bearer: str) -> list[bytes]:
    auth = f"Authorization: Bearer {bearer}\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"
    return [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-More: ",
        f"POST /v1/runs HTTP/1.1\r\nHost: a\r\n{auth}Content-Length: 20000\r\n\r\n{{".encode(),
        b"POST /v1/nothing HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n{",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\r\n",
    ]


def all_closed(crowd: list[socket.socket], began: float) -> None:
    """Each is closed in its time since then, though another byte is sent on it again and again."""
    left = list(crowd)

    def look() -> bool:
        left[:] = trickled(left)
        return not left

    until("all of them are closed", look, began + WITHIN_S - time.monotonic())


def trickled(clients: list[socket.socket]) -> list[socket.socket]:
    """Those that are still open, after another byte was sent on each."""
    left = []
    for client in clients:
        client.setblocking(False)
        try:
            client.sendall(b" ")
            while client.recv(65536):
                pass
            client.close()
        except BlockingIOError:
            left.append(client)
        except OSError:
            client.close()
    return left


def test_who_finishes_nothing_keeps_nobody_out(api: Api, bearer: str) -> None:
    with ExitStack() as stack, api.client(bearer) as client:
        run = start(client, "streamed").json()["id"]
        answer = stack.enter_context(client.stream("GET", f"/v1/runs/{run}/events/stream"))
        kinds = half_written(api, bearer)
        crowd = [stack.enter_context(connected(api, kinds[n % len(kinds)])) for n in range(CROWD)]
        began = time.monotonic()
        for n in range(3):
            until("it is answered", lambda key=f"honest-{n}": start(client, key).status_code == 201, WITHIN_S)  # type: ignore[misc]
            assert httpx2.get(f"{api.url}/healthz", timeout=WITHIN_S).status_code == 200
        assert open_files(api) < FILES
        all_closed(crowd, began)
        client.post(f"/v1/runs/{run}/cancel", json={"reason": "enough"}).raise_for_status()
        assert list(frames(answer.iter_lines()))[-1].event == "end", "it is older than any deadline"
    until("their files are closed", lambda: not held(api), WITHIN_S)


def unread(api: Api) -> socket.socket:
    """A client that asks for more than the kernel keeps for it, and reads none of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", api.port))
    client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 250)
    return client


def test_a_deadline_closes_them_though_there_is_room(api: Api, bearer: str) -> None:
    with ExitStack() as stack:
        for _ in range(UNREAD):
            stack.enter_context(unread(api))
        crowd = [stack.enter_context(connected(api, one)) for one in half_written(api, bearer)]
        began = time.monotonic()
        all_closed(crowd, began)
        assert time.monotonic() - began > PATIENCE_S / 2
        until("who reads nothing is cut", lambda: not held(api), WITHIN_S)


def test_streams_have_half_of_the_room_at_most(api: Api, bearer: str) -> None:
    most = room(FILES, 8, 200) // 2 // 2  # of one tenant
    unlimited = httpx2.Limits(max_connections=None)
    with ExitStack() as stack, api.client(bearer, limits=unlimited) as client:
        run = start(client, "watched").json()["id"]
        place = f"/v1/runs/{run}/events/stream"
        answers = [stack.enter_context(client.stream("GET", place)) for _ in range(most + 1)]
        assert [answer.status_code for answer in answers] == [200] * most + [503]


GET = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /v1/runs HTTP/1.1\r\nHost: a\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
HIDDEN = b"0\r\n\r\n" + GET + b"\r\n"
REFUSED = {
    "coding and length": POST + CHUNKED + b"Content-Length: 5\r\n\r\n" + HIDDEN,
    "length and coding": POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n" + HIDDEN,
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 44\r\n\r\n" + HIDDEN,
    "one length twice": POST + b"Content-Length: 5\r\nContent-length: 5\r\n\r\n" + HIDDEN,
    "a list of lengths": POST + b"Content-Length: 5, 5\r\n\r\n" + HIDDEN,
    "a length with a sign": POST + b"Content-Length: +5\r\n\r\n" + HIDDEN,
    "two codings": POST + CHUNKED + CHUNKED + b"\r\n" + HIDDEN,
    "a list of codings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + HIDDEN,
    "another coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + HIDDEN,
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n" + HIDDEN,
    "a coding in HTTP/1.0": POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n" + HIDDEN,
    "a folded line": GET + b"X-A: b\r\n c\r\n\r\n",
    "a folded coding": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + HIDDEN,
    "a bare line feed": POST + b"X-A: b\n" + CHUNKED + b"\r\n" + HIDDEN,
    "bare line feeds alone": GET.replace(b"\r\n", b"\n") + b"\n",
    "a bare carriage return": GET + b"X-A: b\rX-C: d\r\n\r\n",
    "a NUL": GET + b"X-A: b\0c\r\n\r\n",
    "two hosts": GET + b"Host: b\r\n\r\n",
    "too long": GET + b"X-A: " + b"b" * 40_000 + b"\r\n\r\n",
    "a chunk that ends in a line feed": POST + CHUNKED + b"\r\n1\n1\r\n0\r\n\r\n" + GET + b"\r\n",
    "a chunk longer than it says": POST + CHUNKED + b"\r\n1\r\n12\r\n0\r\n\r\n" + GET + b"\r\n",
    "a chunk of no number": POST + CHUNKED + b"\r\n0x1\r\n1\r\n0\r\n\r\n" + GET + b"\r\n",
    "a chunk of 21 digits": POST + CHUNKED + b"\r\n" + b"0" * 20 + b"1\r\n1\r\n0\r\n\r\n" + GET + b"\r\n",
}


def heard(client: socket.socket) -> bytes:
    """All that comes, until it is closed."""
    said = bytearray()
    while True:
        try:
            part = client.recv(65536)
        except ConnectionResetError:
            part = b""
        if not part:
            return bytes(said)
        said += part


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_that_could_be_read_in_two_ways_is_refused_and_nothing_after_it_is_read(
    api: Api, case: str
) -> None:
    with connected(api, REFUSED[case]) as client:
        said = heard(client)
    assert said.startswith(b"HTTP/1.1 400 "), said
    assert said.count(b"HTTP/1.1 ") == 1, said
    assert b"connection: close" in said.lower()


def test_what_can_be_read_in_one_way_is_taken(api: Api, bearer: str) -> None:
    body = json.dumps({**RUN, "input": {"a": "b\n c"}}, indent=1).encode()
    own = f"Authorization: Bearer {bearer}\r\nContent-Type: application/json\r\n".encode()
    chunks = b"".join(b"%x;a=b;c\r\n%s\r\n" % (len(part), part) for part in (body[:9], body[9:]))
    asked = [
        GET + b"\r\n",
        POST + own + b"Idempotency-Key: plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
        POST + own + b"Idempotency-Key: chunks\r\n" + CHUNKED + b"\r\n" + chunks + b"0\r\nX-T: t\r\n\r\n",
        GET + b"Connection: close\r\n\r\n",
    ]
    with connected(api, b"".join(asked)) as client:
        said = heard(client)
    statuses = [one[:3] for one in said.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"201", b"201", b"200"], said
