"""A server that speaks raw HTTP: it counts whole requests and answers each one as a test tells it."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from fencepost.tools import Request, StoredRequest

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawServer:
    """Counts whole requests and answers the nth one as the nth function says, the last one from then on."""

    answers: list[Answer]
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    bytes_read: int = 0
    received: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                first = await reader.read(1)
                self.bytes_read += len(first)
                head = first + await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length:")
                    ),
                    0,
                )
                self.requests.append(head + await reader.readexactly(length))
                self.received.set()
                await self.answers[min(len(self.requests), len(self.answers)) - 1](writer)
        writer.close()

    def stored(self, request: Request | None = None) -> StoredRequest:
        return (request or Request.post("/debits", json={"n": 1})).bind(f"http://127.0.0.1:{self.port}")


def says(status: str, body: bytes = b"{}", *headers: str) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()

    return answer


def raw(data: bytes, *, then_close: bool = True) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if then_close:
            writer.close()

    return answer


async def hangs(_writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def resets(writer: asyncio.StreamWriter) -> None:
    sock: Any = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
