"""The tables behind the HTTP interface: messages to runs, and the tokens that producers present."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, PrimaryKeyConstraint, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB

from fencepost import names
from fencepost.ledger.schema import col, decided, instant, metadata, named

# Messages to a run, numbered from 1 in the order they were taken; append-only. Only `signal_run` writes them.
signals = Table(
    "signals",
    metadata,
    col("tenant", Text),
    col("run", Uuid),
    Column("number", Integer, autoincrement=False, nullable=False),
    col("key", Text),
    col("name", Text),
    col("body", JSONB),
    col("sender", Text),
    instant("sent_at"),
    PrimaryKeyConstraint("run", "number", "tenant"),
    named("signals", "sender", kind="by"),
    Index("signals_key", "run", "key", "tenant", unique=True),
)

# Who may ask over HTTP: of a token only the digest of its secret is kept. Revoked ones stay, for the record.
api_tokens = Table(
    "api_tokens",
    metadata,
    col("id", Text),
    col("tenant", Text),
    col("principals", Text),
    col("scopes", Text),
    col("digest", Text),
    col("note", Text, default="''"),
    instant("created_at"),
    col("created_by", Text),
    col("login", Text),
    instant("expires_at", null=True),
    instant("last_used_at", null=True),
    instant("revoked_at", null=True),
    col("revoked_by", Text, null=True),
    PrimaryKeyConstraint("id"),
    named("api_tokens", "tenant"),
    decided("api_tokens", "created_by", "revoked_by"),
    CheckConstraint(
        f'principals ~ \'^\\["{names.NAME}"(, "{names.NAME}")*\\]$\'', name="api_tokens_principals_check"
    ),
)
