"""A pulse that died is replaced at once, idle worker or not; a worker that ends gets no other."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from fencepost.errors import Unreachable
from fencepost.settings import Settings
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers import pulse as module
from fencepost_workers import worker as worker_module
from fencepost_workers.pulse import Pulse
from fencepost_workers.worker import Pulses
from tests.awaiting import until
from tests.integration.rows import Sql, put_row, value
from tests.integration.step_shop import opened, replaced

TTL = timedelta(seconds=0.6)
ENDED = "SELECT ended_at IS NOT NULL FROM fencepost.workers WHERE token = %s"
SEEN = "SELECT last_seen FROM fencepost.workers WHERE token = %s"
OPEN = "SELECT count(*) FROM fencepost.workers WHERE ended_at IS NULL"


@pytest.fixture
def sql(database: LedgerDatabase) -> Iterator[Sql]:
    with psycopg.connect(database.owner, autocommit=True) as session:
        yield session


@pytest.fixture
def pulses(database: LedgerDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pulses]:
    for name in ("RENEW_S", "RENEW_AGAIN_S"):
        monkeypatch.setattr(worker_module, name, 0.01)
    one = Pulses(Settings(dsn=database.dsns["worker"]), "planner", TTL)
    yield one
    one.close()


def pid_of(pulse: Pulse) -> int:
    assert pulse._child is not None
    return pulse._child.process.pid


def stamped_after(sql: Sql, token: str, before: datetime) -> bool:
    return bool(value(sql, SEEN, token) > before)


def exists(pid: int) -> bool:
    """Running, or ended and not waited for: a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_idle_worker_whose_pulse_is_killed_gets_another(sql: Sql, database: LedgerDatabase) -> None:
    with LocalValkey.start() as valkey, opened(database, valkey, slots=1) as shop:
        pulse = shop.worker.pulse._pulse
        first, pid = pulse.token, pid_of(pulse)

        os.kill(pid, signal.SIGKILL)

        until("another pulse", lambda: pulse.token != first and pulse.alive())
        assert not exists(pid), "no zombie"
        until("the first worker has ended", lambda: value(sql, ENDED, first))
        assert value(sql, ENDED, pulse.token) is False
        second = pulse.token
        assert shop.worker.pulse.token() == second, "claims go on under it"
        last = pid_of(pulse)
    assert not exists(last)
    assert value(sql, OPEN) == 0


def test_a_spent_token_that_holds_rows_is_left_to_the_relays(sql: Sql, pulses: Pulses) -> None:
    pulse = pulses._pulse
    first = pulse.token
    subject = put_row(sql, worker=first, due_in="1 hour")
    os.kill(pid_of(pulse), signal.SIGKILL)
    until("another pulse", lambda: pulse.token != first and pulse.alive())
    for _ in range(2):
        until("a new stamp", partial(stamped_after, sql, pulse.token, value(sql, SEEN, pulse.token)))
    assert value(sql, ENDED, first) is False, "its attempts still run"

    sql.execute("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", [subject])

    until("the first worker has ended", lambda: value(sql, ENDED, first))


def test_a_draining_worker_gets_no_other_pulse(pulses: Pulses) -> None:
    pulse, looks = pulses._pulse, 0
    real, first = pulse.alive, pulse.token

    def looked() -> bool:
        nonlocal looks
        looks += not real()
        return real()

    pulses.drain()
    with replaced(pulse, "alive", looked):
        os.kill(pid_of(pulse), signal.SIGKILL)
        until("more than five looks", lambda: looks > 5)
    assert pulse.token == first
    assert not pulse.alive()


def test_closing_does_not_wait_for_a_pulse_that_is_being_started(
    pulses: Pulses, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    class Frozen(module._Child):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            os.kill(self.process.pid, signal.SIGSTOP)
            started.append(self.process.pid)

    monkeypatch.setattr(module, "_Child", Frozen)
    monkeypatch.setattr(module, "TO_BEGIN", 6)
    monkeypatch.setattr(module, "END_WITHIN_S", -0.9)
    os.kill(pid_of(pulses._pulse), signal.SIGKILL)
    until("a new pulse is started", lambda: started)

    began = time.monotonic()
    pulses.close()

    assert time.monotonic() - began < 15, "its patience is 30 s here"
    assert not pulses._renewer.is_alive()
    assert [exists(pid) for pid in started] == [False]
    with pytest.raises(Unreachable, match="is ending"):
        pulses.token()
    assert len(started) == 1


def test_a_pulse_that_cannot_be_started_is_tried_again_and_told_once(
    pulses: Pulses, caplog: pytest.LogCaptureFixture
) -> None:
    pulse, tries = pulses._pulse, 0
    first = pulse.token
    enough = threading.Event()

    def away() -> str:
        nonlocal tries
        tries += 1
        if tries > 3:
            enough.set()
        raise Unreachable("Postgres is away")

    with replaced(pulse, "ensure", away):
        os.kill(pid_of(pulse), signal.SIGKILL)
        assert enough.wait(60)
    until("another pulse", lambda: pulse.token != first and pulse.alive())
    assert caplog.text.count("there is no other yet: Postgres is away") == 1
    until("it says what takes its place", lambda: "takes its place" in caplog.text)
