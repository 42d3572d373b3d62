"""A Postgres of its own, whose sessions a test may freeze or cut."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from fencepost_ops.local import LocalPostgres
from tests.awaiting import until
from tests.integration.pulse.bench import Worker, prepare, runs, worker_dsn
from tests.integration.rows import Sql


@pytest.fixture(scope="module")
def postgres() -> Iterator[LocalPostgres]:
    with LocalPostgres.start(fsync=False) as server:
        prepare(server)
        yield server


@pytest.fixture(scope="module")
def pulses(postgres: LocalPostgres) -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    until("no pulse is left", lambda: not any(runs(pid) for pid in pids))


@pytest.fixture
def sql(postgres: LocalPostgres) -> Iterator[Sql]:
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as session:
        session.execute("TRUNCATE fencepost.outbox, fencepost.workers")
        yield session


@pytest.fixture
def dsn(postgres: LocalPostgres) -> str:
    return worker_dsn(postgres)


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
