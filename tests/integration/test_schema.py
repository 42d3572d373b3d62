"""One definition of the schema: migrations and metadata give the same database, whoever migrates."""

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from fencepost.errors import Unreachable
from fencepost.ledger.migrate import Migrated, current, newest, upgrade
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres

_numbers = itertools.count(1)
ONE_MIGRATOR = 0x66656E6365


@contextmanager
def created(postgres: LocalPostgres) -> Iterator[str]:
    name = f"schema_{next(_numbers)}"
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield postgres.superuser_dsn.rsplit("/", 1)[0] + f"/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty(postgres: LocalPostgres) -> Iterator[str]:
    """The DSN of a new, empty database."""
    with created(postgres) as dsn:
        yield dsn


MIGRATE = "import sys; from fencepost.ledger.migrate import upgrade; print(upgrade(sys.argv[1]).after)"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event = 'advisory'"


def test_two_processes_may_migrate_at_once(empty: str) -> None:
    here: list[Migrated] = []
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [ONE_MIGRATOR])
        other = subprocess.Popen([sys.executable, "-c", MIGRATE, empty], stdout=subprocess.PIPE, text=True)
        thread = threading.Thread(target=lambda: here.append(upgrade(empty)))
        thread.start()
        while connection.execute(WAITING, [connection.info.dbname]).fetchone() != (2,):
            assert other.poll() is None
            time.sleep(0.02)  # until both stand at the door
        connection.execute("SELECT pg_advisory_unlock(%s)", [ONE_MIGRATOR])
    thread.join()
    assert other.communicate(timeout=60)[0].strip() == newest()
    assert [migrated.after for migrated in here] == [newest()]


def test_threads_may_migrate_at_once_and_a_second_time_changes_nothing(empty: str) -> None:
    results: list[Migrated] = []

    def migrate() -> None:
        results.append(upgrade(empty, movable_clock=True))

    threads = [threading.Thread(target=migrate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.before or "" for result in results) == ["", newest(), newest()]
    assert upgrade(empty, movable_clock=True) == Migrated(newest(), newest())
    assert current(empty) == newest()


def test_an_empty_database_has_no_revision_and_is_left_alone_by_asking(empty: str) -> None:
    assert current(empty) is None
    with psycopg.connect(empty) as connection:
        schemas = connection.execute("SELECT to_regnamespace('fencepost')").fetchone()
    assert schemas == (None,)


def test_a_failed_migration_leaves_nothing_half_done(empty: str) -> None:
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA fencepost")
        connection.execute("CREATE TABLE fencepost.workers (mine int)")
        with pytest.raises(Exception, match="already exists"):
            upgrade(empty)
        assert connection.execute("SELECT to_regclass('fencepost.runs')").fetchone() == (None,)
        connection.execute("DROP TABLE fencepost.workers")
        assert upgrade(empty).after == newest()


def test_nothing_listening_is_unreachable_and_shows_no_password() -> None:
    with pytest.raises(Unreachable) as caught:
        upgrade("postgresql://owner:s3cret@127.0.0.1:1/ledger")
    assert "s3cret" not in str(caught.value)


def test_only_a_database_made_movable_has_a_clock_to_move(empty: str) -> None:
    upgrade(empty)
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT to_regclass('fencepost.clock')").fetchone() == (None,)


def test_a_movable_clock_moves_for_everybody_and_only_its_owner_moves_it(database: LedgerDatabase) -> None:
    read = "SELECT fencepost.now() - clock_timestamp()"
    with (
        psycopg.connect(database.owner, autocommit=True) as owner,
        psycopg.connect(database.dsns["worker"], autocommit=True) as worker,
    ):
        owner.execute("UPDATE fencepost.clock SET ahead = interval '1 hour'")
        for connection in (owner, worker):
            row = connection.execute(read).fetchone()
            assert row is not None
            assert abs(row[0] - timedelta(hours=1)) < timedelta(seconds=1)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute("UPDATE fencepost.clock SET ahead = interval '0'")
