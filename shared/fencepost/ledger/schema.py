"""The ledger's tables: the one definition. `guards` adds what Postgres itself refuses (R7), `roles.py` who
may what.

Alembic migrates to exactly this (a test compares dumps). Every key holds the tenant, so that tenants can be
spread over several Postgres later, but begins with an id, and no other index holds the tenant: while tables
are small or new, Postgres would otherwise plan a lookup by id as a walk through all of a tenant's rows, and
keep the plan. For the same reason lookups by anything but a key compare tenants with IS NOT DISTINCT FROM,
which no index serves. Partial indexes follow columns that Postgres derives from a row's state and that change
only as it ends: an UPDATE that changes no indexed column writes no index. `presented_*` columns are how an
UPDATE presents its term or office to the guards; the guards clear them, so at rest they are null.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSON, JSONB

from fencepost import names
from fencepost.ledger.rows import OPEN_SQL
from fencepost.states import CallState

SCHEMA = "fencepost"

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={"pk": "%(table_name)s_pkey", "uq": "%(table_name)s_%(column_0_N_name)s_key"},
)


def col(name: str, kind: Any, *, null: bool = False, default: str | None = None) -> Column[Any]:
    """A column; `default` is SQL. Texts sort by their bytes: a system's new collation, as of a new C library,
    would leave what is unique twice in an index, or hide it.
    """
    kind = Text(collation="C") if kind is Text else kind
    return Column(name, kind, nullable=null, server_default=text(default) if default is not None else None)


def instant(name: str, *, null: bool = False, default: str | None = None) -> Column[Any]:
    """A column that holds an instant."""
    return col(name, DateTime(timezone=True), null=null, default=default)


def _derived(name: str, kind: Any, sql: str, *, null: bool = False) -> Column[Any]:
    """A column nobody writes: Postgres computes it with every change of the row."""
    kind = Text(collation="C") if kind is Text else kind
    return Column(name, kind, Computed(sql, persisted=True), nullable=null)


def named(table: str, *columns: str, kind: str | None = None) -> CheckConstraint:
    """What refuses a row in which one of these is no name."""
    rule = " AND ".join(names.sql(column, kind or column) for column in columns)
    return CheckConstraint(rule, name=f"{table}_names_check")


def decided(table: str, *columns: str) -> CheckConstraint:
    """What refuses a row in which whoever decides is no name; nobody, or nobody yet, is fine."""
    rule = " AND ".join(names.sql(column, "by") for column in columns)
    return CheckConstraint(rule, name=f"{table}_decided_check")


def _presented() -> list[Column[Any]]:
    return [
        col("presented_owner", Text, null=True),
        col("presented_fence", BigInteger, null=True),
        col("presented_version", BigInteger, null=True),
        col("presented_office", Text, null=True),
    ]


_GENESIS_SQL = "'" + "0" * 64 + "'"
_DEAD = ", ".join(f"'{s}'" for s in sorted((CallState.REJECTED, CallState.FAILED, CallState.CANCELLED)))

runs = Table(
    "runs",
    metadata,
    col("tenant", Text),
    col("id", Uuid),
    col("run_key", Text),
    col("planner", Text),
    col("planner_version", Integer),
    col("principal", Text),
    col("request", JSONB),
    col("on_stop", Text),
    instant("created_at"),
    instant("deadline"),
    col("status", Text, default="'QUEUED'"),
    col("stop_reason", Text, null=True),
    col("stop_detail", Text, null=True),
    col("turn", Integer, default="0"),
    col("requests", Integer, default="0"),
    col("calls", Integer, default="0"),
    col("attempts", Integer, default="0"),
    col("open", Integer, default="0"),
    col("unsettled", Integer, default="0"),
    col("repairs", Integer, default="0"),
    col("effects", Integer, default="0"),
    col("failures", Integer, default="0"),
    instant("ready_at"),
    col("result", Text, null=True),
    col("preview", Text, null=True),
    col("fence", BigInteger, default="0"),
    col("owner", Text, null=True),
    col("calls_sum", Text, default=_GENESIS_SQL),
    col("seq", BigInteger, default="0"),
    col("head_hash", Text, default=_GENESIS_SQL),
    *_presented(),
    col("presented_call", Uuid, null=True),
    _derived("ended", Boolean, "status IN ('COMPLETED', 'STOPPED')"),
    col("tainted", BigInteger, null=True),
    col("awaiting", Integer, default="0"),
    *(col(name, BigInteger, default="0") for name in ("tokens", "cost", "held_tokens", "held_cost", "bytes")),
    *(col(name, Integer, default="0") for name in ("fruitless", "detached", "depth", "outages")),
    col("written", Integer, default="1"),
    *(col(name, Uuid, null=True) for name in ("root", "parent", "parent_call")),
    *(col(name, Text, null=True) for name in ("below", "markers", "traceparent")),
    col("unknowns", Integer, default="0"),
    col("owed", Text, null=True),
    # Who asked for it, as Postgres knows it: whose it is to read (`guards.tenants`).
    col("login", Text, default="session_user"),
    PrimaryKeyConstraint("id", "tenant"),
    named("runs", "tenant", "principal"),
    # Partial only so that a lookup by id is never planned as a walk through this one.
    Index("runs_key", "run_key", "tenant", unique=True, postgresql_where=text("run_key <> ''")),
    # What the sweep and an operator look through, however many runs have ended.
    Index("runs_open", "created_at", postgresql_where=text("NOT ended")),
    Index("runs_owed", "created_at", postgresql_where=text("owed IS NOT NULL")),
    postgresql_with={"fillfactor": "60"},
)

events = Table(
    "events",
    metadata,
    col("tenant", Text),
    col("run", Uuid),
    col("seq", BigInteger),
    col("id", Uuid),
    col("type", Text),
    col("version", Integer),
    col("call", Uuid, null=True),
    col("attempt", Integer, null=True),
    col("body", JSON),  # json, not jsonb: the digest covers the exact text
    col("digest", Text),
    col("principal", Text),
    col("worker", Text, null=True),
    col("fence", BigInteger, null=True),
    col("policy", Text, null=True),
    col("causation", Uuid),
    instant("recorded_at"),
    col("projection", Text, null=True),
    col("prev_hash", Text),
    col("hash", Text),
    PrimaryKeyConstraint("run", "seq", "tenant"),
    named("events", "principal", kind="by"),
    UniqueConstraint("id", "tenant"),  # a change's id is its first event's: applying it twice is seen here
    # There should be none: the doctor counts the latest, however long the histories are.
    Index("events_hidden_retries", "recorded_at", postgresql_where=text("type = 'HiddenRetrySeen'")),
)

calls = Table(
    "calls",
    metadata,
    col("tenant", Text),
    col("id", Uuid),
    col("run", Uuid),
    col("turn", Integer),
    col("ordinal", Integer),
    col("label", Text),
    col("tool", Text),
    col("tool_version", Integer),
    col("effect", Text),
    col("operation", Text, null=True),
    col("scope", Text),
    col("compensates", Text, null=True),
    col("arguments", Text),
    col("arguments_hash", Text),
    col("required", Boolean),
    col("state", Text),
    col("doubt", Boolean, default="false"),
    col("attempts", Integer, default="0"),
    instant("ready_at"),
    col("waits", Boolean, default="false"),
    col("request", Text, null=True),
    instant("in_flight_until", null=True),
    instant("quiet_at", null=True),
    instant("reconcile_until", null=True),
    col("asks", Integer, default="0"),
    col("throttled", Integer, default="0"),
    col("lost", Boolean, default="false"),
    col("lookup", Text, null=True),
    col("receipt", Text, null=True),
    col("result", Text, null=True),
    col("preview", Text, null=True),
    col("error", Text, null=True),
    col("reused", Boolean, default="false"),
    col("proof", Uuid, null=True),
    col("settled_seq", BigInteger, null=True),
    col("fence", BigInteger, default="0"),
    col("owner", Text, null=True),
    col("version", BigInteger),
    *_presented(),
    _derived("live", Boolean, f"state IN ({OPEN_SQL}) OR doubt"),
    _derived("offsets", Text, f"CASE WHEN state NOT IN ({_DEAD}) THEN compensates END", null=True),
    col("resource", Text, null=True),
    col("fingerprint", Text, null=True),
    col("offset_asked", BigInteger, null=True),
    col("offset_left", BigInteger, null=True),
    col("proposed", Text, null=True),
    col("restored", BigInteger, null=True),
    col("approval", Text, null=True),
    col("reserved", Text, null=True),
    col("child", Uuid, null=True),
    col("detached", Boolean, default="false"),
    PrimaryKeyConstraint("id", "tenant"),
    ForeignKeyConstraint(
        ["tenant", "run"], ["fencepost.runs.tenant", "fencepost.runs.id"], name="calls_run_fkey"
    ),
    # What a change loads of a run, however many calls it has had.
    Index("calls_open", "run", postgresql_where=text("live")),
    Index("calls_of_run", "run"),
    # Whom a settled key wakes.
    Index("calls_waiting", "operation", postgresql_where=text("waits")),
    Index("calls_setting", "resource", postgresql_where=text("waits AND resource IS NOT NULL")),
    # One living compensation per effect (I11).
    Index(
        "calls_one_compensation",
        "offsets",
        "tenant",
        unique=True,
        postgresql_where=text("offsets IS NOT NULL"),
    ),
    postgresql_with={"fillfactor": "60"},
)

operations = Table(
    "operations",
    metadata,
    col("tenant", Text),
    col("key", Text),
    col("scope", Text),
    col("arguments_hash", Text),
    col("status", Text),
    col("doubt", Boolean, default="false"),
    col("run", Uuid, null=True),
    col("call", Uuid, null=True),
    instant("first_sent_at", null=True),
    instant("expires_at", null=True),
    col("receipt", Text, null=True),
    col("result", Text, null=True),
    col("preview", Text, null=True),
    col("reused", Integer, default="0"),
    col("proof", Uuid, null=True),
    col("resource", Boolean, default="false"),
    col("releases", Boolean, default="false"),
    col("untrusted", Boolean, default="false"),
    col("meaning", Text, null=True),
    PrimaryKeyConstraint("key", "tenant"),
    postgresql_with={"fillfactor": "60"},
)

outbox = Table(
    "outbox",
    metadata,
    col("tenant", Text),
    col("subject", Uuid),
    col("kind", Text),
    col("run", Uuid),
    col("generation", BigInteger),
    col("queue", Text),
    instant("due_at"),
    instant("publish_at"),
    col("publish_count", Integer, default="0"),
    col("takeovers", Integer, default="0"),
    col("worker", Text, null=True),
    col("fence", BigInteger, default="0"),
    # How often this generation could not be published or begun, why, and since when it is set aside.
    col("failures", Integer, default="0"),
    col("error", Text, null=True),
    instant("dead_at", null=True),
    # Of the tree its run belongs to, none for a root: the trace of whatever is done about it.
    col("root", Uuid, null=True),
    PrimaryKeyConstraint("subject", "tenant"),
    # What no queue holds, and what one may hold: the relay looks for each in its own way.
    Index("outbox_fresh", "publish_at", postgresql_where=text("publish_count = 0")),
    Index("outbox_again", "queue", "publish_at", postgresql_where=text("publish_count > 0")),
    Index("outbox_dead", "dead_at", postgresql_where=text("dead_at IS NOT NULL")),
    Index("outbox_run", "run"),
    Index("outbox_worker", "worker", postgresql_where=text("worker IS NOT NULL")),
    # Rows are updated in place all day: leave room for it and vacuum early.
    postgresql_with={"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0.02"},
)

evidence = Table(
    "evidence",
    metadata,
    col("tenant", Text),
    col("id", Uuid),
    col("run", Uuid),
    col("call", Uuid),
    col("attempt", Integer),
    col("owner", Text),
    col("fence", BigInteger),
    col("applied", Boolean),
    col("receipt", Text, null=True),
    col("result", Text, null=True),
    col("code", Text),
    col("retryable", Boolean, default="false"),
    instant("recorded_at"),
    PrimaryKeyConstraint("id", "tenant"),
    Index("evidence_call", "call"),
)

workers = Table(
    "workers",
    metadata,
    col("token", Text),
    col("role", Text),
    col("host", Text),
    col("pid", Integer),
    instant("started_at"),
    instant("last_seen"),
    instant("ended_at", null=True),
    # What it said of itself with its stamp: when it last took or finished something or found its queue
    # empty, how many items it executes of how many it could, and whether it takes no more.
    instant("progress_at", null=True),
    col("busy", Integer, null=True),
    col("slots", Integer, null=True),
    col("draining", Boolean, default="false"),
    col("knows", Text, null=True),
    PrimaryKeyConstraint("token"),
)

# One row per scope of a dependency, whichever tenants use it: it is one service, with one retry owner (R4).
# Written only where it fails, is closed or has limits: what is well costs a look at a row, or at none.
dependencies = Table(
    "dependencies",
    metadata,
    col("scope", Text),
    col("state", Text, default="'closed'"),
    instant("closed_until", null=True),
    col("reason", Text, null=True),
    col("failures", Integer, default="0"),
    instant("failed_at", null=True),
    col("opens", Integer, default="0"),
    instant("opened_at", null=True),
    col("probes", Text, default="'{}'"),
    col("flights", Text, default="'{}'"),
    instant("paced_at", null=True),
    col("version", BigInteger, default="0"),
    instant("updated_at", null=True),
    PrimaryKeyConstraint("scope"),
    CheckConstraint("state IN ('closed', 'open', 'half_open')", name="dependencies_state_check"),
    postgresql_with={"fillfactor": "50"},
)

# Which ledger this is, wherever it is restored: what is kept of it elsewhere is kept under this. One row.
ledger = Table(
    "ledger",
    metadata,
    col("id", Uuid, default="gen_random_uuid()"),
    PrimaryKeyConstraint("id"),
)

# One row per restore of this ledger to an earlier moment; while one is not released the ledger is held.
# `marked`: what may have been sent since then was made UNKNOWN as it was opened; else it is only held.
epochs = Table(
    "epochs",
    metadata,
    Column("epoch", BigInteger, autoincrement=False),
    instant("since"),
    instant("opened_at"),
    col("opened_by", Text),
    col("reason", Text),
    instant("released_at", null=True),
    col("released_by", Text, null=True),
    col("release_reason", Text, null=True),
    col("marked", Boolean, default="true"),
    PrimaryKeyConstraint("epoch"),
    decided("epochs", "released_by"),  # one that opens by itself says its login, whatever that is
)

# One row per audit that was done while the ledger was held: a release asks for them.
audits = Table(
    "audits",
    metadata,
    col("scope", Text),
    instant("at"),
    instant("since"),
    col("differences", Integer),
    col("login", Text),
    PrimaryKeyConstraint("scope", "at"),
)

# What the ledger's owner has laid down for everybody; `repair_by_two` is there or it is not.
rules = Table(
    "rules",
    metadata,
    col("name", Text),
    PrimaryKeyConstraint("name"),
)

intake_refusals = Table(
    "intake_refusals",
    metadata,
    col("id", Uuid),
    col("queue", Text),
    col("tenant", Text),
    col("principal", Text),
    col("message", Text),
    col("error", Text),
    instant("received_at"),
    PrimaryKeyConstraint("id"),
    Index("intake_refusals_received_at", "received_at"),
)

payloads = Table(
    "payloads",
    metadata,
    col("tenant", Text),
    col("digest", Text),
    col("data", LargeBinary),
    PrimaryKeyConstraint("digest", "tenant"),
    # Content-addressed: a flipped byte is refused at the door and found by `verify` afterwards.
    CheckConstraint("digest = encode(sha256(data), 'hex')", name="payloads_digest_check"),
)
