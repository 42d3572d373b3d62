"""What the HTTP interface reads of the ledger: always of one tenant, by key, a statement each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from fencepost.ledger.connect import Connection
from fencepost.ledger.reads import intact
from fencepost.states import RUN_ENDS
from fencepost_ops.api.asked import ListRequest

Key = tuple[str, UUID]

_COLUMNS: Final = """
r.id, r.run_key, r.planner, r.planner_version, r.principal, r.status, r.stop_reason, r.stop_detail,
r.created_at, r.deadline, r.turn, r.requests, r.calls, r.attempts, r.tokens, r.cost, r.open, r.awaiting,
r.repairs, r.effects, r.tainted IS NOT NULL, r.seq, r.parent, r.root, r.traceparent,
coalesce(json_array_length(r.owed::json), 0), r.result
"""
_RUN: Final = f"""
SELECT {_COLUMNS}, p.data FROM fencepost.runs r
LEFT JOIN fencepost.payloads p ON p.tenant = r.tenant AND p.digest = r.result
WHERE r.tenant = %s AND r.id = %s
"""
_EVENTS: Final = """
SELECT r.status, r.stop_reason, r.stop_detail, r.seq, r.root, n.*
FROM fencepost.runs r LEFT JOIN LATERAL (
    SELECT e.seq, e.id, e.type, e.call, e.attempt, e.recorded_at, e.body::text FROM fencepost.events e
    WHERE e.run = r.id AND e.tenant = r.tenant AND e.seq > %(after)s ORDER BY e.seq LIMIT %(limit)s
) AS n ON true
WHERE r.id = %(run)s AND r.tenant = %(tenant)s ORDER BY n.seq
"""
_OF_RUN: Final = 5  # columns of the run before those of an event
_HEADS: Final = """
SELECT r.tenant, r.id, r.seq, r.ended FROM unnest(%s::text[], %s::uuid[]) AS w (tenant, id)
JOIN fencepost.runs r ON r.id = w.id AND r.tenant = w.tenant
"""


@dataclass(frozen=True, slots=True)
class Run:
    """Where a run stands, for its tenant. `result_text` is JSON; None where there is none, or not read."""

    id: UUID
    run_key: str
    planner: str
    version: int
    principal: str
    status: str
    stop_reason: str | None
    stop_detail: str | None
    created_at: datetime
    deadline: datetime
    turn: int
    requests: int
    calls: int
    attempts: int
    tokens: int
    cost: int
    open: int
    awaiting: int
    repairs: int
    effects: int
    tainted: bool
    seq: int
    parent: UUID | None
    root: UUID | None
    traceparent: str | None
    owed: int
    digest: str | None
    result_text: str | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing happens any more."""
        return self.status in RUN_ENDS


@dataclass(frozen=True, slots=True)
class Told:
    """One event; `body` is its JSON text."""

    seq: int
    id: UUID
    type: str
    call: UUID | None
    attempt: int | None
    at: datetime
    body: str


@dataclass(frozen=True, slots=True)
class Page:
    """Events after those seen before, and where their run stands; `seq` is that of its last event."""

    status: str
    stop_reason: str | None
    stop_detail: str | None
    seq: int
    root: UUID | None
    events: tuple[Told, ...]

    def over(self, after: int) -> bool:
        """Whether the run has ended and everything has been told up to `after`."""
        return self.status in RUN_ENDS and after >= self.seq


def run(connection: Connection, tenant: str, run_id: UUID) -> Run | None:
    """The run with its result; None where this tenant has none of this id."""
    row = connection.execute(_RUN, [tenant, run_id]).fetchone()
    if row is None:
        return None
    found, data = Run(*row[:-1]), row[-1]
    if data is None or found.digest is None or not intact(found.digest, bytes(data)):
        return found  # what is not what was recorded is shown to nobody; its digest tells that there was one
    return replace(found, result_text=bytes(data).decode())


def runs(connection: Connection, tenant: str, wanted: ListRequest) -> list[Run]:
    """One page, the greatest ids first: of runs that `Client` or this interface made, the newest."""
    conditions = ["r.tenant = %(tenant)s"]
    if wanted.status:
        conditions.append("r.status = ANY(%(status)s)")
    if not set(wanted.status) & RUN_ENDS and wanted.status:
        conditions.append("NOT r.ended")  # what an index of open runs serves
    if wanted.planner is not None:
        conditions.append("r.planner = %(planner)s")
    if wanted.run_key is not None:
        conditions.append("r.run_key = %(run_key)s AND r.run_key <> ''")
    if wanted.before is not None:
        conditions.append("r.id < %(before)s")
    found = connection.execute(
        f"SELECT {_COLUMNS} FROM fencepost.runs r WHERE {' AND '.join(conditions)}"
        " ORDER BY r.id DESC LIMIT %(limit)s",
        {
            "tenant": tenant,
            "status": list(wanted.status),
            "planner": wanted.planner,
            "run_key": wanted.run_key,
            "before": wanted.before,
            "limit": wanted.limit,
        },
    )
    return [Run(*row) for row in found]


def events(connection: Connection, tenant: str, run_id: UUID, after: int, limit: int) -> Page | None:
    """The events after number `after`, in order; None where this tenant has no such run."""
    of_run = {"tenant": tenant, "run": run_id, "after": after, "limit": limit}
    found = connection.execute(_EVENTS, of_run).fetchall()
    if not found:
        return None
    told = tuple(Told(*row[_OF_RUN:]) for row in found if row[_OF_RUN] is not None)
    status, reason, detail, seq, root = found[0][:_OF_RUN]
    return Page(status, reason, detail, seq, root, told)


def heads(connection: Connection, of: Sequence[Key]) -> dict[Key, tuple[int, bool]]:
    """The number of the last event of any number of runs, and whether they have ended; one statement."""
    tenants, ids = [tenant for tenant, _ in of], [run_id for _, run_id in of]
    return {(row[0], row[1]): (row[2], row[3]) for row in connection.execute(_HEADS, [tenants, ids])}


def may(connection: Connection) -> bool:
    """Whether this login can do what this interface does."""
    row = connection.execute(
        "SELECT has_function_privilege('fencepost.bearer(text, text)', 'EXECUTE')"
        " AND has_table_privilege('fencepost.payloads', 'SELECT')"
        " AND has_function_privilege('fencepost.signal_run(text, uuid, text, text, jsonb, text)', 'EXECUTE')"
    ).fetchone()
    return row is not None and bool(row[0])
