"""The rows of `dependencies` in `apply`: read with every change of a call, locked only where one may change.

A batch whose dependencies are well and have no limits reads their rows, if there are any, and locks none.
Rows are locked, after the operations, before the outbox and in the order of their scopes, where an outcome of
the batch counts against a dependency, where a limit holds, and where a row was last seen failing or not
closed. Nothing is decided on such a row without its lock: a batch that meets one is loaded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fencepost import breaker
from fencepost import commands as c
from fencepost.breaker import Health
from fencepost.ledger import rows

_TOUCHED = "unnest(%(call_tenants)s::text[], %(calls)s::uuid[]) AS w (tenant, id)"
_FAILING = "unnest(%(failing_tenants)s::text[], %(failing)s::uuid[]) AS w (tenant, id)"
_WATCHED = f"""SELECT calls.scope FROM {_TOUCHED} JOIN fencepost.calls USING (tenant, id)
WHERE calls.scope = ANY(%(watched)s::text[])
UNION SELECT calls.scope FROM {_FAILING} JOIN fencepost.calls USING (tenant, id)"""
_WHAT = rows.select("dependencies", rows.HEALTH_COLUMNS)

NEW_DEPENDENCIES = f"""
INSERT INTO fencepost.dependencies (scope) SELECT n.scope FROM ({_WATCHED}) AS n
WHERE NOT EXISTS (SELECT 1 FROM fencepost.dependencies d WHERE d.scope = n.scope)
ORDER BY n.scope ON CONFLICT DO NOTHING
"""
LOCK_DEPENDENCIES = f"""
SELECT {_WHAT} FROM fencepost.dependencies
WHERE scope = ANY(ARRAY({_WATCHED}))
ORDER BY scope FOR NO KEY UPDATE
"""
READ_DEPENDENCIES = f"""
SELECT {_WHAT} FROM fencepost.dependencies
WHERE scope = ANY(ARRAY(SELECT calls.scope FROM {_TOUCHED} JOIN fencepost.calls USING (tenant, id)))
"""
UPDATE_DEPENDENCIES = f"""
UPDATE fencepost.dependencies t SET ({rows.columns(rows.HEALTH_COLUMNS[1:])})
    = ({", ".join(f"n.{name}" for name in rows.HEALTH_COLUMNS[1:])})
FROM json_to_recordset(%s::json)
    AS n ({", ".join(f"{name} {kind}" for name, kind in rows.types(Health).items())})
WHERE t.scope = n.scope AND t.version = n.version - 1
"""

values = rows.values(Health, rows.HEALTH_COLUMNS)


def depends(batch: Sequence[c.Command]) -> bool:
    """Whether anything in a batch is sent to, or was answered by, a dependency."""
    return any(isinstance(x, c.ClaimCall | c.ClaimDoubt | c.RecordOutcome | c.RecordLookup) for x in batch)


def hinted(batch: Sequence[c.Command]) -> frozenset[str]:
    """The scopes a batch says it concerns."""
    found = [x for x in batch if isinstance(x, c.Claim | c.RecordOutcome | c.RecordLookup)]
    return frozenset(x.scope for x in found)


def failing(batch: Sequence[c.Command]) -> dict[str, Any]:
    """The parameters that name the calls whose dependency failed, by what their workers report."""
    found = [x for x in batch if isinstance(x, c.RecordOutcome | c.RecordLookup) and _said(x).failed]
    return {
        "failing_tenants": rows.text_array(x.tenant for x in found),
        "failing": rows.plain_array(x.call for x in found),
    }


def any_failing(parameters: dict[str, Any]) -> bool:
    """Whether `failing` found any."""
    return bool(parameters["failing"] != "{}")


def _said(command: c.RecordOutcome | c.RecordLookup) -> breaker.Learnt:
    if isinstance(command, c.RecordOutcome):
        return breaker.learnt(command.outcome)
    return breaker.learnt_of_question(command.code, command.retry_after)
