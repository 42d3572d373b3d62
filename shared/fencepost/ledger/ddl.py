"""The whole schema as SQL, in order."""

from __future__ import annotations

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from fencepost.ledger import api_schema as _api_schema  # noqa: F401 - declares its tables
from fencepost.ledger import authority_schema as _authority_schema  # noqa: F401 - declares its tables
from fencepost.ledger.guards import GUARDS, MOVABLE_CLOCK
from fencepost.ledger.guards.api import SIGNAL
from fencepost.ledger.guards.epochs import HOLD
from fencepost.ledger.guards.tenants import TENANTS, TENANTS_GRANTS
from fencepost.ledger.memory_schema import GROUNDING, MEMORY_GRANTS
from fencepost.ledger.roles import API_GRANTS, CREATE_ROLES, ENQUEUE, GRANTS, REFUSE_INTAKE, SPARING
from fencepost.ledger.schema import SCHEMA, metadata


def tables() -> list[Table]:
    """All tables of the ledger, each after those it refers to."""
    return metadata.sorted_tables


def statements(*, movable_clock: bool = False) -> list[str]:
    """CREATE statements of tables, indexes, guards, roles and grants.

    With `movable_clock` tests and drills can move the database's clock ahead (R6); never in production.
    """
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    made = [str(CreateTable(t).compile(dialect=dialect)).strip() + ";" for t in tables()]
    indexes = sorted((i for t in tables() for i in t.indexes), key=lambda i: str(i.name))
    made += [str(CreateIndex(i).compile(dialect=dialect)).strip() + ";" for i in indexes]
    clock = [MOVABLE_CLOCK] if movable_clock else []
    producers = [ENQUEUE, REFUSE_INTAKE, SIGNAL, HOLD]
    return [
        f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};",
        CREATE_ROLES,
        SPARING,
        *made,
        *GUARDS,
        *clock,
        TENANTS,
        *producers,
        GROUNDING,
        GRANTS,
        API_GRANTS,
        MEMORY_GRANTS,
        TENANTS_GRANTS,
    ]
