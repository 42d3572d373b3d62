"""What the ledger's tables hold, by SQL of the checker's own: one snapshot, a group of runs at a time."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row

Key = tuple[str, UUID]
"""A tenant and the id of a run or a call."""
LIMITS: Final = (
    "statement_timeout",
    "transaction_timeout",
    "idle_in_transaction_session_timeout",
    "lock_timeout",
)
"""Limits of a fleet's sessions, which no reader of everything can keep."""
ANSWER_WITHIN_S: Final = 3600.0  # a server that says nothing for so long is gone
PAGE: Final = 2000  # rows of one round trip


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


def _columns(table: str, kind: type) -> str:
    return ", ".join(_SPELLED.get(f"{table}.{f.name}", f'"{f.name}"') for f in fields(kind))


def _select(table: str, kind: type, *, of_run: str, order: str) -> str:
    what = f"SELECT {_columns(table, kind)} FROM fencepost.{table}"
    return f"{what} WHERE {of_run} = ANY(%(runs)s) ORDER BY {order}"


_RUNS = _select("runs", RunRow, of_run="id", order="tenant, created_at, id")
_CALLS = _select("calls", CallRow, of_run="run", order="tenant, run, turn, ordinal, id")
_EVENTS = _select("events", EventRow, of_run="run", order="tenant, run, seq")
_OUTBOX = _select("outbox", OutboxRow, of_run="run", order="tenant, subject")
_OPERATIONS = (
    f"SELECT {_columns('operations', OperationRow)} FROM fencepost.operations"
    " WHERE (key, tenant) IN (SELECT operation, tenant FROM fencepost.calls WHERE run = ANY(%(runs)s))"
)
_EPOCHS = "SELECT since, opened_at FROM fencepost.epochs ORDER BY epoch"
_TENANTS = "SELECT tenant FROM fencepost.runs WHERE id = ANY(%(runs)s)"
_NOTED = "SELECT tenant, at, about, change, said FROM fencepost.authority_changes"
_COUNTED = "SELECT tenant, key, allowance, used_count, used_minor FROM fencepost.allowances"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A question about all runs, and the same about some: spelled apart, so that their indexes serve."""

    of_all: str
    of_some: str


_CHANGES = _Wanted(
    f"{_NOTED} ORDER BY at, id",
    f"{_NOTED} WHERE CASE about WHEN 'withdrawn' THEN said::json ->> 'tool' IN"
    " (SELECT tool FROM fencepost.calls WHERE run = ANY(%(runs)s))"
    f" ELSE tenant IN ({_TENANTS}) END ORDER BY at, id",
)
_ALLOWANCES = _Wanted(_COUNTED, f"{_COUNTED} WHERE tenant IN ({_TENANTS})")
_EVIDENCE = _Wanted(
    "SELECT count(*) FROM fencepost.evidence",
    "SELECT count(*) FROM fencepost.evidence"
    " WHERE call IN (SELECT id FROM fencepost.calls WHERE run = ANY(%(runs)s))",
)
# Every run, after the root of its tree; and what has rows although there is no such run.
_TREES = "SELECT coalesce(root, id), id FROM fencepost.runs ORDER BY 1, 2"
_STRAYS = """
SELECT DISTINCT s.run FROM (
    SELECT run, tenant FROM fencepost.events UNION SELECT run, tenant FROM fencepost.calls
    UNION SELECT run, tenant FROM fencepost.outbox) s
WHERE NOT EXISTS (SELECT 1 FROM fencepost.runs r WHERE r.id = s.run AND r.tenant = s.tenant)
"""
_SHARED = """
SELECT array_agg(DISTINCT coalesce(r.root, r.id)) FROM fencepost.calls c
JOIN fencepost.runs r ON r.id = c.run AND r.tenant = c.tenant
CROSS JOIN LATERAL unnest(ARRAY[c.operation, c.compensates]) AS k (key)
WHERE k.key IS NOT NULL GROUP BY k.key HAVING count(DISTINCT coalesce(r.root, r.id)) > 1
"""
_NAMED = f"SELECT {_columns('calls', CallRow)} FROM fencepost.calls WHERE operation IS NOT NULL"


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


@dataclass(frozen=True, slots=True)
class Common:
    """What is read once, whatever runs are checked."""

    evidence: int
    epochs: tuple[EpochRow, ...]
    changes: tuple[ChangeRow, ...]
    allowances: dict[tuple[str, str], AllowanceRow]
    read_at: datetime | None


class Snapshot:
    """One consistent look at the ledger, of some runs or of all, a group of them after the other."""

    def __init__(self, connection: psycopg.Connection[Any], runs: Collection[UUID] | None) -> None:
        self._connection = connection
        self._runs = None if runs is None else list(runs)

    def common(self) -> Common:
        """What does not belong to one run."""
        evidence = self._connection.execute(*self._asked(_EVIDENCE)).fetchone()
        clock = self._connection.execute("SELECT fencepost.now()").fetchone()
        return Common(
            evidence[0] if evidence is not None else 0,
            tuple(self._read(EpochRow, _EPOCHS)),
            tuple(self._read(ChangeRow, *self._asked(_CHANGES))),
            {(a.tenant, a.key): a for a in self._read(AllowanceRow, *self._asked(_ALLOWANCES))},
            clock[0] if clock is not None else None,
        )

    def groups(self, size: int) -> Iterator[list[UUID]]:
        """Runs that are to be looked at together: at least `size` where there are so many.

        Whole trees, and whatever runs have a key in common, so that what is held against each other is there:
        only such a group may be larger.
        """
        if self._runs is not None:
            yield self._runs
            return
        sharing = _Sharing()
        for (trees,) in self._streamed("checked_keys", _SHARED):
            sharing.together(trees)
        group: list[UUID] = []
        for tree, found in itertools.groupby(self._streamed("checked_runs", _TREES), key=lambda row: row[0]):
            runs = [run for _, run in found]
            if not sharing.later(tree, runs):
                group += runs
            if len(group) >= size:
                yield group
                group = []
        for runs in sharing.groups():
            group += runs
            if len(group) >= size:
                yield group
                group = []
        group += [run for (run,) in self._connection.execute(_STRAYS)]
        if group:
            yield group

    def tables(self, runs: list[UUID], common: Common) -> Tables:
        """All rows of these runs but their events."""
        values = {"runs": runs}
        return Tables(
            {(r.tenant, r.id): r for r in self._read(RunRow, _RUNS, values)},
            {(c.tenant, c.id): c for c in self._read(CallRow, _CALLS, values)},
            self._read(OutboxRow, _OUTBOX, values),
            common.evidence,
            common.epochs,
            {(o.tenant, o.key): o for o in self._read(OperationRow, _OPERATIONS, values)},
            self._runs is None,
            common.changes,
            common.allowances,
            common.read_at,
        )

    def histories(self, runs: list[UUID]) -> Iterator[tuple[Key, list[EventRow]]]:
        """The events of one run after the other, in the order of their numbers."""
        with self._connection.cursor("checked_events", row_factory=class_row(EventRow)) as cursor:
            cursor.itersize = PAGE
            cursor.execute(_EVENTS, {"runs": runs})
            for key, events in itertools.groupby(cursor, key=lambda e: (e.tenant, e.run)):
                yield key, list(events)

    def keyed(self) -> Iterator[CallRow]:
        """Every call with a key."""
        where, values = "", None
        if self._runs is not None:
            where, values = " AND run = ANY(%(runs)s)", {"runs": self._runs}
        with self._connection.cursor("checked_calls", row_factory=class_row(CallRow)) as cursor:
            cursor.itersize = PAGE
            yield from cursor.execute(_NAMED + where, values)

    def runs_of(self, calls: Collection[UUID]) -> list[UUID]:
        """The runs of these calls, as far as they are looked at."""
        found = self._connection.execute(
            "SELECT DISTINCT run FROM fencepost.calls WHERE id = ANY(%s)", [list(calls)]
        )
        return [run for (run,) in found if self._runs is None or run in self._runs]

    def _streamed(self, name: str, statement: str) -> Iterator[Any]:
        with self._connection.cursor(name) as cursor:
            cursor.itersize = PAGE
            yield from cursor.execute(statement)

    def _asked(self, wanted: _Wanted) -> tuple[str, dict[str, Any] | None]:
        if self._runs is None:
            return wanted.of_all, None
        return wanted.of_some, {"runs": self._runs}

    def _read(self, kind: Any, statement: str, values: dict[str, Any] | None = None) -> list[Any]:
        with self._connection.cursor(row_factory=class_row(kind)) as cursor:
            return cursor.execute(statement, values).fetchall()


class _Sharing:
    """Trees of runs that have keys in common, joined to groups; memory for those alone."""

    def __init__(self) -> None:
        self._above: dict[UUID, UUID] = {}
        self._runs: dict[UUID, list[UUID]] = {}

    def together(self, trees: list[UUID]) -> None:
        """These belong into one group."""
        first = self._top(trees[0])
        for tree in trees:
            self._above[self._top(tree)] = first

    def _top(self, tree: UUID) -> UUID:
        self._above.setdefault(tree, tree)
        while (above := self._above[tree]) != tree:
            self._above[tree] = self._above[above]
            tree = above
        return tree

    def later(self, tree: UUID, runs: list[UUID]) -> bool:
        """Whether it shares keys with others: then its runs are kept, and come with theirs."""
        if tree not in self._above:
            return False
        self._runs.setdefault(self._top(tree), []).extend(runs)
        return True

    def groups(self) -> Iterator[list[UUID]]:
        """The runs of one group after the other."""
        yield from self._runs.values()


@contextmanager
def snapshot(connection: psycopg.Connection[Any], runs: Collection[UUID] | None = None) -> Iterator[Snapshot]:
    """A look at the ledger that nothing moves under. The connection must not be inside a transaction.

    It takes as long as it takes: a fleet's limits on sessions are not its own. They hold again afterwards.
    """
    patience = getattr(connection, "answer_s", None)
    own = {name: _setting(connection, name) for name in LIMITS}
    for name in LIMITS:
        _set(connection, name, "0")
    try:
        if patience is not None:
            connection.answer_s = ANSWER_WITHIN_S  # type: ignore[attr-defined]
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield Snapshot(connection, runs)
    finally:
        if patience is not None:
            connection.answer_s = patience  # type: ignore[attr-defined]
        with suppress(psycopg.Error):  # a session that is lost has no settings either
            for name, value in own.items():
                _set(connection, name, value)


def _setting(connection: psycopg.Connection[Any], name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def _set(connection: psycopg.Connection[Any], name: str, value: str) -> None:
    connection.execute("SELECT set_config(%s, %s, false)", [name, value])
