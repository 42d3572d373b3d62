"""The checker's own fold of one run's events: what the history says happened. It is not the kernel's.

`RunStory.tell` takes one event after the other. It judges nothing: rules read the story before an event, and
at the end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fencepost.states import CallState, RunStatus
from fencepost_ops.checker.facts import EventRow

C, R = CallState, RunStatus

ENDED = frozenset({C.SUCCEEDED, C.FAILED, C.REJECTED, C.CANCELLED, C.ACCEPTED_UNKNOWN})
OUTCOMES = frozenset({"ToolResultRecorded", "ToolAttemptFailed", "ToolOutcomeMarkedUnknown"})


@dataclass(slots=True)
class AttemptStory:
    """One attempt: the event that started it, and those that said what became of it."""

    started: EventRow
    repeat: bool
    outcomes: list[EventRow] = field(default_factory=list)


@dataclass(slots=True)
class CallStory:
    """One call as its events tell it. `lease` is the last term acquired; `fence` the highest accepted."""

    id: UUID
    tool: str
    effect: str
    operation: str | None
    compensates: str | None
    state: str = C.PROPOSED
    doubt: bool = False
    reused: bool = False
    fence: int = 0
    lease: tuple[str | None, int | None] | None = None
    attempts: dict[int, AttemptStory] = field(default_factory=dict)
    allowed: bool = False  # authorised for a claim since its last attempt
    repaired_by: str | None = None  # who settled it last, where that was a person

    @property
    def named(self) -> str:
        """How a sentence names it."""
        return f"call {self.id} ({self.tool})"

    @property
    def own_effect(self) -> bool:
        """Whether it is a committed forward effect of its own run."""
        return self.state == C.SUCCEEDED and self.effect != "read" and not (self.reused or self.compensates)


@dataclass(slots=True)
class RunStory:
    """One run as its events tell it. `ended` is the number of the event that ended it.

    `budget` of attempts and `on_stop` are what its producer asked for.
    """

    budget: int = 256
    on_stop: str = "leave"
    status: str = R.QUEUED
    fence: int = 0
    lease: tuple[str | None, int | None] | None = None
    calls: dict[UUID, CallStory] = field(default_factory=dict)
    attempts: int = 0
    ended: int | None = None
    strays: list[EventRow] = field(default_factory=list)  # events that name a call nobody proposed

    def tell(self, event: EventRow, body: dict[str, Any]) -> None:
        """Go on by one event."""
        if event.type == "ToolProposalRecorded" and event.call is not None:
            named = {n: body.get(n) for n in ("tool", "effect", "operation", "compensates")}
            self.calls[event.call] = CallStory(event.call, **named)  # type: ignore[arg-type]
        elif event.call is None:
            self._run(event, body)
        elif (call := self.calls.get(event.call)) is None:
            self.strays.append(event)
        else:
            self.attempts += event.type == "ToolAttemptStarted"
            _call(call, event, body)

    def compensation_of(self, forward: CallStory) -> list[CallStory]:
        """The calls that compensate `forward`."""
        return [c for c in self.calls.values() if c.compensates and c.compensates == forward.operation]

    def _run(self, event: EventRow, body: dict[str, Any]) -> None:
        self.status = _RUN_STATUS.get(event.type, self.status)
        if isinstance(body.get("fence"), int):
            self.fence = max(self.fence, body["fence"])
        if event.type == "LeaseAcquired":
            self.lease = (body.get("owner"), body.get("fence"))
        elif event.type in ("RunCompleted", "RunStopped"):
            self.ended = event.seq
        elif event.type == "RepairDecided":
            self.ended = None


_RUN_STATUS = {
    "RunCreated": R.QUEUED,
    "ModelRequestStarted": R.PLANNING,
    "ModelResponseRecorded": R.ACTING,
    "RunCompleted": R.COMPLETED,
    "RunStopping": R.STOPPING,
    "CompensationRequested": R.COMPENSATING,
    "RunStopped": R.STOPPED,
    "RepairDecided": R.COMPENSATING,
}
_CALL_STATE = {
    "ArgumentsCanonicalized": C.VALIDATED,
    "DispatchIntentRecorded": C.INTENT_RECORDED,
    "ResultReused": C.SUCCEEDED,
    "ToolAttemptStarted": C.DISPATCHING,
    "ToolResultRecorded": C.SUCCEEDED,
    "ToolOutcomeMarkedUnknown": C.UNKNOWN,
    "RepairRequested": C.NEEDS_REPAIR,
    "CallCancelled": C.CANCELLED,
}


def _call(call: CallStory, event: EventRow, body: dict[str, Any]) -> None:
    _moved(call, event, body)
    if isinstance(body.get("fence"), int):
        call.fence = max(call.fence, body["fence"])
    if event.type == "LeaseAcquired":
        call.lease = (body.get("owner"), body.get("fence"))
    elif event.type == "ResultReused":
        call.reused = True
    elif event.type == "AuthorizationAllowed":
        call.allowed = body.get("phase") == "claim"
    elif event.type == "ToolAttemptStarted" and event.attempt is not None:
        call.attempts[event.attempt] = AttemptStory(event, bool(body.get("repeat")))
        call.allowed = False
    elif event.type in OUTCOMES and event.attempt in call.attempts:
        call.attempts[event.attempt].outcomes.append(event)


def _moved(call: CallStory, event: EventRow, body: dict[str, Any]) -> None:
    """State and doubt after the event: doubt begins with an unknown outcome and ends with a proof."""
    kind = event.type
    if kind in ("ProposalRejected", "AuthorizationDenied"):
        call.state = call.state if call.state == C.UNKNOWN else C.REJECTED
    elif kind == "AuthorizationAllowed" and call.state == C.VALIDATED:
        call.state = C.AUTHORIZED
    elif kind == "ToolAttemptFailed":
        call.state = C.FAILED if body.get("final") else C.INTENT_RECORDED
    elif kind in ("ToolEffectReconciled", "RepairDecided"):
        call.state = body.get("to", call.state)
        if "offset" not in body:  # a word on what a stopped run left says nothing of whether it happened
            call.repaired_by = event.principal if kind == "RepairDecided" else None
    else:
        call.state = _CALL_STATE.get(kind, call.state)
    if kind in ("ToolOutcomeMarkedUnknown", "RepairRequested"):
        call.doubt = True
    elif kind in ("ToolResultRecorded", "ToolEffectReconciled", "RepairDecided", "ToolAttemptFailed"):
        call.doubt = call.doubt and call.state not in ENDED


def body_of(event: EventRow) -> dict[str, Any]:
    """The body, parsed; empty for one that is no JSON object (the chain's check names it)."""
    try:
        parsed = json.loads(event.body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
