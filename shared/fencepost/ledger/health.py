"""The rows of `dependencies` in `apply`: read with every change of a call, and of a run whose planner is a
model; locked only where one may change.

A batch whose dependencies are well and have no limits reads their rows, if there are any, and locks none. One
that concerns neither calls nor models does not even read. A call's own row says which dependency it goes to;
a run's worker names that of its model, and the rows of all declared models are read with it, because a
closed one is passed over.

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
from fencepost.decide.fold import Known
from fencepost.ledger import rows
from fencepost.subjects import Call

_TOUCHED = "unnest(%(call_tenants)s::text[], %(calls)s::uuid[]) AS w (tenant, id)"
_FAILING = "unnest(%(failing_tenants)s::text[], %(failing)s::uuid[]) AS w (tenant, id)"
_WATCHED = f"""SELECT calls.scope FROM {_TOUCHED} JOIN fencepost.calls USING (tenant, id)
WHERE calls.scope = ANY(%(watched)s::text[])
UNION SELECT calls.scope FROM {_FAILING} JOIN fencepost.calls USING (tenant, id)
UNION SELECT unnest(%(providers_watched)s::text[])"""
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
WHERE scope = ANY(%(providers)s::text[]
    || ARRAY(SELECT calls.scope FROM {_TOUCHED} JOIN fencepost.calls USING (tenant, id)))
"""
UPDATE_DEPENDENCIES = f"""
UPDATE fencepost.dependencies t SET ({rows.columns(rows.HEALTH_COLUMNS[1:])})
    = ({", ".join(f"n.{name}" for name in rows.HEALTH_COLUMNS[1:])})
FROM json_to_recordset(%s::json)
    AS n ({", ".join(f"{name} {kind}" for name, kind in rows.types(Health).items())})
WHERE t.scope = n.scope AND t.version = n.version - 1
"""

values = rows.values(Health, rows.HEALTH_COLUMNS)


OfModel = c.ClaimRun | c.RecordTurn | c.RecordPlanLost
"""What may ask a model, or tell what became of that."""
_OfCall = c.ClaimCall | c.ClaimDoubt | c.RecordOutcome | c.RecordLookup
_Told = c.RecordOutcome | c.RecordLookup | c.RecordTurn | c.RecordPlanLost


def depends(batch: Sequence[c.Command]) -> bool:
    """Whether anything in a batch is sent to, or was answered by, a dependency."""
    return any(isinstance(x, _OfCall) or (isinstance(x, OfModel) and x.scope) for x in batch)


def hinted(batch: Sequence[c.Command]) -> frozenset[str]:
    """The scopes a batch says it concerns."""
    return frozenset(x.scope for x in batch if isinstance(x, c.Claim | _Told))


def named(batch: Sequence[c.Command], watched: frozenset[str], providers: frozenset[str]) -> frozenset[str]:
    """The dependencies whose rows are read for models, and not because of a call: those of all models,
    `providers`, if the batch concerns any; and of those it says, or turned out to need, as `watched`.
    """
    asked = {x.scope for x in batch if isinstance(x, OfModel)}
    hints = frozenset(asked - {""})
    return hints | (watched if asked else frozenset()) | (providers if hints else frozenset())


def concerned(
    batch: Sequence[c.Command], watched: frozenset[str], providers: frozenset[str]
) -> dict[str, Any]:
    """The parameters that name dependencies, and the calls whose dependency failed, by what their workers
    report. `watched` are those to be locked, `providers` those of all models.
    """
    told = [x for x in batch if isinstance(x, _Told) and said(x).failed]
    calls = [x for x in told if isinstance(x, c.RecordOutcome | c.RecordLookup)]
    models = {x.scope for x in told if isinstance(x, OfModel) and x.scope}
    if any(isinstance(x, OfModel) for x in batch):
        models |= watched
    return {
        "failing_tenants": rows.text_array(x.tenant for x in calls),
        "failing": rows.plain_array(x.call for x in calls),
        "watched": rows.text_array(watched),
        "providers": rows.text_array(named(batch, watched, providers)),
        "providers_watched": rows.text_array(models),
    }


def any_ill(parameters: dict[str, Any]) -> bool:
    """Whether `concerned` found anything that failed."""
    return any(parameters[name] != "{}" for name in ("failing", "providers_watched"))


def said(command: c.RecordOutcome | c.RecordLookup | c.RecordTurn | c.RecordPlanLost) -> breaker.Learnt:
    """What a record says of its dependency."""
    if isinstance(command, c.RecordTurn):
        return breaker.Learnt(answered=True)
    if isinstance(command, c.RecordOutcome):
        return breaker.learnt(command.outcome)
    if isinstance(command, c.RecordPlanLost):
        return breaker.learnt_of_model(command.code, command.retry_after)
    return breaker.learnt_of_question(command.code, command.retry_after)


def limited(call: Call, known: Known) -> bool:
    """Whether the dependency of a call has a limit for the fleet."""
    tool = known.tool(call.tool, call.tool_version)
    return tool is not None and tool.dependency.limited
