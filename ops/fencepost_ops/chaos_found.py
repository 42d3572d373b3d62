"""A fleet that was found and not started: that of a running `fencepost up`, by its data folder.

Its processes are those that descend from the one whose pid is in the folder's lock, and no others: nothing is
looked for by name across the machine. What of it is killed, `fencepost up` starts again.
"""

from __future__ import annotations

import fcntl
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

import psycopg
import redis

from fencepost.errors import Unreachable, UsageError
from fencepost_ops.chaos_own import wipe
from fencepost_ops.chaos_processes import descendants, send
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.fleet import ORDERS
from fencepost_ops.folders import is_running
from fencepost_ops.sandbox.process import SandboxProcess
from fencepost_ops.weather import Proxy

BACK_WITHIN_S: Final = 60.0  # how long `up` may take to start a server again
LOOK_EVERY_S: Final = 0.1
_WORKERS: Final = "fencepost_workers"
_RELAY: Final = "fencepost_relay"
_LOGINS: Final = ("producer", "operator", "reader")


class _FoundRedis:
    def __init__(self, url: str) -> None:
        self._url = url

    def url(self) -> str:
        """Where it is."""
        return self._url


class _FoundSandbox(SandboxProcess):
    """The services of that fleet, asked and read, never started or stopped."""

    def __init__(self, data: Path, url: str) -> None:
        super().__init__(data)
        self._url = url


class FoundFleet:
    """The fleet of the `fencepost up` that runs on a folder. UsageError where it cannot be used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._owner = _owner(folder)
        found = {login: _exports(folder / f"env.{login}") for login in _LOGINS}
        operator = found["operator"]
        if (app := operator.get("FENCEPOST_APP")) != ORDERS:
            raise UsageError(
                f"the fleet on {folder} runs {app}, and chaos sends the orders of the example: "
                "start `fencepost up` without --app and FENCEPOST_APP"
            )
        if not (services := operator.get("FENCEPOST_SANDBOX_URL")):
            raise UsageError(
                f"the fleet on {folder} has no services: start `fencepost up` without --no-sandbox"
            )
        self.database = LedgerDatabase(
            "fencepost", "", {login: env["FENCEPOST_DSN"] for login, env in found.items()}
        )
        self.valkey = _FoundRedis(operator["FENCEPOST_REDIS_URL"])
        self.sandbox = _FoundSandbox(folder / "sandbox", services)

    @property
    def wires(self) -> Mapping[str, Proxy]:
        """None: its processes were not told to go through any."""
        return {}

    def connect(self, role: str) -> psycopg.Connection[Any]:
        """A session in the ledger, autocommit."""
        return psycopg.connect(self.database.dsns[role], autocommit=True)

    def pids(self, role: str | None = None) -> dict[str, int]:
        """Its relays and workers that run at this moment, by name; those of a role or all."""
        found: dict[str, int] = {}
        for pid in descendants(self._owner):
            if (named := _named(pid)) is not None and role in (None, named[0]):
                found[named[1] or f"relay {pid}"] = pid
        return found

    def lose(self, fault: str) -> None:
        """Wipe Redis, or kill a server; returns when `up` has started it again. Raises Unreachable else."""
        if fault == "redis-flush":
            self._own("Redis", self._redis_pid)
            wipe(self.valkey.url())
        elif fault == "redis-restart":
            self._kill("Redis", self._redis_pid, signal.SIGKILL)
        else:
            self._kill("Postgres", self._postgres_pid, signal.SIGQUIT)

    def move_clock(self, ahead_s: float) -> None:
        """Never asked of it: a ledger's clock is movable in tests only."""
        raise UsageError(f"the ledger's clock of the fleet on {self.folder} cannot be moved by {ahead_s:g} s")

    def shut(self, *, principal: bool) -> Callable[[], object]:
        """Never asked of it: who may have what done there is not for chaos to change."""
        what = "a principal" if principal else "a tool"
        raise UsageError(f"{what} of the fleet on {self.folder} is not shut out by chaos")

    def _kill(self, what: str, pid_of: Callable[[], int | None], number: int) -> None:
        pid = self._own(what, pid_of)
        send([pid], number, lambda each: each in descendants(self._owner))
        until = time.monotonic() + BACK_WITHIN_S
        while (now := pid_of()) in (None, pid):
            if time.monotonic() > until:
                raise Unreachable(
                    f"{what} of the fleet on {self.folder} has not come back; see what `up` says"
                )
            time.sleep(LOOK_EVERY_S)
        assert now is not None

    def _own(self, what: str, pid_of: Callable[[], int | None]) -> int:
        """The pid of a server of this fleet. Raises Unreachable for one that is not, or does not answer."""
        pid = pid_of()
        if pid is None or pid not in descendants(self._owner):
            raise Unreachable(f"{what} of the fleet on {self.folder} is no process of it that runs")
        return pid

    def _redis_pid(self) -> int | None:
        with suppress(redis.RedisError), redis.Redis.from_url(self.valkey.url()) as client:
            return int(client.info("server")["process_id"])
        return None

    def _postgres_pid(self) -> int | None:
        """The postmaster's, once it answers."""
        try:
            self.connect("reader").close()
            return int((self.folder / "postgres/pgdata/postmaster.pid").read_text().split("\n", 1)[0])
        except (psycopg.Error, OSError, ValueError):
            return None


def _owner(folder: Path) -> int:
    """The pid of the `fencepost up` that runs on a folder: it has written it into the lock it holds."""
    with suppress(OSError, ValueError), (folder / "lock").open() as lock:
        pid = int(lock.read().strip())
        if _held(lock) and is_running(pid) and (folder / "env").exists():
            return pid
    raise UsageError(f"no `fencepost up` runs on {folder}; start one there, or leave --data out")


def _held(lock: TextIO) -> bool:
    """Whether anybody holds this lock. Trying it takes a moment, for which an `up` that starts waits."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _exports(file: Path) -> dict[str, str]:
    """The variables that a file of shell exports sets."""
    try:
        words = [shlex.split(line) for line in file.read_text().splitlines()]
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}; run chaos as who runs `up`") from error
    pairs = (word.partition("=") for line in words for word in line[1:] if line[0] == "export")
    return {name: value for name, _, value in pairs}


def _named(pid: int) -> tuple[str, str] | None:
    """Role and name of a relay (which has no name) or worker, by its command line."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        if words[1:3] == ["-m", _RELAY]:
            return "relay", ""
        if words[1:3] == ["-m", _WORKERS] and len(words) > 4:
            return words[3], words[4]
    return None
