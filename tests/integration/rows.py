"""Rows of the outbox in plain SQL."""

from typing import Any
from uuid import UUID, uuid4

import psycopg

Sql = psycopg.Connection[Any]


def value(sql: Sql, statement: str, *values: object) -> Any:
    row = sql.execute(statement, values).fetchone()
    return None if row is None else row[0]


def put_row(sql: Sql, *, due_in: str = "0", **columns: object) -> UUID:
    """An outbox row due `due_in` (an interval) from now; columns not named are those of a new run."""
    subject = uuid4()
    row = {
        "tenant": "shop",
        "subject": subject,
        "kind": "run",
        "run": subject,
        "generation": 1,
        "queue": "planner",
        "worker": None,
        "fence": 0,
    } | columns
    names, places = ", ".join(row), ", ".join(f"%({name})s" for name in row)
    due = "fencepost.now() + %(due_in)s::interval"
    sql.execute(
        f"INSERT INTO fencepost.outbox ({names}, due_at, publish_at) VALUES ({places}, {due}, {due})",
        row | {"due_in": due_in},
    )
    return subject
