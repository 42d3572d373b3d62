"""The tables of who may have what done: policies, principals, delegations, withdrawals, allowances."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, PrimaryKeyConstraint, Table, Text, Uuid, text

from fencepost.ledger.schema import col, instant, metadata

# Published policies; in force for a tenant is the greatest version of its own and of all tenants' ('').
policies = Table(
    "policies",
    metadata,
    Column("version", BigInteger, autoincrement=False, nullable=False),
    col("tenant", Text, default="''"),
    col("name", Text),
    col("digest", Text),
    col("bundle", Text),
    instant("published_at"),
    col("published_by", Text),
    col("login", Text),
    col("note", Text),
    PrimaryKeyConstraint("version"),
)

# Who is disabled, and what everybody is; a principal that is not here has no roles and is not disabled.
principals = Table(
    "principals",
    metadata,
    col("tenant", Text),
    col("principal", Text),
    col("roles", Text, default="'[]'"),
    instant("disabled_at", null=True),
    col("reason", Text, null=True),
    instant("changed_at"),
    col("changed_by", Text),
    col("version", BigInteger, default="1"),
    PrimaryKeyConstraint("principal", "tenant"),
)

# Who acts with whose authority, for which tools (a pattern), until when.
delegations = Table(
    "delegations",
    metadata,
    col("tenant", Text),
    col("id", Uuid),
    col("principal", Text),
    col("delegate", Text),
    col("tools", Text, default="'*'"),
    instant("since"),
    instant("until"),
    col("made_by", Text),
    col("reason", Text),
    instant("revoked_at", null=True),
    col("revoked_by", Text, null=True),
    PrimaryKeyConstraint("id", "tenant"),
    Index("delegations_delegate", "delegate", postgresql_where=text("revoked_at IS NULL")),
)

withdrawn = Table(
    "withdrawn",
    metadata,
    col("tool", Text),
    Column("version", Integer, autoincrement=False, nullable=False),
    instant("withdrawn_at"),
    col("withdrawn_by", Text),
    col("reason", Text),
    PrimaryKeyConstraint("tool", "version"),
)

# What of an allowance is used and held, per subject and window; a row that is not there is unused.
allowances = Table(
    "allowances",
    metadata,
    col("tenant", Text),
    col("key", Text),
    col("used_count", BigInteger, default="0"),
    col("used_minor", BigInteger, default="0"),
    PrimaryKeyConstraint("key", "tenant"),
    postgresql_with={"fillfactor": "50"},
)
