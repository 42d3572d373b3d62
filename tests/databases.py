"""Ledgers for tests: copies of one that is migrated, on a Postgres in memory; and sessions that are kept."""

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres

MEMORY = Path("/dev/shm")  # noqa: S108 (a private folder is made inside)
ROOM = 4 << 30
"""More bytes than the databases of all processes take at once."""

_numbers = itertools.count(1)


def in_memory() -> Path | None:
    """Where there is memory to spare for folders: a database is three hundred files, and a disk takes five
    times the work to make them. None where there is not.
    """
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM else None


@contextmanager
def copied(
    postgres: LocalPostgres, dsns: Mapping[str, str], source: str = "template_ledger"
) -> Iterator[LedgerDatabase]:
    """A copy of a database nobody is connected to, under the same logins; it is dropped afterwards."""
    name = f"ledger_{next(_numbers)}"
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {source} STRATEGY FILE_COPY")
    with psycopg.connect(f"{postgres.superuser_dsn.rsplit('/', 1)[0]}/{name}", autocommit=True) as connection:
        connection.execute("UPDATE fencepost.ledger SET id = gen_random_uuid()")  # it is another ledger
    mine = {role: dsn.rsplit("/", 1)[0] + f"/{name}" for role, dsn in dsns.items()}
    yield LedgerDatabase(name, postgres.superuser_dsn.rsplit("/", 1)[0] + f"/{name}", mine)
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


class Kept:
    """A session that is used again and again: a new one costs a login, and reads every guard anew."""

    def __init__(self, start: Callable[[], psycopg.Connection[Any]]) -> None:
        self._start = start
        self._session: psycopg.Connection[Any] | None = None

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection[Any]]:
        """It, or another where it was lost; what was not committed is rolled back afterwards."""
        if self._session is None or not self._answers(self._session):
            self.close()
            self._session = self._start()
        session = self._session
        try:
            yield session
        finally:
            with suppress(psycopg.Error):
                session.rollback()

    @staticmethod
    def _answers(session: psycopg.Connection[Any]) -> bool:
        try:
            session.execute("SELECT")
            session.rollback()
        except psycopg.Error:
            return False
        return True

    def close(self) -> None:
        """End it, if there is one."""
        if self._session is not None:
            self._session.close()
