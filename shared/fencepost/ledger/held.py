"""Calls that are held because what their MCP server offers is not what was pinned: nothing was sent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from fencepost.ledger.connect import Connection
from fencepost.mcp import CHANGED

HOLDS: Final = f"c.live AND c.state = 'INTENT_RECORDED' AND starts_with(c.error, '{CHANGED}:')"
"""Whether the call `c` is held, as SQL."""
_HELD: Final = f"""
SELECT c.tenant, c.run, r.run_key, c.id, c.label, c.tool, c.tool_version, c.error, c.attempts, c.ready_at,
       r.deadline
FROM fencepost.calls c JOIN fencepost.runs r ON r.tenant = c.tenant AND r.id = c.run
WHERE {HOLDS}
  AND (c.tenant = %(tenant)s OR %(tenant)s::text IS NULL) AND (c.id = %(call)s OR %(call)s::uuid IS NULL)
ORDER BY c.tenant, c.id LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Held:
    """A held call: why (the pin, and what is offered now), when it looks again, when its run gives up."""

    tenant: str
    run: UUID
    run_key: str
    call: UUID
    label: str
    tool: str
    tool_version: int
    why: str
    attempts: int
    again_at: datetime
    deadline: datetime


def held(
    connection: Connection, *, tenant: str | None = None, limit: int = 100, call: UUID | None = None
) -> list[Held]:
    """Held calls, the oldest first; with `call` that one alone, if it is."""
    found = connection.execute(_HELD, {"tenant": tenant, "limit": limit, "call": call})
    return [Held(*row) for row in found]
