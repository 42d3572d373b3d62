"""Step 1 and 2 of `apply`: lock in a fixed order, then read in new statements (nothing read before the lock
decides).

Order of locks: runs, operations, dependencies, outbox, the waits of a tenant (an advisory lock, in the order
of tenants, of a batch in which a call may begin to wait for what another run waits for, see `circles`), and
allowances (see there). So nobody loads in a ring. Recording may still lock rows of the outbox that it wakes:
a ring of those with the waits of a tenant, or with a counter, is rerun as every deadlock is.

A run's lock covers its calls. Only the outbox row of a claim is taken with SKIP LOCKED: somebody moving it
answers Busy. All statements of both steps travel in one pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from fencepost import commands as c
from fencepost.allowances import Used
from fencepost.authority.standing import EVERYBODY, Standing
from fencepost.breaker import Health
from fencepost.decide.circles import Circles
from fencepost.decide.fold import Child, Known, Row
from fencepost.dependencies import DependencySpec
from fencepost.ledger import circles, drains, health, rows, signals, standing
from fencepost.ledger.concerns import Key, Wanted, parameters, wanted
from fencepost.ledger.connect import Connection, Pipeline
from fencepost.machine import next_row
from fencepost.operations import Operation
from fencepost.records import made
from fencepost.recovery import Evidence
from fencepost.subjects import Call, Run

_RUNS = "unnest(%(run_tenants)s::text[], %(runs)s::uuid[]) AS w (tenant, id)"
_TOUCHED = "unnest(%(call_tenants)s::text[], %(calls)s::uuid[]) AS w (tenant, id)"
_ASKED = "unnest(%(asked_tenants)s::text[], %(asked)s::uuid[]) AS w (tenant, id)"
_WHOLE = "unnest(%(whole_tenants)s::text[], %(whole)s::uuid[]) AS w (tenant, id)"

_CALL_WHAT = rows.select("calls", rows.CALL_COLUMNS)
_ROW_WHAT = rows.select("outbox", rows.ROW_COLUMNS)
_RUN_WHAT = rows.select("runs", rows.RUN_COLUMNS)
_OPERATION_WHAT = rows.select("operations", rows.OPERATION_COLUMNS)

# See schema.py on tenants: by key they are equal, by anything else not distinct.
_OF_RUN = "calls ON calls.run = w.id AND calls.tenant IS NOT DISTINCT FROM w.tenant"
_OPEN = f"FROM {_RUNS} JOIN fencepost.{_OF_RUN} WHERE calls.live"
_NAMED = f"FROM {_TOUCHED} JOIN fencepost.calls USING (tenant, id)"
_EFFECTS = (
    f"FROM {_WHOLE} JOIN fencepost.{_OF_RUN}"
    " WHERE calls.compensates IS NOT NULL OR (calls.state = 'SUCCEEDED' AND calls.effect <> 'read')"
)


def _calls(what: str, *, touched: bool, whole: bool) -> str:
    """The calls a batch needs: its runs' open ones, those it names, and where it offsets, all effects."""
    arms = [_OPEN, *[_NAMED] * touched, *[_EFFECTS] * whole]
    return " UNION ALL ".join(f"SELECT {what} {arm}" for arm in arms)


# A locking SELECT gives each row as it stands once its lock is held, however long that took: what it read is
# what it locked. After a wait Postgres tests the row against the WHERE clause once more; where that holds a
# join or a subselect it may find nothing and drop a row that is there. So these name their rows by arrays,
# computed before: they may lock more than asked for (a tenant's row with another's id), not less.
LOCK_RUNS = f"""
SELECT {_RUN_WHAT} FROM fencepost.runs
WHERE runs.tenant = ANY(%(run_tenants)s::text[]) AND runs.id = ANY(%(runs)s::uuid[])
ORDER BY runs.tenant, runs.id FOR NO KEY UPDATE
"""
NEW_KEYS = """
INSERT INTO fencepost.operations (tenant, key, scope, resource, arguments_hash, status)
SELECT t, k, s, r, '', 'released'
FROM unnest(%(new_tenants)s::text[], %(new_keys)s::text[], %(new_scopes)s::text[],
            %(new_resources)s::boolean[]) AS new (t, k, s, r)
ORDER BY t, k ON CONFLICT DO NOTHING
"""
LOCK_CLAIMED = f"""
SELECT {_ROW_WHAT} FROM fencepost.outbox
WHERE outbox.tenant = ANY(%(claim_tenants)s::text[]) AND outbox.subject = ANY(%(claims)s::uuid[])
ORDER BY outbox.tenant, outbox.subject FOR UPDATE SKIP LOCKED
"""
LOCK_ROWS = f"""
SELECT {_ROW_WHAT} FROM fencepost.outbox
WHERE outbox.tenant = ANY(%(run_tenants)s::text[]) AND outbox.run = ANY(%(runs)s::uuid[])
  AND NOT outbox.subject = ANY(%(claims)s::uuid[])
ORDER BY outbox.tenant, outbox.subject FOR UPDATE
"""
READ_EVIDENCE = f"""
SELECT e.call, e.attempt, e.applied, e.receipt, e.result, e.code, e.retryable FROM {_TOUCHED}
JOIN fencepost.evidence e ON e.call = w.id AND e.tenant IS NOT DISTINCT FROM w.tenant
ORDER BY e.recorded_at, e.id
"""
# Without a lock: an end is final, and makes the row of the call due, whose lock is held.
READ_CHILDREN = f"""
SELECT {_RUN_WHAT}, CASE WHEN runs.status = 'STOPPED' THEN (
    SELECT e.body FROM fencepost.events e WHERE e.run = runs.id AND e.tenant = runs.tenant
        AND e.type = 'RunStopped' ORDER BY e.seq DESC LIMIT 1) END
{_NAMED} JOIN fencepost.runs ON runs.id = calls.child AND runs.tenant = calls.tenant
"""
# One statement instead of three: a batch of one pays for each.
READ_REST = f"""
SELECT fencepost.now(), {standing.ANYTHING},
    (SELECT max(epoch) FROM fencepost.epochs WHERE released_at IS NULL),
    ARRAY(SELECT token FROM fencepost.workers WHERE token = ANY(%(workers)s::text[]) AND ended_at IS NULL
          AND last_seen > fencepost.now() - %(worker_ttl)s::interval),
    ARRAY(SELECT tenant FROM fencepost.events WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id),
    ARRAY(SELECT id FROM fencepost.events WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id),
    (SELECT json_agg(json_build_array(w.tenant, w.id, n.number)) FROM {_ASKED} CROSS JOIN LATERAL (
        SELECT s.number FROM fencepost.signals s WHERE s.run = w.id AND s.tenant IS NOT DISTINCT FROM w.tenant
        ORDER BY s.number DESC LIMIT 1) AS n)
"""


def _read_calls(*, touched: bool, whole: bool) -> str:
    return _calls(_CALL_WHAT, touched=touched, whole=whole)


def _lock_operations(*, touched: bool, whole: bool) -> str:
    """The keys of those calls, and the new ones: each is locked before anything is decided about it."""
    what = "unnest(ARRAY[calls.operation, calls.compensates, calls.resource])"
    new = "SELECT * FROM unnest(%(new_keys)s::text[])"
    return f"""
SELECT {_OPERATION_WHAT} FROM fencepost.operations
WHERE tenant = ANY(%(run_tenants)s::text[])
  AND key = ANY(ARRAY({new} UNION ALL {_calls(what, touched=touched, whole=whole)}))
ORDER BY tenant, key FOR NO KEY UPDATE
"""


_SHAPES = [(touched, whole) for touched in (False, True) for whole in (False, True)]
READ_CALLS = {shape: _read_calls(touched=shape[0], whole=shape[1]) for shape in _SHAPES}
LOCK_OPERATIONS = {shape: _lock_operations(touched=shape[0], whole=shape[1]) for shape in _SHAPES}


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
    applied: set[Key] = field(default_factory=set)
    """Tenants and ids of the events that were there before."""
    half_locked: set[UUID] = field(default_factory=set)
    """Runs of which a claimed row is being moved by somebody at this instant."""
    dependencies: dict[str, Health] = field(default_factory=dict)
    """By scope; a dependency without a row is well."""
    locked: frozenset[str] = frozenset()
    """Scopes of which the row is locked."""
    read: frozenset[str] = frozenset()
    """Scopes that were named to be read, for models; those of calls follow from the calls."""
    epoch: int | None = None
    """The epoch under which the ledger is held, if it is."""
    standing: Standing = EVERYBODY
    allowances: dict[tuple[str, str], Used] = field(default_factory=dict)
    """Counters of allowances that are locked, by tenant and key."""
    children: dict[UUID, Child] = field(default_factory=dict)
    """Runs that calls of this batch have started, as they stand, by their ids."""
    signals: dict[Key, int] = field(default_factory=dict)
    """How many messages runs were sent that are asked, or have answered; those with none are left out."""
    pinned: dict[Key, int] = field(default_factory=dict)
    """Of how many messages the requests told of claims that were applied before; those of none left out."""
    drains: dict[Key, int] = field(default_factory=dict)
    circles: Circles = field(default_factory=Circles)

    def unlocked(self, batch: Sequence[c.Command], known: Known) -> frozenset[str]:
        """Dependencies on which nothing may be decided: not well, or limited, and their row is not locked.

        A call counts where its tool has a limit now, under the scope it was recorded with: a dependency or
        account that was renamed since keeps its limit for the calls that were open.
        """
        needed = {scope for scope, held in self.dependencies.items() if not held.well}
        asked, failed = self._models(batch, known)
        if needed & known.providers:  # read because there are such models, perhaps for nobody in this batch
            called = {call.scope for calls in self.calls.values() for call in calls.values()}
            needed -= known.providers - called - asked.keys() - health.hinted(batch)
        needed |= {scope for scope, spec in asked.items() if spec.limited or scope not in self.read} | failed
        if known.limited:
            depended = [call for x in batch if (call := self._depended(x)) is not None]
            needed |= {call.scope for call in depended if health.limited(call, known)}
        return frozenset(needed) - self.locked

    def _models(self, batch: Sequence[c.Command], known: Known) -> tuple[dict[str, DependencySpec], set[str]]:
        """The dependencies of the models that these commands may ask or tell of, by what the runs say; and
        those that have failed. Workers name them only to spare a second look.
        """
        asked: dict[str, DependencySpec] = {}
        failed: set[str] = set()
        for x in batch:
            run = self.runs.get((x.tenant, x.run)) if isinstance(x, health.OfModel) else None
            agent = known.agent(run.planner, run.planner_version) if run is not None else None
            if run is None or agent is None:
                continue
            models = [agent.model(run.failures)]
            if isinstance(x, c.ClaimRun):  # a lost worker is one failure more, and a closed one passed over
                models += [model for _, model in agent.later(run.failures)]
            asked |= {model.scope: model.dependency for model in models}
            if isinstance(x, c.RecordPlanLost) and health.said(x).failed:
                failed.add(models[0].scope)
        return asked, failed

    def _depended(self, command: c.Command) -> Call | None:
        if isinstance(command, c.ClaimCall | c.ClaimDoubt):
            return self.calls[command.tenant, command.run].get(command.subject)
        if isinstance(command, c.RecordOutcome | c.RecordLookup):
            return self.calls[command.tenant, command.run].get(command.call)
        return None


def _half_locked(batch: Sequence[c.Command], of: Wanted, loaded: Loaded) -> set[UUID]:
    skipped = of.claims - loaded.rows.keys()
    if not skipped:
        return set()
    found = set()
    for claim in batch:
        if isinstance(claim, c.Claim) and (claim.tenant, claim.subject) in skipped:
            run, calls = (claim.tenant, claim.run), loaded.calls[claim.tenant, claim.run]
            subject = loaded.runs.get(run) if claim.subject == claim.run else calls.get(claim.subject)
            if subject is not None and next_row(subject) is not None:
                found.add(claim.run)
    return found


def load(
    connection: Connection,
    pipeline: Pipeline,
    batch: Sequence[c.Command],
    worker_ttl: timedelta,
    watched: frozenset[str] = frozenset(),
    providers: frozenset[str] = frozenset(),
) -> Loaded:
    """Take the batch's locks and read its state. Psycopg errors (lock timeout, deadlock) come as they are.

    `watched` are the scopes of dependencies whose rows are locked, should the batch touch them, `providers`
    those of all models, of which the rows are read if it concerns any.
    """
    of = wanted(batch)
    args = parameters(of, worker_ttl) | health.concerned(batch, watched, providers) | standing.persons(batch)
    shape = bool(of.calls), bool(of.whole)
    runs = connection.execute(LOCK_RUNS, args)
    if of.new:
        connection.execute(NEW_KEYS, args)
    operations = connection.execute(LOCK_OPERATIONS[shape], args)
    ill = _lock_dependencies(connection, args, watched)
    locked = [connection.execute(LOCK_CLAIMED, args)] if of.claims else []
    locked.append(connection.execute(LOCK_ROWS, args))
    calls = connection.execute(READ_CALLS[shape], args)
    evidence = connection.execute(READ_EVIDENCE, args).fetchall if of.calls else list
    children = connection.execute(READ_CHILDREN, args) if any(map(_starts, batch)) else ()
    depended = connection.execute(health.READ_DEPENDENCIES, args) if watched or health.depends(batch) else ()
    rest = connection.execute(READ_REST, args)
    # From a Sync on, Postgres counts how long the transaction stands still (R8); after a Flush, which a fetch
    # sends as well as the end of a pipeline, it does not.
    pipeline.sync()
    loaded, stands = _rest(rest)
    loaded.runs = {(r[0], r[1]): made(Run, r) for r in runs}
    for row in calls:
        call = made(Call, row)
        loaded.calls[call.tenant, call.run][call.id] = call
    loaded.children = {r[1]: Child(made(Run, r[:-1]), r[-1] or {}) for r in children}
    loaded.operations = {(r[0], r[1]): made(Operation, r) for r in operations}
    loaded.rows = {(r[0], r[1]): made(Row, r) for held in locked for r in held}
    loaded.evidence = _evidence(evidence())
    loaded.circles = circles.read(connection, pipeline, circles.awaited(batch, loaded))
    loaded.drains = drains.read(connection, pipeline, batch)
    loaded.pinned = signals.read_pinned(connection, pipeline, loaded.applied & of.plans)
    if stands and standing.authorises(batch):
        loaded.standing = standing.read(connection, pipeline, args)
    loaded.half_locked = _half_locked(batch, of, loaded)
    loaded.read = health.named(batch, watched, providers)
    held = _healths(ill)
    loaded.locked, loaded.dependencies = frozenset(held), _healths(depended) | held
    return loaded


def _starts(x: c.Command) -> bool:
    return isinstance(x, c.DecideRepair) or (isinstance(x, c.ClaimDoubt) and x.starts)


def _rest(read: Iterable[Sequence[Any]]) -> tuple[Loaded, bool]:
    """What `READ_REST` has read, and whether anything stands that authorises."""
    ((now, stands, epoch, alive, tenants, ids, sent),) = read
    loaded = Loaded(now=now, epoch=epoch, alive=set(alive), applied=set(zip(tenants, ids, strict=True)))
    loaded.signals = {(tenant, UUID(run)): number for tenant, run, number in sent or ()}
    return loaded, bool(stands)


def _healths(read: Iterable[Sequence[Any]]) -> dict[str, Health]:
    return {one.scope: one for one in (made(Health, row) for row in read)}


def _lock_dependencies(
    connection: Connection, args: dict[str, Any], watched: frozenset[str]
) -> Iterable[Sequence[Any]]:
    if not (watched or health.any_ill(args)):
        return ()
    connection.execute(health.NEW_DEPENDENCIES, args)
    return connection.execute(health.LOCK_DEPENDENCIES, args)


def _evidence(found: Sequence[Sequence[Any]]) -> dict[UUID, tuple[Evidence, ...]]:
    filed: dict[UUID, list[Evidence]] = defaultdict(list)
    for call_id, *said in found:
        filed[call_id].append(Evidence(*said))
    return {call_id: tuple(facts) for call_id, facts in filed.items()}
