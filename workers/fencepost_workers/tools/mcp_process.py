"""MCP servers as processes: one for each call, with pipes of its own, ended with everything it has started.

The client that comes with the SDK gives a server up to six seconds to end, and leaves what such a server has
started alone if it ends by itself. Here the attempt's time is the only one, and the whole group goes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from fencepost.clock import boottime
from fencepost.dependencies import resolve
from fencepost.mcp import METHOD, Stdio
from fencepost_workers.tools.connections import TooMuch

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

    from fencepost_workers.tools.mcp_wire import Wire

PASSED_ON: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER")
CLOSE_S: Final = 2.0
"""What a server that has answered has to write down what it holds: the SDK's own clients give it this too."""
_LOOK_S: Final = 0.01
_REAP_S: Final = 2.0
_HEAR_S: Final = 0.1  # of a process that has ended all is there at once, unless another holds its pipe
_CHUNK: Final = 64 * 1024
_TOLD_BYTES: Final = 2000


class ServerProcess:
    """One server while it runs. Not started again; `end` always leaves nothing of its group."""

    def __init__(self, process: Process, most_bytes: int) -> None:
        self._process = process
        self._said = bytearray()
        self._rest = bytearray()
        self._meter = _Meter(most_bytes)
        self._wire: Wire | None = None
        self._reading = False
        self._ended = False
        self._listening = asyncio.ensure_future(self._listen())

    @classmethod
    async def start(cls, server: Stdio, most_bytes: int) -> ServerProcess:
        """Start it. Raises OSError if it cannot be, UsageError for a variable that is not set."""
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        env |= {name: resolve(value) for name, value in server.env.items()}
        process = await asyncio.create_subprocess_exec(
            server.command,
            *server.args,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=env,
            cwd=server.cwd,
            start_new_session=True,  # a group of its own, which is what `end` ends
        )
        return cls(process, most_bytes)

    @property
    def pid(self) -> int:
        """Its process, which leads its group."""
        return self._process.pid

    @property
    def said(self) -> str:
        """The last of what it wrote to stderr."""
        return self._said.decode(errors="replace").strip()

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(_CHUNK):
            self._said += data
            del self._said[:-_TOLD_BYTES]

    @asynccontextmanager
    async def streams(self, wire: Wire) -> AsyncIterator[tuple[Any, Any]]:
        """Its pipes, as a transport of the SDK. `Wire.leave` is called before a `tools/call` is written, and
        what it raises ends the session; so does TooMuch that is read after one line was written.
        """
        import anyio

        read_writer, read_stream = anyio.create_memory_object_stream[Any](0)
        write_stream, write_reader = anyio.create_memory_object_stream[Any](0)
        self._wire = wire
        async with anyio.create_task_group() as group:
            group.start_soon(self._read, read_writer, wire)
            group.start_soon(self._write, write_reader, read_writer, wire)
            try:
                yield read_stream, write_stream
            finally:
                for stream in (read_stream, write_stream, read_writer, write_reader):
                    stream.close()
                group.cancel_scope.cancel()

    async def _read(self, to: Any, wire: Wire) -> None:
        import anyio
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        self._reading = True
        try:
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                async with to:
                    while (lines := await self._lines(wire)) is not None:
                        for line, answers in lines:
                            try:
                                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                            except ValueError:  # it may print what it likes between its messages
                                if answers:
                                    wire.doubts("an answer came that cannot be read")
                                continue
                            await to.send(SessionMessage(message))
        finally:
            self._reading = False

    async def _lines(self, wire: Wire) -> list[tuple[bytes, bool]] | None:
        """The next lines, and whether each answers the call. All are heard before the first is passed on."""
        assert self._process.stdout is not None
        data = await self._process.stdout.read(_CHUNK)
        if not data:
            return None
        self._meter.read(len(data))
        self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [(bytes(line), wire.heard(bytes(line)) is not None) for line in lines]

    async def _hear_out(self) -> None:
        """Hear what it still says after its answer, until it ends."""
        if self._wire is None or self._wire.reply is None or self._reading:
            return
        with suppress(TooMuch):
            while await self._lines(self._wire) is not None:
                pass

    async def _write(self, source: Any, to: Any, wire: Wire) -> None:
        assert self._process.stdin is not None
        try:
            async with source:
                async for message in source:
                    line = _line(message)
                    ident = getattr(message.message, "id", None)
                    if getattr(message.message, "method", None) == METHOD:
                        wire.leave(ident)
                    else:
                        wire.other(ident)
                    self._meter.written()
                    self._process.stdin.write(line)
                    if ident is not None and ident == wire.call:
                        wire.left()
                    await self._process.stdin.drain()
        except OSError:  # it reads no more: nothing will be answered
            to.close()

    async def end(self, *, within_s: float) -> None:
        """End it: it may end by itself within this time, then its whole group is killed. Total; once."""
        if self._ended:
            return
        self._ended = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        hearing = asyncio.ensure_future(self._hear_out())
        await self._gone(within_s)
        # Its number may be another's only once the whole group has gone, and numbers have come round.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._gone(_REAP_S)
        await asyncio.wait({hearing}, timeout=_HEAR_S)
        for one in (hearing, self._listening):
            one.cancel()
        await asyncio.wait({hearing, self._listening})
        # A process that left the group may still hold the pipes: nothing else closes our ends of them.
        transport: Any = self._process._transport  # type: ignore[attr-defined]  # noqa: SLF001
        transport.close()

    async def _gone(self, within_s: float) -> None:
        # Not `wait()`, which also waits for whoever has inherited its pipes.
        until = boottime() + within_s
        while self._process.returncode is None and boottime() < until:  # noqa: ASYNC110 - nobody tells it
            await asyncio.sleep(_LOOK_S)


class _Meter:
    """No answer is read without end: TooMuch beyond `most` bytes since the last line written."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._read = 0

    def written(self) -> None:
        self._read = 0

    def read(self, size: int) -> None:
        self._read += size
        if self._read > self._most:
            raise TooMuch(f"more than {self._most} bytes came for one request")


def _line(message: SessionMessage) -> bytes:
    return (message.message.model_dump_json(by_alias=True, exclude_unset=True) + "\n").encode()
