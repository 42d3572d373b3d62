"""What workers read of the ledger outside `apply`: hints to prepare a step with, never grounds to decide one.

Everything here may be stale by the time it is used; the claim reads again under its locks. Each function
takes one round trip, whatever the number of subjects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from fencepost.ledger.connect import Connection
from fencepost.records import made

Subject = tuple[str, UUID]
"""A tenant, and a run or call of it."""

_SUBJECTS = "unnest(%(tenants)s::text[], %(ids)s::uuid[]) AS s (tenant, id)"

_CONTEXT_CALLS = """
SELECT calls.tenant, calls.run, calls.id, calls.turn, calls.ordinal, calls.version, calls.label, calls.tool,
       calls.arguments, calls.state, payloads.data, calls.error, calls.receipt, calls.tool_version,
       calls.result, calls.detached, failure.body ->> 'code'
FROM unnest(%(tenants)s::text[], %(ids)s::uuid[], %(versions)s::bigint[]) AS s (tenant, id, version)
JOIN fencepost.calls ON calls.run = s.id AND calls.tenant IS NOT DISTINCT FROM s.tenant
    AND calls.version > s.version
LEFT JOIN fencepost.payloads ON payloads.tenant = calls.tenant AND payloads.digest = calls.result
LEFT JOIN fencepost.events failure ON calls.state = 'FAILED' AND failure.id = calls.proof
    AND failure.tenant = calls.tenant
WHERE calls.compensates IS NULL
ORDER BY calls.turn, calls.ordinal, calls.id
"""
# An owner is named only for a row that is due: only then may a lease be taken from it.
_PREPARE = f"""
SELECT o.subject, o.kind, o.run, o.tenant, o.generation, o.queue, coalesce(c.fence, r.fence),
       CASE WHEN o.due_at <= fencepost.now() THEN coalesce(c.owner, r.owner) END,
       c.tool, c.tool_version, c.arguments, c.request, c.operation, c.effect,
       r.planner, r.planner_version, coalesce(r.failures, 0),
       coalesce(o.root, o.run), fencepost.now() - o.due_at
FROM {_SUBJECTS} JOIN fencepost.outbox o ON o.tenant = s.tenant AND o.subject = s.id
LEFT JOIN fencepost.runs r ON o.kind = 'run' AND r.tenant = s.tenant AND r.id = s.id
LEFT JOIN fencepost.calls c ON o.kind = 'call' AND c.tenant = s.tenant AND c.id = s.id
"""


@dataclass(frozen=True, slots=True)
class ContextCall:
    """What a planner is told of one call; `result` is the bytes of its result, None where it has none.

    `code` is that of the failure that ended it: `error` has its words alone.
    """

    tenant: str
    run: UUID
    id: UUID
    turn: int
    ordinal: int
    version: int
    label: str
    tool: str
    arguments: str
    state: str
    result: bytes | None
    error: str | None
    receipt: str | None
    tool_version: int = 0
    digest: str | None = None
    detached: bool = False
    code: str | None = None

    @property
    def damaged(self) -> str | None:
        """What is wrong with its stored result, in a sentence; None where it is what was recorded."""
        if self.digest is None or (self.result is not None and intact(self.digest, self.result)):
            return None
        what = "is missing" if self.result is None else "was changed: its hash is another"
        return f"the stored result {self.digest} of call {self.id} {what}; restore it from a backup"


def intact(digest: str, data: bytes) -> bool:
    """Whether these are the bytes that were kept under this digest."""
    return hashlib.sha256(data).hexdigest() == digest


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a worker prepares a claim with: `fence` is the floor of the lease to ask for.

    `owner` is whom a due row names: the lease may be taken from it. A run has None in the fields of a call,
    and a call none of a run's: its planner, and how often in a row that gave no answer.
    """

    kind: str
    run: UUID
    tenant: str
    generation: int
    queue: str
    fence: int
    owner: str | None
    tool: str | None
    tool_version: int | None
    arguments: str | None
    request: str | None
    operation: str | None
    effect: str | None
    planner: str | None = None
    planner_version: int | None = None
    failures: int = 0
    root: UUID | None = None
    """Of the tree its run belongs to: the id by which all that is done for it belongs together."""
    waited: timedelta = timedelta(0)
    """Since when it is due; less than nothing if it is not."""


def _split(subjects: Sequence[Subject]) -> dict[str, object]:
    return {"tenants": [tenant for tenant, _ in subjects], "ids": [subject for _, subject in subjects]}


def context_calls(
    connection: Connection, of: Sequence[tuple[str, UUID, int]]
) -> dict[Subject, list[ContextCall]]:
    """The calls of any number of runs that changed above a version (0: all of them); one statement.

    In order of turn and position in it; compensations, and runs of which there is nothing, are left out.
    """
    columns = {
        "tenants": [t for t, _, _ in of],
        "ids": [r for _, r, _ in of],
        "versions": [v for _, _, v in of],
    }
    calls: dict[Subject, list[ContextCall]] = {}
    for row in connection.execute(_CONTEXT_CALLS, columns):
        calls.setdefault((row[0], row[1]), []).append(made(ContextCall, row))
    return calls


def prepare(connection: Connection, subjects: Sequence[Subject]) -> dict[UUID, Prepared]:
    """What is needed to claim any number of subjects, in one statement; what has ended is left out."""
    found = connection.execute(_PREPARE, _split(list(dict.fromkeys(subjects)))).fetchall()
    return {row[0]: Prepared(*row[1:]) for row in found}


def payload(connection: Connection, tenant: str, digest: str) -> bytes | None:
    """The bytes kept under a digest, None where there are none."""
    found = connection.execute(
        "SELECT data FROM fencepost.payloads WHERE tenant = %s AND digest = %s", [tenant, digest]
    ).fetchone()
    return bytes(found[0]) if found is not None else None


def payloads(connection: Connection, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
    """The bytes of any number of (tenant, digest) pairs, in one statement; what is not there is left out."""
    found = connection.execute(
        "SELECT tenant, digest, data FROM fencepost.payloads"
        " WHERE (tenant, digest) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
        ([tenant for tenant, _ in wanted], [digest for _, digest in wanted]),
    ).fetchall()
    return {(tenant, digest): bytes(data) for tenant, digest, data in found}
