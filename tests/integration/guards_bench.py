"""Attacks on the tables in plain SQL: rows in any state, put there with the guards off, and one statement."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

from fencepost.clock import uuid7
from tests.integration.ledger_bench import TENANT, Bench

WORKER, OPERATOR, OWNER = "fencepost_worker", "fencepost_operator", None
OFFICES = ("cancel", "repair", "evidence")
HELD = {"owner": "holder", "fence": 5}
"""The accepted term of every row an attack starts from."""


@dataclass
class Attack:
    """One transaction that is never committed; every attempt lives in a savepoint of its own."""

    connection: psycopg.Connection[Any]
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1000))

    def force(self, statement: str, *args: Any) -> list[Any]:
        """A statement with all triggers off, as the owner of everything."""
        self.connection.execute("SET LOCAL session_replication_role = replica")
        cursor = self.connection.execute(statement, args)
        found = cursor.fetchall() if cursor.description else []
        self.connection.execute("SET LOCAL session_replication_role = origin")
        return found

    def attempt(
        self, statement: str, *args: Any, role: str | None = WORKER, deferred: bool = False
    ) -> str | None:
        """The SQLSTATE with which Postgres refuses a statement, None where it does not; undone either way."""
        self.connection.execute("SAVEPOINT attempt")
        try:
            if role is not None:
                self.connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
            self.connection.execute(statement, args)
            if deferred:
                self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except psycopg.Error as error:
            return error.sqlstate
        else:
            return None
        finally:
            self.connection.execute("ROLLBACK TO SAVEPOINT attempt")

    def event(
        self, run: UUID, call: UUID | None = None, kind: str = "EvidenceFiled"
    ) -> tuple[int, UUID, str]:
        """An event that a change could point at: its number, id and hash."""
        seq, identity = next(self.numbers), uuid7()
        values = (TENANT, run, seq, identity, kind, call, identity, f"hash-{seq}")
        self.force(
            "INSERT INTO fencepost.events (tenant, run, seq, id, type, version, call, body, digest,"
            " principal, causation, recorded_at, prev_hash, hash)"
            " VALUES (%s, %s, %s, %s, %s, 1, %s, '{}', '', 'p', %s, now(), '', %s)",
            *values,
        )
        return seq, identity, f"hash-{seq}"

    def put(self, table: str, key: UUID, **columns: Any) -> None:
        """Put a row into any state, guards off."""
        names = ", ".join(f"{name} = %s" for name in columns)
        self.force(f"UPDATE fencepost.{table} SET {names} WHERE id = %s", *columns.values(), key)

    def update(
        self,
        table: str,
        key: UUID,
        columns: Mapping[str, Any],
        role: str | None = WORKER,
        *,
        deferred: bool = False,
    ) -> str | None:
        """Attempt to set columns of one row."""
        names = ", ".join(f"{name} = %s" for name in columns)
        statement = f"UPDATE fencepost.{table} SET {names} WHERE id = %s"
        return self.attempt(statement, *columns.values(), key, role=role, deferred=deferred)


@contextmanager
def attack(bench: Bench) -> Iterator[Attack]:
    with psycopg.connect(bench.database.owner) as connection:
        yield Attack(connection)
        connection.rollback()


def presented(via: str, version: int = 0) -> dict[str, Any]:
    """What an UPDATE sets to present itself `via` to a row that holds `HELD`; the owner is let go."""
    if via == "term":
        return {"presented_owner": HELD["owner"], "presented_fence": HELD["fence"], "owner": None}
    if via == "claim":
        return {"presented_owner": "next", "presented_fence": 6, "fence": 6, "owner": None}
    return {"presented_office": via, "presented_version": version, "fence": 6, "owner": None}


def role_of(via: str) -> str:
    return OPERATOR if via == "repair" else WORKER
