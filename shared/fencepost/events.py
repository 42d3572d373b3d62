"""Event types, the event record and its hash. Names are data: extend, never rename.

An event's hash covers its header, its body's digest and the previous hash, so that an edit, a removal or a
reordering inside one run's history breaks the chain (I6). It does not detect a rewrite of the whole table by
its owner, nor a cut tail: exported heads do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from fencepost.canonical import CanonicalError, admit, encode, sanitize
from fencepost.clock import rfc3339
from fencepost.jsontext import encoder
from fencepost.records import amended

SCHEMA_VERSION = 2
COUNTED_FROM = 2
"""The first version of events whose sizes, and whose turns without an intent, count for their run."""
GENESIS = "0" * 64

_encode = encoder()


class EventType(StrEnum):
    """Every event the ledger may hold; `states.py` says which move each one makes."""

    RUN_CREATED = "RunCreated"
    LEASE_ACQUIRED = "LeaseAcquired"
    MODEL_REQUEST_STARTED = "ModelRequestStarted"
    MODEL_RESPONSE_RECORDED = "ModelResponseRecorded"
    MODEL_OUTCOME_UNKNOWN = "ModelOutcomeUnknown"
    RUN_COMPLETED = "RunCompleted"
    RUN_STOPPING = "RunStopping"
    COMPENSATION_REQUESTED = "CompensationRequested"
    RUN_STOPPED = "RunStopped"
    CANCEL_REQUESTED = "CancelRequested"
    TOOL_PROPOSAL_RECORDED = "ToolProposalRecorded"
    ARGUMENTS_CANONICALIZED = "ArgumentsCanonicalized"
    PROPOSAL_REJECTED = "ProposalRejected"
    AUTHORIZATION_ALLOWED = "AuthorizationAllowed"
    AUTHORIZATION_DENIED = "AuthorizationDenied"
    APPROVAL_REQUESTED = "ApprovalRequested"
    APPROVAL_DECIDED = "ApprovalDecided"
    DISPATCH_INTENT_RECORDED = "DispatchIntentRecorded"
    DISPATCH_DEFERRED = "DispatchDeferred"
    COMPENSATION_DEFERRED = "CompensationDeferred"
    RESULT_REUSED = "ResultReused"
    TOOL_ATTEMPT_STARTED = "ToolAttemptStarted"
    TOOL_RESULT_RECORDED = "ToolResultRecorded"
    TOOL_ATTEMPT_FAILED = "ToolAttemptFailed"
    TOOL_OUTCOME_MARKED_UNKNOWN = "ToolOutcomeMarkedUnknown"
    TOOL_LOOKUP_RECORDED = "ToolLookupRecorded"
    RECONCILIATION_DEFERRED = "ReconciliationDeferred"
    TOOL_EFFECT_RECONCILED = "ToolEffectReconciled"
    REPAIR_REQUESTED = "RepairRequested"
    REPAIR_DECIDED = "RepairDecided"
    REPAIR_PROPOSED = "RepairProposed"
    EVIDENCE_FILED = "EvidenceFiled"
    HIDDEN_RETRY_SEEN = "HiddenRetrySeen"
    CALL_CANCELLED = "CallCancelled"
    LEDGER_RESTORED = "LedgerRestored"
    CHILD_RUN_STARTED = "ChildRunStarted"
    CHILD_RUN_SETTLED = "ChildRunSettled"
    CALL_DETACHED = "CallDetached"
    CALL_AWAITED = "CallAwaited"
    RUN_REPINNED = "RunRepinned"
    PLAN_DEFERRED = "PlanDeferred"
    MODEL_PASSED_OVER = "ModelPassedOver"


PROOFS = frozenset(
    {
        EventType.TOOL_RESULT_RECORDED,
        EventType.TOOL_EFFECT_RECONCILED,
        EventType.REPAIR_DECIDED,
        EventType.TOOL_ATTEMPT_FAILED,
        EventType.CHILD_RUN_SETTLED,
    }
)
"""The only events that may clear doubt: each speaks for the key (R3).

ToolAttemptFailed does so where its answer is one that the contract says the downstream stored for the key.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One fact of one run's history. `body` is canonical JSON text; `hash` chains it to the event before.

    `projection` is set on the last event of a change: the hash of the run's projection after that change.
    """

    tenant: str
    run: UUID
    seq: int
    id: UUID
    type: str
    version: int
    call: UUID | None
    attempt: int | None
    body: str
    digest: str
    principal: str
    worker: str | None
    fence: int | None
    policy: str | None
    causation: UUID
    recorded_at: datetime
    projection: str | None
    prev_hash: str
    hash: str

    @property
    def data(self) -> dict[str, Any]:
        """The body, parsed."""
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed


def body_text(body: dict[str, Any]) -> str:
    """The canonical text of an event's body.

    Text that cannot be stored (NUL, lone surrogates: an answer or an error from outside may hold anything) is
    kept in a visible form, numbers without exact form as text: recording never fails for what the outside
    said.
    """
    return recorded_body(body)[0]


def recorded_body(body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """`body_text`, and a body that reads as that text does (but for its tuples)."""
    try:
        return encode(body).decode(), body
    except CanonicalError:
        text = encode(_storable(body)).decode()
        return text, json.loads(text)


def _storable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_storable(str(name)): _storable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    try:
        return admit(value)
    except CanonicalError:
        return sanitize(value, 6 * len(str(value)))


def body_digest(body: str) -> str:
    """SHA-256 (hex) of a body's canonical text, domain-separated."""
    return hashlib.sha256(b"fencepost.body.v1\0" + body.encode()).hexdigest()


def chain_hash(event: Event) -> str:
    """The hash `event` must carry, computed from its header, its body's digest and `prev_hash`."""
    fixed = str(event.run), str(event.causation), rfc3339(event.recorded_at)
    return _hash(_header(event, fixed, event.projection, event.prev_hash))


def chain(events: Sequence[Event], head: str, projection: str) -> list[tuple[Event, list[Any]]]:
    """One change's events as the next of a history that ends in `head`; the last carries `projection`.

    Each with its fields as JSON values. The events of a change are of one run, one cause and one instant.
    """
    fixed = str(events[0].run), str(events[0].causation), rfc3339(events[0].recorded_at)
    linked: list[tuple[Event, list[Any]]] = []
    for event in events:
        ends = projection if event is events[-1] else None
        header = _header(event, fixed, ends, head)
        made = _hash(header)
        linked.append((amended(event, prev_hash=head, projection=ends, hash=made), header))
        header.insert(_BODY, event.body)
        header.append(made)
        head = made
    return linked


_BODY = [f.name for f in fields(Event)].index("body")


def _header(event: Event, fixed: tuple[str, str, str], projection: str | None, prev_hash: str) -> list[Any]:
    run, causation, recorded_at = fixed
    return [
        event.tenant,
        run,
        event.seq,
        str(event.id),
        event.type,
        event.version,
        str(event.call) if event.call else None,
        event.attempt,
        event.digest,
        event.principal,
        event.worker,
        event.fence,
        event.policy,
        causation,
        recorded_at,
        projection,
        prev_hash,
    ]


def _hash(header: list[Any]) -> str:
    return hashlib.sha256(b"fencepost.event.v1\0" + _encode(header).encode()).hexdigest()


def chain_fault(event: Event, prev_hash: str, seq: int) -> str | None:
    """Why `event` does not continue a chain that ended in `prev_hash` just before number `seq`; None if it
    does.
    """
    if event.seq != seq:
        return f"event {seq} is missing: found {event.seq}"
    if event.prev_hash != prev_hash:
        return f"event {seq} does not follow the one before it"
    if body_digest(event.body) != event.digest:
        return f"event {seq}: its body was changed"
    if chain_hash(event) != event.hash:
        return f"event {seq}: its header was changed"
    return None
