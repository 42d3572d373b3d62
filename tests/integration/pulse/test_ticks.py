"""What a worker tells its pulse, and what becomes of one that tells nothing."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from fencepost_workers import pulse_program as program
from fencepost_workers.pulse import Pulse
from tests.awaiting import until
from tests.integration.pulse.bench import TTL, Worker, claimed, is_due, pulse_pid, wait_for_stamp
from tests.integration.rows import Sql, value

SAID = "SELECT progress_at IS NOT NULL, busy, slots, draining FROM fencepost.workers WHERE token = %s"


def said(sql: Sql, token: str) -> tuple[object, ...]:
    row = sql.execute(SAID, [token]).fetchone()
    assert row is not None
    return tuple(row)


def test_a_stamp_says_what_the_worker_does(sql: Sql, dsn: str) -> None:
    with Pulse(dsn, "planner", TTL) as pulse:
        assert said(sql, pulse.token) == (False, None, None, False)
        pulse.tick(progress=False, busy=2, slots=7, draining=False)
        until("two are busy", lambda: said(sql, pulse.token) == (False, 2, 7, False))
        pulse.tick(progress=True, busy=3, slots=7, draining=False)
        until("three are busy, with progress", lambda: said(sql, pulse.token) == (True, 3, 7, False))
        at = "SELECT progress_at FROM fencepost.workers WHERE token = %s"
        wait_for_stamp(sql, pulse.token)
        before = value(sql, at, pulse.token)
        pulse.tick(progress=False, busy=0, slots=7, draining=False)
        until("nothing is busy", lambda: said(sql, pulse.token) == (True, 0, 7, False))
        assert abs((value(sql, at, pulse.token) - before).total_seconds()) < 0.1, "progress is when it was"


def test_a_drain_is_stamped_at_once(sql: Sql, dsn: str) -> None:
    with Pulse(dsn, "planner", timedelta(hours=1)) as pulse:
        pulse.tick(progress=True, busy=1, slots=7, draining=True)
        until("the drain is stamped", lambda: said(sql, pulse.token) == (True, 1, 7, True))


def test_a_pulse_that_hangs_costs_its_worker_nothing(sql: Sql, dsn: str) -> None:
    with Pulse(dsn, "planner", TTL) as pulse:
        os.kill(pulse_pid(pulse), signal.SIGSTOP)
        began = time.monotonic()
        for _ in range(3000):  # more than the pipe takes
            pulse.tick(progress=True, busy=1, slots=7, draining=False)
        assert time.monotonic() - began < 5
        os.kill(pulse_pid(pulse), signal.SIGCONT)
        until("the woken pulse stamps", lambda: said(sql, pulse.token) == (True, 1, 7, False))
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
    until("the row of the killed worker is due", lambda: is_due(sql, subject), within_s=2)


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
