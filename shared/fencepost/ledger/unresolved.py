"""Calls of which nobody knows whether their effect happened, and the whole story of each. Read-only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from fencepost.events import EventType
from fencepost.ledger.connect import Connection

E = EventType

# Written so that the partial index over open and doubtful calls serves it.
_UNRESOLVED: Final = """
SELECT c.tenant, c.run, r.run_key, c.id, c.label, c.tool, c.tool_version, c.state, c.doubt, c.attempts,
       c.operation, c.arguments, c.request, c.lookup, c.asks, c.error, c.in_flight_until, c.quiet_at,
       c.reconcile_until,
       (SELECT min(e.recorded_at) FROM fencepost.events e WHERE e.tenant = c.tenant AND e.run = c.run
        AND e.call = c.id AND e.type IN ('ToolOutcomeMarkedUnknown', 'RepairRequested')),
       o.queue, o.due_at, c.version,
       (SELECT coalesce(array_agg(format('attempt %%s %%s%%s', v.attempt,
                CASE WHEN v.applied THEN 'applied' ELSE 'not applied: ' || v.code END,
                CASE WHEN v.receipt IS NOT NULL THEN ', receipt ' || v.receipt ELSE '' END)
                ORDER BY v.recorded_at, v.id), '{}')
        FROM fencepost.evidence v WHERE v.tenant = c.tenant AND v.call = c.id),
       c.effect, c.scope, c.compensates, c.proposed, r.status, r.deadline, r.on_stop, r.effects
FROM fencepost.calls c JOIN fencepost.runs r ON r.tenant = c.tenant AND r.id = c.run
LEFT JOIN fencepost.outbox o ON o.tenant = c.tenant AND o.subject = c.id
WHERE c.live AND (c.state IN ('UNKNOWN', 'NEEDS_REPAIR') OR c.doubt)
  AND (c.tenant = %(tenant)s OR %(tenant)s::text IS NULL) AND (c.id = %(call)s OR %(call)s::uuid IS NULL)
ORDER BY 20, c.tenant, c.id LIMIT %(limit)s
"""
_STORIES: Final = """
SELECT e.call, e.type, e.attempt, e.body::text, e.recorded_at, e.principal, e.worker, e.fence
FROM unnest(%(tenants)s::text[], %(runs)s::uuid[], %(calls)s::uuid[]) AS s (tenant, run, call)
JOIN fencepost.events e ON e.run = s.run AND e.tenant = s.tenant AND e.call = s.call
WHERE e.type = ANY(%(types)s) ORDER BY e.run, e.seq
"""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A call of which nobody knows whether its effect happened: since when, what was sent, what was learnt.

    `queue` and `due_at` say what happens next; NEEDS_REPAIR is due at `clock.NEVER`, it waits for a person.
    `version` changes with the call: a decision can name the one it was made on. `evidence` is what workers
    whose term was over reported. `status`, `deadline`, `on_stop` and `effects` are its run's.
    """

    tenant: str
    run: UUID
    run_key: str
    call: UUID
    label: str
    tool: str
    tool_version: int
    state: str
    doubt: bool
    attempts: int
    operation: str | None
    arguments: str
    request: str | None
    lookup: str | None
    asks: int
    error: str | None
    in_flight_until: datetime | None
    quiet_at: datetime | None
    reconcile_until: datetime | None
    since: datetime | None
    queue: str | None
    due_at: datetime | None
    version: int
    evidence: list[str]
    effect: str
    scope: str
    compensates: str | None
    proposed: str | None = None
    status: str = ""
    deadline: datetime | None = None
    on_stop: str = ""
    effects: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """One attempt: when it was committed, by which term, and what came back; None: nothing was recorded.

    `outcome` and `message` are the worker's own words; `lost` says that the worker never answered.
    """

    attempt: int
    at: datetime
    deadline: str | None
    owner: str | None
    fence: int | None
    repeat: bool
    outcome: str | None = None
    message: str | None = None
    answered_at: datetime | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """One question to the downstream, and its answer: found, absent, unclear, ..."""

    at: datetime
    answer: str
    receipt: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class Witness:
    """What a worker whose term was over reported of an attempt."""

    at: datetime
    attempt: int | None
    applied: bool
    receipt: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class Decided:
    """What a person has decided of the call before, or asked somebody else to confirm."""

    at: datetime
    by: str
    what: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that was done to find out about one call, in order; `why` is what brought it to a person,
    the last reason last.
    """

    sent: tuple[Sent, ...] = ()
    asked: tuple[Asked, ...] = ()
    evidence: tuple[Witness, ...] = ()
    why: tuple[tuple[datetime, str], ...] = ()
    decided: tuple[Decided, ...] = ()


def unresolved(
    connection: Connection, *, tenant: str | None = None, limit: int = 100, call: UUID | None = None
) -> list[Unresolved]:
    """Calls in doubt or waiting for repair, the oldest first; with `call` that one alone, if it is any."""
    found = connection.execute(_UNRESOLVED, {"tenant": tenant, "limit": limit, "call": call})
    return [Unresolved(*row) for row in found]


def stories(connection: Connection, of: Sequence[Unresolved]) -> dict[UUID, Story]:
    """The story of each of these calls; one statement, whatever their number."""
    where = {"tenants": [c.tenant for c in of], "runs": [c.run for c in of], "calls": [c.call for c in of]}
    found = connection.execute(_STORIES, where | {"types": list(_TELLS)})
    told: dict[UUID, list[_Line]] = {c.call: [] for c in of}
    for call, *line in found:
        told[call].append(_Line(*line))
    return {call: tell(lines) for call, lines in told.items()}


@dataclass(frozen=True, slots=True)
class _Line:
    type: str
    attempt: int | None
    body: str
    at: datetime
    principal: str
    worker: str | None
    fence: int | None


_OUTCOMES: Final = {E.TOOL_RESULT_RECORDED, E.TOOL_ATTEMPT_FAILED, E.TOOL_OUTCOME_MARKED_UNKNOWN}
_TELLS: Final = (
    E.TOOL_ATTEMPT_STARTED,
    *sorted(_OUTCOMES),
    E.TOOL_LOOKUP_RECORDED,
    E.EVIDENCE_FILED,
    E.REPAIR_REQUESTED,
    E.REPAIR_DECIDED,
    E.REPAIR_PROPOSED,
)


def tell(lines: Iterable[_Line]) -> Story:
    """The story of one call from its events in order. Survives bodies of other versions."""
    story = Story()
    for line in lines:
        data: dict[str, Any] = json.loads(line.body)
        story = _told(story, line, data)
    return story


def _told(story: Story, line: _Line, data: dict[str, Any]) -> Story:
    if line.type == E.TOOL_ATTEMPT_STARTED:
        term = (line.worker, line.fence)
        made = Sent(line.attempt or 0, line.at, data.get("deadline"), *term, bool(data.get("repeat")))
        return replace(story, sent=(*story.sent, made))
    if line.type in _OUTCOMES:
        return replace(story, sent=tuple(_answered(sent, line, data) for sent in story.sent))
    if line.type == E.TOOL_LOOKUP_RECORDED:
        said = _object(data.get("lookup"))
        asked = Asked(line.at, str(said.get("answer", "?")), said.get("receipt"), said.get("detail"))
        return replace(story, asked=(*story.asked, asked))
    if line.type == E.EVIDENCE_FILED:
        heard = (bool(data.get("applied")), data.get("receipt"), data.get("code"))
        return replace(story, evidence=(*story.evidence, Witness(line.at, line.attempt, *heard)))
    if line.type == E.REPAIR_REQUESTED:
        return replace(story, why=(*story.why, (line.at, str(data.get("reason", "not known")))))
    asked_for = line.type == E.REPAIR_PROPOSED
    what = f"{data.get('decision', '?')} asked for" if asked_for else str(data.get("to", "?"))
    decided = Decided(line.at, line.principal, what, data.get("reason"))
    return replace(story, decided=(*story.decided, decided))


def _answered(sent: Sent, line: _Line, data: dict[str, Any]) -> Sent:
    """The attempt this outcome speaks of, with it; the last of its number where several had one."""
    if sent.attempt != line.attempt or sent.outcome is not None:
        return sent
    outcome = "applied" if line.type == E.TOOL_RESULT_RECORDED else str(data.get("code", "?"))
    said = data.get("message") or data.get("receipt")
    return replace(
        sent, outcome=outcome, message=said, answered_at=line.at, lost=bool(data.get("lost", False))
    )


def _object(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
