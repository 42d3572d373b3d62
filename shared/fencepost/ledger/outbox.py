"""The outbox beside `apply`: handing unclaimed work back, finding open subjects without their row."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.ledger.connect import Connection
from fencepost.ledger.rows import OPEN_SQL

_PUBLISH_AGAIN = """
UPDATE fencepost.outbox o SET publish_at = fencepost.now()
FROM (
  SELECT b.tenant, b.subject
  FROM unnest(%s::text[], %s::uuid[], %s::bigint[]) AS n (tenant, subject, generation)
  JOIN fencepost.outbox b ON b.tenant = n.tenant AND b.subject = n.subject AND b.generation = n.generation
  WHERE b.publish_at > fencepost.now()
  ORDER BY b.tenant, b.subject FOR UPDATE OF b SKIP LOCKED
) AS k
WHERE o.tenant = k.tenant AND o.subject = k.subject
"""

_MISSING = f"""
SELECT r.tenant, r.id, r.id FROM fencepost.runs r
WHERE r.status NOT IN ('COMPLETED', 'STOPPED')
  AND NOT EXISTS (SELECT 1 FROM fencepost.outbox o WHERE o.tenant = r.tenant AND o.subject = r.id)
UNION ALL
SELECT k.tenant, k.run, k.id FROM fencepost.calls k
WHERE k.state IN ({OPEN_SQL})
  AND NOT EXISTS (SELECT 1 FROM fencepost.outbox o WHERE o.tenant = k.tenant AND o.subject = k.id)
LIMIT %s
"""


def publish_again(connection: Connection, messages: Sequence[tuple[str, UUID, int]]) -> None:
    """Have rows published again at once: they were named in a message that nobody will act on.

    A row that somebody is moving at this instant is left to them.
    """
    columns = ([t for t, _, _ in messages], [s for _, s, _ in messages], [g for _, _, g in messages])
    connection.execute(_PUBLISH_AGAIN, columns)


def missing(connection: Connection, limit: int = 1000) -> list[c.Sweep]:
    """Commands that give open subjects their rows back. Any at all is an alarm: nothing should lose one."""
    found = connection.execute(_MISSING, [limit]).fetchall()
    return [c.Sweep(id=uuid7(), tenant=tenant, run=run, subject=subject) for tenant, run, subject in found]
