"""The outbox beside `apply`: rows handed back, rows that fail, rows set aside, rows that went missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from fencepost import commands as c
from fencepost.canonical import sanitize
from fencepost.clock import uuid7
from fencepost.errors import FaultInjected, Unreachable, UsageError
from fencepost.ledger.connect import Connection
from fencepost.ledger.rows import OPEN_SQL
from fencepost.publication import pauses, republish_delay

Message = tuple[str, UUID, int]
"""Tenant, subject, generation: what a broker message names."""

MISPLACED_SLACK = timedelta(minutes=1)
_ERROR_CHARS = 500

# A count of nought says that no queue holds it, however long its queue is: the relay publishes it at once.
_PUBLISH_AGAIN = """
UPDATE fencepost.outbox o SET publish_at = fencepost.now(), publish_count = 0
FROM (
  SELECT b.tenant, b.subject
  FROM unnest(%s::text[], %s::uuid[], %s::bigint[]) AS n (tenant, subject, generation)
  JOIN fencepost.outbox b ON b.tenant = n.tenant AND b.subject = n.subject AND b.generation = n.generation
  WHERE b.publish_at > fencepost.now() AND b.dead_at IS NULL
  ORDER BY b.tenant, b.subject FOR UPDATE OF b SKIP LOCKED
) AS k
WHERE o.tenant = k.tenant AND o.subject = k.subject
"""

# A failure counts once for each publication, so that a doubled or forged message condemns no row. Past the
# end of the pauses there is none: the row is set aside. One whose row somebody moves at this instant is past.
FAIL: str = """
WITH clock AS MATERIALIZED (SELECT fencepost.now() AS now),
failed AS MATERIALIZED (
  SELECT b.tenant, b.subject, n.error
  FROM unnest(%(tenants)s::text[], %(subjects)s::uuid[], %(generations)s::bigint[], %(errors)s::text[])
       AS n (tenant, subject, generation, error)
  JOIN fencepost.outbox b ON b.tenant = n.tenant AND b.subject = n.subject AND b.generation = n.generation
  WHERE b.dead_at IS NULL AND b.publish_count >= %(published)s
  ORDER BY b.tenant, b.subject FOR NO KEY UPDATE OF b SKIP LOCKED
)
UPDATE fencepost.outbox o
SET failures = o.failures + 1, error = failed.error, publish_count = 0,
    publish_at = coalesce(clock.now + (%(pauses)s::interval[])[o.failures + 1], '9999-01-01 00:00:00+00'),
    dead_at = CASE WHEN o.failures >= cardinality(%(pauses)s::interval[]) THEN clock.now END
FROM failed, clock WHERE o.tenant = failed.tenant AND o.subject = failed.subject
RETURNING o.tenant, o.subject, o.queue, o.failures, o.dead_at IS NOT NULL AS dead, o.error, o.run, o.root
"""

# Pages go by the order of the partial indexes over what is open, however much has ended. A row that cannot be
# given back stays missing: the page after it is looked at all the same.
_MISSING_RUNS = """
SELECT r.tenant, r.id, r.id, r.created_at, r.root FROM fencepost.runs r
WHERE NOT r.ended
  AND r.created_at >= %(at)s AND (r.created_at, r.id) > (%(at)s, %(id)s)
  AND NOT EXISTS (SELECT 1 FROM fencepost.outbox o WHERE o.tenant = r.tenant AND o.subject = r.id)
ORDER BY r.created_at, r.id LIMIT %(limit)s
"""
_MISSING_CALLS = f"""
SELECT k.tenant, k.run, k.id, k.run,
       (SELECT r.root FROM fencepost.runs r WHERE r.tenant = k.tenant AND r.id = k.run)
FROM fencepost.calls k
WHERE k.live AND k.state IN ({OPEN_SQL}) AND k.run >= %(at)s AND (k.run, k.id) > (%(at)s, %(id)s)
  AND NOT EXISTS (SELECT 1 FROM fencepost.outbox o WHERE o.tenant = k.tenant AND o.subject = k.id)
ORDER BY k.run, k.id LIMIT %(limit)s
"""
_ZERO = UUID(int=0)

# Nothing is put off for longer than the longest pause, unless the clock has been set back since.
_REPLACE = """
WITH clock AS MATERIALIZED (SELECT fencepost.now() AS now),
ahead AS MATERIALIZED (
  SELECT b.tenant, b.subject FROM fencepost.outbox b
  WHERE b.publish_at > (SELECT now FROM clock) + %(most)s::interval
    AND b.due_at < b.publish_at - %(most)s::interval AND b.dead_at IS NULL
  ORDER BY b.tenant, b.subject FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE fencepost.outbox o SET publish_at = greatest(o.due_at, clock.now), publish_count = 0
FROM ahead, clock WHERE o.tenant = ahead.tenant AND o.subject = ahead.subject AND o.dead_at IS NULL
  AND o.publish_at > clock.now + %(most)s::interval AND o.due_at < o.publish_at - %(most)s::interval
RETURNING o.tenant, o.subject
"""


class Place(NamedTuple):
    """How far the look for missing rows has come: among the runs, by age, then among the calls, by run."""

    calls: bool
    at: Any
    id: UUID


FIRST = Place(False, "-infinity", _ZERO)


class Failed(NamedTuple):
    """A message that failed by its row's own fault, and how."""

    message: Message
    error: Exception | str


@dataclass(frozen=True, slots=True)
class Setback:
    """A failure that was counted: the `failures`th of this generation; `dead` says it was the last."""

    tenant: str
    subject: UUID
    queue: str
    failures: int
    dead: bool
    error: str
    run: UUID
    root: UUID | None

    @property
    def of(self) -> dict[str, object]:
        """What a line about it belongs to."""
        return {"tenant": self.tenant, "root": self.root or self.run, "run": self.run}


def its_own(error: Exception) -> bool:
    """Whether an error may be the fault of what was asked for, and not of an outage, a login or a drill.

    Of what Postgres says: values, constraints, limits, guards, and data it cannot read back.
    """
    if isinstance(error, psycopg.Error):
        state = error.sqlstate or ""
        return isinstance(error, psycopg.DataError) or state.startswith(("21", "23", "54", "FP", "XX"))
    return not isinstance(error, Unreachable | UsageError | FaultInjected | OSError | MemoryError)


def failure_text(error: Exception | str) -> str:
    """What a row keeps of an error: one line that says what it was."""
    said = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return sanitize(" ".join(said.split()), _ERROR_CHARS)


def fail_values(failed: Sequence[Failed], base: timedelta, *, published: bool) -> dict[str, Any]:
    """The parameters of `FAIL`."""
    rows = {one.message: failure_text(one.error) for one in failed}
    return {
        "tenants": [tenant for tenant, _, _ in rows],
        "subjects": [subject for _, subject, _ in rows],
        "generations": [generation for _, _, generation in rows],
        "errors": list(rows.values()),
        "pauses": pauses(base),
        "published": int(published),
    }


def fail(
    connection: Connection, failed: Sequence[Failed], base: timedelta, *, published: bool = True
) -> list[Setback]:
    """Count failures against their rows: published again after `next_try`, or set aside after the last.

    Only what has been published since its last failure counts, unless not `published`: whoever has just taken
    the row knows. A row that has moved on, or that somebody moves at this instant, is left alone.
    """
    found = connection.execute(FAIL, fail_values(failed, base, published=published)).fetchall()
    return [Setback(*row) for row in found]


def publish_again(connection: Connection, messages: Sequence[Message]) -> None:
    """Have rows published again at once: they were named in a message that nobody will act on.

    A row that somebody is moving at this instant is left to them; one that is set aside stays so.
    """
    columns = ([t for t, _, _ in messages], [s for _, s, _ in messages], [g for _, _, g in messages])
    connection.execute(_PUBLISH_AGAIN, columns)


def missing(
    connection: Connection, place: Place = FIRST, limit: int = 1000
) -> tuple[list[c.Sweep], Place | None]:
    """One page of commands that give open subjects their rows back, and where the next begins, if any does.

    Any command at all is an alarm: nothing should lose its row.
    """
    values = {"at": place.at, "id": place.id, "limit": limit}
    found = connection.execute(_MISSING_CALLS if place.calls else _MISSING_RUNS, values).fetchall()
    sweeps = [
        c.Sweep(id=uuid7(), tenant=tenant, run=run, subject=subject, root=root)
        for tenant, run, subject, _, root in found
    ]
    if len(found) == limit:
        return sweeps, Place(place.calls, found[-1][3], found[-1][2])
    return sweeps, None if place.calls else Place(True, _ZERO, _ZERO)


def replace_misplaced(connection: Connection, base: timedelta) -> list[tuple[str, UUID]]:
    """Rows whose publication lies further ahead than any pause, as after a clock was set back: published when
    they are due; which. `base` is the interval of republication.
    """
    most = republish_delay(99, base) + MISPLACED_SLACK
    return [(tenant, subject) for tenant, subject in connection.execute(_REPLACE, {"most": most})]
