"""Step 5 of `apply`: write what was decided, a constant number of statements for any number of changes.

The order matters to the guards: events first (rows point at them), new calls under their run's live term,
runs before calls (a run moved by a call's outcome presents that call's term), then the outbox, and last the
counters of allowances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from fencepost import commands as c
from fencepost.allowances import Used
from fencepost.breaker import Health
from fencepost.decide.fold import Presented, Row
from fencepost.events import Event
from fencepost.ledger import allowances, health, rows
from fencepost.ledger.allowances import Moved
from fencepost.ledger.connect import Connection
from fencepost.operations import Operation
from fencepost.states import CallState
from fencepost.subjects import Call, Run

Key = tuple[str, UUID]


class CountMismatchError(Exception):
    """An UPDATE found another number of rows than were locked and decided on: the locks were bypassed."""


@dataclass(slots=True)
class Writing:
    """Everything one batch writes."""

    events: list[Event] = field(default_factory=list)
    records: list[list[Any]] = field(default_factory=list)
    """The events' fields as JSON values."""
    payloads: dict[tuple[str, str], bytes] = field(default_factory=dict)
    new_calls: dict[Key, tuple[Call, Presented]] = field(default_factory=dict)
    runs: dict[Key, tuple[Run, Presented | None]] = field(default_factory=dict)
    calls: dict[Key, tuple[Call, Presented | None]] = field(default_factory=dict)
    operations: dict[tuple[str, str], Operation] = field(default_factory=dict)
    evidence: list[tuple[c.FileEvidence, dict[str, Any]]] = field(default_factory=list)
    """Each with the body of its event, whose text is storable whatever the worker was told."""
    rows: dict[Key, Row] = field(default_factory=dict)
    ended: set[Key] = field(default_factory=set)
    woken: set[tuple[str, str]] = field(default_factory=set)
    """Keys whose waiters go on."""
    freed: set[tuple[str, str]] = field(default_factory=set)
    """Natural resources whose waiters go on."""
    versions: dict[Key, int] = field(default_factory=dict)
    dependencies: dict[str, Health] = field(default_factory=dict)
    allowances: dict[tuple[str, str], Moved] = field(default_factory=dict)
    counters: dict[tuple[str, str], Used] = field(default_factory=dict)
    """Those whose lock is held."""
    starting: list[tuple[str, UUID, UUID]] = field(default_factory=list)
    """Runs to be started: tenant, and the run and call that start each."""
    told: set[Key] = field(default_factory=set)
    """Calls whose runs have ended."""
    changed: set[Key] = field(default_factory=set)
    """Those of `told` whose runs had ended before: what they say has changed."""

    @property
    def anything(self) -> bool:
        """Whether there is something to write. An answer that came too late changes a dependency alone."""
        return bool(self.rows or self.events or self.ended or self.dependencies)


_PRESENTED = ("presented_owner", "presented_fence", "presented_version", "presented_office")
_PRESENTED_TYPES = dict(zip(_PRESENTED, ("text", "bigint", "bigint", "text"), strict=True))
_TYPES = {
    "events": rows.types(Event),
    "runs": rows.types(Run) | _PRESENTED_TYPES | {"presented_call": "uuid"},
    "calls": rows.types(Call) | _PRESENTED_TYPES,
    "operations": rows.types(Operation),
    "outbox": rows.types(Row) | {"publish_at": "timestamptz", "publish_count": "bigint"},
    "evidence": rows.types(Event)
    | rows.types(Call)
    | {"applied": "boolean", "code": "text", "retryable": "boolean"},
}


def _recordset(table: str, names: Sequence[str]) -> str:
    """A JSON parameter as typed rows. Bodies arrive as text, so that their exact characters are kept."""
    typed = ", ".join(f'"{n}" {_TYPES[table][n]}' for n in names)
    return f"json_to_recordset(%s::json) AS n ({typed})"


def _insert(table: str, names: Sequence[str], tail: str = "") -> str:
    made = ", ".join(f'n."{n}"::json' if n == "body" else f'n."{n}"' for n in names)
    into = f"INSERT INTO fencepost.{table} ({rows.columns(names)})"
    return f"{into} SELECT {made} FROM {_recordset(table, names)} {tail}"


def _update(table: str, key: Sequence[str], names: Sequence[str]) -> str:
    source = ", ".join(f'n."{n}"' for n in names)
    match = " AND ".join(f't."{k}" = n."{k}"' for k in key)
    target = rows.columns(names)
    new = _recordset(table, [*key, *names])
    return f"UPDATE fencepost.{table} t SET ({target}) = ({source}) FROM {new} WHERE {match}"


_RUN_FIXED = [
    "tenant",
    "id",
    "run_key",
    "planner",
    "principal",
    "request",
    "on_stop",
    "created_at",
    "deadline",
    "root",
    "parent",
    "parent_call",
    "depth",
    "traceparent",
]
_CALL_FIXED = [
    "tenant",
    "id",
    "run",
    "turn",
    "ordinal",
    "label",
    "tool",
    "tool_version",
    "effect",
    "operation",
    "scope",
    "compensates",
    "arguments",
    "arguments_hash",
    "required",
    "resource",
]
_RUN_SET = [*(n for n in rows.RUN_COLUMNS if n not in _RUN_FIXED), *_PRESENTED, "presented_call"]
_CALL_SET = [*(n for n in rows.CALL_COLUMNS if n not in _CALL_FIXED), *_PRESENTED]
_CALL_NEW = [*rows.CALL_COLUMNS, *_PRESENTED]
_OPERATION_SET = [n for n in rows.OPERATION_COLUMNS if n not in ("tenant", "key", "scope", "resource")]
_ROW_NAMES = [*rows.ROW_COLUMNS, "publish_at", "publish_count"]
_EVIDENCE_NAMES = [
    "tenant",
    "id",
    "run",
    "call",
    "attempt",
    "owner",
    "fence",
    "applied",
    "receipt",
    "result",
    "code",
    "retryable",
    "recorded_at",
]

_event_arrays = rows.arrays(Event, rows.EVENT_COLUMNS)
_new_call_values = rows.values(Call, rows.CALL_COLUMNS)
_run_values = rows.values(Run, ["tenant", "id", *(n for n in rows.RUN_COLUMNS if n not in _RUN_FIXED)])
_call_values = rows.values(Call, ["tenant", "id", *(n for n in rows.CALL_COLUMNS if n not in _CALL_FIXED)])
_operation_values = rows.values(Operation, ["tenant", "key", *_OPERATION_SET])
_row_values = rows.values(Row, rows.ROW_COLUMNS)

INSERT_PAYLOADS = (
    "INSERT INTO fencepost.payloads (tenant, digest, data)"
    " SELECT * FROM unnest(%s::text[], %s::text[], %s::bytea[]) ON CONFLICT DO NOTHING"
)
# One array per column: histories are most of what is written, and arrays are read faster than JSON.
INSERT_EVENTS = f"INSERT INTO fencepost.events ({rows.columns(rows.EVENT_COLUMNS)}) SELECT " + ", ".join(
    f"unnest(%s::{'json' if n == 'body' else _TYPES['events'][n]}[])" for n in rows.EVENT_COLUMNS
)
INSERT_CALLS = _insert("calls", _CALL_NEW)
UPDATE_RUNS = _update("runs", ("tenant", "id"), _RUN_SET)
UPDATE_CALLS = _update("calls", ("tenant", "id"), _CALL_SET)
UPDATE_OPERATIONS = _update("operations", ("tenant", "key"), _OPERATION_SET)
INSERT_EVIDENCE = _insert("evidence", _EVIDENCE_NAMES, "ON CONFLICT DO NOTHING")
UPSERT_ROWS = _insert(
    "outbox",
    _ROW_NAMES,
    "ON CONFLICT (tenant, subject) DO UPDATE"
    " SET (generation, queue, due_at, takeovers, worker, fence, publish_at, publish_count)"
    " = (excluded.generation, excluded.queue, excluded.due_at, excluded.takeovers, excluded.worker,"
    " excluded.fence, excluded.publish_at, 0)",
)
DELETE_ROWS = (
    "DELETE FROM fencepost.outbox WHERE (tenant, subject) IN (SELECT * FROM unnest(%s::text[], %s::uuid[]))"
)
# A settled key wakes its waiters, in this run and in others: due now, the next generation.
# A wake only lowers due_at.
WAKE = """
UPDATE fencepost.outbox o SET due_at = %s, publish_at = %s, generation = o.generation + 1, publish_count = 0
FROM (SELECT w.tenant, w.subject
      FROM unnest(%s::text[], %s::text[]) AS settled (tenant, key)
      JOIN fencepost.calls k ON k.operation = settled.key AND k.tenant IS NOT DISTINCT FROM settled.tenant
      JOIN fencepost.outbox w ON w.subject = k.id AND w.tenant = k.tenant
      WHERE k.waits AND k.state = 'INTENT_RECORDED' AND w.due_at > %s
      ORDER BY w.tenant, w.subject FOR UPDATE OF w) AS due
WHERE o.tenant = due.tenant AND o.subject = due.subject
"""
WAKE_SETTERS = WAKE.replace("k.operation = settled.key", "k.resource = settled.key")


# Each is made from the event that names it, from its parent and from its call, by Postgres itself.
START_CHILDREN = "SELECT fencepost.start_children(%s::text[], %s::uuid[], %s::uuid[])"
# The end of a run makes the row of the call due that waits for it. A wake only lowers due_at, but that is
# compared in a statement of its own, under the lock: whoever holds the row has read the run as going on, and
# is about to put the row off (see `load` on rows that are named by arrays).
LOCK_PARENTS = """
SELECT 1 FROM fencepost.outbox WHERE tenant = ANY(%s::text[]) AND subject = ANY(%s::uuid[])
ORDER BY tenant, subject FOR UPDATE
"""
TELL_PARENTS = """
UPDATE fencepost.outbox o SET due_at = %s, publish_at = %s, generation = o.generation + 1, publish_count = 0
FROM unnest(%s::text[], %s::uuid[]) AS ended (tenant, call)
WHERE o.subject = ended.call AND o.tenant = ended.tenant AND o.queue = 'reconciler' AND o.due_at > %s
"""
# A call that such an end has settled already gets a row once more. Asked after the lock of its row was had:
# whoever was settling it by the end as it was has committed by then.
LOOK_AGAIN = f"""
INSERT INTO fencepost.outbox (tenant, subject, kind, run, generation, queue, due_at, publish_at, root)
SELECT c.tenant, c.id, 'call', c.run, c.version + 1, 'reconciler', %s, %s, r.root
FROM unnest(%s::text[], %s::uuid[]) AS changed (tenant, call)
JOIN fencepost.calls c ON c.id = changed.call AND c.tenant = changed.tenant
JOIN fencepost.runs r ON r.id = c.run AND r.tenant = c.tenant
WHERE c.state NOT IN ('{CallState.SUCCEEDED}', {rows.OPEN_SQL})
ORDER BY c.tenant, c.id ON CONFLICT (tenant, subject) DO NOTHING
"""


def _exactly(update: str) -> str:
    """The UPDATE, refused by Postgres itself unless it changes the number of rows given after its records.

    So that COMMIT can travel with what it commits, and need not wait for us to count.
    """
    return f"WITH n AS ({update} RETURNING 1) SELECT 1 / (count(*) = %s)::int FROM n"


_RUNS_EXACTLY = _exactly(UPDATE_RUNS)
_CALLS_EXACTLY = _exactly(UPDATE_CALLS)
_OPERATIONS_EXACTLY = _exactly(UPDATE_OPERATIONS)
_DEPENDENCIES_EXACTLY = _exactly(health.UPDATE_DEPENDENCIES)


def write(connection: Connection, batch: Writing, now: datetime) -> None:
    """Write and commit. Psycopg errors for what the guards refuse, `CountMismatchError` for lost rows."""
    try:  # any of these may be told what became of those before
        _write_history(connection, batch)
        _write_rows(connection, batch, now)
        _write_outbox(connection, batch, now)
        allowances.write(connection, batch.allowances, batch.counters)
        connection.commit()
    except psycopg.errors.DivisionByZero as error:
        raise CountMismatchError("fewer rows were there to be written than were locked") from error


def _write_history(connection: Connection, batch: Writing) -> None:
    if batch.payloads:
        kept = sorted(batch.payloads.items())  # in order: equal bytes of two batches wait, never in a ring
        columns = ([t for (t, _), _ in kept], [d for (_, d), _ in kept], [data for _, data in kept])
        connection.execute(INSERT_PAYLOADS, columns)
    if batch.events:
        connection.execute(INSERT_EVENTS, _event_arrays(batch.records))


def _write_rows(connection: Connection, batch: Writing, now: datetime) -> None:
    def update(statement: str, records: list[dict[str, Any]]) -> None:
        if records:
            connection.execute(statement, [rows.to_json(records), len(records)])

    if batch.new_calls:
        new = [_new_call_values(call) | rows.presented(by, 0) for call, by in batch.new_calls.values()]
        connection.execute(INSERT_CALLS, [rows.to_json(new)])
    if batch.starting:
        tenants, runs, calls = zip(*sorted(batch.starting), strict=True)
        ids = rows.plain_array(runs), rows.plain_array(calls)
        connection.execute(START_CHILDREN, (rows.text_array(tenants), *ids))
    update(_RUNS_EXACTLY, [_run_record(batch, k) for k in batch.runs])
    update(_CALLS_EXACTLY, [_call_record(batch, k) for k in batch.calls])
    update(_OPERATIONS_EXACTLY, [_operation_values(o) for o in batch.operations.values()])
    update(_DEPENDENCIES_EXACTLY, [health.values(d) for d in batch.dependencies.values()])
    if batch.evidence:
        filed = rows.to_json([_evidence_record(e, said, now) for e, said in batch.evidence])
        connection.execute(INSERT_EVIDENCE, [filed])


def _run_record(batch: Writing, key: Key) -> dict[str, Any]:
    run, by = batch.runs[key]
    record = _run_values(run)
    how = rows.presented(by, batch.versions[key]) if by else {}
    return record | how | {"presented_call": str(by.call) if by and by.via == "call" else None}


def _call_record(batch: Writing, key: Key) -> dict[str, Any]:
    call, by = batch.calls[key]
    record = _call_values(call)
    return record | (rows.presented(by, batch.versions[key]) if by else {})


def _evidence_record(filed: c.FileEvidence, said: dict[str, Any], at: datetime) -> dict[str, Any]:
    term = {"owner": filed.term.owner, "fence": filed.term.fence}
    record = {"tenant": filed.tenant, "id": filed.id, "run": filed.run, "call": filed.call, "recorded_at": at}
    return {name: rows.plain(value) for name, value in (record | term | said).items()}


def _write_outbox(connection: Connection, batch: Writing, now: datetime) -> None:
    if batch.rows:
        records = [
            _row_values(row) | {"publish_at": rows.plain(row.due_at), "publish_count": 0}
            for row in batch.rows.values()
        ]
        connection.execute(UPSERT_ROWS, [rows.to_json(records)])
    if batch.ended:
        gone = batch.ended
        ids = rows.plain_array(subject for _, subject in gone)
        connection.execute(DELETE_ROWS, (rows.text_array(tenant for tenant, _ in gone), ids))
    for statement, settled in ((WAKE, batch.woken), (WAKE_SETTERS, batch.freed)):
        if settled:
            keys = sorted(settled)
            connection.execute(statement, (now, now, [t for t, _ in keys], [k for _, k in keys], now))
    if batch.told:
        of = _named(batch.told)
        connection.execute(LOCK_PARENTS, of)
        connection.execute(TELL_PARENTS, (now, now, *of, now))
    if batch.changed:
        connection.execute(LOOK_AGAIN, (now, now, *_named(batch.changed)))


def _named(calls: set[Key]) -> tuple[str, str]:
    kept = sorted(calls)
    return rows.text_array(tenant for tenant, _ in kept), rows.plain_array(call for _, call in kept)
