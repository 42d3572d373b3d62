"""One process of the HTTP interface: listens, serves, and ends without breaking what it is at."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final

import uvicorn

from fencepost.errors import UsageError
from fencepost.ledger.connect import Pool
from fencepost.settings import Settings
from fencepost_ops.api import reads
from fencepost_ops.api.app import Interface, build
from fencepost_ops.api.store import NAME, soon
from fencepost_ops.api.waiting import room
from fencepost_ops.api.wire import Door, Guarded

BACKLOG: Final = 1024
_ACCEPTS: Final = 8
"""Connections accepted in one turn of the event loop, before those of the turn before are counted."""
_HEADERS: Final = 32 * 1024  # bytes of a request's line and headers at most
_KEEP_ALIVE_S: Final = 15


class _Server(uvicorn.Server):
    """As uvicorn's, but that streams are told as soon as a signal asks this process to end, and that the end
    it was asked for is no failure.
    """

    def __init__(self, config: uvicorn.Config, interface: Interface, door: Door) -> None:
        super().__init__(config)
        self._interface = interface
        self._door = door
        self._loop: asyncio.AbstractEventLoop | None = None
        self._telling: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Until a signal."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's; its backlog is how many asyncio accepts in a turn, and the queue is longer."""
        await super().startup(sockets)
        for one in sockets or []:
            one.listen(BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second; whether to end."""
        self._door.sweep(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal handler: the first signal drains, a second interrupt ends at once."""
        super().handle_exit(sig, frame)
        self._captured_signals.clear()
        if self._loop is not None:
            soon(self._loop, self._drain)

    def _drain(self) -> None:
        self._telling = asyncio.ensure_future(self._interface.heads.drain())


def serve(settings: Settings, listening: Callable[[str], object]) -> None:
    """Serve until SIGTERM or SIGINT; `listening` is told the address once it can be connected to.

    UsageError for an address that cannot be listened on and a login that is not the interface's, Unreachable
    without Postgres, NotFound without a ledger.
    """
    settings.need("dsn")
    _check_login(settings)
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # that Postgres is away is said by the answers
    with _listen(settings.api_host, settings.api_port) as door:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = room(files, settings.pool_size, settings.api_streams)
        streams = max(2, min(settings.api_streams, most // 2))  # the other half is for those who only ask
        interface, app = build(settings.model_copy(update={"api_streams": streams}))
        doorman = Door(most, settings.api_timeout_s)
        protocol: Any = partial(Guarded, door=doorman)
        config = uvicorn.Config(
            app,
            http=protocol,
            backlog=_ACCEPTS,
            ws="none",
            lifespan="on",
            access_log=False,
            server_header=False,
            log_config=None,
            proxy_headers=bool(settings.api_proxies),
            forwarded_allow_ips=settings.api_proxies or None,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(settings.drain_s)),
            h11_max_incomplete_event_size=_HEADERS,
        )
        listening(_address(door))
        asyncio.run(_Server(config, interface, doorman).serve([door]))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"port {port} of {host} cannot be listened on: {error.strerror}; choose another with --port"
        ) from error


def _address(door: socket.socket) -> str:
    host, port = door.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _check_login(settings: Settings) -> None:
    pool = Pool(settings.dsn, NAME, 1)
    try:
        with pool.reading() as session:
            if reads.may(session):
                return
    finally:
        pool.close()
    raise UsageError("this login may not serve the HTTP interface: use one that is a member of fencepost_api")
