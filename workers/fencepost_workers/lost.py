"""Lost workers: those that died together with their pulse, as with their host. Nobody marks them as ended.

The relays have made their rows due after one TTL. What is left is a worker that seems silent for ever: the
sweep marks it as ended. One that was only frozen finds its stamp refused and comes back under a new token.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fencepost.ledger.connect import Pool

log = logging.getLogger(__name__)

LOST_TTLS: Final = 20
LOST_AT_LEAST: Final = timedelta(minutes=2)
LOOKS: Final = 4  # at least so many saw the same stamp, whatever lies between two of them

_WORKERS: Final = "SELECT token, last_seen FROM fencepost.workers WHERE ended_at IS NULL"
# Not one that has stamped meanwhile. Not while a row of it waits for a relay: after an hour none would look.
_END: Final = """
WITH clock AS MATERIALIZED (SELECT fencepost.now() AS now),
lost AS MATERIALIZED (
    SELECT w.token FROM unnest(%(tokens)s::text[], %(stamps)s::timestamptz[]) AS seen (token, last_seen)
    JOIN fencepost.workers w ON w.token = seen.token AND w.last_seen = seen.last_seen
    WHERE w.ended_at IS NULL AND NOT EXISTS (
        SELECT 1 FROM fencepost.outbox o WHERE o.worker = w.token AND o.due_at > (SELECT now FROM clock))
    FOR NO KEY UPDATE OF w SKIP LOCKED
)
UPDATE fencepost.workers AS w SET ended_at = clock.now FROM lost, clock
WHERE w.token = lost.token RETURNING w.token, w.role, w.host, w.pid, w.last_seen
"""


@dataclass(frozen=True, slots=True)
class Silence:
    """A worker's last stamp, and for how long of our own looking it has not moved (seconds)."""

    stamp: datetime
    watched_s: float


def lost_after(ttl: timedelta) -> timedelta:
    """How long a stamp stands still until its worker counts as lost."""
    return max(LOST_TTLS * ttl, LOST_AT_LEAST)


def watch(
    seen: Mapping[str, Silence], rows: Iterable[tuple[str, datetime]], gap_s: float, after: timedelta
) -> dict[str, Silence]:
    """What is known after one more look, `gap_s` seconds after the last one.

    A gap counts for no more than a third of `after`: in a long one we, or Postgres, may have stood still, and
    a worker that lives has had no time to stamp since.
    """
    counted = min(gap_s, after.total_seconds() / (LOOKS - 1))
    known = {}
    for token, stamp in rows:
        before = seen.get(token)
        same = before is not None and before.stamp == stamp
        known[token] = Silence(stamp, before.watched_s + counted if before is not None and same else 0.0)
    return known


class Lost:
    """The looks of one process. Not safe for several threads."""

    def __init__(self, pool: Pool, ttl: timedelta) -> None:
        self._pool = pool
        self._after = lost_after(ttl)
        self._seen: dict[str, Silence] = {}
        self._looked: float | None = None

    def look(self, now_boottime: float) -> tuple[str, ...]:
        """Look once, and end whoever is lost; their tokens. Raises Unreachable in an outage, after which all
        looking begins anew: an outage of Postgres declares nobody dead.
        """
        seen, looked = self._seen, self._looked
        self._seen, self._looked = {}, None
        with self._pool.connection() as connection:
            rows = connection.execute(_WORKERS).fetchall()
            gap_s = 0.0 if looked is None else now_boottime - looked
            known = watch(seen, rows, gap_s, self._after)
            lost = {t: s.stamp for t, s in known.items() if s.watched_s >= self._after.total_seconds()}
            values = {"tokens": list(lost), "stamps": list(lost.values())}
            ended = connection.execute(_END, values).fetchall() if lost else []
        self._seen, self._looked = known, now_boottime
        for token, role, host, pid, stamp in ended:
            log.warning("%s %s (pid %d on %s) is lost: no stamp since %s", role, token[:8], pid, host, stamp)
        return tuple(token for token, *_ in ended)
