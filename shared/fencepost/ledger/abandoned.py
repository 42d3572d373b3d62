"""Effects that stopped runs were to offset and did not, until a person settles each. Read-only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from fencepost.ledger.connect import Connection

# What the last end of a run says is what holds: a person may have had it taken up again since an earlier one.
_ABANDONED: Final = """
SELECT r.tenant, r.id, r.run_key, c.id, c.label, c.tool, c.tool_version, c.receipt, entry ->> 'why',
       ended.recorded_at, coalesce((entry ->> 'again')::boolean, false), c.version,
       coalesce((entry ->> 'owed')::boolean, false)
FROM fencepost.runs r
CROSS JOIN LATERAL (
    SELECT e.body, e.recorded_at FROM fencepost.events e
    WHERE e.run = r.id AND e.tenant IS NOT DISTINCT FROM r.tenant AND e.type = 'RunStopped'
    ORDER BY e.seq DESC LIMIT 1
) AS ended
CROSS JOIN LATERAL json_array_elements(ended.body -> 'not_offset') AS entry
JOIN fencepost.calls c ON c.tenant = r.tenant AND c.id = (entry ->> 'call')::uuid
WHERE r.status = 'STOPPED' AND r.effects > 0 AND c.state = 'SUCCEEDED'
  AND coalesce(c.offset_left, 0) <= coalesce(c.offset_asked, 0)
  AND (r.tenant = %(tenant)s OR %(tenant)s::text IS NULL)
ORDER BY coalesce((entry ->> 'owed')::boolean, false) DESC, ended.recorded_at, c.id LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """An effect that is still there although its run was to offset it: why, and since when.

    `owed`: something could offset it, and was refused, failed or given up; else it stays by design.
    `again`: offsetting it can be asked for once more (OFFSET); every one can be left as it is (LEAVE).
    `version` changes with the call: a decision can name the one it was made on.
    """

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
    again: bool
    version: int
    owed: bool


def abandoned(connection: Connection, *, tenant: str | None = None, limit: int = 100) -> list[Abandoned]:
    """Effects that were not offset and that no person has left as they are: what is owed first, the oldest
    first.
    """
    found = connection.execute(_ABANDONED, {"tenant": tenant, "limit": limit})
    return [Abandoned(*row) for row in found]
