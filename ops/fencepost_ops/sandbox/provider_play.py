"""Plays an answer to one caller: in its time, and broken off where a fault says so."""

from __future__ import annotations

import asyncio
import http
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fencepost_ops.sandbox import provider_responses, provider_wires
from fencepost_ops.sandbox.provider_faults import IN_STREAMS, Fault, Rule
from fencepost_ops.sandbox.provider_replies import Piece, Reply

_LINGER_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for 0 seconds: close() sends RST
_SILENCE_S = 3600.0
_READ_S = 0.02  # so that a caller has read what was sent before its connection is reset
_BEFORE = frozenset({Fault.RESET_BEFORE_HEADERS, Fault.CLOSE_BEFORE_HEADERS, Fault.SILENT_BEFORE_HEADERS})


class Left(Exception):
    """The caller has closed its connection."""


class WatchedReader(asyncio.StreamReader):
    """Tells at once when the other side has gone, though nobody is reading."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        """The connection ended."""
        super().feed_eof()
        self.gone.set()

    def set_exception(self, exc: Exception) -> None:
        """The connection broke."""
        super().set_exception(exc)
        self.gone.set()


@dataclass(frozen=True, slots=True)
class Played:
    """How an answer went: see `Asking.outcome`; whether the connection can be used again."""

    outcome: str
    status: int | None
    keep_alive: bool = False


class Player:
    """One connection while it is answered. `released` gives what is set when the holds of now end."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        released: Callable[[], asyncio.Event],
    ) -> None:
        self._gone = reader.gone if isinstance(reader, WatchedReader) else asyncio.Event()
        self._writer = writer
        self._released = released

    @property
    def there(self) -> bool:
        """Whether the caller still is."""
        return not self._gone.is_set() and not self._writer.is_closing()

    async def error(self, status: int, body: bytes, headers: Mapping[str, str]) -> Played:
        """An error answer."""
        self._head(status, {**headers, "Content-Type": "application/json"}, len(body))
        await self._send(body)
        return Played("refused", status, keep_alive=True)

    async def before_headers(self, rule: Rule | None) -> Played | None:
        """What happens instead of an answer, if the fault is of that sort."""
        kind = rule.kind if rule is not None else None
        if rule is not None and kind is Fault.HOLD and rule.at == "headers":
            await self._hold()
            return None
        if kind not in _BEFORE:
            return None
        if kind is Fault.SILENT_BEFORE_HEADERS:
            await self.wait(_SILENCE_S)
        elif kind is Fault.RESET_BEFORE_HEADERS:
            self._reset()
        return Played("cut", None)

    async def whole(self, body: bytes, headers: Mapping[str, str], rule: Rule | None, wire: str) -> Played:
        """An answer in one body."""
        kind = rule.kind if rule is not None else None
        if rule is not None and kind is Fault.HOLD and rule.at != "headers":
            await self._hold()
        if kind is Fault.ERROR_EVENT:
            return await self.error(500, provider_wires.error(wire, 500, "The server had an error"), headers)
        if kind in (Fault.GARBAGE, Fault.BAD_EVENT):
            body = b"<html>It works!</html>"
        half = body[: len(body) // 2]
        if kind in (Fault.CUT_FIN, Fault.CUT_HALF_EVENT, Fault.CUT_RESET, Fault.SILENCE):
            self._head(200, {**headers, "Content-Type": "application/json"}, len(body))
            await self._send(half)
            return await self._broken(kind)
        told = half if kind is Fault.CUT_CLEAN else body
        self._head(200, {**headers, "Content-Type": "application/json"}, len(told))
        await self._send(told)
        return Played("cut" if told is half else "answered", 200, keep_alive=True)

    async def stream(
        self,
        pieces: Sequence[Piece],
        pace: tuple[float, float],
        headers: Mapping[str, str],
        rule: Rule | None,
        told: tuple[str, Reply],
    ) -> Played:
        """An answer as events, `pace` seconds before its first token and between two pieces."""
        first_s, between_s = pace
        self._head(200, {**headers, "Content-Type": "text/event-stream; charset=utf-8"}, None)
        where = cut_at(pieces, rule)
        for number, piece in enumerate(pieces):
            if number == where and rule is not None:
                ended = await self._at_the_cut(rule, piece, told)
                if ended is not None:
                    return ended
            if piece.place != "start":
                await self.wait(first_s if number == 1 else between_s)
            await self._chunk(piece.data)
        if where == len(pieces) and rule is not None:
            ended = await self._at_the_cut(rule, Piece(b""), told)
            if ended is not None:
                return ended
        await self._send(b"0\r\n\r\n")
        return Played("answered", 200, keep_alive=True)

    async def _at_the_cut(self, rule: Rule, piece: Piece, told: tuple[str, Reply]) -> Played | None:
        wire, reply = told
        match rule.kind:
            case Fault.HOLD:
                await self._hold()
                return None
            case Fault.BAD_EVENT:
                await self._chunk(b"event: message_delta\ndata: {oops\n\n")
                return None
            case Fault.CUT_HALF_EVENT:
                await self._chunk(piece.data[: len(piece.data) // 2])
            case Fault.ERROR_EVENT:
                await self._chunk(provider_wires.error_event(wire))
            case Fault.RESPONSE_FAILED:
                await self._chunk(provider_responses.failed(reply).data)
            case Fault.CUT_FIN | Fault.CUT_RESET | Fault.SILENCE:
                return await self._broken(rule.kind)
        await self._send(b"0\r\n\r\n")
        return Played("cut", 200, keep_alive=True)

    async def _broken(self, kind: Fault) -> Played:
        if kind is Fault.SILENCE:
            await self.wait(_SILENCE_S)
        elif kind is Fault.CUT_RESET:
            await self.wait(_READ_S)
            self._reset()
        return Played("cut", 200)

    def _reset(self) -> None:
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)

    async def _hold(self) -> None:
        """Wait until holds end. Raises Left."""
        left, freed = asyncio.ensure_future(self._gone.wait()), asyncio.ensure_future(self._released().wait())
        try:
            await asyncio.wait({left, freed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            freed.cancel()
        if self._gone.is_set():
            raise Left

    async def wait(self, seconds: float) -> None:
        """Let time pass. Raises Left as soon as the caller goes."""
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._gone.wait()
            except TimeoutError:
                return
        if not self.there:
            raise Left

    def _head(self, status: int, headers: Mapping[str, str], length: int | None) -> None:
        try:
            reason = http.HTTPStatus(status).phrase
        except ValueError:
            reason = "Overloaded"
        body = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        lines = [
            f"HTTP/1.1 {status} {reason}",
            body,
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def _chunk(self, data: bytes) -> None:
        if data:
            await self._send(b"%x\r\n%b\r\n" % (len(data), data))

    async def _send(self, data: bytes) -> None:
        if not self.there:
            raise Left
        self._writer.write(data)
        await self._writer.drain()


def cut_at(pieces: Sequence[Piece], rule: Rule | None) -> int | None:
    """Before which piece a stream is broken off; their number: after all; None: nowhere."""
    if rule is None or rule.kind not in IN_STREAMS or rule.at == "headers":
        return None
    places = [piece.place for piece in pieces]
    if rule.at == "start":
        return 1
    if rule.at == "stop":
        return places.index("stop")
    if rule.at == "end":
        return places.index("stop") + 1
    return places.index("cut") + 1 if "cut" in places else max(1, places.index("stop") // 2)
