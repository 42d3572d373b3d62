"""The wire with weather: what it carries in fair weather, and what each of its switches does."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fencepost_ops.weather import Proxy
from tests.awaiting import until

PATIENCE_S = 10.0


class Echo:
    """Answers whatever comes, in capitals, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(one,), daemon=True).start()

    def _answer(self, one: socket.socket) -> None:
        with one:
            try:
                while data := one.recv(65536):
                    self.heard += data
                    one.sendall(data.upper())
            except OSError:
                return

    def close(self) -> None:
        with suppress(OSError):  # it is closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def wire(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as proxy:
        yield proxy


def connected(wire: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", wire.port), timeout=PATIENCE_S)


def asked(one: socket.socket, text: bytes = b"hello") -> bytes:
    one.sendall(text)
    return received(one, len(text))


def received(one: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length and (data := one.recv(65536)):
        found += data
    return found


def refused(wire: Proxy) -> bool:
    """Whether a connection through it is of no use; when its maker hears of that is the kernel's affair."""
    try:
        with connected(wire) as one:
            return asked(one) == b""
    except ConnectionError:
        return True


def silent(one: socket.socket) -> bool:
    """Whether nothing comes, neither an answer nor an end."""
    one.settimeout(0.1)
    try:
        one.recv(1)
    except TimeoutError:
        return True
    finally:
        one.settimeout(PATIENCE_S)
    return False


def test_in_fair_weather_all_arrives_whole_and_in_order(wire: Proxy) -> None:
    text = bytes(range(ord("a"), ord("z"))) * 40_000
    with connected(wire) as one:
        sender = threading.Thread(target=one.sendall, args=(text,))
        sender.start()
        assert received(one, len(text)) == text.upper()
        sender.join()
        assert (wire.open, wire.carried) == (1, 1)


def test_latency_is_paid_on_the_way_there_and_on_the_way_back(wire: Proxy) -> None:
    wire.latency_s = 0.1
    with connected(wire) as one:
        began = time.monotonic()
        assert asked(one) == b"HELLO"
        assert time.monotonic() - began >= 0.2


def test_new_connections_are_refused_and_old_ones_cut(wire: Proxy) -> None:
    with connected(wire) as one:
        assert asked(one) == b"HELLO"
        wire.refusing = True
        assert wire.reset() == 1
        with pytest.raises(ConnectionResetError):
            one.recv(1)
    assert refused(wire)
    wire.clear()
    with connected(wire) as one:
        assert asked(one) == b"HELLO"


def test_a_black_hole_tells_nobody_anything_until_the_sky_clears(wire: Proxy, echo: Echo) -> None:
    with connected(wire) as one:
        assert asked(one) == b"HELLO"
        wire.hanging = True
        assert wire.black_hole() == 1
        one.sendall(b"lost")
        with connected(wire) as other:
            other.sendall(b"lost too")
            assert silent(one)
            assert silent(other)
            assert echo.heard == b"hello"
            wire.clear()
            for each in (one, other):
                with pytest.raises(ConnectionResetError):
                    each.recv(1)
    with connected(wire) as one:
        assert asked(one) == b"HELLO"


def test_a_request_arrives_whose_answer_is_eaten(wire: Proxy, echo: Echo) -> None:
    with connected(wire) as one:
        assert asked(one) == b"HELLO"
        wire.swallowing = True
        one.sendall(b"pay")
        end = time.monotonic() + PATIENCE_S
        while echo.heard != b"hellopay" and time.monotonic() < end:
            time.sleep(0.005)
        assert echo.heard == b"hellopay"
        assert silent(one)
        wire.swallowing = False
        assert silent(one)  # what was lost stays lost


def test_a_server_that_is_away_is_away_behind_the_wire_too(wire: Proxy, echo: Echo) -> None:
    echo.close()
    assert refused(wire)


class Closing(Echo):
    """Answers once, with so much, and closes at once."""

    def __init__(self, size: int) -> None:
        self._size = size
        super().__init__()

    def _answer(self, one: socket.socket) -> None:
        with one, suppress(OSError):
            self.heard += one.recv(100)
            one.sendall(b"x" * self._size)


@pytest.mark.parametrize(("size", "latency_s"), [(1000, 0.2), (20_000_000, 0.0)])
def test_what_a_server_said_before_it_closed_arrives_whole_though_late_or_slowly_read(
    size: int, latency_s: float
) -> None:
    server = Closing(size)
    with Proxy(server.port) as wire, connected(wire) as one:
        wire.latency_s = latency_s
        one.sendall(b"q")
        until("all that it says is on its way", lambda: server.heard == b"q")
        assert len(received(one, size + 1)) == size
        assert wire.open == 1  # this end has not closed yet
        one.close()
        until("it is carried no more", lambda: wire.open == 0)
    server.close()


def test_who_has_asked_and_says_no_more_hears_the_whole_answer(wire: Proxy, echo: Echo) -> None:
    wire.latency_s = 0.05
    with connected(wire) as one:
        one.sendall(b"hello")
        one.shutdown(socket.SHUT_WR)
        assert received(one, 6) == b"HELLO"
        until("it is carried no more", lambda: wire.open == 0)


def test_a_connection_of_which_one_end_has_closed_can_still_fall_silent_and_be_cut() -> None:
    server = Closing(3)
    with Proxy(server.port) as wire, connected(wire) as one, connected(wire) as other:
        for each in (one, other):
            each.sendall(b"q")
            assert received(each, 4) == b"xxx"
        assert wire.black_hole() == 2
        wire.clear()
        with connected(wire) as third:
            third.sendall(b"q")
            assert received(third, 4) == b"xxx"
            assert wire.reset() == 1
            assert wire.open == 0
    server.close()


def test_nothing_is_left_of_a_wire_that_was_closed(wire: Proxy) -> None:
    with connected(wire) as one:
        assert asked(one) == b"HELLO"
        wire.close()
        wire.close()
        with pytest.raises(ConnectionResetError):
            one.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connected(wire)
