"""Which rows a pass takes, and how little it looks at to find them.

A row is *fresh* while no queue can hold it: new, handed back, or failed. Fresh rows are looked for in every
pass, from where the last one ended, so that neither a backlog nor the dead tuples of an old transaction are
walked through again and again. What came to lie below that place (a transaction committed late, a lock was
given up, the clock was set back) is found by the next *thorough* look, which begins at the beginning, once a
second, or so rarely that it takes a twentieth of the time, but every forty seconds at least.

A row published before is taken again when its pause is over and its message cannot be in its queue any more.
Queues are first in, first out: of the messages this relay has sent, a queue of N can hold the last N, and no
other. So a backlog is published once, however long it waits, and costs no update while it does; a message
that was lost is missed when those after it have left. What other relays have sent only makes N larger, and
this one more patient.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from fencepost.telemetry import correlation
from fencepost_relay.publisher import Item

LAG: Final = timedelta(milliseconds=500)
"""How long before a pass a transaction may have begun whose rows the next pass still sees."""
THOROUGH_EVERY_S: Final = 1.0
THOROUGH_SHARE: Final = 20  # a thorough look waits for this many times as long as the last one took
THOROUGH_WITHIN_S: Final = 40.0  # but no longer: a relay that was frozen while it looked was not slow
_APART: Final = timedelta(milliseconds=100)  # two points of a history are further apart than this
_POINTS: Final = 5000

# The clock is read once, in a scalar subquery, so that an index on publish_at serves. The rows are found
# again by their place, which stays while we hold their locks, so that no plan reads the whole table. A row of
# a queue nobody declares stays fresh: if this relay dies before it has said so, the next one looks for it.
_TAKE: Final = """
WITH clock AS MATERIALIZED (SELECT fencepost.now() AS now),
due AS MATERIALIZED (
    SELECT ctid, publish_at FROM fencepost.outbox WHERE {which}
    ORDER BY publish_at LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
taken AS (
    UPDATE fencepost.outbox AS o
    SET publish_at = clock.now + (%(delays)s::interval[])[1 + least(o.publish_count, %(last)s)],
        publish_count = CASE WHEN o.queue = ANY (%(queues)s::text[]) THEN o.publish_count + 1 ELSE 0 END
    FROM clock WHERE o.ctid = ANY (ARRAY(SELECT ctid FROM due))
    RETURNING o.tenant, o.subject::text AS subject, o.generation, o.queue, o.publish_count, o.due_at,
        coalesce(o.root, o.run) AS root, o.run
)
SELECT taken.*, clock.now, (SELECT max(publish_at) FROM due) AS reached, {following} AS next_due_in
FROM clock LEFT JOIN taken ON true ORDER BY taken.due_at
"""
TAKE_FRESH: Final = _TAKE.format(
    which="publish_count = 0 AND publish_at <= (SELECT now FROM clock)"
    " AND publish_at >= %(after)s::timestamptz",
    following="""(
    SELECT min(publish_at) FROM fencepost.outbox WHERE publish_count = 0
    AND publish_at > (SELECT now FROM clock) AND publish_at <= (SELECT now FROM clock) + %(ahead)s::interval
) - clock.now""",
)
TAKE_AGAIN: Final = _TAKE.format(
    which="publish_count > 0 AND queue = %(queue)s"
    " AND publish_at <= least((SELECT now FROM clock), %(until)s::timestamptz)",
    following="NULL::interval",
)


def pause_after(took_s: float) -> float:
    """How long nothing so thorough is looked for again after a look that took so long."""
    return min(THOROUGH_SHARE * took_s, THOROUGH_WITHIN_S)


class Row(NamedTuple):
    """A row of the outbox as taken; `publish_count` counts this publication, 0 in a queue nobody declares.

    `root` is that of the tree of runs it belongs to, `run` its own.
    """

    tenant: str
    subject: str
    generation: int
    queue: str
    publish_count: int
    root: UUID | None = None
    run: UUID | None = None

    @property
    def item(self) -> Item:
        """What its message says."""
        return self.tenant, self.subject, self.generation


@dataclass
class Sent:
    """What a relay has sent to one queue: at instants of Postgres's clock, how many messages so far."""

    times: list[datetime] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)

    def add(self, at: datetime, messages: int) -> None:
        """So many messages more, whose rows were taken at this instant; nought says when the relay began."""
        total = messages + (self.totals[-1] if self.totals else 0)
        near = len(self.times) > 1 and at - self.times[-2] < _APART
        if near or (self.times and at <= self.times[-1]):
            del self.times[-1], self.totals[-1]
        self.times.append(at)
        self.totals.append(total)
        del self.times[:-_POINTS], self.totals[:-_POINTS]

    def left(self, length: int) -> datetime | None:
        """The latest instant of which it is certain: what was published until then has left a queue of this
        length, which is not nought. None: nothing is certain.
        """
        if not self.totals:
            return None
        place = bisect_right(self.totals, self.totals[-1] - length)
        return self.times[place - 1] if place else None


@dataclass(frozen=True, slots=True)
class Floor:
    """From where on fresh rows are looked for, and when the next thorough look is due, by boot time."""

    after: datetime | None = None
    thorough_at: float = 0.0

    def begins(self, now_boottime: float) -> datetime | None:
        """Where this look begins; None: at the beginning."""
        return None if self.after is None or now_boottime >= self.thorough_at else self.after

    def looked(
        self, began: datetime | None, now: datetime, reached: datetime | None, *, at: float, took_s: float
    ) -> Floor:
        """After a look that began there, at Postgres's `now`: `reached` is the last row's publish_at if there
        are more, None if it took all. It ended at boot time `at` and took so long.
        """
        after = now - LAG if reached is None else reached
        if began is not None:
            if now < began:
                return Floor()  # the clock was set back: nothing that is due now lies above
            return Floor(after, self.thorough_at)
        return Floor(after, at + max(THOROUGH_EVERY_S, pause_after(took_s)))


def tree_of(items: Sequence[Item], roots: Mapping[Item, UUID | None]) -> str | None:
    """The traceparent of a message with these items; None where they are not all of one tree of runs."""
    found = {roots.get(item) for item in items}
    root = found.pop()
    return (
        None if found or root is None else correlation.traceparent(root, correlation.span_id(*items[0][1:]))
    )


def lists(rows: Sequence[Row], size: int) -> list[tuple[str, list[Item]]]:
    """Queue and items of each message to send: rows in order, `size` items at most, all of one queue."""
    by_queue: dict[str, list[Item]] = {}
    for row in rows:
        by_queue.setdefault(row.queue, []).append(row.item)
    return [
        (queue, items[at : at + size])
        for queue, items in by_queue.items()
        for at in range(0, len(items), size)
    ]
