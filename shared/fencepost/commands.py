"""What may be asked of the ledger, and what it may answer: frozen values, no behaviour.

Every command concerns one run (and at most the calls of that run). `id` is the id of the first event it will
write and makes it idempotent: applied again after a lost COMMIT reply it returns its first outcome. `rand` is
in [0, 1) and feeds jitter. Commands of a worker present a `Term`; commands of an office (`RequestCancel`,
`DecideApproval`, `DecideRepair`, `Repin`, `FileEvidence`, `Sweep`) present none and are judged by the row's
version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from fencepost.answers import (
    Answer,
    Ask,
    Broken,
    Busy,
    Denied,
    Done,
    Fenced,
    Full,
    Gone,
    Late,
    Moved,
    NotAlive,
    Offset,
    OnHold,
    Order,
    Plan,
    Refusal,
    Restored,
    Send,
    Tell,
    Unfamiliar,
)
from fencepost.joins import ALL, Join
from fencepost.models import Spent
from fencepost.outcomes import Outcome
from fencepost.proposals import Rejected, Validated
from fencepost.recovery import LookupAnswer
from fencepost.states import StopReason

__all__ = [
    "COMPENSATE",
    "CONFIRM",
    "DRAINED",
    "LEAVE",
    "OFFSET",
    "RELEASE",
    "Answer",
    "Ask",
    "Broken",
    "Busy",
    "Claim",
    "ClaimCall",
    "ClaimDoubt",
    "ClaimRun",
    "ClaimStopped",
    "Command",
    "DecideApproval",
    "DecideRepair",
    "Denied",
    "Done",
    "Fenced",
    "FileEvidence",
    "Full",
    "Gone",
    "Late",
    "Moved",
    "NotAlive",
    "Offset",
    "OnHold",
    "Order",
    "Payload",
    "Plan",
    "RecordCompensation",
    "RecordLookup",
    "RecordOutcome",
    "RecordPlanLost",
    "RecordTurn",
    "Refusal",
    "Repin",
    "RequestCancel",
    "Restore",
    "Restored",
    "Send",
    "Sweep",
    "Tell",
    "Term",
    "Unfamiliar",
]


@dataclass(frozen=True, slots=True)
class Term:
    """Ownership of one run or call: a token that is new for every execution, and the fence it was granted."""

    owner: str
    fence: int


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes kept by their SHA-256; histories hold the digest and a bounded preview."""

    digest: str
    data: bytes
    preview: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Base of all commands."""

    id: UUID
    tenant: str
    run: UUID
    rand: float = 0.0
    payloads: tuple[Payload, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Command):
    """Take the step a message named: exactly its generation, on its queue, if due (R1).

    `worker` is the token of the claiming process, whose stamp in `workers` must be fresh. `scope` is a hint:
    the dependency whose row may have to be locked.
    """

    subject: UUID
    generation: int
    worker: str
    term: Term
    scope: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRun(Claim):
    """The planner takes a run. `cap` bounds one answer of the planner, None: its model's own timeout does;
    `grace` is added before a takeover. `scope` is the dependency of the model that will be asked, if it is
    one.
    """

    cap: timedelta | None
    grace: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimStopped(Claim):
    """The compensator takes a run that is stopping or compensating. `cap` bounds the planning of one
    compensation.
    """

    cap: timedelta
    grace: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCall(Claim):
    """The dispatcher takes a call. `request` is the request built from the arguments (None for Python tools
    and where one is stored already); `request_error` says why it could not be built, `request_code` how.
    """

    request: str | None = None
    request_error: str | None = None
    request_code: str | None = None
    child: UUID | None = None
    """The id of the run it starts, for a tool that starts one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDoubt(Claim):
    """The reconciler takes a call that is DISPATCHING past its takeover, or UNKNOWN.

    `request` and `request_error` are a dispatcher's, for a call of which none is stored: its claim was lost.
    """

    request: str | None = None
    request_error: str | None = None
    request_code: str | None = None
    starts: bool = False
    """Its tool starts a run, so that the run it has started is read: a hint, as `scope` is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTurn(Command):
    """The planner's answer. `finish` is the claimed result when it says it is done; `objection` is what the
    run's verify function has against it. One call id per proposal.

    `spent` is what a model used, None for a planner that is none; `said` is kept in the event beside it (the
    model, its request's id, the digest of what it was told); `markers` are the patches this turn met. `scope`
    as of a claim. `join` is how long it waits for the runs it starts; `signals` how many it was told of.
    `seen` is the number of the event up to which it was told of its run's calls.
    """

    term: Term
    turn: int
    seen: int
    proposals: tuple[Validated | Rejected, ...] = ()
    call_ids: tuple[UUID, ...] = ()
    finish: Payload | None = None
    objection: str | None = None
    answer: Payload | None = None
    spent: Spent | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    markers: tuple[str, ...] = ()
    scope: str = ""
    join: Join = ALL
    signals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlanLost(Command):
    """The planner gave no usable answer (it raised, timed out or was refused).

    `spent` None: nobody knows what it cost, so its reservation is charged; `Spent()`: nothing was sent. With
    `stop` the run is not asked again but stops for that reason. `retry_after` is what the provider asked for;
    `code` also tells the breaker of `scope` how the dependency is, as an outcome's.
    """

    term: Term
    code: str
    message: str
    spent: Spent | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    stop: StopReason | None = None
    retry_after: timedelta | None = None
    scope: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOutcome(Command):
    """What became of one attempt, as far as its worker can tell.

    `result` keeps the bytes of an applied one; `requests` counts the effect requests that went on the wire
    for it: more than one is a hidden retry (R4). `scope` is a hint, as a claim's. `grounds` are the documents
    and the memory that an applied one rests on, `ungrounded` what is not among them: how many more, or why
    none could be told.
    """

    term: Term
    call: UUID
    attempt: int
    outcome: Outcome
    requests: int = 1
    result: Payload | None = None
    scope: str = ""
    grounds: tuple[Mapping[str, Any], ...] = ()
    ungrounded: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLookup(Command):
    """What the downstream said when asked whether the effect happened. `scope` is a hint, as a claim's.

    `code` is how the question itself fared, as that of an outcome: an answer's `http_` and status, or why
    there was none; empty if it was never put. `retry_after` is what an answer asked for.
    """

    term: Term
    call: UUID
    answer: LookupAnswer
    result: Payload | None = None
    scope: str = ""
    code: str = ""
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCompensation(Command):
    """The compensation the forward call's tool proposes, validated; or why there is none."""

    term: Term
    forward: UUID
    proposal: Validated | Rejected
    call_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCancel(Command):
    """Office `cancel`: stop the run. What is in flight settles first; compensation follows if the run asks
    for it.
    """

    by: str
    reason: str = ""


DRAINED: Final = "drained"
"""The code of a plan lost because its worker was told to end."""

OFFSET: Final = "OFFSET"
LEAVE: Final = "LEAVE"
COMPENSATE: Final = "COMPENSATE"
CONFIRM: Final = "CONFIRM"
RELEASE: Final = "RELEASE"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideRepair(Command):
    """Office `repair`: a person settles a call that needs repair.

    `decision` is SUCCEEDED (it happened; `receipt` says how that is known), FAILED (it did not; refused
    before the call's last request can no longer land), UNKNOWN (ask again) or ACCEPTED_UNKNOWN (will never be
    known). Two are for an effect that a stopped run was to offset and did not: OFFSET has its compensation
    planned once more, where its key is free for that; LEAVE accepts that it stays. RELEASE is of a call that
    FAILED: its key, which the contract does not release, may be used again. COMPENSATE is SUCCEEDED,
    and the effect is to be offset whatever the run was to do when it stops; it stops a run that goes on.

    With `confirm_within` the decision on a call that needs repair is only asked for: CONFIRM decides it, by
    another person (`by`) under another login of Postgres (`login`), within that time, on the same version.
    """

    call: UUID
    decision: str
    by: str
    reason: str
    receipt: str | None = None
    seen: int | None = None
    login: str | None = None
    confirm_within: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideApproval(Command):
    """Office `approval`: a person approves exactly what was asked about a call, or denies it.

    `by` is a principal of the tenant, `login` the one of Postgres it decides under; `seen` the call's version
    the decision was made on, and refuses it if the call has changed since.
    """

    call: UUID
    approve: bool
    by: str
    login: str
    reason: str
    seen: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repin(Command):
    """Office `repair`: a person has a run that goes on planned by another version of its planner.

    Its calls stay what they are. `login` is the one of Postgres it is decided under; `seen` the version of
    the planner it was decided on, and refuses it if that has changed since.
    """

    to: int
    by: str
    login: str
    reason: str
    seen: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEvidence(Command):
    """Office `evidence`: a real answer of an attempt whose worker lost its term (R9). A fact, never a
    decision.
    """

    call: UUID
    attempt: int
    term: Term
    outcome: Outcome
    result: Payload | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Command):
    """Give an open subject its missing outbox row back; anything else is left alone. `root`: of its tree."""

    subject: UUID
    root: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Command):
    """Office `recover`: the ledger lost what came after `since`; what may have been sent then is UNKNOWN.

    `epoch` is one that is open; `by` opened it. Whoever held the run or its calls before is refused from now.
    """

    epoch: int
    since: datetime
    by: str
