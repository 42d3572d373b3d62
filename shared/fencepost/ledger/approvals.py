"""What persons are asked to approve, as it stands. Read-only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from fencepost.approvals import Approval, read
from fencepost.canonical import sanitize
from fencepost.ledger.connect import Connection
from fencepost.states import RunStatus

_WHAT: Final = """
SELECT c.tenant, c.run, r.run_key, r.principal, c.id, c.label, c.tool, c.tool_version, c.state, c.version,
       c.arguments, c.arguments_hash, c.attempts, c.compensates IS NOT NULL, r.deadline, c.approval,
       (SELECT concat_ws(' ', e.type, k.tool, k.id) FROM fencepost.events e
        LEFT JOIN fencepost.calls k ON k.id = e.call AND k.tenant = e.tenant
        WHERE e.run = r.id AND e.tenant = r.tenant AND e.seq = r.tainted)
FROM fencepost.calls c JOIN fencepost.runs r ON r.tenant = c.tenant AND r.id = c.run
"""
# Written so that the partial index over open and doubtful calls serves it.
_WAITING: Final = f"""{_WHAT}
WHERE c.live AND c.state = 'AWAITING_APPROVAL'
  AND (c.tenant = %(tenant)s OR %(tenant)s::text IS NULL) AND (c.run = %(run)s OR %(run)s::uuid IS NULL)
ORDER BY least((c.approval::json #>> '{{asked,expires_at}}')::timestamptz,
               CASE WHEN c.compensates IS NULL THEN r.deadline END), c.tenant, c.id LIMIT %(limit)s
"""
_ONE: Final = f"{_WHAT} WHERE c.tenant = %(tenant)s AND c.id = %(call)s"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call about which persons were asked. `version` changes with it: a decision can name the one it was
    made on. `tainted` says which event of its run first brought what nobody vouches for, if one did.
    """

    tenant: str
    run: UUID
    run_key: str
    principal: str
    call: UUID
    label: str
    tool: str
    tool_version: int
    state: str
    version: int
    arguments: str
    arguments_hash: str
    attempts: int
    compensates: bool
    deadline: datetime
    approval: Approval
    tainted: str | None

    @property
    def until(self) -> datetime:
        """When nobody can decide it any more: it has expired, or its run has, which an offset outlives."""
        own = self.approval.expires_at
        return own if self.compensates else min(own, self.deadline)


def waiting(
    connection: Connection, *, tenant: str | None = None, run: UUID | None = None, limit: int = 100
) -> list[Waiting]:
    """The calls that wait for an approval, what expires first in front."""
    found = connection.execute(_WAITING, {"tenant": tenant, "run": run, "limit": limit})
    return [made for row in found if (made := _made(row)) is not None]


def asked(connection: Connection, tenant: str, call: UUID) -> Waiting | None:
    """What was asked about this call last, wherever it stands now; None if nobody was ever asked."""
    row = connection.execute(_ONE, {"tenant": tenant, "call": call}).fetchone()
    return _made(row) if row is not None else None


_ENDING: Final = frozenset(
    {RunStatus.STOPPING, RunStatus.COMPENSATING, RunStatus.STOPPED, RunStatus.COMPLETED}
)
_AGAINST: Final = """
SELECT p.disabled_at IS NOT NULL, r.principal, w.tool IS NOT NULL, c.tool, c.tool_version,
       r.status, c.compensates IS NOT NULL, r.deadline <= fencepost.now()
FROM fencepost.calls c JOIN fencepost.runs r ON r.tenant = c.tenant AND r.id = c.run
LEFT JOIN fencepost.principals p ON p.tenant = r.tenant AND p.principal = r.principal
LEFT JOIN fencepost.withdrawn w ON w.tool = c.tool AND w.version = c.tool_version
WHERE c.tenant = %(tenant)s AND c.id = %(call)s
"""


def against(connection: Connection, tenant: str, call: UUID) -> list[str]:
    """What the ledger knows now that would have this call refused when it is claimed, approved or not.

    Not what the policy says: that is asked in the claim. What ends a run does not stop what offsets its
    effects.
    """
    row = connection.execute(_AGAINST, {"tenant": tenant, "call": call}).fetchone()
    if row is None:
        return []
    disabled, principal, gone, tool, version, status, offsets, late = row
    found = []
    if disabled:
        found.append(f"the principal {sanitize(principal, 80)} is disabled")
    if gone:
        found.append(f"version {version} of {sanitize(tool, 80)} is withdrawn")
    if not offsets and status in _ENDING:
        found.append(f"its run is {status}")
    elif not offsets and late:
        found.append("its run's deadline has passed")
    return found


def _made(row: Sequence[Any]) -> Waiting | None:
    approval = read(row[-2])
    values = [*row[:-2], approval, row[-1]]
    return Waiting(*values) if approval is not None else None
