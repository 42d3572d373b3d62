"""What an operator reads of allowances: each counter, whose it is, what is used and held of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from fencepost.ledger.connect import Connection

# What is held is looked up among open calls alone: what has ended is used, or was given back.
_COUNTERS = """
WITH held AS (
    SELECT c.tenant, share ->> 'key' AS key, sum((share ->> 'count')::bigint)::bigint AS calls,
        sum((share ->> 'minor')::bigint)::bigint AS minor
    FROM fencepost.calls c CROSS JOIN LATERAL json_array_elements(c.reserved::json) AS share
    WHERE c.live AND c.reserved IS NOT NULL GROUP BY 1, 2
)
SELECT a.tenant, a.allowance, a.key, a.since, a.until, a.used_count, a.used_minor,
    coalesce(h.calls, 0), coalesce(h.minor, 0), a.limit_count, a.limit_minor, a.currency,
    (SELECT c.reserved FROM fencepost.calls c
        WHERE c.id = a.first_call AND c.tenant IS NOT DISTINCT FROM a.tenant)
FROM fencepost.allowances a LEFT JOIN held h ON h.key = a.key AND h.tenant = a.tenant
WHERE (%(tenant)s::text IS NULL OR a.tenant = %(tenant)s)
    AND (%(all)s OR a.until IS NULL OR a.until > fencepost.now())
ORDER BY a.tenant, a.allowance, a.since, a.used_count DESC, a.key LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter. `calls` and `minor` are all that counts, `held_calls` and `held_minor` what of it may
    still come back. Limits are those of the last attempt that was let go; None where nothing is limited.
    `subject` says whose it is, from the history of the call that made it; None once that is gone.
    """

    tenant: str
    allowance: str
    key: str
    since: datetime | None
    until: datetime | None
    calls: int
    minor: int
    held_calls: int
    held_minor: int
    limit_calls: int | None
    limit_minor: int | None
    currency: str | None
    subject: Mapping[str, str] | None


def counters(
    connection: Connection, *, tenant: str | None = None, past: bool = False, limit: int = 1000
) -> list[Counter]:
    """The counters of the windows that are open, with `past` also of those that have ended."""
    asked = {"tenant": tenant, "all": past, "limit": limit}
    found = connection.execute(_COUNTERS, asked)
    return [Counter(*[*row[:12], _subject(row[12], row[2])]) for row in found]


def _subject(reserved: str | None, key: str) -> Mapping[str, str] | None:
    shares = json.loads(reserved) if reserved is not None else []
    return next((share["subject"] for share in shares if share["key"] == key), None)
