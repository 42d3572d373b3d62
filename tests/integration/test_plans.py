"""Every statement of `apply` finds its rows by key, also on tables that are empty and were never analysed.

A plan made then is kept while the tables grow: a walk through a tenant's rows would cost more with every run.
"""

import re
from collections.abc import Iterator

import psycopg
import pytest

from fencepost.ledger import circles, health, load, memories, reads, write
from fencepost.ledger.connect import Connection, Pool
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres
from tests.integration.conftest import copied

STATEMENTS = {
    "lock runs": load.LOCK_RUNS,
    "lock claimed rows": load.LOCK_CLAIMED,
    "lock rows": load.LOCK_ROWS,
    **{f"lock operations {shape}": statement for shape, statement in load.LOCK_OPERATIONS.items()},
    **{f"read calls {shape}": statement for shape, statement in load.READ_CALLS.items()},
    "read evidence": load.READ_EVIDENCE,
    "lock dependencies": health.LOCK_DEPENDENCIES,
    "read dependencies": health.READ_DEPENDENCIES,
    "read the rest": load.READ_REST,
    "begin to wait": circles._ALONE,
    "look for circles": circles._CHAINS,
    "update runs": write.UPDATE_RUNS,
    "update calls": write.UPDATE_CALLS,
    "update operations": write.UPDATE_OPERATIONS,
    "delete rows": write.DELETE_ROWS,
    "wake": write.WAKE,
    "context calls": reads._CONTEXT_CALLS,
    "prepare": reads._PREPARE,
    "what a run has written": memories._OWN,
}
# A row for each restore there was, and of who may do what the first row, if there is any.
_FEW = tuple(f" on {table}" for table in ("epochs", "policies", "principals", "delegations", "withdrawn"))
KEYS = re.compile(r"\b(id|run|call|key|subject|digest|operation|token|scope) = ")


@pytest.fixture(scope="module")
def fresh(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[LedgerDatabase]:
    """A ledger that nobody has used yet."""
    with copied(postgres, template) as database:
        yield database


@pytest.fixture(scope="module")
def session(fresh: LedgerDatabase) -> Iterator[Connection]:
    """A session as workers have them."""
    pool = Pool(fresh.dsns["worker"], "plans", 1)
    with pool.connection() as connection:
        yield connection
    pool.close()


def plan(session: Connection, statement: str) -> list[str]:
    """What a prepared statement does, whatever its parameters."""
    numbers = iter(range(1, 100))
    text = re.sub(r"%\(\w+\)s|%s", lambda _: f"${next(numbers)}", statement)
    # A copy without psycopg's own reading of parameters.
    found = psycopg.ClientCursor(session).execute(f"EXPLAIN (GENERIC_PLAN, COSTS OFF) {text}").fetchall()
    return [line for (line,) in found]


@pytest.mark.parametrize("name", list(STATEMENTS))
def test_a_statement_finds_its_rows_by_key(session: Connection, name: str) -> None:
    lines = plan(session, STATEMENTS[name])
    scans = [n for n, line in enumerate(lines) if re.search("Scan .*on ", line)]
    tables = [n for n in scans if not re.search("(Function|Subquery|WorkTable|CTE) Scan", lines[n])]
    tables = [n for n in tables if not lines[n].endswith(_FEW)]
    assert tables
    for n in tables:
        assert "Index" in lines[n], "\n".join(lines)
        assert KEYS.search(lines[n + 1]), "\n".join(lines)


def test_a_ledgers_database_has_no_index_that_begins_with_the_tenant(fresh: LedgerDatabase) -> None:
    with psycopg.connect(fresh.owner) as connection:
        found = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'fencepost'"
        ).fetchall()
    assert found
    assert [name for name, definition in found if "(tenant" in definition] == []


_JOINED = re.compile(
    r"JOIN fencepost\.\w+ (?:AS )?\w+ ON (.*?)(?=\b(?:WHERE|JOIN|LEFT|CROSS|GROUP|LOOP)\b|;)", re.DOTALL
)


def test_what_functions_join_they_find_by_its_id(fresh: LedgerDatabase) -> None:
    """Where tenants are compared as equal, a row of a small table is looked for among all of its tenant's, by
    an index on their ids; and goes on being looked for there as the table grows.
    """
    with psycopg.connect(fresh.owner) as connection:
        functions = connection.execute(
            "SELECT p.proname, p.prosrc FROM pg_proc p WHERE p.pronamespace = 'fencepost'::regnamespace"
        ).fetchall()
    joins = [(name, on[1]) for name, source in functions for on in _JOINED.finditer(source)]
    assert len(joins) > 5
    assert [(name, on) for name, on in joins if re.search(r"tenant = ", on)] == []
