"""The two state tables of Fencepost as one value each: read this file first.

A call moves along `CALL_TABLE`, a run along `RUN_TABLE`; every move is named by exactly one event type.
`CALL_HOPS` and `RUN_HOPS` say which net moves one UPDATE of a row may make and under which presentation:

- `term`: the owner and fence the row already carries (the holder records what it did);
- `claim`: a higher fence than the row carries (a new holder arrives; Postgres arbitrates, R7);
- `call`: the term of one of the run's calls (a call's outcome moves its run);
- an office (`cancel`, `approval`, `repair`, `evidence`, `recover`): no term, but the row's version, and the
  fence rises.

The triggers of the ledger are generated from these tables (`fencepost.ledger.guards`), so that a bug in
Python cannot make a move that is not written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class CallState(StrEnum):
    """Where one call stands. PROPOSED, VALIDATED and AUTHORIZED are passed in one change, never stored."""

    PROPOSED = "PROPOSED"
    VALIDATED = "VALIDATED"
    AUTHORIZED = "AUTHORIZED"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    INTENT_RECORDED = "INTENT_RECORDED"
    DISPATCHING = "DISPATCHING"
    UNKNOWN = "UNKNOWN"
    NEEDS_REPAIR = "NEEDS_REPAIR"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    REJECTED = "REJECTED"
    CANCELLED = "CANCELLED"
    ACCEPTED_UNKNOWN = "ACCEPTED_UNKNOWN"


class RunStatus(StrEnum):
    """Where one run stands. COMPLETED and STOPPED are ends: nothing ever plans again."""

    QUEUED = "QUEUED"
    PLANNING = "PLANNING"
    ACTING = "ACTING"
    STOPPING = "STOPPING"
    COMPENSATING = "COMPENSATING"
    COMPLETED = "COMPLETED"
    STOPPED = "STOPPED"


class StopReason(StrEnum):
    """Why a run stopped: a closed set, extended but never renamed."""

    TOOL_FAILED = "tool_failed"
    AUTHORIZATION_DENIED = "authorization_denied"
    OUTCOME_UNKNOWN = "outcome_unknown"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    BUDGET_EXHAUSTED = "budget_exhausted"
    NO_PROGRESS = "no_progress"
    CANCELLED = "cancelled"
    PLANNER_FAILED = "planner_failed"
    REFUSED = "refused"
    HISTORY_LIMIT = "history_limit"
    OPERATOR = "operator"


class Ground(StrEnum):
    """What kind of reason it is."""

    BUSINESS = "business"
    """What was asked for, allowed, spent or decided."""
    PLUMBING = "plumbing"
    """Who plans cannot be asked, or not understood: a wire, a transcript's form, a key, a price, code that
    raises. It says nothing of the effects, and somebody may mend it.
    """


GROUNDS: Mapping[StopReason, Ground] = {
    StopReason.TOOL_FAILED: Ground.BUSINESS,
    StopReason.AUTHORIZATION_DENIED: Ground.BUSINESS,
    StopReason.OUTCOME_UNKNOWN: Ground.BUSINESS,  # a person has accepted that
    StopReason.DEADLINE_EXCEEDED: Ground.BUSINESS,
    StopReason.BUDGET_EXHAUSTED: Ground.BUSINESS,
    StopReason.NO_PROGRESS: Ground.BUSINESS,
    StopReason.CANCELLED: Ground.BUSINESS,
    StopReason.PLANNER_FAILED: Ground.PLUMBING,
    StopReason.REFUSED: Ground.BUSINESS,  # the model has read it, and will not
    StopReason.HISTORY_LIMIT: Ground.BUSINESS,  # a limit of its budget; waiting makes no room
    StopReason.OPERATOR: Ground.BUSINESS,
}
"""Of each reason: an effect that succeeded is offset for one of the business, never for the plumbing."""


class OperationStatus(StrEnum):
    """What is known of one operation key, across attempts, turns and runs."""

    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"
    RELEASED = "released"
    UNKNOWN = "unknown"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"


class Queue(StrEnum):
    """The four queues; a queue's name is also its Celery task's suffix and its worker's role."""

    PLANNER = "planner"
    DISPATCHER = "dispatcher"
    RECONCILER = "reconciler"
    COMPENSATOR = "compensator"


C, R = CallState, RunStatus

CALL_ENDS = frozenset({C.SUCCEEDED, C.FAILED, C.REJECTED, C.CANCELLED, C.ACCEPTED_UNKNOWN})
CALL_AT_REST = frozenset(C) - {C.PROPOSED, C.VALIDATED, C.AUTHORIZED}
CALL_OPEN = CALL_AT_REST - CALL_ENDS
CALL_UNSENT = frozenset({C.AWAITING_APPROVAL, C.INTENT_RECORDED})
CALL_UNSETTLED = frozenset({C.DISPATCHING, C.UNKNOWN})
RUN_ENDS = frozenset({R.COMPLETED, R.STOPPED})
RUN_FORWARD = frozenset({R.QUEUED, R.PLANNING, R.ACTING})


class Move(NamedTuple):
    """One line of a state table."""

    source: str | None
    target: str
    event: str


def _moves(*lines: tuple[str, str, str]) -> frozenset[Move]:
    """Expand `"A B", "X Y", "Event"` into every A→X, A→Y, B→X, B→Y by that event."""
    return frozenset(
        Move(None if s == "-" else s, t, e)
        for sources, targets, events in lines
        for s in sources.split()
        for t in targets.split()
        for e in events.split()
    )


CALL_TABLE = _moves(
    ("-", "PROPOSED", "ToolProposalRecorded"),
    ("PROPOSED", "VALIDATED", "ArgumentsCanonicalized"),
    ("PROPOSED VALIDATED INTENT_RECORDED", "REJECTED", "ProposalRejected"),
    ("VALIDATED", "AUTHORIZED", "AuthorizationAllowed"),
    ("VALIDATED INTENT_RECORDED", "REJECTED", "AuthorizationDenied"),
    ("VALIDATED INTENT_RECORDED", "AWAITING_APPROVAL", "ApprovalRequested"),
    # Its own state where another person's approval is still missing.
    ("AWAITING_APPROVAL", "AWAITING_APPROVAL AUTHORIZED REJECTED", "ApprovalDecided"),
    ("AUTHORIZED", "INTENT_RECORDED", "DispatchIntentRecorded"),
    ("INTENT_RECORDED", "SUCCEEDED", "ResultReused"),
    ("INTENT_RECORDED UNKNOWN", "DISPATCHING", "ToolAttemptStarted"),
    ("PROPOSED VALIDATED AUTHORIZED AWAITING_APPROVAL INTENT_RECORDED", "CANCELLED", "CallCancelled"),
    ("DISPATCHING", "SUCCEEDED", "ToolResultRecorded"),
    ("DISPATCHING", "FAILED INTENT_RECORDED", "ToolAttemptFailed"),
    ("DISPATCHING", "UNKNOWN", "ToolOutcomeMarkedUnknown"),
    # After a restore nobody knows what was sent in the time the ledger lost.
    ("AWAITING_APPROVAL INTENT_RECORDED UNKNOWN", "UNKNOWN", "ToolOutcomeMarkedUnknown"),
    ("UNKNOWN", "SUCCEEDED FAILED", "ToolEffectReconciled"),
    # Of a call that started a run: its end is the proof, whoever hears of it.
    ("DISPATCHING UNKNOWN", "SUCCEEDED FAILED", "ChildRunSettled"),
    (
        "UNKNOWN AWAITING_APPROVAL INTENT_RECORDED FAILED CANCELLED REJECTED ACCEPTED_UNKNOWN SUCCEEDED",
        "NEEDS_REPAIR",
        "RepairRequested",
    ),
    ("NEEDS_REPAIR", "SUCCEEDED FAILED UNKNOWN ACCEPTED_UNKNOWN", "RepairDecided"),
    # Asked for, where a decision takes two.
    ("NEEDS_REPAIR", "NEEDS_REPAIR", "RepairProposed"),
    # An effect that a stopped run did not offset: a person has that tried once more, or leaves it as it is.
    ("SUCCEEDED", "SUCCEEDED", "RepairDecided"),
    # What nobody would ever know came to light, as in an audit.
    ("ACCEPTED_UNKNOWN", "SUCCEEDED", "RepairDecided"),
    # It is proved to have had no effect: a person has its key used again.
    ("FAILED", "FAILED", "RepairDecided"),
)

RUN_TABLE = _moves(
    ("-", "QUEUED", "RunCreated"),
    ("QUEUED ACTING PLANNING", "PLANNING", "ModelRequestStarted"),
    ("PLANNING", "ACTING", "ModelResponseRecorded"),
    ("PLANNING", "COMPLETED", "RunCompleted"),
    ("QUEUED PLANNING ACTING", "STOPPING", "RunStopping"),
    ("STOPPING", "COMPENSATING", "CompensationRequested"),
    ("STOPPING COMPENSATING", "STOPPED", "RunStopped"),
    ("STOPPED", "COMPENSATING", "RepairDecided"),
)

Hops = Mapping[str, frozenset[tuple[str, str]]]


def _hops(*lines: tuple[str, str, str]) -> Hops:
    hops: dict[str, set[tuple[str, str]]] = {}
    for via, sources, targets in lines:
        hops.setdefault(via, set()).update((s, t) for s in sources.split() for t in targets.split())
    return {via: frozenset(pairs) for via, pairs in hops.items()}


CALL_HOPS: Hops = _hops(
    ("claim", "INTENT_RECORDED", "INTENT_RECORDED DISPATCHING SUCCEEDED REJECTED AWAITING_APPROVAL"),
    ("claim", "UNKNOWN", "UNKNOWN DISPATCHING SUCCEEDED FAILED NEEDS_REPAIR"),
    ("claim", "DISPATCHING", "UNKNOWN DISPATCHING SUCCEEDED FAILED NEEDS_REPAIR INTENT_RECORDED"),
    ("term", "DISPATCHING", "SUCCEEDED FAILED INTENT_RECORDED UNKNOWN NEEDS_REPAIR"),
    ("term", "UNKNOWN", "UNKNOWN SUCCEEDED FAILED NEEDS_REPAIR"),
    ("claim", "AWAITING_APPROVAL", "REJECTED"),
    ("approval", "AWAITING_APPROVAL", "AWAITING_APPROVAL INTENT_RECORDED REJECTED"),
    ("cancel", "AWAITING_APPROVAL INTENT_RECORDED", "CANCELLED"),
    ("repair", "NEEDS_REPAIR", "NEEDS_REPAIR SUCCEEDED FAILED UNKNOWN ACCEPTED_UNKNOWN"),
    ("repair", "SUCCEEDED", "SUCCEEDED"),
    ("repair", "FAILED", "FAILED"),
    ("repair", "ACCEPTED_UNKNOWN", "SUCCEEDED"),
    ("evidence", "AWAITING_APPROVAL INTENT_RECORDED", "NEEDS_REPAIR"),
    ("evidence", "FAILED CANCELLED REJECTED ACCEPTED_UNKNOWN SUCCEEDED", "NEEDS_REPAIR"),
    ("recover", "AWAITING_APPROVAL INTENT_RECORDED DISPATCHING UNKNOWN", "UNKNOWN"),
)
"""Net moves of one UPDATE of a call. A row is inserted INTENT_RECORDED, AWAITING_APPROVAL, REJECTED or
CANCELLED.
"""

CALL_BORN = frozenset({C.INTENT_RECORDED, C.AWAITING_APPROVAL, C.REJECTED, C.CANCELLED})

_STOPPED_FROM_FORWARD = "STOPPING COMPENSATING STOPPED"
RUN_HOPS: Hops = _hops(
    ("claim", "QUEUED ACTING PLANNING", "PLANNING " + _STOPPED_FROM_FORWARD),
    # Put off: its model's provider is left alone. Nobody holds it then.
    ("claim", "QUEUED", "QUEUED"),
    ("claim", "ACTING", "ACTING"),
    ("claim", "STOPPING", "STOPPING COMPENSATING STOPPED"),
    ("claim", "COMPENSATING", "COMPENSATING STOPPED"),
    ("term", "PLANNING", "PLANNING ACTING COMPLETED " + _STOPPED_FROM_FORWARD),
    ("term", "COMPENSATING", "COMPENSATING STOPPED"),
    ("call", "QUEUED PLANNING ACTING", _STOPPED_FROM_FORWARD),
    ("call", "STOPPING", "COMPENSATING STOPPED"),
    ("cancel", "QUEUED PLANNING ACTING", _STOPPED_FROM_FORWARD),
    ("approval", "ACTING", _STOPPED_FROM_FORWARD),
    ("repair", "PLANNING ACTING", _STOPPED_FROM_FORWARD),
    ("repair", "QUEUED", "QUEUED"),
    ("repair", "PLANNING", "PLANNING"),
    ("repair", "ACTING", "ACTING"),
    ("repair", "STOPPING", "COMPENSATING STOPPED"),
    ("repair", "STOPPED", "COMPENSATING"),
    ("recover", "PLANNING", "PLANNING"),
    ("recover", "STOPPING", "STOPPING"),
    ("recover", "COMPENSATING", "COMPENSATING"),
)
"""Net moves of one UPDATE of a run that change its status, owner, fence, deadline, stop reason or result."""


def is_path(table: frozenset[Move], source: str, target: str) -> bool:
    """Whether `target` can be reached from `source` by moves of `table` (staying put counts)."""
    seen, frontier = {source}, [source]
    while frontier:
        here = frontier.pop()
        if here == target:
            return True
        reach = {m.target for m in table if m.source == here} - seen
        seen |= reach
        frontier.extend(reach)
    return False
