"""The sandbox as a server: sockets, connections and the life of the process around one desk."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fencepost_ops.sandbox import answers, services
from fencepost_ops.sandbox.admin import Admin
from fencepost_ops.sandbox.answers import Answer, Sent
from fencepost_ops.sandbox.desk import LOOKUPS, Desk
from fencepost_ops.sandbox.faults import Rule, Rules
from fencepost_ops.sandbox.guarded import PREFIX, Guard
from fencepost_ops.sandbox.imitation import Imitations
from fencepost_ops.sandbox.provider import Provider, wire_at
from fencepost_ops.sandbox.provider_play import WatchedReader
from fencepost_ops.sandbox.settings import Settings
from fencepost_ops.sandbox.store import Store
from fencepost_ops.sandbox.wire import MAX_HEAD_BYTES, BadRequest, HttpRequest, encode, read_request

_BACKLOG = 1024  # connections a fleet may open at once
_LINGER_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for 0 seconds: close() sends RST


@dataclass(frozen=True, slots=True)
class Options:
    """What a sandbox starts with. Port 0: the system chooses. Settings changed later are laid over these."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 0
    settings: Settings = field(default_factory=Settings)
    faults: tuple[Rule, ...] = ()
    clock: Callable[[], float] = time.time


async def serve(options: Options, *, ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Serve until `stop` is set; `ready` gets the base URL once connections are accepted.

    Raises BookTaken, BookUnreadable, or OSError if the port is taken. Requests it still holds when it stops
    are dropped unanswered; whatever was answered is in the book.
    """
    store = Store(options.data)
    try:
        desk = Desk(store, options.settings, Rules(options.faults), options.clock)
        front = _Front(options.data, desk)
        server = await asyncio.get_running_loop().create_server(
            lambda: asyncio.StreamReaderProtocol(WatchedReader(MAX_HEAD_BYTES), front.connection),
            options.host,
            options.port,
            backlog=_BACKLOG,
        )
        try:
            host, port = server.sockets[0].getsockname()[:2]
            front.guard.base = f"http://{host}:{port}"
            ready(front.guard.base)
            await stop.wait()
        finally:
            server.close()
            await front.close()
    finally:
        store.close()


class _Front:
    """Every open connection, and which part of the sandbox answers on it."""

    def __init__(self, data: Path, desk: Desk) -> None:
        self._desk = desk
        self._admin = Admin(desk)
        self._imitations = Imitations(desk.rules, desk.now)
        self._provider = Provider(data, desk)
        self.guard = Guard(desk.now, lambda: desk.store.settings)
        self._connections: set[asyncio.Task[None]] = set()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other, until it ends."""
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A caller that hangs up ends its connection; a book that cannot be written answers nobody.
        with suppress(ConnectionError, asyncio.CancelledError, sqlite3.Error):
            while await self._exchange(reader, writer):
                pass
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            request = await read_request(reader)
        except BadRequest as error:
            writer.write(encode(answers.problem(error.status, "bad_request", error.detail), keep_alive=False))
            return False
        if request is None:
            return False
        wire = wire_at(request.path) if request.method == "POST" else None
        if wire is not None:
            return await self._provider.answer(wire, request, reader, writer)
        answer = await self._answer(request)
        keep_alive = request.keep_alive and answer.sent is Sent.WHOLE
        if answer.sent is Sent.RESET:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        writer.write(encode(answer, keep_alive=keep_alive))
        await writer.drain()
        return keep_alive

    async def _answer(self, request: HttpRequest) -> Answer:
        if request.path.startswith(f"{PREFIX}/"):
            judged = self.guard.judge(request)
            if isinstance(judged, Answer):
                return judged
            request = judged
        operation = services.operation_at(request.path) if request.method == "POST" else None
        try:
            if request.segments[0] == "models":
                return await self._provider.admin(request)
            if request.segments[0] == "imitations":
                return await self._imitations.answer(request)
            if operation is not None:
                return await self._desk.effect(operation, request)
            match (request.method, *request.segments):
                case ("GET", service, by, value) if service in services.SERVICES and by in LOOKUPS:
                    return await self._desk.lookup(service, by, value, request)
                case ("DELETE", "faults"):
                    self._provider.rules.delete()
        except ValueError as error:
            return answers.problem(400, "bad_fault", str(error))
        return await self._admin.answer(request)

    async def close(self) -> None:
        """End every connection, answered or not."""
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._provider.close()
