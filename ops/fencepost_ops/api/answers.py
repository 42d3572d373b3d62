"""How answers look, and the models that OpenAPI tells of them. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from fencepost.clock import rfc3339
from fencepost.ledger.signals import Sent
from fencepost_ops.api.reads import Page, Run, Told

_OURS: Final = frozenset({"owner", "worker"})
"""What a LeaseAcquired says of our processes: no business of a tenant's."""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class UsageModel(_Answer):
    """What a run has used so far, its child runs excepted."""

    turns: int
    requests: int = Field(description="requests for a turn, those that gave no answer included")
    calls: int
    attempts: int
    tokens: int
    cost: int = Field(description="millionths of the currency its models are priced in")


class RunSummaryModel(_Answer):
    """Where a run stands."""

    id: UUID
    run_key: str
    planner: str
    version: int
    principal: str
    status: str = Field(description="QUEUED, PLANNING, ACTING, STOPPING, COMPENSATING, COMPLETED or STOPPED")
    ended: bool
    stop_reason: str | None
    stop_detail: str | None
    created_at: datetime
    deadline: datetime
    open_calls: int
    awaiting_approval: int
    awaiting_repair: int
    effects: int = Field(description="its own committed effects that were not offset")
    owed: int = Field(description="of those it was to offset and did not, although something could")
    tainted: bool
    last_event: int
    parent: UUID | None
    root: UUID | None
    traceparent: str | None
    usage: UsageModel


class RunModel(RunSummaryModel):
    """A run, with its result once it has COMPLETED."""

    result: Any = Field(description="what its planner finished with; null where there is none")
    result_digest: str | None = Field(description="SHA-256 of the stored result; null where there is none")


class RunsModel(_Answer):
    """One page of runs; `next` is the cursor of the page after it, null on the last one."""

    runs: list[RunSummaryModel]
    next: UUID | None


class EventModel(_Answer):
    """One event of a run's history, numbered without gaps from 1."""

    seq: int
    id: UUID
    type: str
    call: UUID | None
    attempt: int | None
    at: datetime
    body: dict[str, Any]


class EventsModel(_Answer):
    """One page of events; ask for what comes `after` the number `next`. `status` is the run's now."""

    events: list[EventModel]
    next: int
    last_event: int
    status: str


class SignalModel(_Answer):
    """A signal that was taken."""

    number: int = Field(description="of the run's signals, from 1 on")
    sent_at: datetime


class HealthModel(_Answer):
    """How this process is."""

    status: str


class PlaceModel(_Answer):
    """What is wrong with one place of a body (RFC 6901)."""

    pointer: str
    detail: str


class ProblemModel(_Answer):
    """Why a request was refused (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    errors: list[PlaceModel] = Field(default_factory=list)


def summary(run: Run) -> dict[str, Any]:
    """A run as lists have it."""
    return {
        "id": str(run.id),
        "run_key": run.run_key,
        "planner": run.planner,
        "version": run.version,
        "principal": run.principal,
        "status": run.status,
        "ended": run.ended,
        "stop_reason": run.stop_reason,
        "stop_detail": run.stop_detail,
        "created_at": rfc3339(run.created_at),
        "deadline": rfc3339(run.deadline),
        "open_calls": run.open,
        "awaiting_approval": run.awaiting,
        "awaiting_repair": run.repairs,
        "effects": run.effects,
        "owed": run.owed,
        "tainted": run.tainted,
        "last_event": run.seq,
        "parent": _text(run.parent),
        "root": _text(run.root),
        "traceparent": run.traceparent,
        "usage": {
            "turns": run.turn,
            "requests": run.requests,
            "calls": run.calls,
            "attempts": run.attempts,
            "tokens": run.tokens,
            "cost": run.cost,
        },
    }


def run_text(run: Run) -> bytes:
    """A run as JSON. The result is the recorded text itself, so that no number changes on the way."""
    told = json.dumps(summary(run) | {"result_digest": run.digest}, ensure_ascii=False)
    return f'{told[:-1]}, "result": {run.result_text or "null"}}}'.encode()


def runs_text(found: Sequence[Run], limit: int) -> bytes:
    """A page of runs; a full one may have another after it."""
    following = str(found[-1].id) if len(found) == limit else None
    return _encoded({"runs": [summary(run) for run in found], "next": following})


def events_text(page: Page, after: int) -> bytes:
    """A page of events."""
    following = page.events[-1].seq if page.events else after
    told = [_event(event) for event in page.events]
    return _encoded({"events": told, "next": following, "last_event": page.seq, "status": page.status})


def signal_text(sent: Sent) -> bytes:
    """A signal that was taken."""
    return _encoded({"number": sent.number, "sent_at": rfc3339(sent.sent_at)})


def health_text(status: str) -> bytes:
    """How this process is."""
    return _encoded({"status": status})


def frame(event: Told) -> bytes:
    """An event of a stream: its number as id, its type as name."""
    data = json.dumps(_event(event), ensure_ascii=True)  # one line, whatever a body holds
    return f"id: {event.seq}\nevent: {event.type}\ndata: {data}\n\n".encode()


def last_frame(page: Page) -> bytes:
    """The end of a stream whose run has ended."""
    said = {"status": page.status, "stop_reason": page.stop_reason, "stop_detail": page.stop_detail}
    return f"id: {page.seq}\nevent: end\ndata: {json.dumps(said)}\n\n".encode()


def _event(event: Told) -> dict[str, Any]:
    body = json.loads(event.body)
    if event.type == "LeaseAcquired":
        body = {name: value for name, value in body.items() if name not in _OURS}
    return {
        "seq": event.seq,
        "id": str(event.id),
        "type": event.type,
        "call": _text(event.call),
        "attempt": event.attempt,
        "at": rfc3339(event.at),
        "body": body,
    }


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
