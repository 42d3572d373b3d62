"""Workers that are nothing but a pulse, and what their rows say."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import psycopg

from fencepost.ledger.migrate import upgrade
from fencepost_ops.local import LocalPostgres
from fencepost_workers.pulse import Pulse
from tests.awaiting import until
from tests.integration.rows import Sql, put_row, value

TTL = timedelta(seconds=0.6)

# A worker: it has a pulse, says token and process id of it, and then does nothing until it is killed.
WORKER = """
import os, sys
from datetime import timedelta
from fencepost_workers.pulse import Pulse
pulse = Pulse(os.environ["WORKER_DSN"], "dispatcher", timedelta(seconds=0.6), stall_s={stall_s})
{then}
print(pulse.token, pulse._child.process.pid, flush=True)
sys.stdin.read()
"""


def prepare(server: LocalPostgres) -> None:
    upgrade(server.superuser_dsn)
    with psycopg.connect(server.superuser_dsn, autocommit=True) as sql:
        sql.execute("CREATE ROLE pulse LOGIN PASSWORD 'pulse-secret' IN ROLE fencepost_worker")


def worker_dsn(server: LocalPostgres) -> str:
    return server.dsn("pulse", "pulse-secret", "postgres")


class Worker:
    """A process with a pulse beside it."""

    def __init__(self, dsn: str, then: str = "", stall_s: float = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER.format(then=then, stall_s=stall_s)],
            env={**os.environ, "WORKER_DSN": dsn},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.token, pid = self.process.stdout.readline().split()
        self.pulse = int(pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def exists(pid: int) -> bool:
    """Running, or ended and not waited for by us: a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def runs(pid: int) -> bool:
    """For what is not our child: a zombie is its new parent's business."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self").exists() and exists(pid)


def claimed(sql: Sql, worker: str, due_in: str = "1 hour") -> UUID:
    """A row as a claim leaves it: due at its takeover."""
    return put_row(sql, worker=worker, due_in=due_in, kind="call", queue="reconciler", generation=4, fence=9)


def is_due(sql: Sql, subject: UUID) -> bool:
    due = "SELECT greatest(due_at, publish_at) <= fencepost.now() FROM fencepost.outbox WHERE subject = %s"
    return bool(value(sql, due, subject))


def wait_for_stamp(sql: Sql, token: str) -> None:
    last_seen = "SELECT last_seen FROM fencepost.workers WHERE token = %s"
    before = value(sql, last_seen, token)
    until("a new stamp", lambda: value(sql, last_seen, token) > before)


def ended(sql: Sql, token: str) -> bool:
    return bool(value(sql, "SELECT ended_at IS NOT NULL FROM fencepost.workers WHERE token = %s", token))


# ---- a worker's death


def pulse_pid(pulse: Pulse) -> int:
    assert pulse._child is not None
    return pulse._child.process.pid


# ---- start and end
