"""A login of one role can take nothing that the others need: no lock of a table, no disk, no sessions."""

from __future__ import annotations

import psycopg
import pytest

from fencepost.ledger.ddl import statements
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres
from fencepost_ops.logins import ROLES
from tests.integration.ledger_bench import Bench

LOCKS = ("SHARE", "EXCLUSIVE", "ACCESS EXCLUSIVE")
TABLES = ("runs", "calls", "operations", "events", "payloads", "api_tokens", "policies", "principals")


@pytest.mark.parametrize("role", ["api", "producer", "reader", "relay"])
def test_no_login_but_those_that_write_it_locks_a_table(bench: Bench, role: str) -> None:
    with psycopg.connect(bench.database.dsns[role], autocommit=True) as session:
        for table in TABLES:
            for mode in LOCKS:
                with pytest.raises(psycopg.errors.InsufficientPrivilege), session.transaction():
                    session.execute(f"LOCK TABLE fencepost.{table} IN {mode} MODE")


@pytest.mark.parametrize("role", ROLES)
def test_no_login_makes_large_objects_or_temporary_tables(
    postgres: LocalPostgres, database: LedgerDatabase, role: str
) -> None:
    with psycopg.connect(database.owner, autocommit=True) as owner:
        # A copy of a database has its functions' rights, but not its own.
        (sparing,) = [one for one in statements() if "REVOKE TEMPORARY" in one]
        owner.execute(sparing)
    with psycopg.connect(database.dsns[role], autocommit=True) as session:
        for made in (
            "CREATE TEMPORARY TABLE much (x text)",
            "SELECT lo_create(0)",
            "SELECT lo_creat(-1)",
            "SELECT lo_from_bytea(0, 'much')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(made)


@pytest.mark.parametrize("role", [role for role in ROLES if role != "worker"])
def test_no_login_but_a_workers_takes_all_sessions(postgres: LocalPostgres, bench: Bench, role: str) -> None:
    with psycopg.connect(bench.database.dsns[role]) as session:
        name = session.info.user
    ((limit, most),) = bench.sql(
        "SELECT rolconnlimit, current_setting('max_connections')::integer FROM pg_roles WHERE rolname = %s",
        name,
    )
    assert 0 < limit <= most // 5
