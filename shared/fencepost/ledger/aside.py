"""Rows of the outbox that go nowhere by themselves: set aside after failing, or published and never claimed.

What is set aside waits for a person, who mends the cause and has it sent again; whatever gives the row its
next generation (a cancel, another call's key) takes it back as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from fencepost.errors import FencepostError, UsageError
from fencepost.ledger.connect import Connection
from fencepost.ledger.find import id_range

_MOST: Final = 10_000  # rows `requeue` looks through for a name

_FIELDS: Final = """
o.tenant, o.run, r.run_key, o.kind, o.subject, c.label, coalesce(c.tool, r.planner),
coalesce(c.tool_version, r.planner_version), o.queue, o.generation, o.due_at, o.publish_count, o.failures,
o.error, o.dead_at, CASE WHEN o.dead_at IS NULL THEN 'TRIED' ELSE 'SET_ASIDE' END
FROM fencepost.outbox o JOIN fencepost.runs r ON r.tenant = o.tenant AND r.id = o.run
LEFT JOIN fencepost.calls c ON o.kind = 'call' AND c.tenant = o.tenant AND c.id = o.subject
"""
_DEAD: Final = f"""
SELECT {_FIELDS} WHERE o.dead_at IS NOT NULL AND (o.tenant = %(tenant)s OR %(tenant)s::text IS NULL)
ORDER BY o.dead_at, o.subject LIMIT %(limit)s
"""
_UNCLAIMED: Final = f"""
SELECT {_FIELDS} WHERE o.dead_at IS NULL AND (o.publish_count > 1 OR o.failures > 0)
AND o.due_at <= fencepost.now() ORDER BY o.due_at, o.subject LIMIT %(limit)s
"""
_REQUEUE: Final = """
WITH aside AS MATERIALIZED (
  SELECT o.tenant, o.subject FROM fencepost.outbox o
  WHERE o.dead_at IS NOT NULL AND o.subject = ANY(%(subjects)s::uuid[])
  ORDER BY o.tenant, o.subject FOR NO KEY UPDATE
)
UPDATE fencepost.outbox o
SET dead_at = NULL, failures = 0, error = NULL, publish_count = 0, publish_at = fencepost.now()
FROM aside WHERE o.tenant = aside.tenant AND o.subject = aside.subject AND o.dead_at IS NOT NULL
RETURNING o.subject
"""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A row that nobody claims: of which run or call, what a worker must know for it, how it failed.

    `label` is a call's, None for a run's own step; `name` and `version` are its tool or its planner. `state`
    is SET_ASIDE once it is published no more, since `dead_at`, else TRIED. `published` counts since it was
    last fresh.
    """

    tenant: str
    run: UUID
    run_key: str
    kind: str
    subject: UUID
    label: str | None
    name: str
    version: int
    queue: str
    generation: int
    due_at: datetime
    published: int
    failures: int
    error: str | None
    dead_at: datetime | None
    state: str

    @property
    def needs(self) -> str:
        """What whoever claims it must know."""
        return f"{'tool' if self.kind == 'call' else 'planner'} {self.name} v{self.version}"


def dead(connection: Connection, *, tenant: str | None = None, limit: int = 100) -> list[Stopped]:
    """The rows that are set aside, the oldest first."""
    found = connection.execute(_DEAD, {"tenant": tenant, "limit": limit}).fetchall()
    return [Stopped(*row) for row in found]


def unclaimed(connection: Connection, *, limit: int = 100) -> list[Stopped]:
    """Due rows that were published more than once or have failed, and are still tried; the longest due
    first.
    """
    return [Stopped(*row) for row in connection.execute(_UNCLAIMED, {"limit": limit})]


def find_dead(connection: Connection, text: str, tenant: str | None = None) -> list[Stopped]:
    """What is set aside of the subject, or of the run, of this id, beginning of an id or run key.

    FencepostError if there is nothing, UsageError if several runs go by that name.
    """
    low, high = id_range(text)

    def named(row: Stopped) -> bool:
        by_id = low is not None and high is not None and any(low <= i <= high for i in (row.subject, row.run))
        return by_id or row.run_key == text

    found = [row for row in dead(connection, tenant=tenant, limit=_MOST) if named(row)]
    if not found:
        raise FencepostError(f"nothing is set aside under {text!r}; see fencepost outbox --dead")
    if len({(row.tenant, row.run) for row in found}) > 1:
        raise UsageError(f"{text!r} names rows of several runs; give more of the id, or the tenant")
    return found


def requeue(connection: Connection, subjects: Sequence[UUID]) -> list[UUID]:
    """Have rows that are set aside published again at once, under the same generation and with all tries
    anew; which. One that has moved on meanwhile needs it no more.
    """
    return [row[0] for row in connection.execute(_REQUEUE, {"subjects": list(subjects)})]
