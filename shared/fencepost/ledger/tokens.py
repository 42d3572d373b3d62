"""The tokens that producers over HTTP present: made by an operator, shown once, kept as a digest.

A token names a tenant, the principals that may be named with it (the first is who asks where nobody is named)
and what it may do. Every request reads its row anew: what is revoked or has expired counts no more from then
on. Its secret has 256 bits, so that a plain digest tells nothing; digests are compared in constant time.
Each function takes a session in autocommit; psycopg's errors come as they are.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from fencepost.canonical import sanitize
from fencepost.errors import FencepostError, NotFound, UsageError
from fencepost.ledger.connect import Connection
from fencepost.names import named

SCOPES: Final = ("runs:write", "runs:read", "runs:cancel", "runs:signal")
MAX_PRINCIPALS: Final = 100
MAX_LIFETIME: Final = timedelta(days=3650)
_FORM: Final = re.compile(r"fpt_([0-9a-f]{16})_[A-Za-z0-9_-]{43}", re.ASCII)
_COLUMNS: Final = (
    "id, tenant, principals, scopes, note, created_at, created_by, login, expires_at, last_used_at,"
    " revoked_at, revoked_by"
)


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """What is known of a token, its secret excepted."""

    id: str
    tenant: str
    principals: tuple[str, ...]
    scopes: tuple[str, ...]
    note: str
    created_at: datetime
    created_by: str
    login: str
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None

    def state(self, now: datetime) -> str:
        """`valid`, `revoked` or `expired` at that instant."""
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if self.expires_at is None or now < self.expires_at else "expired"


@dataclass(frozen=True, slots=True)
class Bearer:
    """Who asks: what an accepted token says."""

    token: str
    tenant: str
    principals: tuple[str, ...]
    scopes: frozenset[str]

    @property
    def principal(self) -> str:
        """Whose authority is used where a request names nobody."""
        return self.principals[0]


@dataclass(frozen=True, slots=True)
class Presented:
    """A token as somebody presented it: which one it says to be, and the digest of the whole."""

    id: str
    digest: str

    def __str__(self) -> str:
        return f"{self.id}:{self.digest}"


def presented(text: str) -> Presented | None:
    """What a header's token claims to be; None for what has not the form of one."""
    match = _FORM.fullmatch(text)
    return Presented(match[1], _digest(text)) if match is not None else None


def _digest(text: str) -> str:
    return sha256(b"fencepost.token.v1\0" + text.encode()).hexdigest()


def bearer(connection: Connection, said: Presented) -> Bearer | None:
    """Whom to take the presenter for, as its row stands now; None for nobody. Notes that it was used."""
    row = connection.execute("SELECT * FROM fencepost.bearer(%s, %s)", [said.id, said.digest]).fetchone()
    if row is None:
        return None
    name, tenant, principals, scopes = row
    return Bearer(name, tenant, tuple(json.loads(principals)), frozenset(json.loads(scopes)))


def living(connection: Connection) -> frozenset[str]:
    """Which of the tokens that this session presents count still, as they are presented."""
    ((found,),) = connection.execute("SELECT fencepost.living_tokens()").fetchall()
    return frozenset(found)


def make(
    connection: Connection,
    tenant: str,
    principals: Sequence[str],
    *,
    by: str,
    scopes: Sequence[str] = SCOPES,
    lifetime: timedelta | None = None,
    note: str = "",
) -> tuple[TokenInfo, str]:
    """A new token, and its text, which is kept nowhere; takes an operator's login.

    UsageError for a name that cannot be, an unknown scope, or a lifetime that is none.
    """
    names = list(dict.fromkeys(named("principal", name) for name in principals))
    if not 1 <= len(names) <= MAX_PRINCIPALS:
        raise UsageError(f"a token names 1 to {MAX_PRINCIPALS} principals")
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise UsageError(f"there is no scope {sanitize(unknown[0], 60)}; there are {', '.join(SCOPES)}")
    if not scopes:
        raise UsageError(f"a token without a scope may do nothing; there are {', '.join(SCOPES)}")
    if lifetime is not None and not timedelta(0) < lifetime <= MAX_LIFETIME:
        raise UsageError(f"a token lives for more than nothing and at most {MAX_LIFETIME.days} days")
    token = secrets.token_hex(8)
    text = f"fpt_{token}_{secrets.token_urlsafe(32)}"
    values = {
        "id": token,
        "tenant": named("tenant", tenant),
        "principals": json.dumps(names),
        "scopes": json.dumps([scope for scope in SCOPES if scope in scopes]),
        "digest": _digest(text),
        "note": sanitize(note, 200),
        "by": named("by", by),
        "lifetime": lifetime,
    }
    row = connection.execute(
        "INSERT INTO fencepost.api_tokens"
        " (id, tenant, principals, scopes, digest, note, created_at, created_by, login, expires_at)"
        " VALUES (%(id)s, %(tenant)s, %(principals)s, %(scopes)s, %(digest)s, %(note)s, fencepost.now(),"
        f" %(by)s, session_user, fencepost.now() + %(lifetime)s::interval) RETURNING {_COLUMNS}",
        values,
    ).fetchone()
    return _info(row), text


def listed(connection: Connection, tenant: str | None = None, *, ended: bool = False) -> list[TokenInfo]:
    """The tokens that count now, the newest first; with `ended` also what was revoked or has expired."""
    found = connection.execute(
        f"SELECT {_COLUMNS} FROM fencepost.api_tokens WHERE (tenant = %(tenant)s OR %(tenant)s::text IS NULL)"
        " AND (%(ended)s OR (revoked_at IS NULL AND coalesce(expires_at > fencepost.now(), true)))"
        " ORDER BY created_at DESC, id",
        {"tenant": tenant, "ended": ended},
    )
    return [_info(row) for row in found]


def revoke(connection: Connection, token: str, *, by: str) -> TokenInfo:
    """From this commit on it is taken for nobody's; for good.

    `token` is its id, or the whole of it. NotFound if there is none, FencepostError if it was revoked before.
    """
    said = presented(token)
    wanted = {"id": said.id if said is not None else token, "by": named("by", by)}
    row = connection.execute(
        "UPDATE fencepost.api_tokens SET revoked_at = fencepost.now(), revoked_by = %(by)s"
        f" WHERE id = %(id)s AND revoked_at IS NULL RETURNING {_COLUMNS}",
        wanted,
    ).fetchone()
    if row is not None:
        return _info(row)
    found = connection.execute("SELECT 1 FROM fencepost.api_tokens WHERE id = %(id)s", wanted).fetchone()
    if found is None:
        raise NotFound("there is no such token: `fencepost tokens` lists their ids")
    raise FencepostError(f"token {wanted['id']} was revoked before")


def _info(row: Any) -> TokenInfo:
    name, tenant, principals, scopes, *rest = row
    return TokenInfo(name, tenant, tuple(json.loads(principals)), tuple(json.loads(scopes)), *rest)
