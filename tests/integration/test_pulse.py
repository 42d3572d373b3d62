"""The pulse against a real Postgres, real processes and real signals."""

import contextlib
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
from fencepost_workers import pulse_program as program
from fencepost_workers.pulse import Pulse
from fencepost_workers.suspects import Suspects
from tests.integration.rows import Sql, eventually, put_row, value

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


@pytest.fixture
def start_worker(dsn: str, pulses: list[int]) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(then: str = "", stall_s: float = 0) -> Worker:
        started.append(Worker(dsn, then, stall_s))
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


# ---- what a worker died of


FAILED = "SELECT failures, error FROM fencepost.outbox WHERE subject = %s"


def test_what_was_named_when_the_worker_died_has_failed_once(
    sql: Sql, start_worker: Callable[..., Worker]
) -> None:
    killer, innocent, past = (put_row(sql, queue="dispatcher", publish_count=1) for _ in range(3))
    naming = f"""
from uuid import UUID
with pulse.suspects.named("shop", UUID("{past}"), 1):
    pass
naming = pulse.suspects.named("shop", UUID("{killer}"), 1)
naming.__enter__()
pulse.suspects.named("shop", UUID("{innocent}"), 0).__enter__()"""
    worker = start_worker(then=naming)

    worker.kill()

    eventually(lambda: value(sql, FAILED, killer) == 1)
    assert "its worker died" in str((sql.execute(FAILED, [killer]).fetchone() or ("", ""))[1])
    assert value(sql, FAILED, past) == 0
    assert value(sql, FAILED, innocent) == 0, "its row is of another generation"
    again = (
        "SELECT publish_at > fencepost.now() AND publish_count = 0 FROM fencepost.outbox WHERE subject = %s"
    )
    assert value(sql, again, killer)


def test_a_page_names_what_is_whole() -> None:
    suspects = Suspects()
    subject = UUID(int=7)

    def named() -> list[tuple[str, UUID, int]]:
        return program.suspects(os.pread(suspects.descriptor, program.PLACES * program.PLACE_BYTES, 0))

    assert named() == []
    with (
        suspects.named("a", subject, 3),
        suspects.named("b" * 2000, subject, 4),
        suspects.named("c", subject, 5),
    ):
        assert sorted(named()) == [("a", subject, 3), ("c", subject, 5)]
    assert named() == []
    with contextlib.ExitStack() as stack:
        for n in range(program.PLACES + 3):
            stack.enter_context(suspects.named("many", subject, n))
        assert len(named()) == program.PLACES


# ---- what a worker says of itself


SAID = "SELECT progress_at IS NOT NULL, busy, slots, draining FROM fencepost.workers WHERE token = %s"


def said(sql: Sql, token: str) -> tuple[object, ...]:
    row = sql.execute(SAID, [token]).fetchone()
    assert row is not None
    return tuple(row)


def test_a_stamp_says_what_the_worker_does(sql: Sql, dsn: str) -> None:
    with Pulse(dsn, "planner", TTL) as pulse:
        assert said(sql, pulse.token) == (False, None, None, False)
        pulse.tick(progress=False, busy=2, slots=7, draining=False)
        eventually(lambda: said(sql, pulse.token) == (False, 2, 7, False))
        pulse.tick(progress=True, busy=3, slots=7, draining=False)
        eventually(lambda: said(sql, pulse.token) == (True, 3, 7, False))
        at = "SELECT progress_at FROM fencepost.workers WHERE token = %s"
        wait_for_stamp(sql, pulse.token)
        before = value(sql, at, pulse.token)
        pulse.tick(progress=False, busy=0, slots=7, draining=False)
        eventually(lambda: said(sql, pulse.token) == (True, 0, 7, False))
        assert abs((value(sql, at, pulse.token) - before).total_seconds()) < 0.1, "progress is when it was"


def test_a_drain_is_stamped_at_once(sql: Sql, dsn: str) -> None:
    with Pulse(dsn, "planner", timedelta(hours=1)) as pulse:
        pulse.tick(progress=True, busy=1, slots=7, draining=True)
        eventually(lambda: said(sql, pulse.token) == (True, 1, 7, True))


def test_a_pulse_that_hangs_costs_its_worker_nothing(sql: Sql, dsn: str) -> None:
    with Pulse(dsn, "planner", TTL) as pulse:
        os.kill(pulse_pid(pulse), signal.SIGSTOP)
        began = time.monotonic()
        for _ in range(3000):  # more than the pipe takes
            pulse.tick(progress=True, busy=1, slots=7, draining=False)
        assert time.monotonic() - began < 5
        os.kill(pulse_pid(pulse), signal.SIGCONT)
        eventually(lambda: said(sql, pulse.token) == (True, 1, 7, False))
    pulse.tick(progress=True, busy=1, slots=7, draining=False)


# ---- a worker that stands still

TICKS = "pulse.tick(progress=True, busy=0, slots=1, draining=False)"


@pytest.mark.parametrize("then", [TICKS, ""], ids=["after a tick", "from the start"])
def test_a_worker_that_stands_still_for_too_long_is_killed(
    sql: Sql, start_worker: Callable[..., Worker], then: str
) -> None:
    worker = start_worker(then=then, stall_s=2)
    subject = claimed(sql, worker.token)
    began = time.monotonic()

    assert worker.process.wait(15) == -signal.SIGKILL

    assert time.monotonic() - began > 1
    eventually(lambda: is_due(sql, subject), within=2)


def test_a_worker_that_ticks_again_in_time_is_left_alone(start_worker: Callable[..., Worker]) -> None:
    ticking = "import threading, time" + "\n"
    ticking += f"def tick():\n    while True:\n        {TICKS}\n        time.sleep(1.2)\n"
    ticking += "threading.Thread(target=tick, daemon=True).start()"
    worker = start_worker(then=ticking, stall_s=3)
    worker.process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(1.5)
    worker.process.send_signal(signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(2)


@pytest.mark.parametrize(
    ("looks", "ticked", "took_s", "after"),
    [
        (0, False, 1.0, 1),
        (4, False, 1.01, 5),
        (4, True, 0.3, 0),
        (4, False, 2.01, 0),  # the machine was suspended, or we were starved
        (4, True, 60.0, 0),
    ],
)
def test_only_looks_of_its_own_count(looks: int, ticked: bool, took_s: float, after: int) -> None:
    assert program.unheard(looks, ticked=ticked, took_s=took_s) == after


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there a process is known by its number only")
def test_nobody_but_its_worker_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker ended, and its number went to somebody else: the listener's parent is another by then."""
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        listener = program._Listener()
        listener._kill({"token": "t", "pid": bystander.pid}, 60.0)
        assert bystander.poll() is None
        monkeypatch.setattr(os, "getppid", lambda: bystander.pid)
        listener._kill({"token": "t", "pid": bystander.pid}, 60.0)
        assert bystander.wait(5) == -signal.SIGKILL
    finally:
        bystander.kill()
        bystander.wait()


# ---- the pulse's own death


def test_a_killed_pulse_is_noticed_and_the_worker_returns_under_a_new_token(sql: Sql, dsn: str) -> None:
    with Pulse(dsn, "planner", TTL) as pulse:
        first, pid = pulse.token, pulse_pid(pulse)
        claimed(sql, first)
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
    look = "import sys, fencepost_workers.pulse_program; print('fencepost' in sys.modules)"
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
