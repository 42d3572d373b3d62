"""Who waits for whom at the HTTP interface, how many may be there, and which heads are refused. Tables."""

import pytest

from fencepost_ops.api.waiting import MOST, RESERVED, Phase, Waiting, room
from fencepost_ops.api.wire import misframed

HEAD, BODY, IDLE, UNREAD, CLOSING = Phase.HEAD, Phase.BODY, Phase.IDLE, Phase.UNREAD, Phase.CLOSING


def test_a_phase_has_one_deadline_whatever_trickles_in() -> None:
    waiting: Waiting[str] = Waiting(10)
    for now in range(10):
        waiting.seen("slow", HEAD, 1, now)
        assert not waiting.overdue(now)
    assert waiting.overdue(10) == [("slow", HEAD)]
    waiting.seen("slow", CLOSING, 1, 10)
    assert not waiting.overdue(19)
    assert waiting.overdue(20) == [("slow", CLOSING)]
    waiting.gone("slow")
    assert not waiting.overdue(99)


def test_each_phase_and_each_request_has_a_deadline_of_its_own() -> None:
    waiting: Waiting[str] = Waiting(10)
    waiting.seen("a", HEAD, 1, 0)
    waiting.seen("a", BODY, 1, 9)
    assert not waiting.overdue(18)
    assert waiting.overdue(19) == [("a", BODY)]
    waiting.seen("a", BODY, 2, 19)
    assert not waiting.overdue(28)
    waiting.seen("a", UNREAD, 2, 28)
    assert not waiting.overdue(47)
    assert waiting.overdue(48) == [("a", UNREAD)]


def test_who_is_idle_or_waits_for_us_is_never_overdue() -> None:
    waiting: Waiting[str] = Waiting(10)
    waiting.seen("stream", HEAD, 1, 0)
    waiting.seen("stream", None, 1, 1)
    waiting.seen("idle", IDLE, 1, 0)
    assert not waiting.overdue(10_000)


def test_who_has_waited_longest_goes_first_and_nobody_who_waits_for_us() -> None:
    waiting: Waiting[str] = Waiting(10)
    assert waiting.longest() is None
    waiting.seen("stream", None, 1, 0)
    for n, phase in enumerate((HEAD, IDLE, BODY)):
        waiting.seen(phase.name, phase, 1, n)
    waiting.seen("HEAD", HEAD, 1, 50)
    assert waiting.longest() == "HEAD"
    waiting.seen("HEAD", BODY, 1, 51)
    assert waiting.longest() == "IDLE"
    waiting.gone("IDLE")
    assert waiting.longest() == "BODY"


@pytest.mark.parametrize(
    ("files", "connections"),
    [(1024, 1024 - RESERVED - 8), (80, 8), (20, 1), (1_048_576, MOST + 200), (-1, MOST + 200)],
)
def test_there_is_room_below_the_limit_of_files(files: int, connections: int) -> None:
    assert room(files, 8, 200) == connections


LENGTH, CODING = b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"
FINE = [b"", b"Host: a\r\n", LENGTH, CODING, b"X-Content-Length: 5\r\n" + CODING, b"X: 1, 2\r\n" + LENGTH]
BROKEN = [
    CODING + LENGTH,
    LENGTH + b"TRANSFER-encoding: chunked\r\n",
    LENGTH + LENGTH,
    CODING + CODING,
    b"Content-Length: 5, 5\r\n",
    b"X: a\r\n b\r\n",
    b"X: a\r\n\tb\r\n",
    b"X: a\n",
    b"X: a\r\n\nY: b\r\n",
]


@pytest.mark.parametrize("fields", FINE)
def test_what_has_one_meaning_is_taken(fields: bytes) -> None:
    assert misframed(b"POST / HTTP/1.1\r\n" + fields + b"\r\n", b"1.1") is None


@pytest.mark.parametrize("fields", BROKEN)
def test_what_has_two_is_refused(fields: bytes) -> None:
    assert misframed(b"POST / HTTP/1.1\r\n" + fields + b"\r\n", b"1.1") is not None


def test_http_1_0_knows_no_transfer_encoding() -> None:
    assert misframed(b"POST / HTTP/1.0\r\n" + CODING + b"\r\n", b"1.0") is not None
    assert misframed(b"POST / HTTP/1.0\r\n" + LENGTH + b"\r\n", b"1.0") is None
