"""A wire that loses replies, for tests of what happens when a request arrived and nobody heard of it."""

import socket
import threading
from contextlib import suppress


class Proxy:
    """A wire to a server that can be cut after the request has passed, so that only the reply is lost."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.swallow_replies = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._replies, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), client, server:
            while data := client.recv(65536):
                server.sendall(data)

    def _replies(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError), server, client:
            while (data := server.recv(65536)) and not self.swallow_replies:
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)  # wakes the other direction

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
