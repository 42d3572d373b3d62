"""A wire to a server whose weather somebody makes: late, silent, cut, or eating answers.

One thread carries everything, so that what happens is decided in one place. All switches may be thrown from
any thread at any moment. Only for servers on this host, and not for speed: what waits for its turn is held in
memory, however much it is.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Final, Self

CHUNK: Final = 65536
CONNECT_WITHIN_S: Final = 1.0  # to a server on this host; nothing else is carried meanwhile
_AGAIN_S: Final = 0.005  # between two tries to pass on what a sink, a frozen process perhaps, does not take
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST and not FIN


class _Pipe:
    """One direction of a connection: what has come and when it may go on.

    `ended`: nothing more comes. `told`: all has been passed on, and the sink was told that it was the last.
    """

    def __init__(self, source: socket.socket, sink: socket.socket, *, reply: bool) -> None:
        self.source, self.sink, self.reply = source, sink, reply
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.ended = self.told = False

    def push(self) -> None:
        """Pass on what is due; what the sink does not take now stays."""
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            at, data = self.waiting.popleft()
            try:
                sent = self.sink.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self.waiting.appendleft((at, data[sent:]))
                return
        if self.ended and not self.waiting and not self.told:
            self.told = True
            self.sink.shutdown(socket.SHUT_WR)


class Proxy:
    """Listens on 127.0.0.1:`port` and forwards to the port `target` of a server on the same host.

    `target` may be changed: it holds for the connections that come then. Nothing of it outlives `close()` or
    this process. A piece of data that has been delayed arrives late, whole and in order, though its sender
    has closed meanwhile: each end hears that the other closed after all that it had said, as without a wire.
    """

    def __init__(self, target: int = 0) -> None:
        self.target = target
        self.latency_s = 0.0
        """How long each piece travels, either way."""
        self.refusing = False
        """New connections are reset at once."""
        self.hanging = False
        """New connections are accepted, and nothing ever comes of them."""
        self.swallowing = False
        """Requests arrive, replies do not: neither now nor later."""
        self.carried = 0
        """Connections made so far."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._pipes: dict[socket.socket, _Pipe] = {}
        self._holes: set[socket.socket] = set()
        self._lock = threading.RLock()
        self._over = False
        self._bell_read, self._bell = os.pipe()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._bell_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    @property
    def open(self) -> int:
        """Connections carried at this moment, those that fell silent left out."""
        with self._lock:
            return len(self._pipes) // 2

    def black_hole(self) -> int:
        """Every connection there is falls silent for good, with neither end told; how many those were."""
        with self._lock:
            silent = list(self._pipes)
            for one in self._pipes.values():
                self._unheard(one)
            self._holes.update(silent)
            self._pipes.clear()
            return len(silent) // 2

    def reset(self) -> int:
        """Cut every connection, silent ones too, with a RST to both ends; how many those were."""
        with self._lock:
            ends = [*self._pipes, *self._holes]
            for pipe in self._pipes.values():
                self._unheard(pipe)
            self._pipes.clear()
            self._holes.clear()
            for one in ends:
                _cut(one)
            return len(ends) // 2

    def clear(self) -> None:
        """Fair weather: new connections work at once, and those that fell silent are cut."""
        self.latency_s, self.refusing, self.hanging, self.swallowing = 0.0, False, False, False
        with self._lock:
            for one in self._holes:
                _cut(one)
            self._holes.clear()

    def close(self) -> None:
        """Cut everything and end. May be called again."""
        if self._over:
            return
        self._over = True
        os.write(self._bell, b"!")
        self._thread.join()
        self.reset()
        self._selector.close()
        self._listener.close()
        os.close(self._bell_read)
        os.close(self._bell)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._over:
            events = self._selector.select(self._patience())
            with self._lock:
                for key, _ in events:
                    one = key.fileobj
                    if one is self._listener:
                        self._accept()
                    elif isinstance(one, socket.socket) and one in self._pipes:
                        self._carry(self._pipes[one])
                for pipe in list(self._pipes.values()):
                    if pipe.waiting:
                        self._guarded(pipe)

    def _patience(self) -> float | None:
        """Until something is due; for ever while nothing waits."""
        with self._lock:
            due = [pipe.waiting[0][0] for pipe in self._pipes.values() if pipe.waiting]
        left = min(due) - time.monotonic() if due else None
        return _AGAIN_S if left is not None and left <= 0 else left

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        self.carried += 1
        if self.refusing:
            _cut(client)
        elif self.hanging:
            self._holes.add(client)
        else:
            self._join(client)

    def _join(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=CONNECT_WITHIN_S)
        except OSError:  # it is away: as if it were asked directly
            _cut(client)
            return
        pair = (_Pipe(client, server, reply=False), _Pipe(server, client, reply=True))
        for pipe in pair:
            pipe.source.setblocking(False)
            pipe.source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pipes[pipe.source] = pipe
            self._selector.register(pipe.source, selectors.EVENT_READ)

    def _carry(self, pipe: _Pipe) -> None:
        try:
            data = pipe.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self._end(pipe)
            return
        if not data:
            self._unheard(pipe)
            pipe.ended = True
            self._guarded(pipe)
        elif not (pipe.reply and self.swallowing):
            pipe.waiting.append((time.monotonic() + self.latency_s, data))

    def _guarded(self, pipe: _Pipe) -> None:
        try:
            pipe.push()
        except OSError:
            self._end(pipe)
        else:
            if pipe.told and self._pipes[pipe.sink].told:
                self._end(pipe)

    def _unheard(self, pipe: _Pipe) -> None:
        """Listen no more to where a pipe begins."""
        if not pipe.ended:
            self._selector.unregister(pipe.source)

    def _end(self, pipe: _Pipe) -> None:
        for one in (pipe.source, pipe.sink):
            if (known := self._pipes.pop(one, None)) is not None:
                self._unheard(known)
            one.close()


def _cut(one: socket.socket) -> None:
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    one.close()
