"""The pulse against a real Postgres, real processes and real signals."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from fencepost.errors import Unreachable
from fencepost.ledger.migrate import upgrade
from fencepost_ops.local import LocalPostgres
from fencepost_workers import pulse as module
from fencepost_workers.pulse import Pulse
from tests.integration.rows import Sql, eventually, put_row, value

TTL = timedelta(seconds=0.6)

# A worker: it has a pulse, says token and process id of it, and then does nothing until it is killed.
WORKER = """
import os, sys
from datetime import timedelta
from fencepost_workers.pulse import Pulse
pulse = Pulse(os.environ["WORKER_DSN"], "dispatcher", timedelta(seconds=0.6))
{then}
print(pulse.token, pulse._child.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[LocalPostgres]:
    with LocalPostgres.start(fsync=False) as server:
        prepare(server)
        yield server


@pytest.fixture(scope="module")
def pulses(postgres: LocalPostgres) -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    eventually(lambda: not any(runs(pid) for pid in pids))


def prepare(server: LocalPostgres) -> None:
    upgrade(server.superuser_dsn)
    with psycopg.connect(server.superuser_dsn, autocommit=True) as sql:
        sql.execute("CREATE ROLE pulse LOGIN PASSWORD 'pulse-secret' IN ROLE fencepost_worker")


@pytest.fixture
def sql(postgres: LocalPostgres) -> Iterator[Sql]:
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as session:
        session.execute("TRUNCATE fencepost.outbox, fencepost.workers")
        yield session


@pytest.fixture
def dsn(postgres: LocalPostgres) -> str:
    return worker_dsn(postgres)


def worker_dsn(server: LocalPostgres) -> str:
    return server.dsn("pulse", "pulse-secret", "postgres")


class Worker:
    """A process with a pulse beside it."""

    def __init__(self, dsn: str, then: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER.format(then=then)],
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


@pytest.fixture
def start_worker(dsn: str, pulses: list[int]) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(then: str = "") -> Worker:
        started.append(Worker(dsn, then))
        pulses.append(started[-1].pulse)
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


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
    eventually(lambda: value(sql, last_seen, token) > before)


def ended(sql: Sql, token: str) -> bool:
    return bool(value(sql, "SELECT ended_at IS NOT NULL FROM fencepost.workers WHERE token = %s", token))


# ---- a worker's death


def test_the_rows_of_a_killed_worker_are_due_within_a_second(
    sql: Sql, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker()
    mine, others = [claimed(sql, worker.token) for _ in range(3)], claimed(sql, "somebody else")
    published = claimed(sql, worker.token, due_in="-1 s")
    again = "UPDATE fencepost.outbox SET publish_at = fencepost.now() + interval '1 h' WHERE subject = %s"
    sql.execute(again, [published])

    killed = time.monotonic()
    worker.kill()
    eventually(lambda: all(is_due(sql, subject) for subject in mine))

    assert time.monotonic() - killed < 1
    assert ended(sql, worker.token)
    assert not is_due(sql, others)
    assert not is_due(sql, published), "due before: the pause between publications is not undone"
    kept = "SELECT count(*) FROM fencepost.outbox WHERE (generation, queue, fence) = (4, 'reconciler', 9)"
    assert value(sql, kept) == 5, "only the two times move"


def test_a_claim_that_commits_after_its_worker_was_killed_is_found_too(
    sql: Sql, postgres: LocalPostgres, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker()
    with psycopg.connect(postgres.superuser_dsn) as late:
        subject = claimed(late, worker.token)
        worker.kill()
        eventually(lambda: ended(sql, worker.token))
    eventually(lambda: is_due(sql, subject), within=2)


def test_a_row_locked_by_somebody_else_is_not_waited_for(
    sql: Sql, postgres: LocalPostgres, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker()
    free, locked = claimed(sql, worker.token), claimed(sql, worker.token)
    with psycopg.connect(postgres.superuser_dsn) as holder:
        holder.execute("SELECT 1 FROM fencepost.outbox WHERE subject = %s FOR UPDATE", [locked])
        worker.kill()
        eventually(lambda: is_due(sql, free), within=1)
        assert not is_due(sql, locked)
    eventually(lambda: is_due(sql, locked), within=2)


@pytest.mark.parametrize(
    "child",
    [
        "os.fork() == 0 and (os.close(1), __import__('time').sleep(4), os._exit(0))",
        "__import__('subprocess').Popen(['sleep', '4'], close_fds=False, stdout=-3)",
    ],
    ids=["forked", "started"],
)
def test_a_child_of_the_worker_does_not_hide_its_death(
    sql: Sql, start_worker: Callable[..., Worker], child: str
) -> None:
    worker = start_worker(then=child)
    subject = claimed(sql, worker.token)

    worker.process.kill()

    eventually(lambda: is_due(sql, subject), within=2)


def test_a_frozen_worker_keeps_its_pulse(sql: Sql, start_worker: Callable[..., Worker]) -> None:
    worker = start_worker()
    subject = claimed(sql, worker.token)
    worker.process.send_signal(signal.SIGSTOP)

    for _ in range(2):
        wait_for_stamp(sql, worker.token)

    assert not ended(sql, worker.token)
    assert not is_due(sql, subject)


def test_the_pulse_outlives_what_only_asks_it_to_stop(sql: Sql, start_worker: Callable[..., Worker]) -> None:
    worker = start_worker()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(worker.pulse, number)

    wait_for_stamp(sql, worker.token)
    assert os.getsid(worker.pulse) != os.getsid(worker.process.pid), "no Ctrl-C reaches it at all"


# ---- the pulse's own death


def test_a_killed_pulse_is_noticed_and_the_worker_returns_under_a_new_token(sql: Sql, dsn: str) -> None:
    with Pulse(dsn, "planner", TTL) as pulse:
        first, pid = pulse.token, pulse_pid(pulse)
        assert pulse.alive()
        assert pulse.ensure() == first

        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not pulse.alive())
        second = pulse.ensure()

        assert pulse.alive()
        assert pulse.token == second != first
        assert not exists(pid), "no zombie"
        assert not ended(sql, first), "its attempts still run; the relays judge them"
        pid = pulse_pid(pulse)
    assert not exists(pid)


def test_a_worker_whose_row_was_ended_by_somebody_else_returns_under_a_new_token(sql: Sql, dsn: str) -> None:
    with Pulse(dsn, "planner", TTL) as pulse:
        first = pulse.token
        sql.execute("UPDATE fencepost.workers SET ended_at = fencepost.now()")
        eventually(lambda: not pulse.alive())

        assert pulse.ensure() != first


def pulse_pid(pulse: Pulse) -> int:
    assert pulse._child is not None
    return pulse._child.process.pid


# ---- start and end


def test_a_pulse_tells_who_the_worker_is(sql: Sql, dsn: str) -> None:
    with Pulse(dsn, "planner", TTL) as pulse:
        row = sql.execute("SELECT token, role, pid, ended_at, last_seen >= started_at FROM fencepost.workers")
        assert row.fetchall() == [(pulse.token, "planner", os.getpid(), None, True)]


def test_a_closed_pulse_has_ended_cleanly_and_at_once(sql: Sql, dsn: str) -> None:
    pulse = Pulse(dsn, "planner", TTL)
    token, pid, subject = pulse.token, pulse_pid(pulse), claimed(sql, pulse.token)

    began = time.monotonic()
    pulse.close()
    pulse.close()

    assert time.monotonic() - began < 1
    assert (pulse.alive(), exists(pid)) == (False, False)
    assert ended(sql, token)
    assert is_due(sql, subject), "what it still held goes to others"


def test_closing_ends_even_a_pulse_that_is_frozen(
    sql: Sql, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse = Pulse(dsn, "planner", TTL)
    pid = pulse_pid(pulse)
    monkeypatch.setattr(module, "END_WITHIN_S", -0.9)
    os.kill(pid, signal.SIGSTOP)

    pulse.close()

    assert not exists(pid)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="other systems show less")
def test_nobody_reads_the_password_from_the_process_list(dsn: str, sql: Sql) -> None:
    with Pulse(dsn, "planner", TTL) as pulse:
        for name in ("cmdline", "environ"):
            assert b"pulse-secret" not in Path(f"/proc/{pulse_pid(pulse)}/{name}").read_bytes()


def test_a_postgres_that_never_accepts_is_unreachable_and_no_process_stays(
    postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    heard: list[float] = []

    class Noted(module._Child):
        def hear(self, _patience: float) -> bytes:
            started.append(self.process.pid)
            select.select([self.voice], [], [], 15)  # its first words are a refusal
            heard.append(time.monotonic())
            return super().hear(0)

    monkeypatch.setattr(module, "_Child", Noted)
    with pytest.raises(Unreachable, match="password authentication failed") as caught:
        Pulse(worker_dsn(postgres).replace("pulse-secret", "wrong-secret"), "planner", TTL)

    assert time.monotonic() - heard[0] < 2, "a token nobody was given leaves nothing to hand back"
    assert "wrong-secret" not in str(caught.value)
    assert [exists(pid) for pid in started] == [False]


def test_patience_with_a_starting_pulse_has_an_end(
    dsn: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_WITHIN_S", 0.01)

    with pytest.raises(Unreachable, match="no answer yet"):
        Pulse(dsn, "planner", TTL)


def test_missing_tables_are_told_at_once(sql: Sql, postgres: LocalPostgres) -> None:
    with pytest.raises(Unreachable, match=r"fencepost.*does not exist"):
        Pulse(postgres.dsn("pulse", "pulse-secret", "template1"), "planner", TTL)


def test_the_program_loads_nothing_of_fencepost() -> None:
    look = "import sys, fencepost_workers.pulse; print('fencepost' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


# ---- outages of Postgres


def test_the_pulse_survives_a_restart_of_postgres(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder = tmp_path / "pg"
    server = LocalPostgres.start(folder, fsync=False)
    try:
        prepare(server)
        with Pulse(worker_dsn(server), "planner", TTL) as pulse:
            token = pulse.token
            server.stop()
            server = LocalPostgres.start(folder, fsync=False, port=server.port)
            with psycopg.connect(server.superuser_dsn, autocommit=True) as sql:
                wait_for_stamp(sql, token)
            assert pulse.alive()
            assert pulse.ensure() == token
    finally:
        server.stop()


def test_the_pulse_ends_after_its_worker_even_while_postgres_is_silent(
    postgres: LocalPostgres, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker()
    os.kill(postgres.pid, signal.SIGSTOP)  # new connections are accepted by nobody
    try:
        worker.kill()
        eventually(lambda: not runs(worker.pulse), within=4)
    finally:
        os.kill(postgres.pid, signal.SIGCONT)
