"""The fleet of chaos's own: servers that were killed come back, and nobody is left of it, asleep or awake."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost_ops import chaos_own
from fencepost_ops.chaos_own import OwnFleet
from fencepost_ops.chaos_processes import descendants, stopped
from fencepost_ops.fleet import FleetOptions
from fencepost_ops.folders import is_running
from fencepost_ops.local import LocalServerError
from tests.awaiting import until

SLOW = """
import signal, sys, time
signal.signal(signal.SIGQUIT, lambda *_: (time.sleep(float(sys.argv[1])), sys.exit()))
print("up", flush=True)
while True:
    signal.pause()
"""


class Server:
    """A process in the place of a server, which takes a while to die of SIGQUIT."""

    folder, port = Path(), 0

    def __init__(self, dies_after_s: float = 0.0) -> None:
        command = [sys.executable, "-I", "-S", "-c", SLOW, str(dies_after_s)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"up\n"
        self.pid = self.process.pid

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnFleet]:
    monkeypatch.setattr(chaos_own, "AWAY_S", 0.1)
    servers: list[Server] = []

    def started(*after_s: Any) -> Server:
        servers.append(Server(*after_s))
        return servers[-1]

    made: Any = OwnFleet(FleetOptions())
    monkeypatch.setattr(made, "_start_postgres", lambda *_: started())
    made.postgres, made.valkey = started(1.0), started()
    yield made
    made.stop()
    for server in servers:
        server.stop()


def test_a_postgres_that_dies_slowly_is_dead_before_it_is_started_again(fleet: OwnFleet) -> None:
    before: Any = fleet.postgres
    fleet.lose("postgres-restart")
    assert fleet.postgres is not before
    assert not before.is_alive()
    os.kill(fleet.postgres.pid, 0)


def test_a_server_that_does_not_die_or_is_not_started_again_is_said(
    fleet: OwnFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_own, "DIES_WITHIN_S", 0.0)
    with pytest.raises(LocalServerError, match="Postgres was killed and still runs after 0 s"):
        fleet.lose("postgres-restart")
    monkeypatch.setattr(OwnFleet, "mend", lambda _: ["Postgres"])
    monkeypatch.setattr(chaos_own, "DIES_WITHIN_S", 30.0)
    with pytest.raises(LocalServerError, match="Valkey was killed and nobody started it again"):
        fleet.lose("redis-restart")


OWNER = """
import sys, time
from fencepost_ops.local import ProcessGroup
with ProcessGroup(out=sys.stderr, grace=0.2, linger=0.2) as group:
    group.add("worker", ["sh", "-c", "sleep 600 & wait"])
    while not (pids := group.pids()):
        time.sleep(0.01)
    print(pids["worker"], flush=True)
    time.sleep(600)
"""


def test_whoever_is_frozen_when_chaos_is_killed_ends_with_it_and_so_does_its_pulse() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        worker = int(owner.stdout.readline())
        (pulse,) = until("a pulse", lambda: descendants(worker))
        for pid in (worker, pulse):
            os.kill(pid, signal.SIGSTOP)
        until("both asleep", lambda: stopped(worker) and stopped(pulse))
        owner.kill()
    until("both gone", lambda: not is_running(worker) and not is_running(pulse), 30)
