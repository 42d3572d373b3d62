"""The tables of who may have what done: policies, principals, delegations, withdrawals, allowances."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    text,
)

from fencepost import names
from fencepost.ledger.schema import col, decided, instant, metadata, named

_ROLES = (
    "jsonb_typeof(roles::jsonb) = 'array'"
    """ AND NOT jsonb_path_exists(roles::jsonb, 'strict $[*] ? (@.type() <> "string")')"""
)


def _told(*columns: str) -> str:
    """Moments that every reader can tell: none is infinite, or in a year of five digits."""
    each = (f"{column} >= '0001-01-01 00:00Z' AND {column} < '10000-01-01 00:00Z'" for column in columns)
    return " AND ".join(each)


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
    CheckConstraint(
        f"(tenant = '' OR {names.sql('tenant', 'tenant')}) AND {names.sql('published_by', 'by')}",
        name="policies_names_check",
    ),
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
    named("principals", "tenant", "principal"),
    decided("principals", "changed_by"),
    CheckConstraint(_ROLES, name="principals_roles_check"),
    CheckConstraint(_told("changed_at", "disabled_at"), name="principals_moments_check"),
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
    named("delegations", "tenant", "principal", "delegate"),
    decided("delegations", "made_by", "revoked_by"),
    CheckConstraint(_told("since", "until", "revoked_at"), name="delegations_moments_check"),
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
    decided("withdrawn", "withdrawn_by"),
    CheckConstraint(_told("withdrawn_at"), name="withdrawn_moments_check"),
)

# Every change of a principal, a delegation or a withdrawal, as Postgres itself notes it: the row after it
# (or, of one that is gone, before), whose login it was, and who that person says to be, and why.
authority_changes = Table(
    "authority_changes",
    metadata,
    col("tenant", Text),
    col("id", Uuid),
    instant("at"),
    col("login", Text),
    col("made_by", Text, null=True),
    col("reason", Text, null=True),
    col("about", Text),
    col("change", Text),
    col("said", Text),
    PrimaryKeyConstraint("id", "tenant"),
    decided("authority_changes", "made_by"),
)

# What of an allowance is used and held, per subject and window; a row that is not there is unused. The key is
# a digest: for whom a row counts is told by the history of the call that made it, and is gone with that.
# Limits are those of the last attempt let go; `event` is the one that last moved it; all events of a
# change are presented to the guard, and not kept.
allowances = Table(
    "allowances",
    metadata,
    col("tenant", Text),
    col("key", Text),
    col("allowance", Text),
    instant("since", null=True),
    instant("until", null=True),
    col("first_call", Uuid),
    col("used_count", BigInteger, default="0"),
    col("used_minor", BigInteger, default="0"),
    col("limit_count", BigInteger, null=True),
    col("limit_minor", BigInteger, null=True),
    col("currency", Text, null=True),
    col("event", Uuid, null=True),
    col("presented_events", ARRAY(Uuid), null=True),
    PrimaryKeyConstraint("key", "tenant"),
    CheckConstraint("used_count >= 0 AND used_minor >= 0", name="allowances_used_check"),
    Index("allowances_until", "until", postgresql_where=text("until IS NOT NULL")),
    postgresql_with={"fillfactor": "50"},
)
