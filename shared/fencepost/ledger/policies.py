"""Published policies: added, never changed; which one is in force, and what there was before.

In force for a tenant is the greatest version among those published for it and those published for all. A
version published for all therefore also takes the place of a tenant's own that is older. To return to an
earlier one, its bundle is published again, under a new version.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import psycopg

from fencepost.authority.bundle import Bundle, PolicyVersion
from fencepost.authority.standing import Delegation, Principal, Standing
from fencepost.errors import Conflict, NotFound
from fencepost.ledger.connect import Connection
from fencepost.names import named

ALL: Final = ""
"""The tenant of a version that is for all of them."""

_COLUMNS: Final = "version, tenant, name, digest, bundle, published_at, published_by, login, note"
_OF: Final = "(%(tenant)s::text = '' OR p.tenant IN ('', %(tenant)s))"
_IN_FORCE: Final = f"""
SELECT {_COLUMNS} FROM fencepost.policies p WHERE {_OF} AND (%(tenant)s::text <> '' OR p.tenant = '')
ORDER BY version DESC LIMIT 1
"""
_HISTORY: Final = (
    f"SELECT {_COLUMNS} FROM fencepost.policies p WHERE {_OF} ORDER BY version DESC LIMIT %(limit)s"
)
_LIVE: Final = f"""
SELECT {_COLUMNS} FROM fencepost.policies p WHERE version IN (
    SELECT max(q.version) FROM fencepost.policies q GROUP BY q.tenant
    HAVING max(q.version) >=
        (SELECT coalesce(max(a.version), 0) FROM fencepost.policies a WHERE a.tenant = '')
) ORDER BY version DESC
"""
_ONE: Final = f"SELECT {_COLUMNS} FROM fencepost.policies p WHERE version = %s"
# Two that publish at once choose the same version, and the second is refused by its key.
_PUBLISH: Final = f"""
WITH last AS (
    SELECT coalesce(max(p.version), 0) AS version,
        coalesce(max(p.version) FILTER (WHERE {_OF}), 0) AS seen
    FROM fencepost.policies p
)
INSERT INTO fencepost.policies ({_COLUMNS})
SELECT last.version + 1, %(tenant)s, %(name)s, %(digest)s, %(bundle)s, fencepost.now(), %(by)s, session_user,
    %(note)s
FROM last WHERE %(after)s::bigint IS NULL OR last.seen = %(after)s
RETURNING {_COLUMNS}
"""

_RECENT: Final = """
SELECT c.id, c.tenant, c.run, c.tool, c.tool_version, c.arguments, c.arguments_hash, c.operation, c.attempts,
    r.principal, r.tainted IS NOT NULL
FROM fencepost.calls c JOIN fencepost.runs r ON r.id = c.run AND r.tenant = c.tenant
WHERE c.compensates IS NULL AND (%(tenant)s::text = '' OR c.tenant = %(tenant)s)
ORDER BY c.id DESC LIMIT %(limit)s
"""
_PRINCIPALS: Final = """
SELECT tenant, principal, roles, disabled_at IS NOT NULL, coalesce(reason, '') FROM fencepost.principals
WHERE tenant = ANY(%s)
"""
_DELEGATIONS: Final = """
SELECT tenant, principal, delegate, tools, since, until FROM fencepost.delegations
WHERE tenant = ANY(%s) AND revoked_at IS NULL ORDER BY since, id
"""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call as it was proposed, and by whom: what a policy can be asked about again."""

    id: UUID
    tenant: str
    run: UUID
    tool: str
    tool_version: int
    arguments: str
    arguments_hash: str
    operation: str | None
    attempts: int
    principal: str
    tainted: bool


def in_force(connection: Connection, tenant: str = ALL) -> PolicyVersion | None:
    """The version that decides for a tenant; for `ALL`, for those that have none of their own. None: none."""
    row = connection.execute(_IN_FORCE, {"tenant": tenant}).fetchone()
    return None if row is None else PolicyVersion(*row)


def live(connection: Connection) -> list[PolicyVersion]:
    """Every version that is in force for some tenant, the newest first."""
    return [PolicyVersion(*row) for row in connection.execute(_LIVE)]


def version(connection: Connection, number: int) -> PolicyVersion:
    """One version; NotFound if it was never published."""
    row = connection.execute(_ONE, [number]).fetchone()
    if row is None:
        raise NotFound(f"there is no policy version {number}; fencepost policy history lists them")
    return PolicyVersion(*row)


def history(connection: Connection, tenant: str = ALL, limit: int = 1000) -> list[PolicyVersion]:
    """What was published, the newest first: all of it, or what concerns a tenant."""
    found = connection.execute(_HISTORY, {"tenant": tenant, "limit": limit})
    return [PolicyVersion(*row) for row in found]


def publish(
    connection: Connection, bundle: Bundle, *, tenant: str, by: str, note: str, after: int | None = None
) -> PolicyVersion:
    """Publish a bundle: once this is committed, every claim of the tenant is decided by it.

    With `after` only if that is the last version that concerns the tenant (0: there is none; for `ALL` the
    last of any); otherwise, and if somebody publishes at the same instant, Conflict and nothing is changed.
    """
    values = {
        "tenant": tenant if tenant == ALL else named("tenant", tenant),
        "name": bundle.name,
        "digest": bundle.digest,
        "bundle": bundle.pack(),
        "by": named("by", by),
        "note": note,
        "after": after,
    }
    try:
        row = connection.execute(_PUBLISH, values).fetchone()
    except psycopg.errors.UniqueViolation:
        raise Conflict("somebody published at the same instant; look at what, and publish again") from None
    if row is None:
        last = history(connection, tenant, 1)
        seen = f"version {last[0].version} of {last[0].published_by}" if last else "none"
        raise Conflict(f"the last policy is {seen}, not {after}; look at it, and publish after it")
    return PolicyVersion(*row)


def recent(connection: Connection, tenant: str, limit: int) -> tuple[list[RecordedCall], Standing]:
    """The latest calls of a tenant, or of all, the newest first; and how things stand with their principals.

    Compensations are left out. Reads every principal and delegation of the tenants.
    """
    calls = [RecordedCall(*row) for row in connection.execute(_RECENT, {"tenant": tenant, "limit": limit})]
    tenants = sorted({call.tenant for call in calls})
    people = connection.execute(_PRINCIPALS, [tenants]).fetchall()
    delegations = connection.execute(_DELEGATIONS, [tenants]).fetchall()
    return calls, Standing(
        principals={
            (of, name): Principal(tuple(json.loads(roles)), disabled, reason)
            for of, name, roles, disabled, reason in people
        },
        delegations=tuple(Delegation(*row) for row in delegations),
    )
