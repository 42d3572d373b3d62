"""`fencepost migrate` beside others: another one, a backup, older and newer versions of everything."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from fencepost.errors import NotFound
from fencepost.ledger import revision
from fencepost.ledger.connect import connect
from fencepost.ledger.migrate import ONE_MIGRATOR, newest
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres
from tests.awaiting import until
from tests.integration.ledger_bench import open_bench
from tests.integration.shell import Shell, process

_numbers = itertools.count(1)
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
)


def older(connection: psycopg.Connection[Any]) -> None:
    """A ledger whose revision is older than what this version needs."""
    connection.execute("CREATE SCHEMA fencepost")
    connection.execute("CREATE TABLE fencepost.alembic_version (version_num varchar(32) PRIMARY KEY)")
    connection.execute("INSERT INTO fencepost.alembic_version VALUES ('0000')")
    connection.execute("GRANT USAGE ON SCHEMA fencepost TO PUBLIC")
    connection.execute("GRANT SELECT ON fencepost.alembic_version TO PUBLIC")


@pytest.fixture
def bare(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[LedgerDatabase]:
    """An empty database, and the logins there are."""
    name = f"bare_{next(_numbers)}"
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    owner = postgres.superuser_dsn.rsplit("/", 1)[0] + f"/{name}"
    dsns = {role: dsn.rsplit("/", 1)[0] + f"/{name}" for role, dsn in template.items()}
    yield LedgerDatabase(name, owner, dsns)
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def shell(bare: LedgerDatabase, no_settings: None) -> Shell:
    return Shell(bare, {"COLUMNS": "240"})


def test_the_revision_this_version_needs_is_the_newest_there_is() -> None:
    assert newest() == revision.NEEDED


def test_of_two_that_migrate_at_once_one_does_it_and_the_other_finds_nothing_to_do(
    bare: LedgerDatabase, shell: Shell
) -> None:
    with psycopg.connect(bare.owner, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [ONE_MIGRATOR])
        both = [process(shell, "migrate", env={"FENCEPOST_DSN": bare.owner}) for _ in range(2)]
        until("both wait for the lock", lambda: connection.execute(WAITING).fetchone() == (2,))
        connection.execute("SELECT pg_advisory_unlock(%s)", [ONE_MIGRATOR])
        told = [child.communicate(timeout=60) for child in both]
    assert [child.returncode for child in both] == [0, 0], told
    assert sorted(out for out, _ in told) == [
        f"migrated the ledger from an empty database to {newest()}\n",
        f"the ledger is at {newest()} already: nothing to do\n",
    ]


def test_a_session_that_holds_a_table_is_waited_for(bare: LedgerDatabase, shell: Shell) -> None:
    with psycopg.connect(bare.owner, autocommit=True) as connection:
        older(connection)
        connection.execute("DELETE FROM fencepost.alembic_version")
        with connection.transaction():
            connection.execute("LOCK TABLE fencepost.alembic_version IN SHARE MODE")
            child = process(shell, "migrate", env={"FENCEPOST_DSN": bare.owner})
            assert child.stderr is not None
            said = child.stderr.readline()
        out, _ = child.communicate(timeout=60)
    assert said == "another session holds a table of the ledger; trying again\n"
    assert (child.returncode, out) == (0, f"migrated the ledger from an empty database to {newest()}\n")


def test_a_ledger_of_a_later_version_is_left_alone(bare: LedgerDatabase, shell: Shell) -> None:
    shell.ok("migrate", "--dsn", bare.owner)
    with psycopg.connect(bare.owner, autocommit=True) as connection:
        connection.execute("UPDATE fencepost.alembic_version SET version_num = '9001'")
        said = shell.refused(2, "migrate", "--dsn", bare.owner)
        assert "the ledger is at revision 9001, which Fencepost " in said
        assert said.endswith(" does not know: a later version migrated it; use that one")
        assert connection.execute("SELECT * FROM fencepost.alembic_version").fetchall() == [("9001",)]
    with connect(bare.dsns["worker"], "test") as session:
        revision.require(session)  # its worker of today goes on, as a rolling deploy needs
    with connect(bare.dsns["relay"], "test") as session:
        revision.require(session)  # who may not look asks for what it needs
        session.execute("SELECT 1")


def test_an_older_ledger_is_one_sentence_that_says_migrate(bare: LedgerDatabase, shell: Shell) -> None:
    with psycopg.connect(bare.owner, autocommit=True) as connection:
        older(connection)
        with connect(bare.dsns["worker"], "test") as session, pytest.raises(NotFound) as caught:
            revision.require(session)
        told = f"the ledger is at revision 0000, and this version needs {newest()}: run `fencepost migrate`"
        assert str(caught.value) == told
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "FENCEPOST_DSN": bare.dsns["worker"],
            "FENCEPOST_REDIS_URL": "redis://127.0.0.1:9",
            "FENCEPOST_APP": "fencepost_ops.examples.orders:app",
            "FENCEPOST_SANDBOX_URL": "http://127.0.0.1:9",
        }
        command = [sys.executable, "-m", "fencepost_workers", "planner"]
        worker = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert (worker.returncode, worker.stderr) == (2, f"planner: {told}\n")


def test_workers_work_on_while_somebody_migrates_again(bare: LedgerDatabase, shell: Shell) -> None:
    shell.ok("migrate", "--dsn", bare.owner)
    with open_bench(bare) as bench:
        run = bench.start()
        claim = bench.claim_run(run)
        bench.one(claim)
        assert "nothing to do" in shell.ok("migrate", "--dsn", bare.owner)
        bench.one(bench.finish_with(bench.turn(run, claim)))
        assert bench.status(run) == "COMPLETED"
