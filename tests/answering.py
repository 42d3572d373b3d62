"""A service on this machine whose answers a test's own function gives."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Asked(NamedTuple):
    """One request. Names of `headers` are found in either case."""

    method: str
    path: str
    headers: Message
    body: bytes


class Said(NamedTuple):
    """One answer."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = {}


Answer = Callable[[Asked], Said | None]
"""None: the connection is closed without a word."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _asked(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        said = self.server.answer(Asked(self.command, self.path, self.headers, body))
        if said is None:
            self.close_connection = True
            return
        self.send_response(said.status)
        for name, value in said.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(said.body)))
        self.end_headers()
        self.wfile.write(said.body)

    do_GET = do_POST = do_PUT = _asked  # noqa: N815 - their names are the protocol's

    def log_message(self, *_: object) -> None:
        """Nothing: the test's own output is no log of the service."""


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """The address of a service that answers like this, each request in a thread of its own."""
    with _Server(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
