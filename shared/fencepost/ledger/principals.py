"""Who is disabled, which roles everybody has, who acts for whom, which tool versions are withdrawn: read and
changed by an operator's login.

Every claim reads these rows anew: a change counts from its commit on, also for calls that were authorised
before it and wait in the queue. Postgres notes each change beside it, with the login, the name and the reason
(`changes`); nothing of that is ever edited. Each function here takes a session in autocommit, and is one
transaction. Psycopg's errors come as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from fencepost.authority.standing import MAX_DELEGATIONS
from fencepost.canonical import sanitize
from fencepost.clock import rfc3339
from fencepost.errors import FencepostError, NotFound, UsageError
from fencepost.ledger.connect import Connection
from fencepost.ledger.find import id_range
from fencepost.names import named
from fencepost.office import words

MAX_ROLES: Final = 100
_LONGEST: Final = {"role": 100, "tool": 200, "tools": 200}


class Changed(FencepostError):
    """It has changed since you looked at it; look again, then decide."""


@dataclass(frozen=True, slots=True)
class PrincipalInfo:
    """One principal of a tenant. `reason`: why it is disabled; `version` counts its changes, 0: none."""

    tenant: str
    principal: str
    roles: tuple[str, ...] = ()
    disabled_at: datetime | None = None
    reason: str | None = None
    changed_at: datetime | None = None
    changed_by: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class DelegationInfo:
    """`delegate` may act with the authority of `principal` for tools that fit the pattern, until then."""

    tenant: str
    id: UUID
    principal: str
    delegate: str
    tools: str
    since: datetime
    until: datetime
    made_by: str
    reason: str
    revoked_at: datetime | None = None
    revoked_by: str | None = None

    def state(self, now: datetime) -> str:
        """`valid`, `revoked` or `expired` at that instant."""
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if now < self.until else "expired"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A tool version of which nothing is sent any more, for whomever."""

    tool: str
    version: int
    withdrawn_at: datetime
    withdrawn_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Change:
    """One change as Postgres noted it; `said` is the row after it, or before it was deleted.

    `made_by` and `reason` are None where somebody changed the table by hand; `login` always says whose.
    """

    tenant: str
    at: datetime
    login: str
    made_by: str | None
    reason: str | None
    about: str
    change: str
    said: dict[str, Any]


_PRINCIPAL: Final = "tenant, principal, roles, disabled_at, reason, changed_at, changed_by, version"
_DELEGATION: Final = (
    "tenant, id, principal, delegate, tools, since, until, made_by, reason, revoked_at, revoked_by"
)
# Two that delegate to the same one count after each other.
_ALONE: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%(tenant)s || ' ' || %(delegate)s, 6))"
_LIVING: Final = """
SELECT count(*) FROM fencepost.delegations
WHERE delegate = %(delegate)s AND tenant = %(tenant)s AND revoked_at IS NULL AND until > fencepost.now()
"""
_OF_TENANT: Final = "(tenant = %(tenant)s OR %(tenant)s::text IS NULL)"


def listed(connection: Connection, tenant: str | None = None) -> list[PrincipalInfo]:
    """The principals the ledger knows something of; all others have no roles and are not disabled."""
    statement = f"SELECT {_PRINCIPAL} FROM fencepost.principals WHERE {_OF_TENANT} ORDER BY tenant, principal"
    return [_principal(row) for row in connection.execute(statement, {"tenant": tenant})]


def disable(
    connection: Connection, tenant: str, principal: str, *, by: str, reason: str, seen: int | None = None
) -> PrincipalInfo:
    """From this commit on nothing is sent for it any more. What is in flight ends, and what is in doubt
    stays so until it is known; its runs stop at their next call.

    `seen` is the version the decision was made on: `Changed` if it is another one by now.
    """
    kept = words("reason", reason)
    return _change(
        connection,
        tenant,
        principal,
        lambda old: _State(old.roles, disabled=True, reason=kept),
        by=by,
        reason=reason,
        seen=seen,
    )


def enable(
    connection: Connection, tenant: str, principal: str, *, by: str, reason: str, seen: int | None = None
) -> PrincipalInfo:
    """It may have done again what its grants and policies allow; what was denied meanwhile stays denied."""
    return _change(
        connection,
        tenant,
        principal,
        lambda old: _State(old.roles, disabled=False, reason=None),
        by=by,
        reason=reason,
        seen=seen,
    )


def set_roles(
    connection: Connection,
    tenant: str,
    principal: str,
    *,
    by: str,
    reason: str,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    seen: int | None = None,
) -> PrincipalInfo:
    """Give and take roles, in one change. UsageError for a role that is added and removed at once."""
    more, less = [_name("role", role) for role in add], [_name("role", role) for role in remove]
    if both := sorted(set(more) & set(less)):
        raise UsageError(f"the role {sanitize(both[0], 60)} is added and removed at once")

    def edit(old: PrincipalInfo) -> _State:
        roles = tuple(sorted({*old.roles, *more} - set(less)))
        if len(roles) > MAX_ROLES:
            raise UsageError(f"a principal has at most {MAX_ROLES} roles")
        return _State(roles, old.disabled_at is not None, old.reason)

    return _change(connection, tenant, principal, edit, by=by, reason=reason, seen=seen)


class _State(NamedTuple):
    roles: tuple[str, ...]
    disabled: bool
    reason: str | None


def _change(
    connection: Connection,
    tenant: str,
    principal: str,
    edit: Callable[[PrincipalInfo], _State],
    *,
    by: str,
    reason: str,
    seen: int | None,
) -> PrincipalInfo:
    where = {"tenant": named("tenant", tenant), "principal": named("principal", principal)}
    with _noted(connection, by, reason) as who:
        found = connection.execute(
            f"SELECT {_PRINCIPAL} FROM fencepost.principals"
            " WHERE principal = %(principal)s AND tenant = %(tenant)s FOR UPDATE",
            where,
        ).fetchone()
        old = _principal(found) if found is not None else PrincipalInfo(tenant, principal)
        if seen is not None and seen != old.version:
            raise Changed(f"{sanitize(principal, 80)} is at version {old.version}, not {seen}: look again")
        new = edit(old)
        values: dict[str, Any] = {**where, "by": who, "version": old.version}
        values |= {"roles": json.dumps(list(new.roles)), "disabled": new.disabled, "reason": new.reason}
        row = connection.execute(_INSERT if found is None else _UPDATE, values).fetchone()
        if row is None:  # somebody else was the first to say anything of it, at this instant
            raise Changed(f"{sanitize(principal, 80)} was changed at the same time: look again")
    return _principal(row)


_INSERT: Final = f"""
INSERT INTO fencepost.principals ({_PRINCIPAL})
VALUES (%(tenant)s, %(principal)s, %(roles)s, CASE WHEN %(disabled)s THEN fencepost.now() END, %(reason)s,
    fencepost.now(), %(by)s, 1)
ON CONFLICT DO NOTHING RETURNING {_PRINCIPAL}
"""
_UPDATE: Final = f"""
UPDATE fencepost.principals SET (roles, disabled_at, reason, changed_at, changed_by, version)
    = (%(roles)s, CASE WHEN %(disabled)s THEN coalesce(disabled_at, fencepost.now()) END, %(reason)s,
       fencepost.now(), %(by)s, version + 1)
WHERE principal = %(principal)s AND tenant = %(tenant)s AND version = %(version)s RETURNING {_PRINCIPAL}
"""


def _principal(row: Any) -> PrincipalInfo:
    tenant, principal, roles, *rest = row
    return PrincipalInfo(tenant, principal, tuple(json.loads(roles)), *rest)


# -- delegations ---------------------------------------------------------------------------------------------


def delegations(
    connection: Connection, tenant: str | None = None, *, ended: bool = False
) -> list[DelegationInfo]:
    """Those that hold now, the newest first; with `ended` also what was revoked or has expired."""
    statement = (
        f"SELECT {_DELEGATION} FROM fencepost.delegations WHERE {_OF_TENANT}"
        " AND (%(ended)s OR (revoked_at IS NULL AND until > fencepost.now())) ORDER BY since DESC, id"
    )
    found = connection.execute(statement, {"tenant": tenant, "ended": ended})
    return [DelegationInfo(*row) for row in found]


def delegate(
    connection: Connection,
    tenant: str,
    principal: str,
    delegate: str,
    *,
    until: datetime,
    by: str,
    reason: str,
    tools: str = "*",
) -> DelegationInfo:
    """From this commit until then `delegate` may act with the authority of `principal`, for these tools.

    It gives no more than `principal` has at each instant, and nothing while that is disabled. UsageError for
    a moment that has passed by the ledger's clock, for a delegation to oneself, and for one more than
    `MAX_DELEGATIONS` to one delegate of a tenant that hold or will.
    """
    if principal == delegate:
        raise UsageError("nobody delegates to themselves")
    values = {
        "tenant": named("tenant", tenant),
        "principal": named("principal", principal),
        "delegate": named("delegate", delegate),
        "tools": _name("tools", tools),
        "until": until,
        "id": uuid4(),
    }
    with _noted(connection, by, reason) as who:
        connection.execute(_ALONE, values)
        ((living,),) = connection.execute(_LIVING, values).fetchall()
        if living >= MAX_DELEGATIONS:
            had = f"{sanitize(delegate, 80)} has {living} delegations, and may have {MAX_DELEGATIONS}"
            raise UsageError(f"{had}: revoke some, or give it roles")
        row = connection.execute(
            f"INSERT INTO fencepost.delegations ({_DELEGATION})"
            " SELECT %(tenant)s, %(id)s, %(principal)s, %(delegate)s, %(tools)s, n, %(until)s, %(by)s,"
            " %(reason)s, NULL, NULL FROM fencepost.now() AS n WHERE %(until)s > n"
            f" RETURNING {_DELEGATION}",
            values | {"by": who, "reason": words("reason", reason)},
        ).fetchone()
    if row is None:
        raise UsageError(f"{rfc3339(until)} has passed; a delegation ends in the future")
    return DelegationInfo(*row)


def revoke(connection: Connection, text: str, *, by: str, reason: str) -> DelegationInfo:
    """End the one delegation of this id, or beginning of one: from this commit on it counts in no claim.

    NotFound if there is none, UsageError if there are several, FencepostError if it has ended already.
    """
    low, high = id_range(text)
    with _noted(connection, by, reason) as who:
        found = connection.execute(
            f"SELECT {_DELEGATION} FROM fencepost.delegations WHERE id BETWEEN %s AND %s ORDER BY id LIMIT 2",
            [low, high],
        ).fetchall()
        if not found:
            raise NotFound(f"there is no delegation {sanitize(text, 60)}")
        if len(found) > 1:
            raise UsageError(f"{sanitize(text, 60)} names several delegations; give more of the id")
        one = DelegationInfo(*found[0])
        row = connection.execute(
            "UPDATE fencepost.delegations SET revoked_at = fencepost.now(), revoked_by = %s"
            f" WHERE id = %s AND tenant = %s AND revoked_at IS NULL RETURNING {_DELEGATION}",
            [who, one.id, one.tenant],
        ).fetchone()
        if row is None:
            raise FencepostError(f"delegation {one.id} was revoked already, by {one.revoked_by}")
    return DelegationInfo(*row)


# -- withdrawn tools -----------------------------------------------------------------------------------------


def withdrawn(connection: Connection) -> list[Withdrawal]:
    """Every tool version that is withdrawn."""
    found = connection.execute(
        "SELECT tool, version, withdrawn_at, withdrawn_by, reason FROM fencepost.withdrawn"
        " ORDER BY tool, version"
    )
    return [Withdrawal(*row) for row in found]


def withdraw(connection: Connection, tool: str, version: int, *, by: str, reason: str) -> bool:
    """From this commit on nothing of this version is sent any more, in no tenant; False if so before.

    An unknown outcome of it may still be looked up; it is not repeated.
    """
    with _noted(connection, by, reason) as who:
        done = connection.execute(
            "INSERT INTO fencepost.withdrawn (tool, version, withdrawn_at, withdrawn_by, reason)"
            " VALUES (%s, %s, fencepost.now(), %s, %s) ON CONFLICT DO NOTHING",
            [_name("tool", tool), _version(version), who, words("reason", reason)],
        )
    return done.rowcount == 1


def restore(connection: Connection, tool: str, version: int, *, by: str, reason: str) -> bool:
    """Let this version be sent again; False if it was not withdrawn."""
    with _noted(connection, by, reason):
        done = connection.execute(
            "DELETE FROM fencepost.withdrawn WHERE tool = %s AND version = %s",
            [_name("tool", tool), _version(version)],
        )
    return done.rowcount == 1


# -- who did what --------------------------------------------------------------------------------------------


def changes(connection: Connection, tenant: str | None = None, limit: int = 100) -> list[Change]:
    """What was changed, the latest first; of a tenant with what concerns all tenants."""
    found = connection.execute(
        "SELECT tenant, at, login, made_by, reason, about, change, said FROM fencepost.authority_changes"
        " WHERE tenant IN ('', %(tenant)s) OR %(tenant)s::text IS NULL ORDER BY at DESC, id LIMIT %(limit)s",
        {"tenant": tenant, "limit": limit},
    )
    return [
        Change(of, at, login, made_by, why, about, change, json.loads(said))
        for of, at, login, made_by, why, about, change, said in found
    ]


@contextmanager
def _noted(connection: Connection, by: str, reason: str) -> Iterator[str]:
    """One transaction, of which Postgres notes who makes it and why; that name as it is kept."""
    who, why = named("by", by), words("reason", reason)
    with connection.transaction():
        connection.execute(
            "SELECT set_config('fencepost.by', %s, true), set_config('fencepost.reason', %s, true)",
            [who, why],
        )
        yield who


def _name(kind: str, text: str) -> str:
    hidden = sanitize(text, len(text)) != text
    if not text.strip() or len(text) > _LONGEST[kind] or hidden:
        raise UsageError(
            f"{sanitize(text, 60) or 'an empty text'} is no {kind}: "
            f"1 to {_LONGEST[kind]} characters, none of them hidden"
        )
    return text


def _version(version: int) -> int:
    if not 1 <= version <= 2**31 - 1:
        raise UsageError(f"a tool's version is a whole number from 1 on, not {version}")
    return version
