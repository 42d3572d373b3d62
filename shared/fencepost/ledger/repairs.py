"""Which calls wait for a person's decision, by what they are of. Read-only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from fencepost.ledger.connect import Connection

# Written so that the partial index over open calls serves it, however many have ended.
_WAITING: Final = """
SELECT * FROM (
    SELECT c.tenant, c.run, r.run_key, c.id, c.label, c.tool, c.scope, c.version, c.error,
        (SELECT min(e.recorded_at) FROM fencepost.events e WHERE e.tenant = c.tenant AND e.run = c.run
            AND e.call = c.id AND e.type IN ('ToolOutcomeMarkedUnknown', 'RepairRequested')) AS since
    FROM fencepost.calls c JOIN fencepost.runs r ON r.tenant = c.tenant AND r.id = c.run
    WHERE c.live AND c.state = 'NEEDS_REPAIR'
      AND (c.tool = ANY(%(tools)s) OR %(tools)s::text[] IS NULL)
      AND (c.scope = ANY(%(dependencies)s) OR split_part(c.scope, '/', 1) = ANY(%(dependencies)s)
           OR %(dependencies)s::text[] IS NULL)
      AND (c.tenant = ANY(%(tenants)s) OR %(tenants)s::text[] IS NULL)
      AND (r.run_key = ANY(%(runs)s) OR r.id::text = ANY(%(runs)s) OR %(runs)s::text[] IS NULL)
) AS w
WHERE %(age)s::interval IS NULL OR w.since < fencepost.now() - %(age)s::interval
ORDER BY w.since, w.id
"""
_SHARING: Final = """
SELECT DISTINCT r.tenant FROM fencepost.runs r WHERE r.run_key IN (
    SELECT s.run_key FROM fencepost.runs s WHERE s.run_key = ANY(%s) AND s.run_key <> ''
    GROUP BY s.run_key HAVING count(DISTINCT s.tenant) > 1)
ORDER BY r.tenant
"""


@dataclass(frozen=True, slots=True)
class Where:
    """Which calls are meant: each name that is given has to fit, any of its values. `older_than` counts from
    when the outcome was first not known.
    """

    tools: Sequence[str] = ()
    dependencies: Sequence[str] = ()
    tenants: Sequence[str] = ()
    runs: Sequence[str] = ()
    older_than: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call in NEEDS_REPAIR; `version` is what a decision on it is compared with."""

    tenant: str
    run: UUID
    run_key: str
    call: UUID
    label: str
    tool: str
    dependency: str
    version: int
    error: str | None
    since: datetime | None


def waiting(connection: Connection, where: Where) -> list[Waiting]:
    """All of them, the oldest first."""
    asked: dict[str, Any] = {
        name: list(getattr(where, name)) or None for name in ("tools", "dependencies", "tenants", "runs")
    }
    found = connection.execute(_WAITING, asked | {"age": where.older_than})
    return [Waiting(*row) for row in found]


def sharing(connection: Connection, run_keys: Sequence[str]) -> list[str]:
    """The tenants that have one of these run keys in common; none where each key is one tenant's."""
    return [tenant for (tenant,) in connection.execute(_SHARING, [list(run_keys)])] if run_keys else []
