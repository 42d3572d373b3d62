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

from fencepost.ledger.rows import OPEN_SQL
from fencepost.states import CallState

SCHEMA = "fencepost"

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={"pk": "%(table_name)s_pkey", "uq": "%(table_name)s_%(column_0_N_name)s_key"},
)


def _col(name: str, kind: Any, *, null: bool = False, default: str | None = None) -> Column[Any]:
    return Column(name, kind, nullable=null, server_default=text(default) if default is not None else None)


def _time(name: str, *, null: bool = False, default: str | None = None) -> Column[Any]:
    return _col(name, DateTime(timezone=True), null=null, default=default)


def _derived(name: str, kind: Any, sql: str, *, null: bool = False) -> Column[Any]:
    """A column nobody writes: Postgres computes it with every change of the row."""
    return Column(name, kind, Computed(sql, persisted=True), nullable=null)


def _presented() -> list[Column[Any]]:
    return [
        _col("presented_owner", Text, null=True),
        _col("presented_fence", BigInteger, null=True),
        _col("presented_version", BigInteger, null=True),
        _col("presented_office", Text, null=True),
    ]


_GENESIS_SQL = "'" + "0" * 64 + "'"
_DEAD = ", ".join(f"'{s}'" for s in sorted((CallState.REJECTED, CallState.FAILED, CallState.CANCELLED)))

runs = Table(
    "runs",
    metadata,
    _col("tenant", Text),
    _col("id", Uuid),
    _col("run_key", Text),
    _col("planner", Text),
    _col("planner_version", Integer),
    _col("principal", Text),
    _col("request", JSONB),
    _col("on_stop", Text),
    _time("created_at"),
    _time("deadline"),
    _col("status", Text, default="'QUEUED'"),
    _col("stop_reason", Text, null=True),
    _col("stop_detail", Text, null=True),
    _col("turn", Integer, default="0"),
    _col("requests", Integer, default="0"),
    _col("calls", Integer, default="0"),
    _col("attempts", Integer, default="0"),
    _col("open", Integer, default="0"),
    _col("unsettled", Integer, default="0"),
    _col("repairs", Integer, default="0"),
    _col("effects", Integer, default="0"),
    _col("failures", Integer, default="0"),
    _time("ready_at"),
    _col("result", Text, null=True),
    _col("preview", Text, null=True),
    _col("fence", BigInteger, default="0"),
    _col("owner", Text, null=True),
    _col("calls_sum", Text, default=_GENESIS_SQL),
    _col("seq", BigInteger, default="0"),
    _col("head_hash", Text, default=_GENESIS_SQL),
    *_presented(),
    _col("presented_call", Uuid, null=True),
    _derived("ended", Boolean, "status IN ('COMPLETED', 'STOPPED')"),
    PrimaryKeyConstraint("id", "tenant"),
    # Partial only so that a lookup by id is never planned as a walk through this one.
    Index("runs_key", "run_key", "tenant", unique=True, postgresql_where=text("run_key <> ''")),
    # What the sweep and an operator look through, however many runs have ended.
    Index("runs_open", "created_at", postgresql_where=text("NOT ended")),
    postgresql_with={"fillfactor": "60"},
)

events = Table(
    "events",
    metadata,
    _col("tenant", Text),
    _col("run", Uuid),
    _col("seq", BigInteger),
    _col("id", Uuid),
    _col("type", Text),
    _col("version", Integer),
    _col("call", Uuid, null=True),
    _col("attempt", Integer, null=True),
    _col("body", JSON),  # json, not jsonb: the digest covers the exact text
    _col("digest", Text),
    _col("principal", Text),
    _col("worker", Text, null=True),
    _col("fence", BigInteger, null=True),
    _col("policy", Text, null=True),
    _col("causation", Uuid),
    _time("recorded_at"),
    _col("projection", Text, null=True),
    _col("prev_hash", Text),
    _col("hash", Text),
    PrimaryKeyConstraint("run", "seq", "tenant"),
    UniqueConstraint("id", "tenant"),  # a change's id is its first event's: applying it twice is seen here
    # There should be none: the doctor counts the latest, however long the histories are.
    Index("events_hidden_retries", "recorded_at", postgresql_where=text("type = 'HiddenRetrySeen'")),
)

calls = Table(
    "calls",
    metadata,
    _col("tenant", Text),
    _col("id", Uuid),
    _col("run", Uuid),
    _col("turn", Integer),
    _col("ordinal", Integer),
    _col("label", Text),
    _col("tool", Text),
    _col("tool_version", Integer),
    _col("effect", Text),
    _col("operation", Text, null=True),
    _col("scope", Text),
    _col("compensates", Text, null=True),
    _col("arguments", Text),
    _col("arguments_hash", Text),
    _col("required", Boolean),
    _col("state", Text),
    _col("doubt", Boolean, default="false"),
    _col("attempts", Integer, default="0"),
    _time("ready_at"),
    _col("waits", Boolean, default="false"),
    _col("request", Text, null=True),
    _time("in_flight_until", null=True),
    _time("quiet_at", null=True),
    _time("reconcile_until", null=True),
    _col("asks", Integer, default="0"),
    _col("lost", Boolean, default="false"),
    _col("lookup", Text, null=True),
    _col("receipt", Text, null=True),
    _col("result", Text, null=True),
    _col("preview", Text, null=True),
    _col("error", Text, null=True),
    _col("reused", Boolean, default="false"),
    _col("proof", Uuid, null=True),
    _col("settled_seq", BigInteger, null=True),
    _col("fence", BigInteger, default="0"),
    _col("owner", Text, null=True),
    _col("version", BigInteger),
    *_presented(),
    _derived("live", Boolean, f"state IN ({OPEN_SQL}) OR doubt"),
    _derived("offsets", Text, f"CASE WHEN state NOT IN ({_DEAD}) THEN compensates END", null=True),
    _col("resource", Text, null=True),
    _col("fingerprint", Text, null=True),
    _col("offset_asked", BigInteger, null=True),
    _col("offset_left", BigInteger, null=True),
    _col("proposed", Text, null=True),
    _col("restored", BigInteger, null=True),
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
    _col("tenant", Text),
    _col("key", Text),
    _col("scope", Text),
    _col("arguments_hash", Text),
    _col("status", Text),
    _col("doubt", Boolean, default="false"),
    _col("run", Uuid, null=True),
    _col("call", Uuid, null=True),
    _time("first_sent_at", null=True),
    _time("expires_at", null=True),
    _col("receipt", Text, null=True),
    _col("result", Text, null=True),
    _col("preview", Text, null=True),
    _col("reused", Integer, default="0"),
    _col("proof", Uuid, null=True),
    _col("resource", Boolean, default="false"),
    _col("releases", Boolean, default="false"),
    PrimaryKeyConstraint("key", "tenant"),
    postgresql_with={"fillfactor": "60"},
)

outbox = Table(
    "outbox",
    metadata,
    _col("tenant", Text),
    _col("subject", Uuid),
    _col("kind", Text),
    _col("run", Uuid),
    _col("generation", BigInteger),
    _col("queue", Text),
    _time("due_at"),
    _time("publish_at"),
    _col("publish_count", Integer, default="0"),
    _col("takeovers", Integer, default="0"),
    _col("worker", Text, null=True),
    _col("fence", BigInteger, default="0"),
    # How often this generation could not be published or begun, why, and since when it is set aside.
    _col("failures", Integer, default="0"),
    _col("error", Text, null=True),
    _time("dead_at", null=True),
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
    _col("tenant", Text),
    _col("id", Uuid),
    _col("run", Uuid),
    _col("call", Uuid),
    _col("attempt", Integer),
    _col("owner", Text),
    _col("fence", BigInteger),
    _col("applied", Boolean),
    _col("receipt", Text, null=True),
    _col("result", Text, null=True),
    _col("code", Text),
    _col("retryable", Boolean, default="false"),
    _time("recorded_at"),
    PrimaryKeyConstraint("id", "tenant"),
    Index("evidence_call", "call"),
)

workers = Table(
    "workers",
    metadata,
    _col("token", Text),
    _col("role", Text),
    _col("host", Text),
    _col("pid", Integer),
    _time("started_at"),
    _time("last_seen"),
    _time("ended_at", null=True),
    # What it said of itself with its stamp: when it last took or finished something or found its queue
    # empty, how many items it executes of how many it could, and whether it takes no more.
    _time("progress_at", null=True),
    _col("busy", Integer, null=True),
    _col("slots", Integer, null=True),
    _col("draining", Boolean, default="false"),
    PrimaryKeyConstraint("token"),
)

# One row per scope of a dependency, whichever tenants use it: it is one service, with one retry owner (R4).
# Written only where it fails, is closed or has limits: what is well costs a look at a row, or at none.
dependencies = Table(
    "dependencies",
    metadata,
    _col("scope", Text),
    _col("state", Text, default="'closed'"),
    _time("closed_until", null=True),
    _col("reason", Text, null=True),
    _col("failures", Integer, default="0"),
    _time("failed_at", null=True),
    _col("opens", Integer, default="0"),
    _time("opened_at", null=True),
    _col("probes", Text, default="'{}'"),
    _col("flights", Text, default="'{}'"),
    _time("paced_at", null=True),
    _col("version", BigInteger, default="0"),
    _time("updated_at", null=True),
    PrimaryKeyConstraint("scope"),
    CheckConstraint("state IN ('closed', 'open', 'half_open')", name="dependencies_state_check"),
    postgresql_with={"fillfactor": "50"},
)

# One row per restore of this ledger to an earlier moment; while one is not released the ledger is held.
epochs = Table(
    "epochs",
    metadata,
    Column("epoch", BigInteger, autoincrement=False),
    _time("since"),
    _time("opened_at"),
    _col("opened_by", Text),
    _col("reason", Text),
    _time("released_at", null=True),
    _col("released_by", Text, null=True),
    _col("release_reason", Text, null=True),
    PrimaryKeyConstraint("epoch"),
)

# What the ledger's owner has laid down for everybody; `repair_by_two` is there or it is not.
rules = Table(
    "rules",
    metadata,
    _col("name", Text),
    PrimaryKeyConstraint("name"),
)

intake_refusals = Table(
    "intake_refusals",
    metadata,
    _col("id", Uuid),
    _col("queue", Text),
    _col("tenant", Text),
    _col("principal", Text),
    _col("message", Text),
    _col("error", Text),
    _time("received_at"),
    PrimaryKeyConstraint("id"),
    Index("intake_refusals_received_at", "received_at"),
)

payloads = Table(
    "payloads",
    metadata,
    _col("tenant", Text),
    _col("digest", Text),
    _col("data", LargeBinary),
    PrimaryKeyConstraint("digest", "tenant"),
    # Content-addressed: a flipped byte is refused at the door and found by `verify` afterwards.
    CheckConstraint("digest = encode(sha256(data), 'hex')", name="payloads_digest_check"),
)
