"""Steps that are due and that no living process can take, because none knows the planner's or tool's version.

Such a run is blocked, and nothing of it is counted or lost: it goes on as soon as a process that knows the
version starts, stops at its deadline, or is moved to another version of its planner by a person
(`fencepost repin`). Judged by what living processes of the step's queue have stamped (`fencepost.knowledge`);
where none has stamped anything, nobody is said to be missing a version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from fencepost.ledger.connect import Connection

_BLOCKED: Final = """
WITH alive AS MATERIALIZED (
    SELECT role, knows::jsonb AS knows FROM fencepost.workers
    WHERE ended_at IS NULL AND knows IS NOT NULL
      AND last_seen > (SELECT fencepost.now()) - %(ttl)s::interval),
due AS MATERIALIZED (
    SELECT o.tenant, o.run, o.subject, o.queue, o.due_at, r.run_key, r.deadline, n.word
    FROM fencepost.outbox o JOIN fencepost.runs r ON r.id = o.run AND r.tenant = o.tenant
    LEFT JOIN fencepost.calls c ON o.kind = 'call' AND c.id = o.subject AND c.tenant = o.tenant
    CROSS JOIN LATERAL (VALUES
        (CASE WHEN o.queue = 'planner' THEN 'planner:' || r.planner || '@' || r.planner_version END),
        ('tool:' || c.tool || '@' || c.tool_version),
        (CASE WHEN r.written > 1 THEN 'history@' || r.written END)) AS n (word)
    WHERE n.word IS NOT NULL AND o.due_at <= (SELECT fencepost.now()) AND o.dead_at IS NULL
      AND (%(runs)s::uuid[] IS NULL OR o.run = ANY(%(runs)s::uuid[]))
      AND (%(tenant)s::text IS NULL OR o.tenant = %(tenant)s::text))
SELECT tenant, run, run_key, subject, queue, word, due_at, deadline,
       ARRAY(SELECT DISTINCT substring(k FROM '@([0-9]+)$')::int
             FROM alive a, jsonb_array_elements_text(a.knows) k
             WHERE a.role = due.queue AND starts_with(k, substring(word FROM '^(.*@)[0-9]+$')) ORDER BY 1)
FROM due
WHERE EXISTS (SELECT 1 FROM alive a WHERE a.role = due.queue)
  AND NOT EXISTS (SELECT 1 FROM alive a WHERE a.role = due.queue AND a.knows ? word)
ORDER BY due_at, subject LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Blocked:
    """One step nobody alive can take. `missing` is what none of its queue knows, as `fencepost.knowledge`
    names it; `known` are the versions of the same name that some of them know.
    """

    tenant: str
    run: UUID
    run_key: str
    subject: UUID
    queue: str
    missing: str
    since: datetime
    deadline: datetime
    known: tuple[int, ...]

    @property
    def reason(self) -> str:
        """What is missing, in words."""
        name, _, version = self.missing.rpartition("@")
        others = ", ".join(map(str, self.known))
        if name == "history":
            return (
                f"its history has events of version {version}, and no living {self.queue} reads more than "
                f"{others or 'the first'}: a newer release has written it"
            )
        what = name.replace(":", " ", 1)
        knows = f"they know version {others}" if others else "none knows any version of it"
        return f"no living {self.queue} knows {what} version {version}; {knows}"


def may_look(connection: Connection) -> bool:
    """Whether this login may: a producer's may list runs, and no more."""
    tables = ("outbox", "workers", "calls", "runs")
    asked = " AND ".join(f"has_table_privilege('fencepost.{table}', 'SELECT')" for table in tables)
    row = connection.execute(f"SELECT {asked}").fetchone()
    return row is not None and bool(row[0])


def blocked(
    connection: Connection,
    ttl: timedelta,
    *,
    runs: Sequence[UUID] | None = None,
    tenant: str | None = None,
    limit: int | None = None,
) -> list[Blocked]:
    """Such steps, the longest due first; of these runs or this tenant alone, if given; `limit` None: all.
    `ttl`: silence after which nobody is alive.
    """
    only = {"runs": None if runs is None else list(runs), "tenant": tenant}
    found = connection.execute(_BLOCKED, {"ttl": ttl, "limit": limit, **only})
    return [Blocked(*[*row[:-1], tuple(row[-1])]) for row in found]
