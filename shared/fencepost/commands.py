"""What may be asked of the ledger, and what it may answer: frozen values, no behaviour.

Every command concerns one run (and at most the calls of that run). `id` is the id of the first event it will
write and makes it idempotent: applied again after a lost COMMIT reply it returns its first outcome. `rand` is
in [0, 1) and feeds jitter. Commands of a worker present a `Term`; commands of an office (`RequestCancel`,
`DecideApproval`, `DecideRepair`, `FileEvidence`, `Sweep`) present none and are judged by the row's version.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from fencepost.authority.capabilities import Capability
from fencepost.outcomes import Outcome
from fencepost.proposals import Rejected, Validated
from fencepost.recovery import LookupAnswer
from fencepost.subjects import Call, Run


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
    """The planner takes a run. `cap` bounds one answer of the planner; `grace` is added before a takeover."""

    cap: timedelta
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDoubt(Claim):
    """The reconciler takes a call that is DISPATCHING past its takeover, or UNKNOWN.

    `request` and `request_error` are a dispatcher's, for a call of which none is stored: its claim was lost.
    """

    request: str | None = None
    request_error: str | None = None
    request_code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTurn(Command):
    """The planner's answer. `finish` is the claimed result when it says it is done; `objection` is what the
    run's verify function has against it. One call id per proposal.
    """

    term: Term
    turn: int
    proposals: tuple[Validated | Rejected, ...] = ()
    call_ids: tuple[UUID, ...] = ()
    finish: Payload | None = None
    objection: str | None = None
    answer: Payload | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPlanLost(Command):
    """The planner gave no usable answer (it raised, timed out or was refused)."""

    term: Term
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOutcome(Command):
    """What became of one attempt, as far as its worker can tell.

    `result` keeps the bytes of an applied one; `requests` counts the effect requests that went on the wire
    for it: more than one is a hidden retry (R4). `scope` is a hint, as a claim's.
    """

    term: Term
    call: UUID
    attempt: int
    outcome: Outcome
    requests: int = 1
    result: Payload | None = None
    scope: str = ""


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


OFFSET: Final = "OFFSET"
LEAVE: Final = "LEAVE"
COMPENSATE: Final = "COMPENSATE"
CONFIRM: Final = "CONFIRM"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideRepair(Command):
    """Office `repair`: a person settles a call that needs repair.

    `decision` is SUCCEEDED (it happened; `receipt` says how that is known), FAILED (it did not; refused
    before the call's last request can no longer land), UNKNOWN (ask again) or ACCEPTED_UNKNOWN (will never be
    known). Two are for an effect that a stopped run was to offset and did not: OFFSET has its compensation
    planned once more, where its key is free for that; LEAVE accepts that it stays. COMPENSATE is SUCCEEDED,
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
    """Give an open subject its missing outbox row back; anything else is left alone."""

    subject: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Command):
    """Office `recover`: the ledger lost what came after `since`; what may have been sent then is UNKNOWN.

    `epoch` is one that is open; `by` opened it. Whoever held the run or its calls before is refused from now.
    """

    epoch: int
    since: datetime
    by: str


# -- answers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fenced:
    """The presented term is not the accepted one: somebody else holds the subject, or has held it since."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The message is old news: another generation, another queue, not due yet, or nothing to do."""


@dataclass(frozen=True, slots=True)
class Gone:
    """There is no such subject, or it has ended."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody is moving the subject at this instant; ask again in a moment."""


@dataclass(frozen=True, slots=True)
class Late:
    """No time is left for an attempt; nothing was dispatched."""


@dataclass(frozen=True, slots=True)
class Full:
    """A limit of the call's dependency, its rate or its concurrency, leaves no room for `wait` or so; nothing
    was recorded, and the same message may be tried again.
    """

    scope: str
    limit: str
    wait: timedelta


@dataclass(frozen=True, slots=True)
class NotAlive:
    """The claiming process's stamp is stale: it may be presumed dead, so it may not claim."""


@dataclass(frozen=True, slots=True)
class Unfamiliar:
    """This process does not know the planner or tool version; the row stays for one that does, uncounted."""

    what: str


@dataclass(frozen=True, slots=True)
class Denied:
    """An office's request is refused as things stand; `why` says what to do instead."""

    why: str


@dataclass(frozen=True, slots=True)
class Done:
    """Recorded; nothing is left for the caller to do. `state` is where the subject stands now."""

    state: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Ask the planner for the run's next turn within `timeout`."""

    run: Run
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class Send:
    """Execute one attempt within `timeout` (to be counted from before the claim was sent, R6).

    `key` is the operation key; `deadline` the attempt's, by the ledger's clock; `capability` what it may do.
    """

    call: Call
    principal: str
    attempt: int
    key: str | None
    deadline: datetime
    timeout: timedelta
    repeat: bool = False
    capability: Capability | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the downstream whether the call's effect happened. `asked_at` is the ledger's time of the claim:
    the answer is at least that young.
    """

    call: Call
    principal: str
    asked_at: datetime
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class Offset:
    """Propose the compensation of `forward`, within `timeout`."""

    run: Run
    forward: Call
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class OnHold:
    """The ledger was restored and is held: no run is claimed until its epoch is released. Nothing moved."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore changed of one run: how many of its calls may have been sent, and of how many of those
    nobody here knows the tool.
    """

    calls: int
    unfamiliar: int


@dataclass(frozen=True, slots=True)
class Broken:
    """The change was refused (a guard, a constraint, bad data) and nothing written: a bug, or an attack."""

    why: str


Order = Plan | Send | Ask | Offset
Refusal = Fenced | Moved | Gone | Busy | Late | Full | NotAlive | Unfamiliar | OnHold | Denied | Broken
Answer = Order | Done | Restored | Refusal
