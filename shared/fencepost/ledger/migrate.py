"""Bring a database to the schema this version needs. Safe when run by many at once: one migrates, the rest
wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from fencepost.errors import Unreachable, UsageError
from fencepost.ledger.guards import MOVABLE_CLOCK
from fencepost.ledger.revision import complaint, is_newer
from fencepost.ledger.schema import SCHEMA
from fencepost.settings import redact


@dataclass(frozen=True, slots=True)
class Migrated:
    """From which revision to which; equal when there was nothing to do. None: an empty database."""

    before: str | None
    after: str | None


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "fencepost.ledger:migrations")
    return config


def _connect(dsn: str) -> Connection:
    engine = create_engine(make_url(dsn).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    try:
        return engine.connect()
    except OperationalError as error:
        reason = str(error.orig).strip().splitlines()[0]
        raise Unreachable(f"cannot reach Postgres at {redact(dsn)}: {reason}") from error


ONE_MIGRATOR: Final = 0x66656E6365
"""The advisory lock that a second `migrate` waits for."""
_ALEMBIC = Lock()  # it keeps the migration under way in globals of its modules


def upgrade(dsn: str, *, movable_clock: bool = False) -> Migrated:
    """Migrate to the newest revision as the database's owner. With `movable_clock` (tests and drills only)
    the database gets a clock that can be moved ahead. Raises `Unreachable`, and `UsageError` for a ledger of
    a later version, which is left as it is.
    """
    config = _config()
    with _ALEMBIC, _connect(dsn) as connection, connection.begin():
        # Before anything is read, so that whoever waited here finds what the other one did.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ONE_MIGRATOR})
        before = _revision(connection)
        if is_newer(before):
            raise UsageError(complaint(before))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        after = _revision(connection)
        if (
            movable_clock
            and connection.execute(text("SELECT to_regclass('fencepost.clock')")).scalar() is None
        ):
            connection.exec_driver_sql(MOVABLE_CLOCK.replace("%", "%%"))
    return Migrated(before, after)


def current(dsn: str) -> str | None:
    """The revision the database is at; None where there is no ledger. Raises `Unreachable`."""
    with _connect(dsn) as connection:
        return _revision(connection)


def newest() -> str:
    """The revision this version of Fencepost needs."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise RuntimeError("this installation of Fencepost holds no migrations")
    return head


def _revision(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
    return context.get_current_revision()
