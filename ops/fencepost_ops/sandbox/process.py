"""The sandbox as a child process, for demos and tests: killable and restartable on the same book and port."""

from __future__ import annotations

import http.client
import json
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from fencepost_ops.sandbox.book import BOOK_FILE, Book

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0


class SandboxError(RuntimeError):
    """The sandbox did not start, or answered that it would not do what it was asked."""


class SandboxProcess:
    """One sandbox in a process of its own; it ends with this process, however that dies.

    `config` is what `POST /admin/config` takes; without a `port` the system chooses one. Raises SandboxError
    with its last words if it does not start.
    """

    def __init__(
        self, data: Path, *, config: Mapping[str, Any] | None = None, faults: Any = None, port: int = 0
    ) -> None:
        self.data = data
        self.book = Book(data / BOOK_FILE)
        self._config = config
        self._faults = faults
        self._port = port
        self._url = ""
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The base URL, the same across restarts."""
        return self._url

    @property
    def pid(self) -> int:
        """The process id. Raises RuntimeError while it does not run."""
        if self._child is None:
            raise RuntimeError("the sandbox is not running")
        return self._child.pid

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start it, on its earlier port if it had one, and wait until it accepts connections."""
        if self._child is not None:
            raise RuntimeError("the sandbox is already running")
        self.data.mkdir(parents=True, exist_ok=True)
        with (self.data / "sandbox.log").open("ab") as log:
            self._child = subprocess.Popen(
                self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        line = self._first_line(self._child)
        if not line:
            self.kill()
            words = (self.data / "sandbox.log").read_text(encoding="utf-8", errors="replace").strip()
            raise SandboxError(f"the sandbox did not start: {words[-500:]}")
        self._url = line
        self._port = urlsplit(line).port or 0

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "fencepost_ops.sandbox", "--stop-with-stdin"]
        command += ["--data", str(self.data), "--port", str(self._port)]
        for option, document in (("config", self._config), ("faults", self._faults)):
            if document is not None:
                path = self.data / f"{option}.json"
                path.write_text(json.dumps(document), encoding="utf-8")
                command += [f"--{option}", str(path)]
        return command

    @staticmethod
    def _first_line(child: subprocess.Popen[bytes]) -> str:
        if child.stdout is None:
            return ""
        readable, _, _ = select.select([child.stdout], [], [], START_TIMEOUT_S)
        return child.stdout.readline().decode().strip() if readable else ""

    def stop(self) -> None:
        """Ask it to end (SIGTERM), and kill it if it does not. Does nothing if it does not run."""
        if self._child is None:
            return
        self._child.terminate()
        try:
            self._child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
        self._reap()

    def kill(self) -> None:
        """End it with SIGKILL. Does nothing if it does not run."""
        if self._child is not None:
            self._child.kill()
            self._reap()

    def _reap(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same book and port. Faults from a file start anew."""
        self.stop()
        self.start()

    def fault(self, kind: str, **conditions: Any) -> dict[str, Any]:
        """Ask for a fault, as `POST /faults` takes it. Returns the rule as it stands."""
        return self.post("/faults", {"kind": kind, **conditions})

    def clear_faults(self) -> None:
        """Delete every fault."""
        self._call("DELETE", "/faults", None)

    def configure(self, **settings: Any) -> dict[str, Any]:
        """Change settings, as `POST /admin/config` takes them."""
        return self.post("/admin/config", settings)

    def move_clock(self, offset_s: float) -> None:
        """Put the services' clock ahead of the machine's."""
        self.post("/admin/clock", {"offset_s": offset_s})

    def seed_account(self, account: str, amount_minor: int, currency: str = "EUR", scale: int = 2) -> None:
        """Set what an account holds."""
        balance = {"currency": currency, "amount_minor": amount_minor, "scale": scale}
        self.post("/admin/accounts", {"account": account, "balance": balance})

    def seed_item(self, sku: str, stock: int) -> None:
        """Set how much of an item is free."""
        self.post("/admin/items", {"sku": sku, "stock": stock})

    def get(self, path: str) -> dict[str, Any]:
        """GET a JSON object. Raises SandboxError for any other answer."""
        return self._call("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST a JSON object and return the JSON answer. Raises SandboxError for any other answer."""
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        target = urlsplit(self._url)
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=STOP_TIMEOUT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status >= 300:
            raise SandboxError(f"{method} {path} answered {response.status}: {text.decode()}")
        answer: dict[str, Any] = json.loads(text)
        return answer
