"""The pulse against a real Postgres, real processes and real signals."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from fencepost.errors import Unreachable
from fencepost_ops.local import LocalPostgres
from fencepost_workers import pulse as module
from fencepost_workers.pulse import Pulse
from tests.awaiting import until
from tests.integration.pulse.bench import (
    TTL,
    Worker,
    claimed,
    ended,
    exists,
    is_due,
    prepare,
    pulse_pid,
    runs,
    wait_for_stamp,
    worker_dsn,
)
from tests.integration.rows import Sql


def test_a_killed_pulse_is_noticed_and_the_worker_returns_under_a_new_token(sql: Sql, dsn: str) -> None:
    with Pulse(dsn, "planner", TTL) as pulse:
        first, pid = pulse.token, pulse_pid(pulse)
        claimed(sql, first)
        assert pulse.alive()
        assert pulse.ensure() == first

        os.kill(pid, signal.SIGKILL)
        until("the pulse is dead", lambda: not pulse.alive())
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
        until("the pulse is dead", lambda: not pulse.alive())

        assert pulse.ensure() != first


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
        until("the pulse ends", lambda: not runs(worker.pulse), within_s=4)
    finally:
        os.kill(postgres.pid, signal.SIGCONT)
