"""A worker dies: what it held is due at once, and what killed it is named."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from uuid import UUID

import psycopg
import pytest

from fencepost_ops.local import LocalPostgres
from fencepost_workers import pulse_program as program
from fencepost_workers.suspects import Suspects
from tests.awaiting import until
from tests.integration.pulse.bench import Worker, claimed, ended, is_due, wait_for_stamp
from tests.integration.rows import Sql, put_row, value


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
    until("the rows of the killed worker are due", lambda: all(is_due(sql, subject) for subject in mine))

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
        until("the killed worker has ended", lambda: ended(sql, worker.token))
    until("the late claim is due", lambda: is_due(sql, subject), within_s=2)


def test_a_row_locked_by_somebody_else_is_not_waited_for(
    sql: Sql, postgres: LocalPostgres, start_worker: Callable[..., Worker]
) -> None:
    worker = start_worker()
    free, locked = claimed(sql, worker.token), claimed(sql, worker.token)
    with psycopg.connect(postgres.superuser_dsn) as holder:
        holder.execute("SELECT 1 FROM fencepost.outbox WHERE subject = %s FOR UPDATE", [locked])
        worker.kill()
        until("the free row is due", lambda: is_due(sql, free), within_s=1)
        assert not is_due(sql, locked)
    until("the locked row is due", lambda: is_due(sql, locked), within_s=2)


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

    until("the row of the killed worker is due", lambda: is_due(sql, subject), within_s=2)


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

    until("the named row has failed once", lambda: value(sql, FAILED, killer) == 1)
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
