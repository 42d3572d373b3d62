"""What the ledger's history says of how the fleet does: requests, repeats, waiting times, ages. Read-only.

Everything is counted by Postgres, from events and calls of a period, found by their ids: those are ordered by
the clock of whoever made them, so a machine whose clock is wrong by more than an hour (`_SLACK`) may be left
out. Of a period with more than `most` events only the newest are read, and the answer says from when on: a
look costs a bounded part of any ledger, never all of it. What is unresolved or open is counted whole, by
partial indexes that hold nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

from fencepost.clock import new_id
from fencepost.ledger.connect import SILENCE, Connection
from fencepost.ledger.held import HOLDS
from fencepost.ledger.session import Session
from fencepost.mcp import CHANGED

MOST: Final = 500_000
"""Events of one answer at most, by default; about 40,000 runs of one call."""

_SLACK: Final = timedelta(hours=1)
_BANDS: Final = (1, 10, 60, 600, 3600, 86_400)

# Where the newest `most` events of the period begin, read from the end of the index; nothing if there are
# fewer. RunCreated may have an id of its producer's making, and is not needed.
_PERIOD: Final = """
SELECT id, recorded_at FROM fencepost.events WHERE id >= %(low)s AND id <= %(high)s
ORDER BY id DESC OFFSET %(most)s - 1 LIMIT 1
"""
_EVENTS: Final = "e.id >= %(low)s AND e.id <= %(high)s AND e.recorded_at >= %(since)s"
_COUNT: Final = f"SELECT count(*) FROM fencepost.events e WHERE {_EVENTS}"

# One line per attempt that was answered or given up in the period.
_TOOLS: Final = f"""
WITH outcomes AS MATERIALIZED (
    SELECT e.tenant, e.call, count(*) AS answered, sum((e.body ->> 'requests')::bigint) AS requests,
           count(*) FILTER (WHERE (e.body ->> 'requests')::bigint > 1) AS hidden,
           count(*) FILTER (WHERE e.type = 'ToolOutcomeMarkedUnknown') AS unknown,
           count(*) FILTER (WHERE e.type = 'ToolAttemptFailed') AS failed
    FROM fencepost.events e WHERE {_EVENTS}
      AND e.type IN ('ToolResultRecorded', 'ToolAttemptFailed', 'ToolOutcomeMarkedUnknown')
    GROUP BY e.tenant, e.call
)
SELECT c.scope, c.tool, count(*), sum(c.attempts), sum(o.answered)::bigint,
       coalesce(sum(o.requests), 0)::bigint,
       sum(o.hidden)::bigint, sum(o.unknown)::bigint, sum(o.failed)::bigint
FROM outcomes o JOIN fencepost.calls c ON c.tenant = o.tenant AND c.id = o.call
WHERE c.attempts > 0 GROUP BY c.scope, c.tool ORDER BY c.scope, c.tool
"""
_KEYS: Final = """
WITH keys AS (
    SELECT c.tenant, c.operation, count(*) AS calls, sum(c.attempts) AS attempts
    FROM fencepost.calls c WHERE c.id >= %(low)s AND c.id <= %(high)s AND c.operation IS NOT NULL
    GROUP BY c.tenant, c.operation
)
SELECT count(*), count(*) FILTER (WHERE calls > 1), count(*) FILTER (WHERE attempts > 1),
       coalesce(sum(greatest(attempts - 1, 0)), 0)::bigint, coalesce(max(attempts), 0)::bigint,
       coalesce(max(calls), 0)
FROM keys
"""
# Every wait is the time between two events of one run, the later one named by its type; how long a pause was
# to be is in the body that began it. `due` is when the step a lease was taken for could have been taken.
_HOPS: Final = f"""
WITH told AS (
    SELECT e.type, e.call, e.recorded_at AS at, e.seq,
           CASE WHEN e.type IN ('DispatchIntentRecorded', 'DispatchDeferred', 'ToolAttemptFailed',
                    'ToolOutcomeMarkedUnknown', 'ToolLookupRecorded', 'ReconciliationDeferred',
                    'PlanDeferred')
                THEN e.body ->> 'ready_at' END AS ready_at,
           coalesce(e.body ->> 'final', '') = 'true' AS final, e.run, e.tenant
    FROM fencepost.events e WHERE {_EVENTS}
      AND e.type IN ('LeaseAcquired', 'ModelRequestStarted', 'ModelResponseRecorded', 'ModelOutcomeUnknown',
        'RunCompleted', 'RunStopped', 'DispatchIntentRecorded', 'DispatchDeferred', 'ToolAttemptStarted',
        'ToolResultRecorded', 'ToolAttemptFailed', 'ToolOutcomeMarkedUnknown', 'ToolLookupRecorded',
        'ReconciliationDeferred', 'ToolEffectReconciled', 'PlanDeferred')
), placed AS (
    SELECT told.*, lag(type) OVER own AS type_before, lag(at) OVER own AS at_before,
           lag(ready_at) OVER own AS due, lag(at) OVER whole AS run_before
    FROM told WINDOW own AS (PARTITION BY run, tenant, call ORDER BY seq),
        whole AS (PARTITION BY run, tenant ORDER BY seq)
), waits AS (
    SELECT CASE
        WHEN type = 'LeaseAcquired' THEN 'queue'
        WHEN type IN ('ModelResponseRecorded', 'ModelOutcomeUnknown', 'RunCompleted') THEN 'model'
        WHEN type = 'ToolLookupRecorded' THEN 'lookup'
        ELSE 'tool' END AS hop,
        -- What a closed provider made a run wait is not the queue's.
        CASE WHEN type = 'LeaseAcquired' AND call IS NULL AND type_before = 'PlanDeferred'
                 THEN at - greatest(run_before, due::timestamptz)
             WHEN type = 'LeaseAcquired' AND call IS NULL THEN at - run_before
             WHEN type = 'LeaseAcquired' THEN at - greatest(at_before, due::timestamptz)
             ELSE at - at_before END AS took
    FROM placed WHERE CASE
        WHEN type = 'LeaseAcquired' AND call IS NULL THEN run_before IS NOT NULL
        WHEN type = 'LeaseAcquired' THEN due IS NOT NULL
        WHEN type IN ('ModelResponseRecorded', 'ModelOutcomeUnknown', 'RunCompleted')
            THEN type_before = 'ModelRequestStarted'
        WHEN type = 'ToolLookupRecorded' THEN type_before = 'LeaseAcquired'
        ELSE type IN ('ToolResultRecorded', 'ToolAttemptFailed', 'ToolOutcomeMarkedUnknown')
            AND type_before = 'ToolAttemptStarted' END
    UNION ALL
    SELECT 'queue', p.at - r.created_at FROM placed p
    JOIN fencepost.runs r ON r.id = p.run AND r.tenant = p.tenant
    WHERE p.type = 'LeaseAcquired' AND p.seq = 2  -- a run's first claim, after its RunCreated
    UNION ALL
    SELECT 'backoff', ready_at::timestamptz - at FROM placed
    WHERE (type = 'ToolAttemptFailed' AND NOT final) OR type = 'ReconciliationDeferred'
       OR (type IN ('ToolOutcomeMarkedUnknown', 'ToolLookupRecorded') AND ready_at::timestamptz > at)
)
SELECT hop, count(*), percentile_disc(0.5) WITHIN GROUP (ORDER BY took),
       percentile_disc(0.99) WITHIN GROUP (ORDER BY took), max(took)
FROM waits WHERE took < interval '1000 years' GROUP BY hop
"""
_FINISHED: Final = f"""
SELECT r.status, count(*), percentile_disc(0.5) WITHIN GROUP (ORDER BY e.recorded_at - r.created_at),
       percentile_disc(0.99) WITHIN GROUP (ORDER BY e.recorded_at - r.created_at),
       max(e.recorded_at - r.created_at)
FROM fencepost.events e JOIN fencepost.runs r ON r.tenant = e.tenant AND r.id = e.run
WHERE {_EVENTS} AND e.type IN ('RunCompleted', 'RunStopped') AND r.ended GROUP BY r.status ORDER BY r.status
"""
# What runs that have ended used, stopped ones too: whoever pays for a completed run pays for those beside it.
_SPENDING: Final = f"""
SELECT r.planner, count(*) FILTER (WHERE r.status = 'COMPLETED'), count(*), sum(r.tokens)::bigint,
       sum(r.cost)::bigint, coalesce(sum((r.below::json #>> '{{used,tokens}}')::bigint), 0)::bigint,
       coalesce(sum((r.below::json #>> '{{used,cost}}')::bigint), 0)::bigint
FROM (SELECT DISTINCT e.tenant, e.run FROM fencepost.events e
      WHERE {_EVENTS} AND e.type IN ('RunCompleted', 'RunStopped')) AS e
JOIN fencepost.runs r ON r.tenant = e.tenant AND r.id = e.run
WHERE r.ended GROUP BY r.planner ORDER BY r.planner
"""
# The bands are the indexes of width_bucket: 0 is younger than the first limit. Of a held call it is known
# that nothing was sent; it waits for a person all the same.
_UNRESOLVED: Final = f"""
SELECT width_bucket(extract(epoch FROM fencepost.now() - since)::float8, %(bands)s::float8[]), state,
       count(*), max(fencepost.now() - since)
FROM (SELECT CASE WHEN c.state IN ('UNKNOWN', 'NEEDS_REPAIR') THEN c.state ELSE 'DISPATCHING' END AS state,
        coalesce((SELECT min(e.recorded_at) FROM fencepost.events e WHERE e.tenant = c.tenant
            AND e.run = c.run AND e.call = c.id
            AND e.type IN ('ToolOutcomeMarkedUnknown', 'RepairRequested')), fencepost.now()) AS since
      FROM fencepost.calls c WHERE c.live AND (c.state IN ('UNKNOWN', 'NEEDS_REPAIR') OR c.doubt)
      UNION ALL
      SELECT 'HELD', coalesce((SELECT min(e.recorded_at) FROM fencepost.events e WHERE e.tenant = c.tenant
          AND e.run = c.run AND e.call = c.id AND e.type = 'ToolAttemptFailed'
          AND e.body ->> 'code' = '{CHANGED}'), fencepost.now())
      FROM fencepost.calls c WHERE {HOLDS}) AS u
GROUP BY 1, 2 ORDER BY 1, 2
"""
_OPEN: Final = """
SELECT width_bucket(extract(epoch FROM fencepost.now() - created_at)::float8, %(bands)s::float8[]), status,
       count(*), max(fencepost.now() - created_at)
FROM fencepost.runs WHERE NOT ended GROUP BY 1, 2 ORDER BY 1, 2
"""
STATEMENTS: Final[Mapping[str, str]] = {
    "period": _PERIOD,
    "count": _COUNT,
    "tools": _TOOLS,
    "keys": _KEYS,
    "hops": _HOPS,
    "finished": _FINISHED,
    "spending": _SPENDING,
    "unresolved": _UNRESOLVED,
    "open": _OPEN,
}
"""Every statement by what it answers; a test holds each against the indexes it is meant for."""

HOPS: Final = ("queue", "model", "tool", "lookup", "backoff")


@dataclass(frozen=True, slots=True)
class ToolStats:
    """One tool of one dependency. `attempts` are all that the calls touched in the period ever had; of them
    `answered` were recorded in the period, with `requests` for effects sent in them. `hidden` attempts sent
    more than one: somebody below us retries.
    """

    dependency: str
    tool: str
    calls: int
    attempts: int
    answered: int
    requests: int
    hidden: int
    unknown: int
    failed: int

    @property
    def amplification(self) -> float:
        """Attempts per call; 1 where nothing was ever tried again."""
        return self.attempts / self.calls if self.calls else 0.0

    @property
    def requests_per_attempt(self) -> float:
        """Requests for effects per recorded attempt; below 1 where an attempt died before the wire."""
        return self.requests / self.answered if self.answered else 0.0


@dataclass(frozen=True, slots=True)
class KeyStats:
    """How often one business intent came up among the calls proposed in the period: `shared` keys were
    proposed by several calls, `repeated` ones were sent more than once, `repeats` times in all.
    """

    keys: int
    shared: int
    repeated: int
    repeats: int
    most_attempts: int
    most_calls: int


@dataclass(frozen=True, slots=True)
class Spread:
    """How long something took: `name` is a hop (queue, model, tool, lookup, backoff) or a run's status."""

    name: str
    count: int
    p50: timedelta
    p99: timedelta
    longest: timedelta


@dataclass(frozen=True, slots=True)
class Spending:
    """What the runs of one planner used that ended in the period, `completed` of them as they should.

    `tokens` and `cost` (millionths of the currency its models are priced in) are its own models', those below
    are of runs it started, which stand under their own planners too.
    """

    planner: str
    completed: int
    ended: int
    tokens: int
    cost: int
    below_tokens: int
    below_cost: int

    @property
    def tokens_per_completed(self) -> float:
        """All that was used, over the runs that came of it."""
        return (self.tokens + self.below_tokens) / self.completed if self.completed else 0.0

    @property
    def cost_per_completed(self) -> float:
        """The same of the cost."""
        return (self.cost + self.below_cost) / self.completed if self.completed else 0.0


@dataclass(frozen=True, slots=True)
class Aged:
    """How many of one state are at least `above` and less than `below` old; None: there is no such limit."""

    above: timedelta
    below: timedelta | None
    state: str
    count: int
    oldest: timedelta


@dataclass(frozen=True, slots=True)
class Stats:
    """All of it. `since` is what was asked for; `read_since` is later where more than `events` were there."""

    now: datetime
    since: datetime
    read_since: datetime
    events: int
    tools: list[ToolStats]
    keys: KeyStats
    hops: list[Spread]
    finished: list[Spread]
    unresolved: list[Aged]
    open_runs: list[Aged]
    spending: list[Spending]

    @property
    def cut(self) -> bool:
        """Whether the period held more events than were read."""
        return self.read_since > self.since


def read_stats(
    connection: Connection, since: timedelta | datetime, *, most: int = MOST, patience_s: float = 120.0
) -> Stats:
    """The figures from `since` on, a moment or a span back from the ledger's now. All of it may take
    `patience_s`, after which Postgres ends the session. `connection` is one in autocommit, of this use alone.
    """
    # Both for the session: inside a transaction its own timeout is not begun anew.
    connection.execute("SELECT set_config('transaction_timeout', %s, false)", [f"{patience_s * 1000:.0f}"])
    connection.execute("SET work_mem = '64MB'")
    if isinstance(connection, Session):
        connection.answer_s = patience_s * SILENCE
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        row = connection.execute("SELECT fencepost.now(), clock_timestamp()").fetchone()
        assert row is not None
        now, real = row
        begin = since if isinstance(since, datetime) else now - since
        asked = _asked(begin, now, real, most)
        return _read(connection, now, begin, asked)


def _asked(begin: datetime, now: datetime, real: datetime, most: int) -> dict[str, Any]:
    """The period as ids: those carry the real time, also where the ledger's clock was moved ahead."""
    span = max(now - begin, timedelta(0))
    low = max(real - span - _SLACK - (now - real), datetime.fromtimestamp(0, real.tzinfo))
    high = real + _SLACK
    ids = {"low": new_id(_millis(low), 0), "high": new_id(_millis(high), 0)}
    return ids | {"since": begin, "most": most, "bands": [float(band) for band in _BANDS]}


def _millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _read(connection: Connection, now: datetime, since: datetime, asked: dict[str, Any]) -> Stats:
    def rows(statement: LiteralString) -> list[Any]:
        return connection.execute(statement, asked).fetchall()

    read_since = since
    for first, begun in rows(_PERIOD):
        asked, read_since = asked | {"low": first}, max(begun, since)
    return Stats(
        now=now,
        since=since,
        read_since=read_since,
        events=rows(_COUNT)[0][0],
        tools=[ToolStats(*row) for row in rows(_TOOLS)],
        keys=KeyStats(*rows(_KEYS)[0]),
        hops=sorted((Spread(*row) for row in rows(_HOPS)), key=lambda hop: HOPS.index(hop.name)),
        finished=[Spread(*row) for row in rows(_FINISHED)],
        unresolved=[_aged(*row) for row in rows(_UNRESOLVED)],
        open_runs=[_aged(*row) for row in rows(_OPEN)],
        spending=[Spending(*row) for row in rows(_SPENDING)],
    )


def _aged(band: int, state: str, count: int, oldest: timedelta) -> Aged:
    above = timedelta(seconds=_BANDS[band - 1]) if band else timedelta(0)
    below = timedelta(seconds=_BANDS[band]) if band < len(_BANDS) else None
    return Aged(above, below, state, count, oldest)
