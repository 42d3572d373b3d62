"""The checker's own fold of one run's events: what the history says happened. It is not the kernel's.

`RunStory.tell` takes one event after the other. It judges nothing: rules read the story before an event, and
at the end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from fencepost.states import CallState, RunStatus
from fencepost_ops.checker.bodies import answer, identity, moment, numbers, told_names
from fencepost_ops.checker.facts import EventRow, RunRow
from fencepost_ops.checker.terms import Terms, ToolTerms

C, R = CallState, RunStatus

ENDED = frozenset({C.SUCCEEDED, C.FAILED, C.REJECTED, C.CANCELLED, C.ACCEPTED_UNKNOWN})
OUTCOMES = frozenset({"ToolResultRecorded", "ToolAttemptFailed", "ToolOutcomeMarkedUnknown"})
_ANSWERS = frozenset({"ToolResultRecorded", "ToolAttemptFailed"})


@dataclass(slots=True)
class AttemptStory:
    """One attempt: the event that started it, and those that said what became of it.

    `repeat`: an earlier one of its call had not been settled. `run`: where its run was. `limit` of attempts
    and `reserve` are those it was let go by, where recorded. Since the attempt before it, `proved_absent`: a
    lookup had found nothing; `decided`: a person had a word.
    """

    started: EventRow
    repeat: bool
    run: str
    deadline: datetime | None = None
    limit: int | None = None
    reserve: timedelta | None = None
    proved_absent: bool = False
    decided: bool = False
    outcomes: list[EventRow] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        """Whether its own worker had an answer, or never sent anything."""
        own = (self.started.worker, self.started.fence)
        return any(e.type in _ANSWERS and (e.worker, e.fence) == own for e in self.outcomes)


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asked persons to approve a call, on behalf of whom, and when."""

    requester: str
    behind: frozenset[str]
    at: datetime


@dataclass(slots=True)
class CallStory:
    """One call as its events tell it. `lease` is the last term acquired; `fence` the highest accepted; `term`
    the last that recorded anything of it, acquired or not.
    """

    id: UUID
    tool: str
    tool_version: int
    effect: str
    operation: str | None
    compensates: str | None
    arguments: str = ""
    arguments_hash: str = ""
    terms: ToolTerms | None = None
    state: str = C.PROPOSED
    doubt: bool = False
    reused: bool = False
    fence: int = 0
    lease: tuple[str | None, int | None] | None = None
    term: tuple[str | None, int | None] | None = None
    attempts: dict[int, AttemptStory] = field(default_factory=dict)
    canonical: str | None = None  # the hash of the arguments that were validated
    fingerprint: str | None = None  # of the request of its first attempt
    meaning: str | None = None  # of what its last attempt asked for, as was recorded
    taken: tuple[str | None, str | None] | None = (
        None  # whose result it took, and what it would have asked for
    )
    reconcile_until: datetime | None = None  # its own deadline, for what settles or offsets
    repaired_by: str | None = None  # who settled it last, where that was a person
    offset_asked: bool = False  # a person has asked for its effect to be offset
    restored: bool = False  # a restore left it in doubt
    quiet_at: datetime | None = None  # from when on nothing that was sent can still land, as was recorded
    in_flight_until: datetime | None = None  # when the last attempt's own time is over
    applied: set[int] = field(default_factory=set)  # attempts of which evidence was filed that they were
    not_applied: set[int] = field(default_factory=set)  # and that they were not
    # The last answer to a question of it since its last attempt, and when that was asked:
    answer: str | None = None
    asked_at: datetime | None = None
    absent_end: bool = False  # it was settled as FAILED after an absent answer
    # Since its last attempt:
    leased: bool = False
    allowed: UUID | None = None  # the change that authorised a claim
    decided: bool = False
    # Since persons were last asked to approve it: how many it takes, and who has, under which login.
    asked: int = 0
    asking: Asking | None = None
    approved: dict[str, str] = field(default_factory=dict)

    @property
    def proved_absent(self) -> bool:
        """Whether a lookup has found nothing since its last attempt."""
        return self.answer == "absent"

    @property
    def named(self) -> str:
        """How a sentence names it."""
        return f"call {self.id} ({self.tool})"

    @property
    def own_effect(self) -> bool:
        """Whether it is a committed forward effect of its own run."""
        return self.state == C.SUCCEEDED and self.effect != "read" and not (self.reused or self.compensates)


@dataclass(frozen=True, slots=True)
class Budgets:
    """What a run's producer lets it use."""

    turns: int = 16
    calls: int = 64
    attempts: int = 256
    wall_clock: timedelta | None = None
    children: int = 16


@dataclass(slots=True)
class RunStory:
    """One run as its events tell it. `ended` is the number of the event that ended it.

    `budgets` and `on_stop` are what its producer asked for, `terms` what is known of its tools.
    """

    budgets: Budgets = Budgets()
    on_stop: str = "leave"
    terms: Terms = field(default_factory=dict)
    status: str = R.QUEUED
    fence: int = 0
    lease: tuple[str | None, int | None] | None = None
    term: tuple[str | None, int | None] | None = None
    created_at: datetime | None = None
    principal: str | None = None
    deadline: datetime | None = None
    calls: dict[UUID, CallStory] = field(default_factory=dict)
    attempts: int = 0
    unknowns: int = 0  # effects nobody knows of: its own, and those told of runs it started
    held: dict[UUID, dict[str, int]] = field(default_factory=dict)  # by call, what its run may use
    used: Counter[str] = field(default_factory=Counter)  # what runs of its calls that have ended did
    turns: int = 0  # answers of the planner
    requests: int = 0  # how often it was asked
    failures: int = 0  # in a row
    ended: int | None = None
    stopped_for: str | None = None  # the reason of its stop
    strays: list[EventRow] = field(default_factory=list)  # events that name a call nobody proposed
    born: dict[UUID, EventRow] = field(default_factory=dict)  # the runs it started, by the events that say so
    heard: list[tuple[EventRow, dict[str, Any]]] = field(default_factory=list)  # the ends of those, as told

    @classmethod
    def of(cls, run: RunRow | None, terms: Terms) -> RunStory:
        """A story that has not begun yet."""
        if run is None:
            return cls(terms=terms)
        clock = None if run.wall_clock_ms is None else timedelta(milliseconds=run.wall_clock_ms)
        budgets = Budgets(run.may_turn, run.may_call, run.may_attempt, clock, run.may_start)
        return cls(budgets, run.on_stop, terms)

    def tell(self, event: EventRow, body: dict[str, Any]) -> None:
        """Go on by one event."""
        if event.type == "ToolProposalRecorded" and event.call is not None:
            named: dict[str, Any] = {name: body.get(name) for name in _PROPOSED}
            known = self.terms.get((named["tool"], named["tool_version"]))
            self.calls[event.call] = CallStory(event.call, **named, terms=known)
        elif event.call is None:
            self._run(event, body)
        elif (call := self.calls.get(event.call)) is None:
            self.strays.append(event)
        else:
            self.attempts += event.type == "ToolAttemptStarted"
            before = call.state
            _call(call, event, body, self.status)
            self._doubts(event, before, call)
            self._family(event, body)
        if event.worker is not None and not self.holds(event):
            subject = self.subject(event)
            if subject is not None and (event.fence or 0) > ((subject.term or (None, 0))[1] or 0):
                subject.term = (event.worker, event.fence)

    def subject(self, event: EventRow) -> RunStory | CallStory | None:
        """Under whose term it was recorded, if it is the first under a new one. Whether a turn waits for a
        call is its run's to say.
        """
        own = event.call is not None and event.type not in ("CallDetached", "CallAwaited")
        return self.calls.get(event.call) if own and event.call is not None else self

    def beneath(self, name: str) -> int:
        """What the runs it started may still use of this, or have used."""
        return self.used[name] + sum(piece.get(name, 0) for piece in self.held.values())

    def _doubts(self, event: EventRow, before: str, call: CallStory) -> None:
        """What persons accept that nobody knows; histories of the first version do not count it."""
        if call.effect == "read" or before == call.state:
            return
        if call.state == C.ACCEPTED_UNKNOWN:
            self.unknowns += event.version > 1
        elif before == C.ACCEPTED_UNKNOWN:
            self.unknowns = max(0, self.unknowns - 1)

    def _family(self, event: EventRow, body: dict[str, Any]) -> None:
        if event.type == "ChildRunStarted" and event.call is not None:
            if (child := identity(body.get("child"))) is not None:
                self.born[child] = event
            if isinstance(piece := body.get("held"), dict):
                self.held[event.call] = numbers(piece)
        elif event.type == "ChildRunSettled" and event.call is not None:
            self.heard.append((event, body))
            self.unknowns += numbers(body).get("unknown", 0)
        call = self.calls.get(event.call) if event.call is not None else None
        if call is not None and call.state in ENDED and (piece := self.held.pop(call.id, None)) is not None:
            # Where a person settled it and nobody knew what its run had used, its whole slice is charged.
            spent = numbers(body["used"]) if isinstance(body.get("used"), dict) else dict(piece)
            for name in ("turns", "calls", "attempts", "children"):  # beyond it only what offsets goes
                spent[name] = min(spent.get(name, 0), piece.get(name, 0))
            self.used.update(spent)

    def holds(self, event: EventRow) -> bool:
        """Whether it was recorded under the last term of the run, or of one of its calls."""
        term = (event.worker, event.fence)
        return term == self.term or any(term == call.term for call in self.calls.values())

    def compensation_of(self, forward: CallStory) -> list[CallStory]:
        """The calls that compensate `forward`."""
        return [c for c in self.calls.values() if c.compensates and c.compensates == forward.operation]

    def _run(self, event: EventRow, body: dict[str, Any]) -> None:
        kind = event.type
        self.status = _RUN_STATUS.get(kind, self.status)
        if isinstance(body.get("fence"), int):
            self.fence = max(self.fence, body["fence"])
        if kind == "RunCreated":
            self.created_at, self.deadline = moment(body.get("created_at")), moment(body.get("deadline"))
            self.principal = event.principal
        elif kind == "LeaseAcquired":
            self.lease = (body.get("owner"), body.get("fence"))
        elif kind == "ModelRequestStarted":
            self.requests += 1
        elif kind == "ModelOutcomeUnknown":
            self.failures += not body.get("drained")  # nobody failed: its worker was to end
            self.requests -= body.get("taken") is False  # turned away unread
        elif kind == "ModelPassedOver" and isinstance(body.get("failures"), int):
            self.failures = body["failures"]
        elif kind == "RunStopping":
            self.stopped_for = body.get("reason")
        elif kind == "RepairDecided":
            self.ended = None
        if kind in ("ModelResponseRecorded", "RunCompleted"):
            self.turns += 1
        if kind in ("ModelResponseRecorded", "RunRepinned"):
            self.failures = 0
        if kind in ("RunCompleted", "RunStopped"):
            self.ended = event.seq


_PROPOSED = (
    "tool",
    "tool_version",
    "effect",
    "operation",
    "compensates",
    "arguments",
    "arguments_hash",
)
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
_ENDS_DOUBT = frozenset(
    {"ToolResultRecorded", "ToolEffectReconciled", "RepairDecided", "ToolAttemptFailed", "ChildRunSettled"}
)
_CALL_STATE = {
    "ArgumentsCanonicalized": C.VALIDATED,
    "ApprovalRequested": C.AWAITING_APPROVAL,
    "DispatchIntentRecorded": C.INTENT_RECORDED,
    "ResultReused": C.SUCCEEDED,
    "ToolAttemptStarted": C.DISPATCHING,
    "ToolResultRecorded": C.SUCCEEDED,
    "ToolOutcomeMarkedUnknown": C.UNKNOWN,
    "RepairRequested": C.NEEDS_REPAIR,
    "CallCancelled": C.CANCELLED,
}


def _call(call: CallStory, event: EventRow, body: dict[str, Any], run: str) -> None:
    kind = event.type
    if kind == "ToolAttemptStarted":
        _attempted(call, event, body, run)  # what it found is judged before it moves anything
    _moved(call, event, body)
    if isinstance(body.get("fence"), int):
        call.fence = max(call.fence, body["fence"])
    if "reconcile_until" in body:
        call.reconcile_until = moment(body["reconcile_until"])
    if kind == "LeaseAcquired":
        call.lease = (body.get("owner"), body.get("fence"))
        call.leased = True
    elif kind == "ArgumentsCanonicalized":
        call.canonical = body.get("arguments_hash")
    elif kind == "ResultReused":
        call.reused, call.taken = True, (body.get("from"), body.get("meaning"))
    elif kind in ("AuthorizationAllowed", "AuthorizationDenied"):
        allowed = kind == "AuthorizationAllowed" and body.get("phase") == "claim"
        call.allowed = event.causation if allowed else None
    elif kind in ("ApprovalRequested", "ApprovalDecided"):
        _approval(call, event, body)
    elif kind == "ToolLookupRecorded":
        call.answer, call.asked_at = answer(body)
    elif kind == "EvidenceFiled" and event.attempt is not None:
        if body.get("applied"):
            call.applied.add(event.attempt)
        elif body.get("code") != "sent_late":  # which says nothing of an effect
            call.not_applied.add(event.attempt)
    elif kind == "RepairDecided":
        call.decided = True
        call.offset_asked = call.offset_asked or body.get("offset") == "again" or bool(body.get("compensate"))
        if call.state == C.UNKNOWN:
            call.answer = None
    if kind == "ToolOutcomeMarkedUnknown" and "epoch" in body:
        call.answer, call.restored = None, True
        _in_flight(call, body)
    made = call.attempts.get(event.attempt or 0)
    # The end of the run that an attempt started is its outcome, where it was not UNKNOWN by then.
    if made is not None and (kind in OUTCOMES or (kind == "ChildRunSettled" and not made.outcomes)):
        made.outcomes.append(event)


def _approval(call: CallStory, event: EventRow, body: dict[str, Any]) -> None:
    """What was asked anew takes the place of what was approved before."""
    asked, word = body.get("asked"), body.get("decision")
    if isinstance(asked, dict):
        count = asked.get("count")
        call.asked, call.approved = count if isinstance(count, int) else 1, {}
        call.asking = Asking(str(asked.get("requester")), told_names(asked), event.recorded_at)
    if isinstance(word, dict) and word.get("approve") is True:
        call.approved[str(word.get("who"))] = str(word.get("login"))


def _attempted(call: CallStory, event: EventRow, body: dict[str, Any], run: str) -> None:
    limit, reserve = body.get("limit"), body.get("reserve_ms")
    if event.attempt is not None:
        call.attempts[event.attempt] = AttemptStory(
            event,
            call.doubt,
            run,
            moment(body.get("deadline")),
            limit if isinstance(limit, int) else None,
            timedelta(milliseconds=reserve) if isinstance(reserve, int) else None,
            call.proved_absent,
            call.decided,
        )
    call.fingerprint = call.fingerprint or body.get("fingerprint")
    call.meaning = body.get("meaning")
    call.leased, call.allowed, call.answer, call.decided = False, None, None, False
    _in_flight(call, body)


def _in_flight(call: CallStory, body: dict[str, Any]) -> None:
    call.in_flight_until, call.quiet_at = moment(body.get("in_flight_until")), moment(body.get("quiet_at"))


def _moved(call: CallStory, event: EventRow, body: dict[str, Any]) -> None:
    """State and doubt after the event: doubt begins with an unknown outcome and ends with a proof."""
    kind = event.type
    if kind in ("ProposalRejected", "AuthorizationDenied"):
        call.state = call.state if call.state == C.UNKNOWN else C.REJECTED
    elif kind == "AuthorizationAllowed" and call.state == C.VALIDATED:
        call.state = C.AUTHORIZED
    elif kind == "ToolAttemptFailed":
        call.state = C.FAILED if body.get("final") else C.INTENT_RECORDED
    elif kind == "ApprovalDecided":
        call.state = body.get("to", call.state)
    elif kind == "RepairDecided" and "release" in body:
        return  # of its key, not of whether it happened
    elif kind in ("ToolEffectReconciled", "RepairDecided", "ChildRunSettled"):
        call.state = body.get("to", call.state)
        call.absent_end = kind == "ToolEffectReconciled" and call.state == C.FAILED and call.proved_absent
        if "offset" not in body:  # a word on what a stopped run left says nothing of whether it happened
            call.repaired_by = event.principal if kind == "RepairDecided" else None
    else:
        call.state = _CALL_STATE.get(kind, call.state)
    if kind in ("ToolOutcomeMarkedUnknown", "RepairRequested"):
        call.doubt = True
    elif kind in _ENDS_DOUBT:
        call.doubt = call.doubt and call.state not in ENDED
