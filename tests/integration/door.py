"""A door in front of a server: shut, and nobody gets in or stays in; watched, and cut at a chosen word."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit

Watch = Callable[[bool, bytes], bool]
"""Called with whether it is a reply, and the bytes; True cuts the connection before they are passed on."""


class Door:
    """Forwards connections to a port of this machine, each direction in a thread of its own."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.watch: Watch | None = None
        self._is_open = True
        self._inside: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def dsn(self, direct: str) -> str:
        """The DSN that leads through this door."""
        parts = urlsplit(direct)
        where = parts.netloc.rsplit(":", 1)[0] + f":{self.port}"
        return urlunsplit(parts._replace(netloc=where))

    def shut(self) -> None:
        """Cut all connections; new ones are cut at once."""
        with self._lock:
            self._is_open = False
            for one in self._inside:
                _cut(one)
            self._inside.clear()

    def open(self) -> None:
        """Let them in again."""
        with self._lock:
            self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()
        _cut(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if not self._is_open:
                    _cut(client)
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._inside |= {client, server}
            for pair in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, reply: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.watch is not None and self.watch(reply, data):
                    break
                sink.sendall(data)
        for one in (source, sink):
            _cut(one)
        with self._lock:
            self._inside -= {source, sink}


def _cut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
    one.close()
