"""A ledger's database on a local server: migrated, with one login per role, as a deployment would have it."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import psycopg
from psycopg import sql

from fencepost.ledger.migrate import Migrated, upgrade
from fencepost_ops.logins import ROLES, Login, give_logins
from fencepost_ops.postgres import LocalPostgres


@dataclass(frozen=True)
class LedgerDatabase:
    """Where the ledger is. `dsns` holds a login per role (worker, relay, producer, operator, reader); `owner`
    may do anything and is for migrations only. All of them hold passwords: never print them. `migrated` says
    from where to where, where that was asked for.
    """

    name: str
    owner: str
    dsns: Mapping[str, str]
    migrated: Migrated | None = None


def prepare_database(
    server: LocalPostgres,
    name: str,
    *,
    movable_clock: bool = False,
    migrate: bool = True,
    logins: str = "login",
) -> LedgerDatabase:
    """Create the database if missing, migrate it, and give every role a login with a new random password.

    `logins`: how their names end; databases of one server that are in use at once each need their own.
    Raises UsageError for a ledger of a later version than this one.
    """
    with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
        found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
        if found is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    owner = server.superuser_dsn.rsplit("/", 1)[0] + f"/{name}"
    migrated = upgrade(owner, movable_clock=movable_clock) if migrate else None
    return LedgerDatabase(name, owner, make_logins(server, name, logins), migrated)


def make_logins(server: LocalPostgres, dbname: str, suffix: str = "login") -> dict[str, str]:
    """A login per role, named after it; its password changes every time, so that no old process can come
    back.
    """
    logins = [Login(role, f"fencepost_{role}_{suffix}", secrets.token_urlsafe(24)) for role in ROLES]
    with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
        give_logins(connection, logins)
    return {login.role: server.dsn(login.name, login.password, dbname) for login in logins}
