"""A whole fleet on this machine: embedded servers, relays, four kinds of workers, the sandbox, Flower.

`fencepost up`, the demo, the bench and the acceptance tests all run this one. Every process logs into
Postgres as its own role, and nothing outlives the one that started it.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO
from urllib.parse import urlsplit

import psycopg

from fencepost.errors import UsageError
from fencepost.ledger import epochs, listings
from fencepost.settings import load_settings
from fencepost.states import Queue
from fencepost_ops.connections import max_connections
from fencepost_ops.database import LedgerDatabase, prepare_database
from fencepost_ops.local import LocalPostgres, LocalValkey, ProcessGroup, TemporaryFolder
from fencepost_ops.ports import free_port, why_not
from fencepost_ops.sandbox.process import SandboxProcess

ORDERS = "fencepost_ops.examples.orders:app"
ROLES: Final = ("relay", *map(str, Queue))
"""What a fleet has any number of."""
INTAKE: Final = "intake"
"""What it has none of unless asked: it takes in runs for one tenant, that somebody must name."""
READY_WITHIN_S = 60.0
PORT_FILE = "port"
HEAD_FILE: Final = "head"
PORT_FREES_WITHIN_S = 10.0  # the sandbox of a fleet that was killed ends by itself, but a moment later

FLOWER_ENV: Final = {
    "FLOWER_UNAUTHENTICATED_API": "true",
    "FLOWER_READ_ONLY": "true",
    "FLOWER_ENABLE_EVENTS": "false",
}
"""Its API answers whoever asks, and only reads. It orders no events: workers take no orders by broadcast."""

SHRUNK = {
    "FENCEPOST_REPUBLISH_S": "2",
    "FENCEPOST_WORKER_TTL_S": "3",
    "FENCEPOST_COMPENSATION_S": "2",
    "FENCEPOST_PLANNER_GRACE_S": "1",
}
"""Timeouts for demos and tests: seconds instead of tens of seconds, in the same order."""


@dataclass(frozen=True)
class FleetOptions:
    """What to start.

    `scale` counts workers per queue (and relays under `relay`); without `data` the fleet lives in a temporary
    folder; `hold` is why its ledger is held before anything reaches it; `env` adds to every process's
    environment, `env_of` to that of a named one; without a port Flower takes a free one, and the sandbox the
    one it had on this data, because stored requests name it.
    """

    app: str = ORDERS
    data: Path | None = None
    scale: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    env_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sandbox: bool = True
    flower: bool = False
    sandbox_port: int = 0
    flower_port: int = 0
    api: bool = False
    api_port: int = 0
    fsync: bool = True
    movable_clock: bool = False
    sandbox_faults: Any = None
    postgres_settings: Mapping[str, str] = field(default_factory=dict)
    hold: str | None = None
    out: TextIO | None = None


class Fleet:
    """A running fleet. Use as a context manager; `stop` ends everything, in the order that loses nothing."""

    def __init__(self, options: FleetOptions) -> None:
        self.options = options
        self._stack = ExitStack()
        self.postgres: LocalPostgres
        self.valkey: LocalValkey
        self.database: LedgerDatabase
        self.sandbox: SandboxProcess | None = None
        self.group: ProcessGroup
        self.flower_url: str | None = None
        self.api_url: str | None = None
        self._progress: Callable[[str], object] = lambda _: None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, progress: Callable[[str], object] = lambda _: None) -> None:
        """Start everything; returns when servers accept and all processes have been started.

        Raises LocalServerError, FolderTakenError, or UsageError when the sandbox's port is taken, with
        everything already started stopped again. `progress` is told what begins, also while stopping.
        """
        self._progress = progress
        with self._stack:
            options = self.options
            data = options.data or self._stack.enter_context(TemporaryFolder("fencepost-fleet-"))
            sandbox = self._sandbox(data / "sandbox") if options.sandbox else None
            progress("starting Postgres")
            self.postgres = self._start_postgres(data / "postgres")
            self._stack.callback(self._stop_postgres)
            progress("starting Valkey")
            self.valkey = LocalValkey.start(data / "valkey")
            self._stack.callback(self._stop_valkey)
            progress("looking at the ledger")
            self.database = prepare_database(self.postgres, "fencepost", movable_clock=options.movable_clock)
            if (done := self.database.migrated) is not None and done.before != done.after:
                progress(f"migrated the ledger from {done.before or 'nothing'} to {done.after}")
            if options.hold is not None:
                self._hold(options.hold, progress)
            if sandbox is not None:
                progress("starting the sandbox")
                self.sandbox = self._stack.enter_context(sandbox)
                self._stack.callback(self._stopping, "stopping the sandbox")
                _keep_port(data / "sandbox", self.sandbox)
            progress("starting relays and workers")
            out = options.out or sys.stdout
            self.group = self._stack.enter_context(ProcessGroup(out=out))
            self._stack.callback(self._stopping, "stopping relays and workers, which finish what they do")
            self._add_processes()
            self._stack = self._stack.pop_all()

    def _hold(self, why: str, progress: Callable[[str], object]) -> None:
        """Hold the ledger, unless it is held already."""
        with self.connect() as connection:
            if not epochs.held(connection):
                since = listings.now(connection)
                epochs.open_epoch(connection, since, "fencepost up --hold", why, marked=False)
        progress("the ledger is held: nothing new is planned or sent until fencepost recover --release")

    def _start_postgres(self, folder: Path, port: int | None = None) -> LocalPostgres:
        settings = self.postgres_settings()
        return LocalPostgres.start(folder, settings=settings, fsync=self.options.fsync, port=port)

    def postgres_settings(self) -> dict[str, str]:
        """What its Postgres is started with: sessions enough for every pool of this fleet to be full."""
        options = self.options
        sizes = [e.get("FENCEPOST_POOL_SIZE") for e in ({}, options.env, *options.env_of.values())]
        pool_size = max(load_settings(**({"pool_size": s} if s else {})).pool_size for s in sizes)
        limit = max_connections({role: self.count(role) for role in (*ROLES, INTAKE)}, pool_size)
        return {"max_connections": str(limit), **options.postgres_settings}

    def _sandbox(self, folder: Path) -> SandboxProcess:
        port = self.options.sandbox_port or _kept_port(folder)
        return SandboxProcess(folder, faults=self.options.sandbox_faults, port=port)

    def _stopping(self, what: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads us any more; what follows must happen all the same
            self._progress(what)

    def _stop_postgres(self) -> None:
        self._stopping("stopping Postgres")
        self.postgres.stop()  # whichever it is by then: see `mend`

    def _stop_valkey(self) -> None:
        self._stopping("stopping Valkey")
        self.valkey.stop()

    def mend(self) -> list[str]:
        """Start again whatever server has died, on its own port and data (Valkey: without); their names.

        Workers and relays need none of this: their group restarts them. Raises LocalServerError if a server
        does not come up again; the next call tries anew.
        """
        mended = []
        if not self.postgres.is_alive():
            self.postgres.stop()
            self.postgres = self._start_postgres(self.postgres.folder, self.postgres.port)
            mended.append("Postgres")
        if not self.valkey.is_alive():
            self.valkey = self.valkey.again()
            mended.append("Valkey")
        if self.sandbox is not None and not self.sandbox.is_alive():
            self.sandbox.restart()
            mended.append("the sandbox")
        return mended

    def stop(self) -> None:
        """Stop everything. May be called again."""
        self._stack.close()

    def count(self, role: str) -> int:
        """How many processes of a role this fleet has."""
        return self.options.scale.get(role, 0 if role == INTAKE else 1)

    def names(self, role: str) -> list[str]:
        """The names of a role's processes."""
        total = self.count(role)
        return [role] if total == 1 else [f"{role}-{n}" for n in range(1, total + 1)]

    def _add_processes(self) -> None:
        for name in self.names("relay"):
            self.add(name, [sys.executable, "-m", "fencepost_relay"], "relay")
        for queue in Queue:
            for name in self.names(queue):
                self.add(name, [sys.executable, "-m", "fencepost_workers", queue, name], "worker")
        for name in self.names(INTAKE):
            self.add(name, [sys.executable, "-m", "fencepost_workers", INTAKE, name], "producer")
        if self.options.flower:
            self._add_flower()
        if self.options.api:
            port = self.options.api_port or free_port()
            self.api_url = f"http://127.0.0.1:{port}"
            self.add("api", [sys.executable, "-m", "fencepost_ops.cli", "api", "--port", str(port)], "api")

    def _add_flower(self) -> None:
        port = self.options.flower_port or free_port()
        self.flower_url = f"http://127.0.0.1:{port}"
        self.add("flower", flower_command(port), "reader", FLOWER_ENV)

    def add(self, name: str, argv: list[str], role: str, env: Mapping[str, str] | None = None) -> None:
        """Start a process of this fleet under a role's login."""
        extra = self.options.env_of.get(name, {})
        self.group.add(name, argv, {**self.env(role), **(env or {}), **extra})

    def env(self, role: str) -> dict[str, str]:
        """The environment of a process with a role's login; for your own producers and readers as well."""
        found = {
            "FENCEPOST_DSN": self.database.dsns[role],
            "FENCEPOST_REDIS_URL": self.valkey.url(),
            "FENCEPOST_APP": self.options.app,
        }
        if self.options.data is not None:
            found["FENCEPOST_HEAD_FILE"] = str((self.options.data / HEAD_FILE).absolute())
        if self.sandbox is not None:
            found["FENCEPOST_SANDBOX_URL"] = self.sandbox.url
        return {**found, **self.options.env}

    def pids(self, role: str | None = None) -> dict[str, int]:
        """Process ids by name, of those that run at this moment."""
        pids = self.group.pids()
        return pids if role is None else {n: p for n, p in pids.items() if n in self.names(role)}

    def signal(self, name: str, number: int) -> int:
        """Send a signal to a process by name; its pid. Raises KeyError for one between two lives."""
        pid = self.group.pids()[name]
        os.kill(pid, number)
        return pid

    def kill(self, name: str) -> int:
        """SIGKILL a process; the group starts it again."""
        return self.signal(name, signal.SIGKILL)

    def connect(self, role: str = "owner") -> psycopg.Connection[Any]:
        """A session of your own, autocommit; `owner` may do anything."""
        dsn = self.database.owner if role == "owner" else self.database.dsns[role]
        return psycopg.connect(dsn, autocommit=True)

    def wait_ready(self, within_s: float = READY_WITHIN_S) -> None:
        """Wait until every worker has stamped itself. Raises TimeoutError naming who is missing."""
        until = time.monotonic() + within_s
        with self.connect("reader") as connection:
            while True:
                rows = connection.execute(
                    "SELECT role, count(*) FROM fencepost.workers WHERE ended_at IS NULL GROUP BY role"
                ).fetchall()
                alive = dict(rows)
                missing = [q for q in Queue if alive.get(str(q), 0) < self.count(q)]
                if not missing:
                    return
                if time.monotonic() > until:
                    raise TimeoutError(f"not ready after {within_s:g} s: {', '.join(missing)}")
                time.sleep(0.05)


def flower_command(port: int) -> list[str]:
    """Flower on this port, on loopback only; it takes nothing from the fleet's queues."""
    celery = [sys.executable, "-m", "celery", "-A", "fencepost_workers.celery", "flower"]
    return [*celery, "--address=127.0.0.1", f"--port={port}", "--logging=error"]


def _kept_port(folder: Path) -> int:
    """The port a sandbox had on this folder, once it is free; 0 if there was none. UsageError if taken."""
    try:
        text = (folder / PORT_FILE).read_text().strip()
    except OSError:
        return 0
    if not text.isdecimal() or int(text) > 65535:
        return 0
    until = time.monotonic() + PORT_FREES_WITHIN_S
    while (why := why_not(int(text))) is not None:
        if time.monotonic() > until:
            raise UsageError(
                f"port {text}, by which requests stored in {folder.parent} name the sandbox, cannot be used: "
                f"{why}; free it, or choose another with --sandbox-port"
            )
        time.sleep(0.1)
    return int(text)


def _keep_port(folder: Path, sandbox: SandboxProcess) -> None:
    (folder / PORT_FILE).write_text(f"{urlsplit(sandbox.url).port}\n")


def new_seed() -> int:
    """A seed to print, so that what it led to can be asked for again."""
    return secrets.randbelow(1 << 31)
