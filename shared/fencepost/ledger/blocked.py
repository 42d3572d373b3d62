"""Steps that are due and that no living process can take, because none knows the planner's or tool's version.

Such a run is blocked, and nothing of it is counted or lost: it goes on as soon as a process that knows the
version starts, stops at its deadline, or is moved to another version of its planner by a person
(`fencepost repin`). Judged by what living processes of the step's queue have stamped (`fencepost.knowledge`);
where none has stamped anything, nobody is said to be missing a version.
"""

from __future__ import annotations

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
    SELECT o.tenant, o.run, o.subject, o.kind, o.queue, o.due_at,
           CASE o.kind WHEN 'run' THEN r.planner ELSE c.tool END AS name,
           CASE o.kind WHEN 'run' THEN r.planner_version ELSE c.tool_version END AS version, r.run_key,
           r.deadline, CASE o.kind WHEN 'run' THEN 'planner:' || r.planner ELSE 'tool:' || c.tool END AS word
    FROM fencepost.outbox o JOIN fencepost.runs r ON r.id = o.run AND r.tenant = o.tenant
    LEFT JOIN fencepost.calls c ON o.kind = 'call' AND c.id = o.subject AND c.tenant = o.tenant
    WHERE o.due_at <= (SELECT fencepost.now()) AND o.dead_at IS NULL
      AND (o.kind = 'call' OR o.queue = 'planner')
      AND (%(run)s::uuid IS NULL OR o.run = %(run)s::uuid))
SELECT tenant, run, run_key, subject, kind, queue, name, version, due_at, deadline,
       ARRAY(SELECT DISTINCT substring(k FROM '@([0-9]+)$')::int
             FROM alive a, jsonb_array_elements_text(a.knows) k
             WHERE a.role = due.queue AND starts_with(k, word || '@') ORDER BY 1)
FROM due
WHERE EXISTS (SELECT 1 FROM alive a WHERE a.role = due.queue)
  AND NOT EXISTS (
    SELECT 1 FROM alive a WHERE a.role = due.queue
      AND a.knows ? (word || '@' || version))
ORDER BY due_at, subject LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Blocked:
    """One step nobody alive can take: `kind` run (its planner) or call (its tool); `known` are the versions
    of that name that living processes of the queue do know.
    """

    tenant: str
    run: UUID
    run_key: str
    subject: UUID
    kind: str
    queue: str
    name: str
    version: int
    since: datetime
    deadline: datetime
    known: tuple[int, ...]

    @property
    def reason(self) -> str:
        """What is missing, in words."""
        what = "planner" if self.kind == "run" else "tool"
        others = ", ".join(map(str, self.known))
        knows = f"they know version {others}" if others else "none knows any version of it"
        return f"no living {self.queue} knows {what} {self.name} version {self.version}; {knows}"


def may_look(connection: Connection) -> bool:
    """Whether this login may: a producer's may list runs, and no more."""
    tables = ("outbox", "workers", "calls", "runs")
    asked = " AND ".join(f"has_table_privilege('fencepost.{table}', 'SELECT')" for table in tables)
    row = connection.execute(f"SELECT {asked}").fetchone()
    return row is not None and bool(row[0])


def blocked(
    connection: Connection, ttl: timedelta, *, run: UUID | None = None, limit: int = 200
) -> list[Blocked]:
    """Such steps, the longest due first; of one run if given. `ttl`: silence after which nobody is alive."""
    found = connection.execute(_BLOCKED, {"ttl": ttl, "run": run, "limit": limit})
    return [Blocked(*[*row[:-1], tuple(row[-1])]) for row in found]
