"""Memory in Postgres: the shipped store, and what the ledger knows of a run's own writes.

A write is one statement, `fencepost.write_memory`, and its own transaction. It holds a lock of its slot until
its COMMIT can be seen, and a lookup that gets that lock has seen every write begun before: so an absence is
one. Nobody but an operator's login changes a version, and only to erase its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg

from fencepost.canonical import encode
from fencepost.errors import NotApplied, NotFound, UsageError
from fencepost.ledger.connect import Connection, Pool
from fencepost.memory_port import (
    Change,
    Conflicting,
    Erased,
    Listed,
    OtherRequest,
    Slot,
    Stored,
    TooLate,
    WriteAnswer,
    Writer,
    Wrote,
)
from fencepost.names import named

_WRITE: Final = """
SELECT said, at_version FROM fencepost.write_memory(
    %(tenant)s, %(space)s, %(key)s, %(expected)s, %(value)s, %(restores)s, %(untrusted)s, %(operation)s,
    %(run)s, %(call)s, %(until)s)
"""
_WRITTEN: Final = "SELECT said, at_version FROM fencepost.written_memory(%s, %s, %s, %s)"
# A replica knows what it has replayed, not what there is.
_AS_OF: Final = """
CASE WHEN pg_is_in_recovery() THEN pg_last_xact_replay_timestamp() ELSE fencepost.now() END
"""
_READ: Final = f"""
SELECT coalesce(m.version, 0), m.value, m.version IS NOT NULL AND NOT m.absent, m.erased_at IS NOT NULL,
    coalesce(m.untrusted, false), {_AS_OF}
FROM (SELECT) AS one LEFT JOIN LATERAL (
    SELECT * FROM fencepost.memory WHERE tenant = %s AND space = %s AND key = %s
    ORDER BY version DESC LIMIT 1) m ON true
"""
# From key to key along the primary key, one probe each, however many versions there are of one; and no
# further than the limit asks, since a recursion gives rows as they are fetched.
_KEYS: Final = """
WITH RECURSIVE walk (key) AS (
    (SELECT m.key FROM fencepost.memory m
        WHERE m.tenant = %(tenant)s AND m.space = %(space)s AND m.key > %(after)s ORDER BY m.key LIMIT 1)
    UNION ALL
    SELECT (SELECT m.key FROM fencepost.memory m
        WHERE m.tenant = %(tenant)s AND m.space = %(space)s AND m.key > w.key ORDER BY m.key LIMIT 1)
    FROM walk w WHERE w.key IS NOT NULL
)
SELECT key, version, untrusted FROM (
    SELECT n.key, n.version, n.untrusted FROM walk w CROSS JOIN LATERAL (
        SELECT m.key, m.version, m.untrusted, m.absent FROM fencepost.memory m
        WHERE m.tenant = %(tenant)s AND m.space = %(space)s AND m.key = w.key
        ORDER BY m.version DESC LIMIT 1) AS n
    WHERE starts_with(w.key, %(prefix)s) AND NOT n.absent LIMIT %(limit)s) AS newest
ORDER BY key
"""
# What the run itself and those it descends from have written; what a person settled may have any receipt.
_OWN: Final = """
WITH RECURSIVE line AS (
    SELECT r.id, r.parent FROM fencepost.runs r WHERE r.tenant = %(tenant)s AND r.id = %(run)s
    UNION ALL SELECT r.id, r.parent FROM line JOIN fencepost.runs r
        ON r.id = line.parent AND r.tenant IS NOT DISTINCT FROM %(tenant)s
)
SELECT coalesce(max(CASE WHEN c.receipt ~ '^[0-9]{1,16}$' THEN c.receipt::bigint END), 0)
FROM line JOIN fencepost.calls c ON c.run = line.id AND c.tenant IS NOT DISTINCT FROM %(tenant)s
WHERE c.tool = ANY(%(tools)s) AND c.state = 'SUCCEEDED'
    -- Arguments are canonical text: those of another key are not parsed, values and all.
    AND CASE WHEN strpos(c.arguments, %(named)s) > 0 THEN c.arguments::jsonb ->> 'key' = %(key)s
        ELSE false END
"""
_VERSIONS: Final = """
SELECT version, value, absent, untrusted, restores, run, call, written_at, erased_at, erased_by, erased_reason
FROM fencepost.memory WHERE tenant = %s AND space = %s AND key = %s ORDER BY version DESC LIMIT %s
"""
# One that is being restored meanwhile is seen, or not restored.
_ALONE: Final = """
SELECT pg_advisory_xact_lock(
    hashtextextended(jsonb_build_array(%(tenant)s::text, %(space)s::text, %(key)s::text)::text, 0))
"""
# Whatever restored a version holds its value again, and so does what restored that, also after `to`.
_ERASE: Final = """
WITH RECURSIVE gone AS (
    SELECT m.version FROM fencepost.memory m
    WHERE m.tenant = %(tenant)s AND m.space = %(space)s AND m.key = %(key)s AND m.version <= %(to)s
    UNION
    SELECT m.version FROM gone g JOIN fencepost.memory m ON m.tenant = %(tenant)s AND m.space = %(space)s
        AND m.key = %(key)s AND m.restores = g.version
)
UPDATE fencepost.memory SET value = NULL, erased_at = fencepost.now(), erased_by = %(by)s,
    erased_reason = %(reason)s
WHERE tenant = %(tenant)s AND space = %(space)s AND key = %(key)s AND erased_at IS NULL AND value IS NOT NULL
    AND version IN (SELECT version FROM gone)
RETURNING version
"""
# What fed a run: its own calls, the runs that calls of its have started, and where a call was given the
# result of another one of its key, that one, or the run it had started. Of the ways to one of them the
# shortest counts, and of those the one that begins first, step by step: there may be more ways than rows.
_GROUNDING: Final = """
WITH RECURSIVE fed AS (
    SELECT r.id AS run, NULL::uuid AS alone, 0 AS depth, NULL::uuid AS through,
        ARRAY[]::text[] COLLATE "C" AS labels,
        ARRAY[]::bigint[] AS path
    FROM fencepost.runs r WHERE r.tenant = %(tenant)s AND r.id = %(run)s
    UNION ALL
    SELECT coalesce(s.child, s.run), CASE WHEN s.child IS NULL THEN s.id END, f.depth + 1, c.id,
        f.labels || c.label, f.path || c.turn || c.ordinal
    FROM (SELECT DISTINCT ON (run, alone) * FROM fed ORDER BY run, alone, path) f
    JOIN fencepost.calls c ON c.run = f.run AND c.tenant IS NOT DISTINCT FROM %(tenant)s
    LEFT JOIN fencepost.operations o ON c.reused AND o.key = c.operation AND o.tenant = c.tenant
    JOIN fencepost.calls s ON s.id = coalesce(o.call, c.id) AND s.tenant = c.tenant
    WHERE %(tree)s AND c.state = 'SUCCEEDED' AND (f.alone IS NULL OR c.id = f.alone)
        AND (s.child IS NOT NULL OR s.id <> c.id)
), way AS (
    SELECT DISTINCT ON (run, alone) * FROM fed ORDER BY run, alone, depth, path
)
SELECT seq, turn, call, label, tool, source, id, version, as_of, stale, recorded_at, left_out, unread, run,
    depth, through, labels
FROM (SELECT DISTINCT ON (g.run, g.seq, g.place) g.*, w.depth, w.through, w.labels, w.path
    FROM way w JOIN fencepost.grounding g
        ON g.tenant = %(tenant)s AND g.run = w.run AND (w.alone IS NULL OR g.call = w.alone)
    ORDER BY g.run, g.seq, g.place, w.depth, w.path) AS one
ORDER BY path, seq, place
"""


class PostgresMemory:
    """A `MemoryStore` in the database of a pool, which `fencepost migrate` has prepared."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def write(self, slot: Slot, change: Change, writer: Writer) -> WriteAnswer:
        """See `MemoryStore.write`. NotApplied where Postgres refused the statement, and so undid it."""
        asked = {
            "tenant": slot.tenant,
            "space": slot.space,
            "key": slot.key,
            "expected": change.expected,
            "value": change.value,
            "restores": change.restores,
            "untrusted": writer.untrusted,
            "operation": writer.operation,
            "run": UUID(writer.run),
            "call": UUID(writer.call),
            "until": writer.until,
        }
        try:
            said, version = self._one(_WRITE, asked)
        except (NotFound, UsageError) as error:
            raise NotApplied("memory_refused", str(error)) from error
        except psycopg.Error as error:
            if error.sqlstate is None:  # no answer of the server's: what it did is not known
                raise
            busy = isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.QueryCanceled)
            raise NotApplied("memory_refused", str(error).splitlines()[0], retryable=busy) from error
        return _answer(said, version)

    def written(self, slot: Slot, operation: str) -> int | None:
        """See `MemoryStore.written`; BlockingIOError while a write of the slot is under way."""
        said, version = self._one(_WRITTEN, [slot.tenant, slot.space, slot.key, operation])
        if said == "busy":
            raise BlockingIOError(f"{slot.key!r} is being written at this moment")
        return None if version is None else int(version)

    def read(self, slot: Slot) -> Stored:
        """See `MemoryStore.read`."""
        return Stored(*self._one(_READ, [slot.tenant, slot.space, slot.key]))

    def keys(self, tenant: str, space: str, prefix: str, after: str, limit: int) -> Sequence[Listed]:
        """See `MemoryStore.keys`."""
        asked = {"tenant": tenant, "space": space, "prefix": prefix, "after": after, "limit": limit}
        with self._pool.reading() as connection:
            return [Listed(*row) for row in connection.execute(_KEYS, asked)]

    def _one(self, statement: str, asked: Any) -> tuple[Any, ...]:
        with self._pool.reading() as connection:
            row = connection.execute(statement, asked).fetchone()
        assert row is not None  # both functions, and a left join, give exactly one
        return tuple(row)


def _answer(said: str, version: int | None) -> WriteAnswer:
    match said:
        case "written":
            return Wrote(int(version or 0))
        case "conflict":
            return Conflicting(int(version or 0))
        case "late":
            return TooLate()
        case "erased":
            return Erased()
        case _:
            return OtherRequest(int(version or 0))


def written_by_run(connection: Connection, tenant: str, run: UUID, tools: Sequence[str], key: str) -> int:
    """The newest version of a key that a run, or one it descends from, has written; 0: none."""
    named = f'"key":{encode(key).decode()}'
    asked = {"tenant": tenant, "run": run, "tools": list(tools), "key": key, "named": named}
    row = connection.execute(_OWN, asked).fetchone()
    return int(row[0]) if row is not None else 0


# -- for people --


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a key; `value` is JSON text, None where there is none or it was erased."""

    version: int
    value: str | None
    absent: bool
    untrusted: bool
    restores: int | None
    run: UUID
    call: UUID
    written_at: datetime
    erased_at: datetime | None
    erased_by: str | None
    erased_reason: str | None


@dataclass(frozen=True, slots=True)
class Ground:
    """What a result rests on; `turn` is the one of its run that asked for it.

    `left_out` counts those of the same result that are not listed; one without a source says by `unread` why
    none of its result could be told. `run` is whose call it was: `depth` steps from the run that was asked
    about, reached by that one's calls, or their children's, as `labels` names them and `through` is the last.
    """

    seq: int
    turn: int
    call: UUID
    label: str
    tool: str
    source: str | None
    id: str | None
    version: str | None
    as_of: str | None
    stale: bool
    recorded_at: datetime
    left_out: int
    unread: str | None
    run: UUID
    depth: int
    through: UUID | None
    labels: list[str]


def versions(connection: Connection, slot: Slot, limit: int) -> list[Version]:
    """The newest versions of a key, newest first."""
    found = connection.execute(_VERSIONS, [slot.tenant, slot.space, slot.key, limit])
    return [Version(*row) for row in found]


def erase(connection: Connection, slot: Slot, to: int, *, by: str, reason: str) -> list[int]:
    """Erase the values of a key's versions up to `to`, and of those that restored one of them; which ones.
    Takes an operator's login.

    The versions stay, without their values, so that no repeat of a write is ever executed again. What calls
    and results of runs hold of a value is the ledger's, and stays.
    """
    asked = {"tenant": slot.tenant, "space": slot.space, "key": slot.key, "to": to}
    said = asked | {"by": named("by", by), "reason": reason}
    with connection.transaction():
        connection.execute(_ALONE, asked)
        found = connection.execute(_ERASE, said).fetchall()
    return sorted(int(version) for (version,) in found)


def keys(
    connection: Connection, tenant: str, space: str, prefix: str, after: str, limit: int
) -> list[Listed]:
    """As `MemoryStore.keys`, on a session of one's own."""
    asked = {"tenant": tenant, "space": space, "prefix": prefix, "after": after, "limit": limit}
    return [Listed(*row) for row in connection.execute(_KEYS, asked)]


def grounding(connection: Connection, tenant: str, run: UUID, *, tree: bool = True) -> list[Ground]:
    """The documents and the memory that a run's results rest on, in the order they were recorded; with `tree`
    those of the runs that fed it, too.
    """
    found = connection.execute(_GROUNDING, {"tenant": tenant, "run": run, "tree": tree})
    return [Ground(*row) for row in found]
