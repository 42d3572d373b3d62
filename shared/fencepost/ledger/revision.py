"""Which schema this version needs, and what is to be done where a ledger has another. Loads no Alembic."""

from __future__ import annotations

from typing import Final

import psycopg

from fencepost import __version__
from fencepost.errors import NotFound
from fencepost.ledger.connect import Connection

NEEDED: Final = "0001"
"""The newest revision this version knows; a test holds it against the migrations that are there."""


def is_newer(found: str | None) -> bool:
    """Whether a later version of Fencepost migrated this ledger. Its migrations only add: workers go on."""
    return found is not None and found > NEEDED


def complaint(found: str | None) -> str | None:
    """What is wrong with a ledger at this revision and what to do, in one sentence; None: nothing."""
    if found == NEEDED:
        return None
    if found is None:
        return "there is no ledger: run `fencepost migrate` first"
    if is_newer(found):
        return (
            f"the ledger is at revision {found}, which Fencepost {__version__} does not know: "
            "a later version migrated it; use that one"
        )
    return f"the ledger is at revision {found}, and this version needs {NEEDED}: run `fencepost migrate`"


def read(connection: Connection) -> str | None:
    """The ledger's revision; None where there is no ledger. A relay's and a producer's login may not look."""
    try:
        row = connection.execute("SELECT version_num FROM fencepost.alembic_version").fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    return None if row is None else str(row[0])


def require(connection: Connection) -> None:
    """NotFound, saying what to do, unless the ledger has at least what this version needs.

    A login that may not look at the revision is let through: what it asks for next says what is missing.
    """
    try:
        found = read(connection)
    except psycopg.errors.InsufficientPrivilege:
        connection.rollback()
        return
    if not is_newer(found) and (why := complaint(found)) is not None:
        raise NotFound(why)
