"""One pass of the relay: make the rows of silent workers due, take due rows, publish them.

A taken row is pushed to its next publication, and the push is committed before anything is sent (R1). So a
relay has no state that matters: killed anywhere, it costs the rows it had taken one republish interval. Any
number of relays share the work, because a row that one has locked or pushed the others skip. A message may be
lost, doubled or late: the claim takes exactly the generation it names, or drops it.

A row that cannot be published holds up no other. Its failure is counted, it is tried again ever more slowly,
and after the last try it is set aside for a person.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import namedtuple_row

from fencepost.clock import boottime
from fencepost.errors import FencepostError, Unreachable, UsageError
from fencepost.ledger.connect import translate, writable
from fencepost.ledger.outbox import FAIL, Failed, Setback, fail_values, its_own, publish_again
from fencepost.ledger.session import Session
from fencepost.publication import MOST_DOUBLINGS, apart, republish_delay
from fencepost.settings import fresh
from fencepost.telemetry import correlation
from fencepost.testing import fault
from fencepost_relay.publisher import QUEUES, Item, Publishes, RefusedError
from fencepost_relay.silence import LOWER, WORKERS, Stamp, judge_silence, uninterrupted
from fencepost_relay.taking import (
    TAKE_AGAIN,
    TAKE_FRESH,
    THOROUGH_WITHIN_S,
    Floor,
    Row,
    Sent,
    lists,
    pause_after,
    tree_of,
)

log = logging.getLogger("fencepost.relay")

LENGTHS_KEPT_S: Final = 0.1  # how old a queue's length may be
STATEMENT_S: Final = 2  # no statement takes longer, or Postgres ends it
ANSWER_WITHIN_S: Final = STATEMENT_S + 0.5  # Postgres itself ends a statement before that
HASTY: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass did.

    Rows taken, of those published, when the next is due (None: nothing within the time looked ahead), the
    workers newly found dead, and the rows that could not be published.
    """

    taken: int
    published: int
    next_due_in: timedelta | None
    declared_dead: tuple[str, ...]
    setbacks: tuple[Setback, ...] = ()


class Relay:
    """One relay with its own Postgres session and broker connection. For one thread; any number may run side
    by side.
    """

    def __init__(
        self,
        dsn: str,
        publisher: Publishes,
        *,
        republish: timedelta = timedelta(seconds=15),
        worker_ttl: timedelta = timedelta(seconds=10),
        list_size: int = 100,
        take: int = 1000,
        ahead: timedelta = timedelta(seconds=1),
        clock: Callable[[], float] = boottime,
        opened: Callable[[psycopg.Connection[Any]], None] = lambda _session: None,
    ) -> None:
        self._dsn = dsn
        self._publisher = publisher
        self._republish = republish
        self._worker_ttl = worker_ttl
        self._list_size = list_size
        self._take_limit = take
        self._ahead = ahead
        self._clock = clock
        self._opened = opened
        self._session: psycopg.Connection[Any] | None = None
        self._seen: dict[str, Stamp] = {}
        self._dead: tuple[str, ...] = ()
        self._looked: float | None = None
        self._lower_at = 0.0
        self._floor = Floor()
        self._sent = {queue: Sent() for queue in QUEUES}
        self._until: dict[str, datetime | str | None] = {}
        self._measured: float | None = None
        self._more_again = False
        self._refused = False
        self._served = False

    def run_once(self) -> PassResult:
        """One pass. Raises Unreachable within three seconds when the broker is silent or Postgres is away,
        UsageError when Postgres refuses.

        While the broker is known to be down no row is taken, and while it refuses one at a time; rows taken
        before it failed are published again later.
        """
        dead = self._judge()
        rows, at, next_due_in = self._take()
        published, setbacks = self._publish(rows, at) if rows else (0, ())
        return PassResult(len(rows), published, next_due_in, dead, setbacks)

    def close(self) -> None:
        """Let go of Postgres and the broker. Never raises."""
        self._drop_session()
        self._publisher.close()

    def _judge(self) -> tuple[str, ...]:
        last = self._looked
        if last is not None and self._clock() - last < self._worker_ttl.total_seconds() / 10:
            return ()
        stamps = [(row.token, row.last_seen) for row in self._query(WORKERS, {})]
        # Read after the answer: a Postgres that was frozen while we asked froze the stamps too.
        now = self._looked = self._clock()
        seen = self._seen if uninterrupted(last, now, self._worker_ttl) else {}
        self._seen, dead = judge_silence(seen, stamps, now, self._worker_ttl)
        fault("relay.after_judge")
        newly, self._dead = tuple(token for token in dead if token not in self._dead), dead
        if newly or now >= self._lower_at:
            # Under an old transaction it walks through all that a worker ever held: what it does not come to
            # an end with falls due by its deadline.
            try:
                self._execute(LOWER, {"dead": list(dead)})
            except Unreachable as error:
                if not _too_slow(error):
                    raise
                log.warning("rows of ended workers wait for their deadlines; see fencepost doctor")
            ended = self._clock()
            self._lower_at = ended + pause_after(ended - now)
        return newly

    def _measure(self, *, anew: bool) -> None:
        """Ask the broker how long its queues are: whether it is there, and what they can still hold."""
        now = self._clock()
        if anew or self._measured is None or now - self._measured >= LENGTHS_KEPT_S:
            self._measured = None
            for queue, length in self._publisher.lengths().items():
                self._until[queue] = self._may_again(queue, length)
            self._measured = now

    def _may_again(self, queue: str, length: int) -> datetime | str | None:
        """Until which publish_at a queue's rows are not in it any more; None: none certainly is not."""
        if length == 0:
            return "infinity"
        left = self._sent[queue].left(length)
        return None if left is None else left + self._republish  # at least so long after its publication

    def _take(self) -> tuple[list[Row], datetime, timedelta | None]:
        limit = 1 if self._refused else self._take_limit
        asked = self._clock()
        began = self._floor.begins(asked)
        look_again = began is None or self._more_again
        self._measure(anew=look_again)
        again, slow = self._take_again(max(1, limit // len(QUEUES))) if look_again else ([], False)
        if slow:
            self._floor = self._hasty()
            began = self._floor.after
        found, began = self._take_fresh(began, limit)
        fresh, at, next_due_in = _rows(found), found[0].now, found[0].next_due_in
        more = len(fresh) == limit
        ended = self._clock()
        reached = found[0].reached if more else None
        self._floor = self._floor.looked(began, at, reached, at=ended, took_s=ended - asked)
        for sent in self._sent.values():
            if not sent.times:
                sent.add(at, 0)
        at_once = (more or self._more_again) and not self._refused
        return again + fresh, at, timedelta(0) if at_once else next_due_in

    def _take_fresh(self, began: datetime | None, limit: int) -> tuple[list[Any], datetime | None]:
        """Fresh rows, and from where on they were looked for."""

        def taken(after: datetime | str) -> list[Any]:
            return self._taken(TAKE_FRESH, limit, {"after": after, "ahead": self._ahead})

        try:
            return taken(began or "-infinity"), began
        except Unreachable as error:
            if began is not None or not _too_slow(error):
                raise
        self._floor = self._hasty()
        began = self._floor.after
        return taken(began or "-infinity"), began

    def _hasty(self) -> Floor:
        """After a thorough look that took too long: what is recent is looked for meanwhile."""
        log.warning("the outbox is full of dead rows; is a transaction open since long? see fencepost doctor")
        now = self._query("SELECT fencepost.now() AS now", {})[0].now
        return Floor(now - HASTY, self._clock() + THOROUGH_WITHIN_S)

    def _take_again(self, limit: int) -> tuple[list[Row], bool]:
        """Rows whose message has left its queue and that nobody has claimed; whether a look took too long."""
        rows: list[Row] = []
        self._more_again = False
        for queue, until in list(self._until.items()):
            if until is None:
                continue
            try:
                found = _rows(self._taken(TAKE_AGAIN, limit, {"queue": queue, "until": until}))
            except Unreachable as error:
                if not _too_slow(error):
                    raise
                self._until[queue] = self._until.pop(queue)  # the next time the others come first
                self._more_again = False
                return rows, True
            self._more_again = self._more_again or len(found) == limit
            rows += found
        return rows, False

    def _taken(self, statement: str, limit: int, values: Mapping[str, Any]) -> list[Any]:
        delays = [republish_delay(count, self._republish) for count in range(MOST_DOUBLINGS + 1)]
        common = {"limit": limit, "delays": delays, "last": MOST_DOUBLINGS, "queues": list(QUEUES)}
        return self._query(statement, {**common, **values})

    def _publish(self, rows: Sequence[Row], at: datetime) -> tuple[int, tuple[Setback, ...]]:
        fault("relay.after_take")
        waiting = lists(rows, self._list_size)
        roots = {row.item: row.root for row in rows}
        if log.isEnabledFor(logging.DEBUG):
            _tell(rows)
        failed: list[Failed] = []
        sent = 0
        try:
            while waiting:
                queue, items = waiting[0]
                sent += self._send_list(queue, items, at, failed, roots)
                del waiting[0]
            self._refused = False
        except Unreachable as error:
            if not isinstance(error, RefusedError):  # else it may have been sent
                del waiting[0]
            self._measured = None  # ask before taking more
            self._refused = True
            self._hand_back([item for _, items in waiting for item in items])
            raise
        finally:
            setbacks = self._fail(failed)
        fault("relay.after_publish")
        return sent, setbacks

    def _send_list(
        self,
        queue: str,
        items: Sequence[Item],
        at: datetime,
        failed: list[Failed],
        roots: Mapping[Item, UUID | None],
    ) -> int:
        """Send a list, or what of it can be sent; how many items. Raises Unreachable."""

        def send(part: Sequence[Item]) -> list[None]:
            self._publisher.publish(queue, part, tree_of(part, roots))
            if queue in self._sent:
                self._sent[queue].add(at, 1)
            return [None] * len(part)

        answers = apart(items, send, its_own)
        errors = [(item, answer) for item, answer in zip(items, answers, strict=True) if answer is not None]
        failed += [Failed(_message(item), error) for item, error in errors if its_own(error)]
        for _, error in errors:
            if not its_own(error):
                raise error
        return len(items) - len(errors)

    def _fail(self, failed: Sequence[Failed]) -> tuple[Setback, ...]:
        if not failed:
            return ()
        found = self._query(FAIL, fail_values(failed, self._republish, published=False))
        return tuple(Setback(*row) for row in found)

    def _hand_back(self, items: Sequence[Item]) -> None:
        """Rows that were taken and certainly not sent."""
        if items and self._session is not None:
            try:
                publish_again(self._session, [_message(item) for item in items])
            except psycopg.Error as error:
                log.warning("%d rows are published again later: %s", len(items), self._failed(error))

    def _query(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        return self._execute(statement, values).fetchall()

    def _execute(self, statement: str, values: Mapping[str, Any]) -> psycopg.Cursor[Any]:
        try:
            if self._session is None:
                self._session = _connect(self._dsn)
                self._opened(self._session)
                self._served = True
            return self._session.execute(statement, values)
        except psycopg.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: psycopg.Error) -> FencepostError:
        self._floor = Floor()
        if isinstance(error, psycopg.errors.QueryCanceled):  # the session is as good as before
            return Unreachable(f"Postgres is too slow for the relay: {error}")
        self._drop_session()
        self._looked = None
        known = translate(error, self._dsn)
        if self._served and error.sqlstate is None:  # a login that is refused now may be one that was rotated
            return Unreachable(str(known))
        if isinstance(known, FencepostError):
            return known
        if isinstance(error, psycopg.OperationalError):
            return Unreachable(f"Postgres does not serve the relay: {error}")
        return UsageError(f"Postgres refuses the relay: {error}")

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _too_slow(error: Unreachable) -> bool:
    return isinstance(error.__cause__, psycopg.errors.QueryCanceled)


def _rows(found: Sequence[Any]) -> list[Row]:
    return [
        Row(r.tenant, r.subject, r.generation, r.queue, r.publish_count, r.root, r.run)
        for r in found
        if r.subject
    ]


def _tell(rows: Sequence[Row]) -> None:
    """A line for each row, where they are asked for."""
    for row in rows:
        with correlation.bound(tenant=row.tenant, root=row.root, run=row.run):
            log.debug("%s %s, generation %d, is published", row.queue, row.subject, row.generation)


def _message(item: Item) -> tuple[str, UUID, int]:
    tenant, subject, generation = item
    return tenant, UUID(subject), generation


def _connect(dsn: str) -> psycopg.Connection[Any]:
    # Autocommit: each statement is its own transaction, so that none is ever held across a broker call (R8).
    where = fresh(dsn)
    session = Session.connect(
        where,
        autocommit=True,
        row_factory=namedtuple_row,
        connect_timeout=2,
        tcp_user_timeout=3000,
        application_name="fencepost relay",
        # Its commits are seen by all at once but need not be on disk: a Postgres that crashes and forgets a
        # push has the row published again, which a claim drops. No other session may do so. Its statements
        # walk along an index; a plan made while the table was small would read all of it ever after.
        settings={
            "statement_timeout": f"{STATEMENT_S}s",
            "lock_timeout": "1s",
            "idle_in_transaction_session_timeout": "2s",
            "synchronous_commit": "off",
            **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "jit"), "off"),
        },
        **writable(where),
    )
    session.answer_s = ANSWER_WITHIN_S
    return session
