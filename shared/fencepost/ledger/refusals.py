"""Messages an intake could make no run of: kept with the reason, until a person has dealt with them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from fencepost.canonical import sanitize
from fencepost.errors import NotFound, UsageError
from fencepost.ledger.connect import Connection
from fencepost.ledger.find import id_range

MAX_MESSAGE: Final = 1024 * 1024
"""Characters of a message that are kept; what is longer ends in "…"."""
MAX_ERROR: Final = 1000

_REFUSE: Final = "SELECT fencepost.refuse_intake(%s, %s, %s, %s, %s, %s)"
_LIST: Final = """
SELECT id, queue, tenant, principal, message, error, received_at FROM fencepost.intake_refusals
WHERE tenant = %(tenant)s OR %(tenant)s::text IS NULL ORDER BY received_at, id LIMIT %(limit)s
"""
_FIND: Final = """
SELECT id FROM fencepost.intake_refusals WHERE id BETWEEN %(low)s AND %(high)s ORDER BY id LIMIT 2
"""
_DROP: Final = "DELETE FROM fencepost.intake_refusals WHERE id = %s"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One message, for whom it would have been, and why it became no run."""

    id: UUID
    queue: str
    tenant: str
    principal: str
    message: str
    error: str
    received_at: datetime


def refuse(
    connection: Connection,
    refusal: UUID,
    *,
    queue: str,
    tenant: str,
    principal: str,
    message: str | bytes,
    error: str,
) -> None:
    """Keep a message, as text that can be shown anywhere; once, however often it is refused."""
    text, why = sanitize(message, MAX_MESSAGE), sanitize(error, MAX_ERROR)
    connection.execute(_REFUSE, [refusal, queue, tenant, principal, text, why])


def refusals(connection: Connection, *, tenant: str | None = None, limit: int = 100) -> list[Refusal]:
    """What waits for a person, the oldest first."""
    rows = connection.execute(_LIST, {"tenant": tenant, "limit": limit}).fetchall()
    return [Refusal(*row) for row in rows]


def find(connection: Connection, text: str) -> UUID:
    """The one refusal of this id, or unique beginning of one. NotFound, or UsageError for several."""
    low, high = id_range(text)
    found = connection.execute(_FIND, {"low": low, "high": high}).fetchall()
    if not found:
        raise NotFound(f"there is no refused message {sanitize(text, 60)}")
    if len(found) > 1:
        raise UsageError(f"{sanitize(text, 60)} names several refused messages; give more of the id")
    return UUID(str(found[0][0]))


def drop(connection: Connection, refusal: UUID) -> bool:
    """Forget a message that was dealt with; False if there is none. An operator's login."""
    return connection.execute(_DROP, [refusal]).rowcount > 0
