"""What the ledger's tables hold, read by SQL of the checker's own, in one snapshot."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import class_row

Key = tuple[str, UUID]
"""A tenant and the id of a run or a call."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A row of `runs`. The budgets are what its producer asked for; else 16 turns, 64 calls, 256 attempts."""

    tenant: str
    id: UUID
    run_key: str
    on_stop: str
    status: str
    seq: int
    head_hash: str
    fence: int
    turn: int
    requests: int
    calls: int
    attempts: int
    open: int
    unsettled: int
    repairs: int
    awaiting: int
    effects: int
    failures: int
    may_turn: int
    may_call: int
    may_attempt: int
    wall_clock_ms: int | None
    may_start: int = 16
    parent: UUID | None = None
    parent_call: UUID | None = None
    root: UUID | None = None
    depth: int = 0
    deadline: datetime | None = None
    principal: str = ""
    result: str | None = None
    tokens: int = 0
    cost: int = 0
    held_tokens: int = 0
    held_cost: int = 0
    bytes: int = 0
    fruitless: int = 0
    unknowns: int = 0
    may_tokens: int | None = None
    may_cost: int | None = None
    may_events: int = 50_000
    may_bytes: int = 52_428_800
    may_try: int = 5


@dataclass(frozen=True, slots=True)
class CallRow:
    """A row of `calls`."""

    tenant: str
    id: UUID
    run: UUID
    label: str
    tool: str
    tool_version: int
    effect: str
    operation: str | None
    scope: str
    compensates: str | None
    state: str
    doubt: bool
    attempts: int
    fence: int
    receipt: str | None
    reused: bool
    request: str | None
    arguments: str
    arguments_hash: str
    child: UUID | None = None

    @property
    def named(self) -> str:
        """How a sentence names it."""
        return f"call {self.id} ({self.tool})"


@dataclass(frozen=True, slots=True)
class EventRow:
    """A row of `events`; `body` is its exact text."""

    tenant: str
    run: UUID
    seq: int
    id: UUID
    type: str
    version: int
    call: UUID | None
    attempt: int | None
    body: str
    digest: str
    principal: str
    worker: str | None
    fence: int | None
    policy: str | None
    causation: UUID
    recorded_at: datetime
    projection: str | None
    prev_hash: str
    hash: str


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A row of `outbox`; one with a `dead_at` was set aside, because it failed too often."""

    tenant: str
    subject: UUID
    kind: str
    run: UUID
    queue: str
    due_at: datetime
    dead_at: datetime | None


@dataclass(frozen=True, slots=True)
class OperationRow:
    """A row of `operations`: what the ledger keeps of one key. `call` is its holder, the last one it had."""

    tenant: str
    key: str
    status: str
    doubt: bool
    call: UUID | None
    receipt: str | None
    first_sent_at: datetime | None
    resource: bool


@dataclass(frozen=True, slots=True)
class EpochRow:
    """A row of `epochs`: what the ledger knew of the time in between is lost."""

    since: datetime
    opened_at: datetime


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A row of `authority_changes`; `said` is the changed row as JSON text."""

    tenant: str
    at: datetime
    about: str
    change: str
    said: str


@dataclass(frozen=True, slots=True)
class AllowanceRow:
    """A row of `allowances`: what is used and held of one counter."""

    tenant: str
    key: str
    allowance: str
    used_count: int
    used_minor: int


_SPELLED = {
    "events.body": "body::text AS body",
    "runs.may_turn": "coalesce((request -> 'budget' ->> 'turns')::integer, 16) AS may_turn",
    "runs.may_call": "coalesce((request -> 'budget' ->> 'calls')::integer, 64) AS may_call",
    "runs.may_attempt": "coalesce((request -> 'budget' ->> 'attempts')::integer, 256) AS may_attempt",
    "runs.may_start": "coalesce((request -> 'budget' ->> 'children')::integer, 16) AS may_start",
    "runs.may_tokens": "(request -> 'budget' ->> 'tokens')::bigint AS may_tokens",
    "runs.may_cost": "(request -> 'budget' ->> 'cost')::bigint AS may_cost",
    "runs.may_events": "coalesce((request -> 'budget' ->> 'events')::integer, 50000) AS may_events",
    "runs.may_bytes": "coalesce((request -> 'budget' ->> 'bytes')::bigint, 52428800) AS may_bytes",
    "runs.may_try": "coalesce((request -> 'budget' ->> 'fruitless')::integer, 5) AS may_try",
    "runs.wall_clock_ms": "(request -> 'budget' ->> 'wall_clock_ms')::bigint AS wall_clock_ms",
}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A question about all runs, and the same about some: spelled apart, so that their indexes serve."""

    of_all: str
    of_some: str


def _columns(table: str, kind: type) -> str:
    return ", ".join(_SPELLED.get(f"{table}.{f.name}", f'"{f.name}"') for f in fields(kind))


def _select(table: str, kind: type, *, of_run: str, order: str) -> _Wanted:
    asked = f"SELECT {_columns(table, kind)} FROM fencepost.{table}"
    return _Wanted(f"{asked} ORDER BY {order}", f"{asked} WHERE {of_run} = ANY(%(runs)s) ORDER BY {order}")


_RUNS = _select("runs", RunRow, of_run="id", order="tenant, created_at, id")
_CALLS = _select("calls", CallRow, of_run="run", order="tenant, run, turn, ordinal, id")
_EVENTS = _select("events", EventRow, of_run="run", order="tenant, run, seq")
_OUTBOX = _select("outbox", OutboxRow, of_run="run", order="tenant, subject")
_OPERATIONS = _Wanted(
    f"SELECT {_columns('operations', OperationRow)} FROM fencepost.operations",
    f"SELECT {_columns('operations', OperationRow)} FROM fencepost.operations"
    " WHERE (key, tenant) IN (SELECT operation, tenant FROM fencepost.calls WHERE run = ANY(%(runs)s))",
)
_EPOCHS = "SELECT since, opened_at FROM fencepost.epochs ORDER BY epoch"
_TENANTS = "SELECT tenant FROM fencepost.runs WHERE id = ANY(%(runs)s)"
_NOTED = "SELECT tenant, at, about, change, said FROM fencepost.authority_changes"
_CHANGES = _Wanted(
    f"{_NOTED} ORDER BY at, id",
    f"{_NOTED} WHERE CASE about WHEN 'withdrawn' THEN said::json ->> 'tool' IN"
    " (SELECT tool FROM fencepost.calls WHERE run = ANY(%(runs)s))"
    f" ELSE tenant IN ({_TENANTS}) END ORDER BY at, id",
)
_COUNTED = "SELECT tenant, key, allowance, used_count, used_minor FROM fencepost.allowances"
_ALLOWANCES = _Wanted(_COUNTED, f"{_COUNTED} WHERE tenant IN ({_TENANTS})")
_EVIDENCE = _Wanted(
    "SELECT count(*) FROM fencepost.evidence",
    "SELECT count(*) FROM fencepost.evidence"
    " WHERE call IN (SELECT id FROM fencepost.calls WHERE run = ANY(%(runs)s))",
)


@dataclass(frozen=True, slots=True)
class Tables:
    """The rows of one snapshot, but for the events, which are read run by run."""

    runs: dict[Key, RunRow]
    calls: dict[Key, CallRow]
    outbox: list[OutboxRow]
    evidence: int
    epochs: tuple[EpochRow, ...] = ()
    operations: dict[tuple[str, str], OperationRow] = field(default_factory=dict)
    whole: bool = True
    """Whether these are all runs; else the keys and withdrawals are those of their calls, and other changes
    and counters those of their tenants.
    """
    changes: tuple[ChangeRow, ...] = ()
    allowances: dict[tuple[str, str], AllowanceRow] = field(default_factory=dict)
    read_at: datetime | None = None
    """The ledger's clock."""


class Snapshot:
    """One consistent look at the ledger, of some runs or of all."""

    def __init__(self, connection: psycopg.Connection[Any], runs: Collection[UUID] | None) -> None:
        self._connection = connection
        self._runs = None if runs is None else list(runs)

    def tables(self) -> Tables:
        """All rows but the events."""
        evidence = self._connection.execute(*self._asked(_EVIDENCE)).fetchone()
        clock = self._connection.execute("SELECT fencepost.now()").fetchone()
        return Tables(
            {(r.tenant, r.id): r for r in self._read(RunRow, *self._asked(_RUNS))},
            {(c.tenant, c.id): c for c in self._read(CallRow, *self._asked(_CALLS))},
            self._read(OutboxRow, *self._asked(_OUTBOX)),
            evidence[0] if evidence is not None else 0,
            tuple(self._read(EpochRow, _EPOCHS)),
            {(o.tenant, o.key): o for o in self._read(OperationRow, *self._asked(_OPERATIONS))},
            self._runs is None,
            tuple(self._read(ChangeRow, *self._asked(_CHANGES))),
            {(a.tenant, a.key): a for a in self._read(AllowanceRow, *self._asked(_ALLOWANCES))},
            clock[0] if clock is not None else None,
        )

    def histories(self) -> Iterator[tuple[Key, list[EventRow]]]:
        """The events of one run after the other, in the order of their numbers."""
        with self._connection.cursor("checked_events", row_factory=class_row(EventRow)) as cursor:
            cursor.itersize = 2000
            cursor.execute(*self._asked(_EVENTS))
            for key, events in itertools.groupby(cursor, key=lambda e: (e.tenant, e.run)):
                yield key, list(events)

    def _asked(self, wanted: _Wanted) -> tuple[str, dict[str, Any] | None]:
        if self._runs is None:
            return wanted.of_all, None
        return wanted.of_some, {"runs": self._runs}

    def _read(self, kind: Any, statement: str, values: dict[str, Any] | None = None) -> list[Any]:
        with self._connection.cursor(row_factory=class_row(kind)) as cursor:
            return cursor.execute(statement, values).fetchall()


@contextmanager
def snapshot(connection: psycopg.Connection[Any], runs: Collection[UUID] | None = None) -> Iterator[Snapshot]:
    """A look at the ledger that nothing moves under. The connection must not be inside a transaction."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield Snapshot(connection, runs)
