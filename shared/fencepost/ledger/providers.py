"""Runs that wait for the provider of their model, which is left alone, throttles or has failed them; or for a
person, because what keeps their planner from going on says nothing of the effects they have had. Read-only.

Such a run waits as a row; it is asked for again by itself, or (`person`, where that is charged) once somebody
says so; its deadline binds all the same. Judged by what its history says last of the run itself: that its
plan was put off, or that the provider itself has lost an answer. A run that has not been taken yet waits for
a planner, whatever its provider does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from fencepost.ledger.connect import Connection

_LOST: Final = """
({0}.type = 'PlanDeferred' OR {0}.type = 'ModelOutcomeUnknown'
 AND ({0}.body ->> 'outage' = 'true' OR {0}.body ->> 'waits_for' = 'person'))
"""
_OPEN: Final = """
(NOT r.ended AND r.owner IS NULL AND r.fence > 0 AND r.open <= r.detached
 AND r.status IN ('QUEUED', 'PLANNING', 'ACTING'))
"""
_LAST: Final = """
SELECT e.type, e.body FROM fencepost.events e WHERE e.run = r.id AND e.tenant = r.tenant AND e.call IS NULL
ORDER BY e.seq DESC LIMIT 1
"""
WAITS: Final = f"({_OPEN} AND (SELECT {_LOST.format('last')} FROM ({_LAST}) AS last))"
"""Whether the run `r` does; a statement's condition."""

# It began with the first such event after the last one that says something else of the run.
_WAITING: Final = f"""
SELECT r.tenant, r.id, r.run_key, last.body ->> 'provider',
       coalesce(last.body ->> 'reason', concat_ws(': ', last.body ->> 'code', last.body ->> 'message')),
       (SELECT e.recorded_at FROM fencepost.events e
        WHERE e.run = r.id AND e.tenant = r.tenant AND e.call IS NULL AND {_LOST.format("e")}
          AND e.seq > coalesce((SELECT b.seq FROM fencepost.events b
              WHERE b.run = r.id AND b.tenant = r.tenant AND b.call IS NULL AND b.type NOT IN ('PlanDeferred',
                  'ModelOutcomeUnknown', 'ModelPassedOver', 'LeaseAcquired', 'ModelRequestStarted')
              ORDER BY b.seq DESC LIMIT 1), 0)
        ORDER BY e.seq LIMIT 1),
       r.ready_at, r.deadline, coalesce(last.body ->> 'waits_for' = 'person', false), r.planner_version
FROM fencepost.runs r CROSS JOIN LATERAL ({_LAST}) AS last
WHERE {_OPEN} AND {_LOST.format("last")} AND (%(runs)s::uuid[] IS NULL OR r.id = ANY(%(runs)s::uuid[]))
"""
_BY_PROVIDER: Final = f"""
WITH w (tenant, run, run_key, provider, why, since, until, deadline, person, version)
    AS MATERIALIZED ({_WAITING})
SELECT provider, count(*), min(since), min(until), (array_agg(why ORDER BY since DESC))[1], person
FROM w GROUP BY provider, person ORDER BY 2 DESC, 1
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One run that waits: for whom (a dependency; None where its history does not say), why, since when,
    when it is asked for again, and when it gives up; `person`: for somebody to mend what `why` tells.
    """

    tenant: str
    run: UUID
    run_key: str
    provider: str | None
    why: str
    since: datetime
    until: datetime
    deadline: datetime
    person: bool = False
    version: int = 1


@dataclass(frozen=True, slots=True)
class Awaited:
    """A provider, and how many runs wait for it: since when the first of them, until when the next one;
    `person`: for somebody to mend what keeps them from it.
    """

    provider: str | None
    runs: int
    since: datetime
    until: datetime
    why: str
    person: bool = False


def may_look(connection: Connection) -> bool:
    """Whether this login may: a producer's may list runs, and no more."""
    row = connection.execute("SELECT has_table_privilege('fencepost.events', 'SELECT')").fetchone()
    return row is not None and bool(row[0])


def waiting(connection: Connection, runs: Sequence[UUID]) -> list[Waiting]:
    """Which of these runs wait for a provider, in no order."""
    return [Waiting(*row) for row in connection.execute(_WAITING, {"runs": list(runs)})]


def awaited(connection: Connection) -> list[Awaited]:
    """The providers that runs wait for, the most awaited first."""
    return [Awaited(*row) for row in connection.execute(_BY_PROVIDER, {"runs": None})]
