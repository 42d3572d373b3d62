"""Who is dead: workers whose stamp has not moved for a while of the relay's own, uninterrupted time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

WORKERS: Final = """
SELECT token, last_seen FROM fencepost.workers
WHERE ended_at IS NULL AND last_seen > (SELECT fencepost.now()) - interval '1 day'
"""
# A row already due keeps its publish_at: lowering it again would undo the pause between publications.
LOWER: Final = """
WITH clock AS MATERIALIZED (SELECT fencepost.now() AS now),
held AS MATERIALIZED (
    SELECT tenant, subject FROM fencepost.outbox
    WHERE due_at > (SELECT now FROM clock) AND worker IN (
        SELECT unnest(%(dead)s::text[])
        UNION ALL
        SELECT token FROM fencepost.workers WHERE ended_at > (SELECT now FROM clock) - interval '1 hour'
    )
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE fencepost.outbox AS o SET due_at = clock.now, publish_at = least(o.publish_at, clock.now)
FROM held, clock WHERE o.tenant = held.tenant AND o.subject = held.subject
"""

Stamp = tuple[datetime, float]
"""A worker's last stamp, by Postgres's clock, and when it was first seen, in seconds of our boot time."""


def judge_silence(
    seen: Mapping[str, Stamp], rows: Iterable[tuple[str, datetime]], now_boottime: float, ttl: timedelta
) -> tuple[dict[str, Stamp], tuple[str, ...]]:
    """What is known of the workers after one more look, and the tokens whose stamp has not moved for `ttl`
    of ours.

    Stamps are compared with each other only, never with a clock. Whoever cannot look starts again with
    nothing seen: an outage of Postgres, or a pause of our own, declares nobody dead.
    """
    after: dict[str, Stamp] = {}
    for token, stamp in rows:
        before = seen.get(token)
        after[token] = before if before is not None and before[0] == stamp else (stamp, now_boottime)
    silent = (token for token, (_, first) in after.items() if now_boottime - first >= ttl.total_seconds())
    return after, tuple(sorted(silent))


def uninterrupted(last_look: float | None, now_boottime: float, ttl: timedelta) -> bool:
    """Whether two looks are near enough to each other that a live worker must have been seen to stamp."""
    return last_look is not None and now_boottime - last_look <= ttl.total_seconds() / 3
