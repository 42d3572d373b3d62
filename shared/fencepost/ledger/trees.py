"""The runs below a run, as people read them. Read-only; along the calls that started them, by index."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from fencepost.ledger.connect import Connection
from fencepost.states import RUN_ENDS

MOST: Final = 1000
"""Runs of a tree that are read at most."""

_TREE: Final = """
WITH RECURSIVE tree AS (
    SELECT r.tenant, r.id, NULL::uuid AS call, ARRAY[]::text[] AS place FROM fencepost.runs r
    WHERE r.tenant = %(tenant)s AND r.id = %(root)s
    UNION ALL
    SELECT t.tenant, c.child, c.id, t.place || (to_char(c.turn, 'FM000000') || to_char(c.ordinal, 'FM000000'))
    FROM tree t JOIN fencepost.calls c ON c.run = t.id AND c.tenant IS NOT DISTINCT FROM t.tenant
    WHERE c.child IS NOT NULL
)
SELECT r.id, r.parent, t.call, r.depth, r.run_key, r.planner, r.planner_version, r.status, r.stop_reason,
    c.label, c.state, c.detached, r.requests, r.calls, r.tokens, r.cost, r.created_at,
    CASE WHEN r.ended THEN (
        SELECT e.recorded_at FROM fencepost.events e WHERE e.run = r.id AND e.tenant = r.tenant
            AND e.type IN ('RunCompleted', 'RunStopped') ORDER BY e.seq DESC LIMIT 1) END, fencepost.now()
FROM tree t JOIN fencepost.runs r ON r.tenant = t.tenant AND r.id = t.id
LEFT JOIN fencepost.calls c ON c.tenant = t.tenant AND c.id = t.call
ORDER BY t.place LIMIT %(most)s
"""


@dataclass(frozen=True, slots=True)
class Member:
    """A run of a tree, with the call that started it (None: the first run's): its id, label and state, and
    whether it was left behind.

    `cost` is in millionths; `ended_at` is None for one that has not ended.
    """

    run_id: UUID
    parent: UUID | None
    call: UUID | None
    depth: int
    run_key: str
    planner: str
    planner_version: int
    status: str
    stop_reason: str | None
    label: str | None
    call_state: str | None
    detached: bool | None
    requests: int
    calls: int
    tokens: int
    cost: int
    created_at: datetime
    ended_at: datetime | None
    read_at: datetime

    @property
    def took(self) -> timedelta:
        """From its creation to its end, or until now."""
        return (self.ended_at or self.read_at) - self.created_at

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.status in RUN_ENDS


def tree(connection: Connection, tenant: str, root: UUID) -> list[Member]:
    """A run and all below it, each after the one that started it, in the order of calls; `MOST` at most."""
    wanted = {"tenant": tenant, "root": root, "most": MOST}
    return [Member(*row) for row in connection.execute(_TREE, wanted)]
