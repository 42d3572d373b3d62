"""Effects that stopped runs were to offset and did not, because planning it was given up. Read-only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from fencepost.ledger.connect import Connection

# What the last end of a run says is what holds: a person may have had it taken up again since an earlier one.
_ABANDONED: Final = """
SELECT r.tenant, r.id, r.run_key, c.id, c.label, c.tool, c.tool_version, c.receipt, entry ->> 'why',
       ended.recorded_at
FROM fencepost.runs r
CROSS JOIN LATERAL (
    SELECT e.body, e.recorded_at FROM fencepost.events e
    WHERE e.run = r.id AND e.tenant IS NOT DISTINCT FROM r.tenant AND e.type = 'RunStopped'
    ORDER BY e.seq DESC LIMIT 1
) AS ended
CROSS JOIN LATERAL json_array_elements(ended.body -> 'not_offset') AS entry
JOIN fencepost.calls c ON c.tenant = r.tenant AND c.id = (entry ->> 'call')::uuid
WHERE r.status = 'STOPPED' AND r.effects > 0 AND (entry ->> 'again')::boolean
  AND (r.tenant = %(tenant)s OR %(tenant)s::text IS NULL)
ORDER BY ended.recorded_at, c.id LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """An effect that is still there although its run was to offset it: why, and since when."""

    tenant: str
    run: UUID
    run_key: str
    call: UUID
    label: str
    tool: str
    tool_version: int
    receipt: str | None
    why: str
    since: datetime


def abandoned(connection: Connection, *, tenant: str | None = None, limit: int = 100) -> list[Abandoned]:
    """Effects whose compensation was given up, the oldest first; a person may ask for it again."""
    found = connection.execute(_ABANDONED, {"tenant": tenant, "limit": limit})
    return [Abandoned(*row) for row in found]
