"""
One pass of the relay: make the rows of silent workers due, take due rows, publish them.

A taken row is pushed to its next publication, and the push is committed before anything is sent (R1). So a
relay has no state that matters: killed anywhere, it costs the rows it had taken one republish interval. Any
number of relays share the work, because a row that one has locked or pushed the others skip. A message may be
lost, doubled or late: the claim takes exactly the generation it names, or drops it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.rows import namedtuple_row

from fencepost.clock import boottime
from fencepost.errors import FencepostError, Unreachable, UsageError
from fencepost.ledger.connect import translate
from fencepost.ledger.session import Session
from fencepost.testing import fault
from fencepost_relay.publisher import Item, Publisher

MOST_DOUBLINGS: Final = 3  # the longest pause between publications is eight intervals
QUEUE_LIMIT: Final = 1000  # messages; a longer queue gets nothing twice
ANSWER_WITHIN_S: Final = 2.5  # Postgres itself ends a statement after two seconds
LENGTHS_KEPT_S: Final = 0.1  # how old a queue's length may be

# The clock is read once, in a scalar subquery, so that the index on publish_at serves. The rows are found
# again by their place, which stays while we hold their locks, so that no plan reads the whole table.
_TAKE: Final = """
WITH clock AS MATERIALIZED (SELECT fencepost.now() AS now),
due AS MATERIALIZED (
    SELECT ctid FROM fencepost.outbox
    WHERE publish_at <= (SELECT now FROM clock)
    ORDER BY publish_at LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
taken AS (
    UPDATE fencepost.outbox AS o
    SET publish_at = clock.now + (%(delays)s::interval[])[1 + least(o.publish_count, %(last)s)],
        publish_count = o.publish_count + 1
    FROM clock WHERE o.ctid = ANY (ARRAY(SELECT ctid FROM due))
    RETURNING o.tenant, o.subject::text AS subject, o.generation, o.queue, o.publish_count, o.due_at
)
SELECT taken.*, (
    SELECT min(publish_at) FROM fencepost.outbox WHERE publish_at > (SELECT now FROM clock)
) - clock.now AS next_due_in
FROM clock LEFT JOIN taken ON true ORDER BY taken.due_at
"""
_WORKERS: Final = """
SELECT token, last_seen FROM fencepost.workers
WHERE ended_at IS NULL AND last_seen > (SELECT fencepost.now()) - interval '1 day'
"""
# A row already due keeps its publish_at: lowering it again would undo the pause between publications.
_LOWER: Final = """
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


class Row(NamedTuple):
    """A row of the outbox as taken; `publish_count` counts this publication."""

    tenant: str
    subject: str
    generation: int
    queue: str
    publish_count: int


@dataclass(frozen=True, slots=True)
class PassResult:
    """
    What a pass did: rows taken, of those published, when the next is due (None: nothing waits), and the
    workers newly found dead.
    """

    taken: int
    published: int
    next_due_in: timedelta | None
    declared_dead: tuple[str, ...]


def republish_delay(publish_count: int, base: timedelta) -> timedelta:
    """The pause after a publication that `publish_count` others preceded: base, doubling up to base * 8."""
    return base * (1 << min(publish_count, MOST_DOUBLINGS))


def may_republish(queue_length: int, limit: int) -> bool:
    """Whether a queue gets messages it may already hold. What it has never held it always gets."""
    return queue_length < limit


def judge_silence(
    seen: Mapping[str, Stamp], rows: Iterable[tuple[str, datetime]], now_boottime: float, ttl: timedelta
) -> tuple[dict[str, Stamp], tuple[str, ...]]:
    """
    What is known of the workers after one more look, and the tokens whose stamp has not moved for `ttl` of
    ours. Stamps are compared with each other only, never with a clock. Whoever cannot look starts again with
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


def messages(
    rows: Sequence[Row], lengths: Mapping[str, int], *, limit: int, size: int
) -> list[tuple[str, list[Item]]]:
    """
    Queue and items of each message to send: rows in order, `size` items at most, all of one queue. Left out
    are rows published before whose queue is long; they come again by themselves.
    """
    by_queue: dict[str, list[Item]] = {}
    for row in rows:
        if row.publish_count == 1 or may_republish(lengths.get(row.queue, 0), limit):
            by_queue.setdefault(row.queue, []).append((row.tenant, row.subject, row.generation))
    return [
        (queue, items[at : at + size])
        for queue, items in by_queue.items()
        for at in range(0, len(items), size)
    ]


class Relay:
    """
    One relay with its own Postgres session and broker connection. For one thread; any number may run side by
    side.
    """

    def __init__(
        self,
        dsn: str,
        publisher: Publisher,
        *,
        republish: timedelta = timedelta(seconds=15),
        worker_ttl: timedelta = timedelta(seconds=10),
        list_size: int = 100,
        take: int = 1000,
        queue_limit: int = QUEUE_LIMIT,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._dsn = dsn
        self._publisher = publisher
        self._delays = [republish_delay(count, republish) for count in range(MOST_DOUBLINGS + 1)]
        self._worker_ttl = worker_ttl
        self._list_size = list_size
        self._take_limit = take
        self._queue_limit = queue_limit
        self._clock = clock
        self._session: psycopg.Connection[Any] | None = None
        self._seen: dict[str, Stamp] = {}
        self._dead: tuple[str, ...] = ()
        self._looked: float | None = None
        self._lengths: dict[str, int] = {}
        self._measured: float | None = None

    def run_once(self) -> PassResult:
        """
        One pass. Raises Unreachable within three seconds when the broker is silent or Postgres is away,
        UsageError when Postgres refuses. While the broker is known to be down no row is taken; rows taken
        before it failed are published again later.
        """
        dead = self._judge()
        self._measure()
        rows, next_due_in = self._take()
        published = self._publish(rows) if rows else 0
        if len(rows) == self._take_limit:
            next_due_in = timedelta(0)
        return PassResult(len(rows), published, next_due_in, dead)

    def close(self) -> None:
        """Let go of Postgres and the broker. Never raises."""
        self._drop_session()
        self._publisher.close()

    def _judge(self) -> tuple[str, ...]:
        last = self._looked
        if last is not None and self._clock() - last < self._worker_ttl.total_seconds() / 10:
            return ()
        stamps = [(row.token, row.last_seen) for row in self._query(_WORKERS, {})]
        # Read after the answer: a Postgres that was frozen while we asked froze the stamps too.
        now = self._looked = self._clock()
        seen = self._seen if uninterrupted(last, now, self._worker_ttl) else {}
        self._seen, dead = judge_silence(seen, stamps, now, self._worker_ttl)
        fault("relay.after_judge")
        newly, self._dead = tuple(token for token in dead if token not in self._dead), dead
        self._execute(_LOWER, {"dead": list(dead)})
        return newly

    def _measure(self) -> None:
        now = self._clock()
        if self._measured is None or now - self._measured >= LENGTHS_KEPT_S:
            self._measured = None
            self._lengths = self._publisher.lengths()
            self._measured = now

    def _take(self) -> tuple[list[Row], timedelta | None]:
        values = {"limit": self._take_limit, "delays": self._delays, "last": MOST_DOUBLINGS}
        found = self._query(_TAKE, values)
        rows = [Row(r.tenant, r.subject, r.generation, r.queue, r.publish_count) for r in found if r.subject]
        return rows, found[0].next_due_in

    def _publish(self, rows: Sequence[Row]) -> int:
        fault("relay.after_take")
        sent = 0
        try:
            for queue, items in messages(rows, self._lengths, limit=self._queue_limit, size=self._list_size):
                self._publisher.publish(queue, items)
                sent += len(items)
        except Unreachable:
            self._measured = None  # ask before taking more
            raise
        fault("relay.after_publish")
        return sent

    def _query(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        return self._execute(statement, values).fetchall()

    def _execute(self, statement: str, values: Mapping[str, Any]) -> psycopg.Cursor[Any]:
        try:
            if self._session is None:
                self._session = _connect(self._dsn)
            return self._session.execute(statement, values)
        except psycopg.Error as error:
            self._drop_session()
            self._looked = None
            raise self._translated(error) from error

    def _translated(self, error: psycopg.Error) -> FencepostError:
        known = translate(error, self._dsn)
        if isinstance(known, FencepostError):
            return known
        if isinstance(error, psycopg.OperationalError):
            return Unreachable(f"Postgres does not serve the relay: {error}")
        return UsageError(f"Postgres refuses the relay: {error}")

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _connect(dsn: str) -> psycopg.Connection[Any]:
    # Autocommit: each statement is its own transaction, so that none is ever held across a broker call (R8).
    session = Session.connect(
        dsn,
        autocommit=True,
        row_factory=namedtuple_row,
        connect_timeout=2,
        tcp_user_timeout=3000,
        application_name="fencepost relay",
        # Its commits are seen by all at once but need not be on disk: a Postgres that crashes and forgets a
        # push has the row published again, which a claim drops. No other session may do so.
        options="-c statement_timeout=2s -c lock_timeout=1s -c idle_in_transaction_session_timeout=2s"
        " -c synchronous_commit=off",
    )
    session.answer_s = ANSWER_WITHIN_S
    return session
