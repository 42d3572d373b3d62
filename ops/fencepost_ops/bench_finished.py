"""Finished runs for the bench, by the hundred thousand: copies of runs that the fleet has really finished.

A copy has ids and keys of its own, a minute older than what it copies, and rows of its own in every table.
Its events keep the hashes of what they copy: tables and indexes are as large as those of real runs, but the
copies do not verify. For measuring alone.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

_COPIERS: Final = """
CREATE FUNCTION pg_temp.copied(id uuid, n int) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint - n * 60000), 12, '0')
        || '7' || substr(md5(id::text || n), 1, 3) || '8' || substr(md5(id::text || n), 4, 15))::uuid $$;
CREATE FUNCTION pg_temp.copied(key text, n int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(sha256(convert_to(key || '/' || n, 'UTF8')), 'hex') $$;
CREATE TEMP TABLE finished AS SELECT tenant, id FROM fencepost.runs
    WHERE tenant = {tenant} AND run_key LIKE {keys} AND ended LIMIT {most};
ANALYZE finished;
"""
_OF_RUN: Final = "JOIN finished f ON f.tenant = r.tenant AND f.id = r.{0}"
_RESULTS: Final = """
JOIN (SELECT c.tenant, c.result FROM fencepost.calls c
      JOIN finished f ON f.tenant = c.tenant AND f.id = c.run) k
    ON k.tenant = r.tenant AND k.result = r.digest
"""
_DATA: Final = "r.data || convert_to('/' || {1}, 'UTF8')"
_ID, _KEY = "pg_temp.copied(r.{0}, {1})", "pg_temp.copied(r.{0}::text, {1})"
# What differs in a copy, by table; everything else is copied as it is.
_DIFFERS: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "runs": (_OF_RUN.format("id"), {"id": _ID, "run_key": "r.run_key || '/' || {1}"}),
    "events": (_OF_RUN.format("run"), {"run": _ID, "id": _ID, "call": _ID, "causation": _ID}),
    "calls": (_OF_RUN.format("run"), {"run": _ID, "id": _ID, "proof": _ID, "operation": _KEY}),
    "operations": (_OF_RUN.format("run"), {"run": _ID, "call": _ID, "proof": _ID, "key": _KEY}),
    "payloads": (_RESULTS, {"data": _DATA, "digest": f"encode(sha256({_DATA}), 'hex')"}),
}
_COLUMNS: Final = """
SELECT attname FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""


def add_finished(owner: psycopg.Connection[Any], tenant: str, keys: str, count: int, most: int = 1000) -> int:
    """Add about `count` finished runs, copies of those whose run key is LIKE `keys`; how many were added.

    `owner` must be a superuser's session, autocommit. Raises ValueError when nothing has finished yet.
    """
    literals = {"tenant": sql.Literal(tenant), "keys": sql.Literal(keys), "most": sql.Literal(most)}
    owner.execute(sql.SQL(_COPIERS).format(**literals))
    row = owner.execute("SELECT count(*) FROM finished").fetchone()
    if row is None or row[0] == 0:
        raise ValueError(f"no run of {keys!r} has finished yet: there is nothing to copy")
    owner.execute("SET session_replication_role = replica")  # the guards judge changes; these are copies
    copies = -(-count // row[0])
    for n in range(1, copies + 1):
        for table, (which, differs) in _DIFFERS.items():
            owner.execute(_copy(owner, table, which, differs, n).encode())
    owner.execute("SET session_replication_role = origin")
    owner.execute("DROP TABLE finished")
    owner.execute("VACUUM (ANALYZE) fencepost.runs, fencepost.events, fencepost.calls, fencepost.operations")
    owner.execute("VACUUM (ANALYZE) fencepost.payloads")
    owner.execute("CHECKPOINT")
    return int(copies * row[0])


def _copy(owner: psycopg.Connection[Any], table: str, which: str, differs: dict[str, str], n: int) -> str:
    names = [name for (name,) in owner.execute(_COLUMNS, [f"fencepost.{table}"]).fetchall()]
    into = ", ".join(f'"{name}"' for name in names)
    made = ", ".join(differs.get(name, 'r."{0}"').format(name, n) for name in names)
    what = f"INSERT INTO fencepost.{table} ({into}) SELECT {made} FROM fencepost.{table} r"
    return f"{what} {which} ON CONFLICT DO NOTHING"


def sizes(owner: psycopg.Connection[Any]) -> dict[str, float]:
    """MiB of each table of the ledger with its indexes, those above one alone."""
    found = owner.execute(
        "SELECT relname, pg_total_relation_size(relid) / 1048576.0 FROM pg_stat_user_tables"
        " WHERE schemaname = 'fencepost' ORDER BY 2 DESC"
    ).fetchall()
    return {name: round(float(mib), 1) for name, mib in found if mib >= 1}
