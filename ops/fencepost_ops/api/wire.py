"""The wire below the application: what no client may leave half said, and what two servers would read apart.

uvicorn gives a client all the time it wants for its headers, and as many connections as it opens; h11 reads
a message whose end is said twice by one of both. A server before this one that goes by the other would see
two requests where we see one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fencepost_ops.api.waiting import Phase, Waiting

log = logging.getLogger(__name__)

_LOOSE: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")


def misframed(head: bytes, version: bytes) -> str | None:
    """Why the head of a request is not taken, though h11 can read it; None where it is."""
    if _LOOSE.search(head):
        return "a line ends without a carriage return, or is folded"
    fields = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    lengths = [value for name, _, value in fields if name.lower() == b"content-length"]
    codings = sum(name.lower() == b"transfer-encoding" for name, _, _ in fields)
    if len(lengths) + codings > 1 or b"," in b"".join(lengths):
        return "where its body ends is said more than once"
    if codings and version < b"1.1":
        return "HTTP/1.0 has no Transfer-Encoding"
    return None


class _Strict(h11.Connection):
    """h11, but that a request that could be read in two ways is refused, and a head that is too long though
    it came at once.
    """

    def __init__(self, most: int) -> None:
        super().__init__(h11.SERVER, most)
        self._most = most

    def next_event(self) -> Any:
        """See h11; RemoteProtocolError for what `misframed` refuses."""
        before = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if isinstance(event, h11.Request):
            head = before[: len(before) - len(self.trailing_data[0])]
            why = "it is too long" if len(head) > self._most else misframed(head, event.http_version)
            if why is not None:
                raise h11.RemoteProtocolError(why)
        return event


class Door:
    """The connections of one process: no more than it has room for, and none that waits for ever."""

    def __init__(self, most: int, patience_s: float) -> None:
        self._most = most
        self._waiting: Waiting[Guarded] = Waiting(patience_s)
        self._cut = 0

    def opened(self, one: Guarded) -> None:
        """Another: where that is one too many, the one that has kept us waiting longest is cut."""
        self.seen(one)
        if len(one.connections) > self._most and (longest := self._waiting.longest()) is not None:
            self._cut += 1
            self._waiting.gone(longest)
            longest.transport.abort()

    def seen(self, one: Guarded) -> None:
        """Something came from it, or went to it."""
        phase = _phase(one)
        turn = None if phase is Phase.UNREAD else one.cycle  # what is written meanwhile is read as little
        self._waiting.seen(one, phase, turn, one.loop.time())

    def gone(self, one: Guarded) -> None:
        """It is closed."""
        self._waiting.gone(one)

    def sweep(self, connections: Iterable[Any], now: float) -> None:
        """Close whose time is over, and cut who does not take what was written before."""
        for one in connections:
            if one.transport.is_closing():
                self.seen(one)
        for one, phase in self._waiting.overdue(now):
            if phase in {Phase.CLOSING, Phase.UNREAD}:
                one.transport.abort()
            else:
                one.transport.close()
                self.seen(one)
        if self._cut:
            log.warning("%d connections were cut: there is room for %d at once", self._cut, self._most)
            self._cut = 0


class Guarded(H11Protocol):
    """One connection."""

    def __init__(self, *args: Any, door: Door, **options: Any) -> None:
        super().__init__(*args, **options)
        self._door = door
        most = self.config.h11_max_incomplete_event_size
        assert most is not None
        self.conn = _Strict(most)

    def connection_made(self, transport: Any) -> None:
        """See asyncio."""
        super().connection_made(transport)
        self._door.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        super().connection_lost(exc)
        self._door.gone(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        super().data_received(data)
        self._door.seen(self)

    def pause_writing(self) -> None:
        """See asyncio."""
        super().pause_writing()
        self._door.seen(self)

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        self._door.seen(self)

    def on_response_complete(self) -> None:
        """See uvicorn."""
        super().on_response_complete()
        self._door.seen(self)


def _phase(one: Guarded) -> Phase | None:
    if one.transport.is_closing():
        return Phase.CLOSING
    if one.flow.write_paused:
        return Phase.UNREAD
    theirs = one.conn.their_state
    if theirs is h11.SEND_BODY:
        return Phase.BODY
    if theirs is not h11.IDLE:
        return None
    cycle: Any = one.cycle  # none before the first request
    return Phase.IDLE if cycle is not None and not one.conn.trailing_data[0] else Phase.HEAD
