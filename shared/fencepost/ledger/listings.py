"""What people read of the ledger: runs, one run's whole history, workers, the outbox.

Read-only. Ages are judged by the ledger's clock, which every answer that needs it carries as `now`. What one
function returns is consistent in itself. A producer's login may list runs, a reader's may read everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from fencepost.clock import NEVER
from fencepost.events import Event
from fencepost.ledger import providers, rows
from fencepost.ledger.connect import Connection
from fencepost.states import RUN_ENDS
from fencepost.subjects import Call, Run

OVERDUE: Final = timedelta(minutes=1)
"""A step that has been due for longer than this is stuck: nobody takes it."""

_RUN_INFO: Final = """
r.id, r.tenant, r.run_key, r.planner, r.planner_version, r.principal, r.status, r.stop_reason, r.stop_detail,
r.turn, r.calls, r.attempts, r.open, r.unsettled, r.repairs, r.effects, r.created_at, r.deadline, r.preview,
r.awaiting, r.parent, r.depth, coalesce(json_array_length(r.owed::json), 0)
"""
_STUCK: Final = """
(r.repairs > 0 OR r.awaiting > 0 OR r.owed IS NOT NULL
 OR EXISTS (SELECT 1 FROM fencepost.outbox o WHERE o.tenant = r.tenant AND o.run = r.id
                          AND (o.due_at < fencepost.now() - %(overdue)s::interval OR o.dead_at IS NOT NULL)))
"""
_HISTORY_RUN: Final = f"""
SELECT {rows.select("runs", rows.RUN_COLUMNS)} FROM fencepost.runs WHERE tenant = %(tenant)s AND id = %(run)s
"""
_HISTORY_CALLS: Final = f"""
SELECT {rows.select("calls", rows.CALL_COLUMNS)} FROM fencepost.calls
WHERE tenant = %(tenant)s AND run = %(run)s ORDER BY turn, ordinal, id
"""
_HISTORY_EVENTS: Final = f"""
SELECT {rows.select("events", rows.EVENT_COLUMNS)} FROM fencepost.events
WHERE tenant = %(tenant)s AND run = %(run)s ORDER BY seq
"""
_HISTORY_STEPS: Final = """
SELECT subject, kind, run, queue, generation, due_at, publish_at, publish_count, takeovers, worker, fence,
       failures, error, dead_at
FROM fencepost.outbox WHERE tenant = %(tenant)s AND run = %(run)s ORDER BY due_at, subject
"""
_HISTORY_EVIDENCE: Final = """
SELECT call, attempt, owner, fence, applied, receipt, result, code, recorded_at FROM fencepost.evidence
WHERE tenant = %(tenant)s AND run = %(run)s ORDER BY recorded_at, id
"""
_WORKER: Final = "w.token, w.role, w.host, w.pid, w.started_at, w.last_seen, w.ended_at"
_HISTORY_WORKERS: Final = f"""
SELECT {_WORKER} FROM fencepost.workers w WHERE w.token IN (
    SELECT worker FROM fencepost.outbox WHERE tenant = %(tenant)s AND run = %(run)s
    UNION SELECT body ->> 'worker' FROM fencepost.events
    WHERE tenant = %(tenant)s AND run = %(run)s AND type = 'LeaseAcquired')
"""
_WORKERS: Final = f"""
WITH due AS MATERIALIZED (
    SELECT queue, count(*) AS rows FROM fencepost.outbox
    WHERE due_at <= (SELECT fencepost.now()) AND dead_at IS NULL GROUP BY queue
)
SELECT {_WORKER}, (SELECT count(*) FROM fencepost.outbox o WHERE o.worker = w.token),
       w.progress_at, w.busy, w.slots, w.draining, coalesce(due.rows, 0)
FROM fencepost.workers w LEFT JOIN due ON due.queue = w.role WHERE %(all)s OR w.ended_at IS NULL
ORDER BY w.ended_at IS NOT NULL, w.role, w.started_at
"""
_QUEUES: Final = """
SELECT queue, count(*), count(*) FILTER (WHERE due_at <= now AND dead_at IS NULL),
       min(due_at) FILTER (WHERE due_at <= now AND dead_at IS NULL),
       count(*) FILTER (WHERE worker IS NOT NULL), count(*) FILTER (WHERE publish_count > 1),
       count(*) FILTER (WHERE due_at >= %(never)s),
       min(due_at) FILTER (WHERE due_at > now AND due_at < %(never)s),
       count(*) FILTER (WHERE dead_at IS NOT NULL)
FROM fencepost.outbox, (SELECT fencepost.now() AS now) AS clock GROUP BY queue
"""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Where a run stands.

    `open` calls have not ended; of them `unsettled` are being sent or unknown, `repairs` wait for a person
    to settle them, `awaiting` for one to approve them.
    `effects` are its own committed effects that were not offset; `preview` is the result, cut short.
    `owed` of those it was to offset and did not, although something could: they wait for a person.
    `parent` has started it, `depth` levels below a run that nobody has.
    """

    run_id: UUID
    tenant: str
    run_key: str
    planner: str
    planner_version: int
    principal: str
    status: str
    stop_reason: str | None
    stop_detail: str | None
    turn: int
    calls: int
    attempts: int
    open: int
    unsettled: int
    repairs: int
    effects: int
    created_at: datetime
    deadline: datetime
    preview: str | None
    awaiting: int = 0
    parent: UUID | None = None
    depth: int = 0
    owed: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing plans any more: COMPLETED, or STOPPED."""
        return self.status in RUN_ENDS

    @property
    def blocked(self) -> bool:
        """Whether the run can go on only after a person has settled or approved a call."""
        return not self.ended and 0 < self.repairs + self.awaiting == self.open


@dataclass(frozen=True, slots=True)
class CallRef:
    """Which call is meant, and its state when it was looked for."""

    tenant: str
    run: UUID
    call: UUID
    state: str


@dataclass(frozen=True, slots=True)
class NextStep:
    """An outbox row: what happens next to a run or call, and when; `dead_at`: since when it is set aside."""

    subject: UUID
    kind: str
    run: UUID
    queue: str
    generation: int
    due_at: datetime
    publish_at: datetime
    publish_count: int
    takeovers: int
    worker: str | None
    fence: int
    failures: int = 0
    error: str | None = None
    dead_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FiledEvidence:
    """What a fenced-out worker reported of an attempt."""

    call: UUID
    attempt: int
    owner: str
    fence: int
    applied: bool
    receipt: str | None
    result: str | None
    code: str
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A process that claims. `held` counts what is under its terms; `ended_at` is set once it is gone.

    What it said of itself with its last stamp: when it last took or finished something or found its queue
    empty, how many items it executes of how many it could, whether it takes no more. `waiting` counts the due
    rows of its queue, whoever may take them.
    """

    token: str
    role: str
    host: str
    pid: int
    started_at: datetime
    last_seen: datetime
    ended_at: datetime | None
    held: int = 0
    progress_at: datetime | None = None
    busy: int | None = None
    slots: int | None = None
    draining: bool = False
    waiting: int = 0

    def state(self, now: datetime, ttl: timedelta, limit: timedelta | None) -> str:
        """What it is worth: ended, silent (no stamp for `ttl`), draining, stalled (no progress for `limit`
        although it has room and its queue has work), busy or alive. Without a limit nobody is stalled.
        """
        if self.ended_at is not None:
            return "ended"
        if now - self.last_seen > ttl:
            return "silent"
        if self.draining:
            return "draining"
        room = self.busy is not None and self.slots is not None and self.busy < self.slots
        quiet = limit is not None and now - (self.progress_at or self.started_at) > limit
        if quiet and room and self.waiting:
            return "stalled"
        return "busy" if self.busy else "alive"


@dataclass(frozen=True, slots=True)
class History:
    """One run with all that belongs to it, of one instant; `workers` by token, as far as they are known."""

    now: datetime
    run: Run
    calls: tuple[Call, ...]
    events: tuple[Event, ...]
    steps: tuple[NextStep, ...]
    evidence: tuple[FiledEvidence, ...]
    workers: Mapping[str, WorkerInfo]


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """The outbox rows of one queue; `waiting` are due when a person acts, `republished` were sent twice,
    `dead` are set aside.
    """

    queue: str
    rows: int
    due: int
    oldest_due_at: datetime | None
    held: int
    republished: int
    waiting: int
    next_due_at: datetime | None
    dead: int = 0


def now(connection: Connection) -> datetime:
    """The ledger's time (R6)."""
    row = connection.execute("SELECT fencepost.now()").fetchone()
    assert row is not None
    moment: datetime = row[0]
    return moment


def runs_by_id(connection: Connection, ids: Sequence[UUID]) -> list[RunInfo]:
    """These runs, in no order; what is not there is left out."""
    found = connection.execute(f"SELECT {_RUN_INFO} FROM fencepost.runs r WHERE r.id = ANY(%s)", [list(ids)])
    return [RunInfo(*row) for row in found]


def parent_of(connection: Connection, tenant: str, run: UUID) -> UUID | None:
    """Which run has started this one; None: nobody has."""
    row = connection.execute(
        "SELECT parent FROM fencepost.runs WHERE tenant = %s AND id = %s", [tenant, run]
    ).fetchone()
    return None if row is None else row[0]


def list_runs(
    connection: Connection,
    *,
    status: Sequence[str] = (),
    tenant: str | None = None,
    stuck: bool = False,
    waiting: bool = False,
    owed: bool = False,
    limit: int = 50,
) -> list[RunInfo]:
    """The newest runs; with `stuck` those that wait for a person or for a step nobody takes, with `waiting`
    those that wait for the provider of their model, with `owed` those that stopped and owe an offset.
    """
    conditions = ["true"]
    if status:
        conditions.append("r.status = ANY(%(status)s)")
    if tenant is not None:
        conditions.append("r.tenant = %(tenant)s")
    if stuck:
        conditions.append(_STUCK)
    if owed:
        conditions.append("r.owed IS NOT NULL")
    if waiting:
        conditions.append(providers.WAITS)
    found = connection.execute(
        f"SELECT {_RUN_INFO} FROM fencepost.runs r WHERE {' AND '.join(conditions)}"
        " ORDER BY r.created_at DESC, r.id DESC LIMIT %(limit)s",
        {"status": list(status), "tenant": tenant, "overdue": OVERDUE, "limit": limit},
    )
    return [RunInfo(*row) for row in found]


def history(connection: Connection, tenant: str, run: UUID) -> History | None:
    """Everything about one run, of one snapshot; None if there is none. Ends the connection's transaction."""
    of_run = {"tenant": tenant, "run": run}
    connection.rollback()  # a snapshot can only be asked for at the start
    with connection.transaction(), connection.pipeline():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        reads = [
            connection.execute(statement, of_run)
            for statement in (
                "SELECT fencepost.now()",
                _HISTORY_RUN,
                _HISTORY_CALLS,
                _HISTORY_EVENTS,
                _HISTORY_STEPS,
                _HISTORY_EVIDENCE,
                _HISTORY_WORKERS,
            )
        ]
        clock, runs, calls, events, steps, evidence, workers = (read.fetchall() for read in reads)
    if not runs:
        return None
    return History(
        now=clock[0][0],
        run=Run(*runs[0]),
        calls=tuple(Call(*row) for row in calls),
        events=tuple(Event(*row) for row in events),
        steps=tuple(NextStep(*row) for row in steps),
        evidence=tuple(FiledEvidence(*row) for row in evidence),
        workers={row[0]: WorkerInfo(*row) for row in workers},
    )


def workers(connection: Connection, *, ended: bool = False) -> list[WorkerInfo]:
    """The processes that have not ended, by role; with `ended` all that ever were."""
    return _read(connection, WorkerInfo, _WORKERS, {"all": ended})


def queues(connection: Connection) -> list[QueueInfo]:
    """What lies in the outbox, per queue; a queue with nothing to do is left out."""
    return _read(connection, QueueInfo, _QUEUES, {"never": NEVER})


def _read(connection: Connection, kind: Any, statement: str, parameters: Mapping[str, Any]) -> list[Any]:
    return [kind(*row) for row in connection.execute(statement, parameters)]
