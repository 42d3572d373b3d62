"""Step 1 and 2 of `apply`: lock in a fixed order, then read in new statements (nothing read before the lock
decides).

Order of locks: runs, operations, outbox. A run's lock covers its calls. Only the outbox row of a claim is
taken with SKIP LOCKED: somebody moving it answers Busy. All statements of both steps travel in one pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from fencepost import commands as c
from fencepost.decide.fold import Row
from fencepost.ledger import rows
from fencepost.ledger.connect import Connection
from fencepost.ledger.rows import OPEN_SQL
from fencepost.machine import next_row
from fencepost.operations import Operation
from fencepost.proposals import Validated
from fencepost.recovery import Evidence
from fencepost.subjects import Call, Run

Key = tuple[str, UUID]

_RUNS = "(SELECT * FROM unnest(%(run_tenants)s::text[], %(runs)s::uuid[]))"
_TOUCHED = "(SELECT * FROM unnest(%(call_tenants)s::text[], %(calls)s::uuid[]))"
_WHOLE = "(SELECT * FROM unnest(%(whole_tenants)s::text[], %(whole)s::uuid[]))"
_CLAIMS = "(SELECT * FROM unnest(%(claim_tenants)s::text[], %(claims)s::uuid[]))"

_OPEN = f"(state IN ({OPEN_SQL}) OR doubt)"
_OPEN_CALLS = f"SELECT {{what}} FROM fencepost.calls WHERE (tenant, run) IN {_RUNS} AND {_OPEN}"
_TOUCHED_CALLS = f"SELECT {{what}} FROM fencepost.calls WHERE (tenant, id) IN {_TOUCHED}"
_EFFECTS = (
    f"SELECT {{what}} FROM fencepost.calls WHERE (tenant, run) IN {_WHOLE}"
    " AND (compensates IS NOT NULL OR (state = 'SUCCEEDED' AND effect <> 'read'))"
)
_THREE = (_OPEN_CALLS, _TOUCHED_CALLS, _EFFECTS)


def _union(what: str) -> str:
    return " UNION ".join(part.format(what=what) for part in _THREE)


_KEYS = (
    "SELECT * FROM unnest(%(key_tenants)s::text[], %(keys)s::text[]) UNION "
    + _union("tenant, operation")
    + " UNION "
    + _union("tenant, compensates")
)
_CALL_WHAT = rows.select("calls", rows.CALL_COLUMNS)

LOCK_RUNS = (
    f"SELECT 1 FROM fencepost.runs WHERE (tenant, id) IN {_RUNS} ORDER BY tenant, id FOR NO KEY UPDATE"
)
NEW_KEYS = """
INSERT INTO fencepost.operations (tenant, key, scope, arguments_hash, status)
SELECT t, k, s, '', 'released'
FROM unnest(%(new_tenants)s::text[], %(new_keys)s::text[], %(new_scopes)s::text[]) AS new (t, k, s)
ORDER BY t, k ON CONFLICT DO NOTHING
"""
LOCK_OPERATIONS = f"""
SELECT 1 FROM fencepost.operations WHERE (tenant, key) IN ({_KEYS}) ORDER BY tenant, key FOR NO KEY UPDATE
"""
_ROW_WHAT = rows.select("outbox", rows.ROW_COLUMNS)
LOCK_CLAIMED = f"""
SELECT {_ROW_WHAT} FROM fencepost.outbox WHERE (tenant, subject) IN {_CLAIMS}
ORDER BY tenant, subject FOR UPDATE SKIP LOCKED
"""
LOCK_ROWS = f"""
SELECT {_ROW_WHAT} FROM fencepost.outbox WHERE (tenant, run) IN {_RUNS} AND (tenant, subject) NOT IN {_CLAIMS}
ORDER BY tenant, subject FOR UPDATE
"""
READ_RUNS = (
    f"SELECT {rows.select('runs', rows.RUN_COLUMNS)} FROM fencepost.runs WHERE (tenant, id) IN {_RUNS}"
)
READ_CALLS = _union(_CALL_WHAT)
READ_OPERATIONS = (
    f"SELECT {rows.select('operations', rows.OPERATION_COLUMNS)} FROM fencepost.operations "
    f"WHERE (tenant, key) IN ({_KEYS})"
)
READ_EVIDENCE = f"""
SELECT call, attempt, applied, receipt, result, code, retryable FROM fencepost.evidence
WHERE (tenant, call) IN {_TOUCHED} ORDER BY recorded_at, id
"""
READ_ALIVE = """
SELECT token FROM fencepost.workers
WHERE token = ANY(%(workers)s) AND ended_at IS NULL AND last_seen > fencepost.now() - %(worker_ttl)s
"""
READ_APPLIED = "SELECT id FROM fencepost.events WHERE id = ANY(%(ids)s)"
READ_NOW = "SELECT fencepost.now()"


@dataclass(slots=True)
class Loaded:
    """What a batch may decide on, read under its locks."""

    now: datetime
    runs: dict[Key, Run] = field(default_factory=dict)
    calls: dict[Key, dict[UUID, Call]] = field(default_factory=lambda: defaultdict(dict))
    operations: dict[tuple[str, str], Operation] = field(default_factory=dict)
    evidence: dict[UUID, tuple[Evidence, ...]] = field(default_factory=dict)
    rows: dict[Key, Row] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    applied: set[UUID] = field(default_factory=set)
    half_locked: set[UUID] = field(default_factory=set)
    """Runs of which a claimed row is being moved by somebody at this instant."""


def parameters(batch: Sequence[c.Command], worker_ttl: timedelta) -> dict[str, Any]:
    """The parameters all statements of a batch share, in lock order."""
    runs = sorted({(x.tenant, x.run) for x in batch})
    calls = sorted({(x.tenant, call) for x in batch for call in touched_calls(x)})
    whole = sorted({(x.tenant, x.run) for x in batch if isinstance(x, c.ClaimStopped | c.RecordCompensation)})
    # Only a claim may be told Busy: where a run has other commands as well, all its rows are waited for.
    waiting = {(x.tenant, x.run) for x in batch if not isinstance(x, c.Claim)}
    claims = sorted(
        {(x.tenant, x.subject) for x in batch if isinstance(x, c.Claim) and (x.tenant, x.run) not in waiting}
    )
    new = sorted({(x.tenant, key, scope) for x in batch for key, scope in _new_keys(x)})
    return {
        "run_tenants": [t for t, _ in runs],
        "runs": [r for _, r in runs],
        "call_tenants": [t for t, _ in calls],
        "calls": [k for _, k in calls],
        "whole_tenants": [t for t, _ in whole],
        "whole": [r for _, r in whole],
        "claim_tenants": [t for t, _ in claims],
        "claims": [s for _, s in claims],
        "new_tenants": [t for t, _, _ in new],
        "new_keys": [k for _, k, _ in new],
        "new_scopes": [s for _, _, s in new],
        "key_tenants": [t for t, _, _ in new],
        "keys": [k for _, k, _ in new],
        "workers": sorted({x.worker for x in batch if isinstance(x, c.Claim)}),
        "worker_ttl": worker_ttl,
        "ids": [x.id for x in batch],
    }


def touched_calls(command: c.Command) -> tuple[UUID, ...]:
    """The calls a command names."""
    if isinstance(command, c.ClaimCall | c.ClaimDoubt | c.Sweep):
        return (command.subject,)
    if isinstance(command, c.RecordCompensation):
        return (command.forward,)
    if isinstance(command, c.RecordOutcome | c.RecordLookup | c.DecideRepair | c.FileEvidence):
        return (command.call,)
    return ()


def _new_keys(command: c.Command) -> list[tuple[str, str]]:
    if isinstance(command, c.RecordTurn):
        proposals = command.proposals
    elif isinstance(command, c.RecordCompensation):
        proposals = (command.proposal,)
    else:
        return []
    return [(p.operation, p.scope) for p in proposals if isinstance(p, Validated) and p.operation is not None]


def _half_locked(batch: Sequence[c.Command], args: dict[str, Any], loaded: Loaded) -> set[UUID]:
    skipped = {*zip(args["claim_tenants"], args["claims"], strict=True)} - loaded.rows.keys()
    found = set()
    for claim in batch:
        if isinstance(claim, c.Claim) and (claim.tenant, claim.subject) in skipped:
            run, calls = (claim.tenant, claim.run), loaded.calls[claim.tenant, claim.run]
            subject = loaded.runs.get(run) if claim.subject == claim.run else calls.get(claim.subject)
            if subject is not None and next_row(subject) is not None:
                found.add(claim.run)
    return found


def load(connection: Connection, batch: Sequence[c.Command], worker_ttl: timedelta) -> Loaded:
    """Take the batch's locks and read its state. Psycopg errors (lock timeout, deadlock) come as they are."""
    args = parameters(batch, worker_ttl)
    with connection.pipeline():
        connection.execute(LOCK_RUNS, args)
        if args["new_keys"]:
            connection.execute(NEW_KEYS, args)
        connection.execute(LOCK_OPERATIONS, args)
        claimed = connection.execute(LOCK_CLAIMED, args)
        others = connection.execute(LOCK_ROWS, args)
        reads = [
            connection.execute(statement, args)
            for statement in (
                READ_RUNS,
                READ_CALLS,
                READ_OPERATIONS,
                READ_EVIDENCE,
                READ_ALIVE,
                READ_APPLIED,
                READ_NOW,
            )
        ]
        runs, calls, operations, evidence, alive, applied, clock = (r.fetchall() for r in reads)
        held = claimed.fetchall() + others.fetchall()
    loaded = Loaded(now=clock[0][0])
    loaded.runs = {(r[0], r[1]): Run(*r) for r in runs}
    for row in calls:
        call = Call(*row)
        loaded.calls[call.tenant, call.run][call.id] = call
    loaded.operations = {(r[0], r[1]): Operation(*r) for r in operations}
    filed: dict[UUID, list[Evidence]] = defaultdict(list)
    for call_id, *said in evidence:
        filed[call_id].append(Evidence(*said))
    loaded.evidence = {call_id: tuple(found) for call_id, found in filed.items()}
    loaded.rows = {(r[0], r[1]): Row(*r) for r in held}
    loaded.half_locked = _half_locked(batch, args, loaded)
    loaded.alive = {r[0] for r in alive}
    loaded.applied = {r[0] for r in applied}
    return loaded
