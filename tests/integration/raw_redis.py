"""A server that speaks enough of Redis to be asked: it notes every command, and fails the ones of note."""

import socket
import socketserver
import struct
import threading
from io import BufferedIOBase
from types import TracebackType
from typing import Any, Literal, Self

Fails = Literal["closes", "resets", "hangs", "refuses"]
OF_NOTE = frozenset({"EVALSHA", "EVAL", "FCALL", "INCRBY", "LPUSH", "RPUSH", "BLPOP", "SET", "EXEC"})

SAID = {"PING": b"+PONG\r\n", "HELLO": b"%1\r\n+proto\r\n:3\r\n"}


class RawRedis:
    """Counts commands of note on every connection, and fails each of them in one way."""

    def __init__(self, fails: Fails) -> None:
        self.fails = fails
        self.commands: list[str] = []
        self.over = threading.Event()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while (command := _read(self.rfile)) is not None:
                    outer.commands.append(command)
                    if command not in OF_NOTE:
                        self.wfile.write(SAID.get(command, b"+OK\r\n"))
                    elif not outer._failed(self.request, self.wfile):
                        return

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"redis://127.0.0.1:{self._server.server_address[1]}/0"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def asked(self) -> list[str]:
        """The commands of note, in order."""
        return [command for command in self.commands if command in OF_NOTE]

    def _failed(self, connection: socket.socket, wire: Any) -> bool:
        """Fail one command; whether the connection is used on."""
        if self.fails == "refuses":
            wire.write(b"-LOADING the server says no\r\n")
            return True
        if self.fails == "hangs":
            self.over.wait()
        if self.fails == "resets":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        return False


def _read(wire: BufferedIOBase) -> str | None:
    """The name of the next command; None at the end of the connection."""
    try:
        head = wire.readline()
        if not head.startswith(b"*"):
            return None
        parts = []
        for _ in range(int(head[1:])):
            size = int(wire.readline()[1:])
            parts.append(wire.read(size + 2)[:-2])
    except (OSError, ValueError):
        return None
    return parts[0].decode().upper()
