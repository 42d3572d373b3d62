"""The tray on which one command's decision is built: the view it reads, the events it emits, who presents it.

Pure: a `Fold` holds values only. `emit` evolves the view with each event at once, so that later rules of the
same change see the earlier ones, exactly as replay will.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from fencepost import operations
from fencepost.allowances import Allowance, Used
from fencepost.authority import Authority
from fencepost.authority.standing import EVERYBODY, Standing
from fencepost.breaker import Health
from fencepost.canonical import sanitize
from fencepost.clock import rfc3339
from fencepost.commands import Claim, Command, Payload, Term
from fencepost.decide.circles import Circles
from fencepost.events import SCHEMA_VERSION, Event, EventType, body_digest, recorded_body
from fencepost.machine import evolve
from fencepost.models import AgentSpec
from fencepost.operations import Operation
from fencepost.records import made
from fencepost.recovery import Evidence
from fencepost.redaction import hidden_body
from fencepost.states import RUN_FORWARD, RunStatus
from fencepost.subjects import Call, Run, View
from fencepost.taint import UNTRUSTED, born
from fencepost.tools import Tool

E = EventType

_ANSWERS = frozenset({E.TOOL_RESULT_RECORDED, E.TOOL_ATTEMPT_FAILED})
"""The ends after which nothing that was sent is still under way."""
_UNNUMBERED = (None, "", "")
"""Projection and hashes of an event whose change is not numbered yet."""


@dataclass(frozen=True, slots=True)
class Row:
    """The outbox row of one subject: the permission to take its next step (R1)."""

    tenant: str
    subject: UUID
    kind: str
    run: UUID
    generation: int
    queue: str
    due_at: datetime
    takeovers: int = 0
    worker: str | None = None
    fence: int = 0
    root: UUID | None = None
    """Of the tree its run belongs to; none for a root. It is the trace of whatever is done about it."""


@dataclass(frozen=True, slots=True)
class Child:
    """The run a call has started, read without a lock: its end is final, everything else is a hint.

    `end` is the body of the event that last stopped it.
    """

    run: Run
    end: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Presented:
    """Under which presentation a row is changed; see `states.py`. `version` is what an office saw."""

    via: str
    owner: str | None = None
    fence: int | None = None
    call: UUID | None = None


class Engines(Protocol):
    """The published policies this process has compiled. It holds code, never a decision."""

    def engine(self, version: int) -> Authority | None:
        """The engine of a version; None if it has to be added first."""
        ...

    def add(self, version: int, bundle: str) -> Authority:
        """Compile a version's bundle. One that cannot be compiled denies everything, and says why."""
        ...


@dataclass(frozen=True, slots=True)
class Known:
    """What a deciding process knows besides the ledger: its tools, planners, authority and limits.

    `engines` compile published policies, which decide for a tenant in place of `authority` as soon as one is
    in force for it; None where the application has an authority of its own.
    """

    tool: Callable[[str, int], Tool | None]
    planner: Callable[[str, int], bool]
    authority: Authority
    takeover_limit: int = 5
    planner_attempts: int = 5
    limited: frozenset[str] = frozenset()
    """Scopes of dependencies with a limit for the whole fleet."""
    providers: frozenset[str] = frozenset()
    """Scopes of the dependencies that models are asked at."""
    engines: Engines | None = None
    agent: Callable[[str, int], AgentSpec | None] = lambda _name, _version: None
    """The model that a planner is, if it is one: what its requests may use is reserved first."""
    allowances: tuple[Allowance, ...] = ()
    """Those of the application: they hold beside those of a policy in force, unless that has one of their id.
    """


@dataclass(slots=True)
class Fold:
    """One command's decision in the making. `before` is the view the events start from."""

    command: Command
    view: View
    operations: dict[str, Operation]
    evidence: Mapping[UUID, tuple[Evidence, ...]]
    known: Known
    now: datetime
    row: Row | None = None
    events: list[Event] = field(default_factory=list)
    presented: dict[UUID, Presented] = field(default_factory=dict)
    woken: set[str] = field(default_factory=set)
    takeovers: int = 0
    worker: str | None = None
    term: Term | None = None
    by: str | None = None
    fence_before: int = 0
    dependencies: dict[str, Health] = field(default_factory=dict)
    standing: Standing = EVERYBODY
    counters: Mapping[tuple[str, str], Used] = field(default_factory=dict)
    """The allowances' counters that are locked, by tenant and key."""
    children: Mapping[UUID, Child] = field(default_factory=dict)
    """The runs that calls of this one have started, as far as the command wants to know."""
    starting: list[UUID] = field(default_factory=list)
    """Calls of which the run is started in this change."""
    hurried: set[UUID] = field(default_factory=set)
    """Calls whose next step is due now: their runs are to be told something."""
    kept: list[Payload] = field(default_factory=list)
    """Results that this change itself makes."""
    again: datetime | None = None
    """When a claim that found nothing to do, and says so, looks again: later than the state asks for."""
    signals: int = 0
    """Messages to this run so far."""
    circles: Circles = field(default_factory=Circles)
    begun: list[tuple[UUID, tuple[str, str]]] = field(default_factory=list)
    """Runs of which a call has begun to wait for a key in this change, and that key."""
    drains: int = 0
    """How many workers in a row were told to end before they had its answer: for the one that is, too."""

    @property
    def run(self) -> Run:
        """The run as the events so far leave it."""
        return self.view.run

    def call(self, call_id: UUID) -> Call:
        """A loaded call. Raises KeyError for one the command did not load."""
        return self.view.calls[call_id]

    def present(self, subject: UUID, via: str) -> None:
        """Say that `subject`'s row changes under the command's term (`term`, `claim`) or an office."""
        term = self.term
        self.presented[subject] = Presented(via, term.owner if term else None, term.fence if term else None)

    def present_run_by(self, call: UUID) -> None:
        """Say that the run's row changes with a call's outcome, under that call's presentation."""
        presented = self.presented[call]
        via = "call" if presented.via in ("term", "claim") else presented.via
        self.presented.setdefault(self.run.id, replace(presented, via=via, call=call))

    def run_fence(self) -> int:
        """The fence of a run that this change stops: its holder's own, else one above all holders'."""
        presented = self.presented.get(self.run.id)
        own = presented is not None and presented.via in ("term", "claim")
        return self.run.fence if own else self.fence_before + 1

    def emit(
        self,
        kind: EventType,
        body: dict[str, Any],
        *,
        call: UUID | None = None,
        attempt: int | None = None,
        policy: str | None = None,
    ) -> Event:
        """Append one event and evolve the view with it. Its hashes are made when the change is numbered."""
        text, data = recorded_body(hidden_body(body))
        run, term = self.view.run, self.term
        event = made(
            Event,
            (
                run.tenant,
                run.id,
                run.seq + 1,
                run.id if kind == E.RUN_CREATED else self._next_id(),
                kind,
                SCHEMA_VERSION,
                call,
                attempt,
                text,
                body_digest(text),
                sanitize(self.by, 200) if self.by else run.principal,
                term.owner if term else None,
                term.fence if term else None,
                policy,
                self.command.id,
                self.now,
                *_UNNUMBERED,
            ),
        )
        old = self.view.calls.get(call) if call is not None else None
        self.view = evolve(self.view, event, data)
        self.events.append(event)
        if call is not None and (old is None or old.state != self.call(call).state):
            self._follow(self.call(call), kind, untrusted=data.get(UNTRUSTED) is True)
        return event

    def _next_id(self) -> UUID:
        """The command's id for its first event, successors for the rest.

        RunCreated, which the first change writes on the producer's behalf, has the run's own id and does not
        count.
        """
        own = len(self.events) - (1 if self.events and self.events[0].type == E.RUN_CREATED else 0)
        return UUID(int=(self.command.id.int + own) % (1 << 128))

    def _follow(self, call: Call, kind: EventType, *, untrusted: bool) -> None:
        """Keep the operation keys true to the calls, and note whose waiters may go on."""
        if call.operation is None:
            return
        if call.resource is not None and (setting := self.operations.get(call.resource)) is not None:
            self.set_operation(operations.let_go(setting, call, answered=kind in _ANSWERS))
        held = self.operations.get(call.operation)
        if held is not None:
            self.set_operation(operations.follow(held, call, untrusted=untrusted))
        forward = self.operations.get(call.compensates) if call.compensates else None
        if forward is not None and held is not None and held.call == call.id:
            self.set_operation(operations.offset(forward, call))

    def set_operation(self, operation: Operation) -> None:
        """Replace a key's record; its waiters wake when it stops being held."""
        old = self.operations[operation.key]
        self.operations[operation.key] = operation
        if operations.held(old) and not operations.held(operation):
            self.woken.add(operation.key)

    def create(self) -> None:
        """RunCreated, written by the run's first change so that no producer computes hashes."""
        run = self.run
        body = {
            "run_key": run.run_key,
            "planner": run.planner,
            "planner_version": run.planner_version,
            "request": run.request,
            "on_stop": run.on_stop,
            "created_at": rfc3339(run.created_at),
            "deadline": rfc3339(run.deadline),
            **born(run.request),
            **_placed(run),
        }
        self.emit(E.RUN_CREATED, body)

    @property
    def forward(self) -> bool:
        """Whether the run still plans and acts."""
        return self.run.status in RUN_FORWARD

    def allows(self, call: Call) -> bool:
        """Whether the run lets this call be sent for the first time."""
        return self.run.status == (RunStatus.COMPENSATING if call.compensates else RunStatus.ACTING)


def _placed(run: Run) -> dict[str, Any]:
    """Where in a tree of runs it stands, and whose trace it belongs to; nothing of a root without one."""
    ids = {"root": run.root, "parent": run.parent, "parent_call": run.parent_call}
    told: dict[str, Any] = {name: str(id_) for name, id_ in ids.items() if id_ is not None}
    if run.depth:
        told["depth"] = run.depth
    return told | ({"traceparent": run.traceparent} if run.traceparent is not None else {})


def lease_body(command: Claim) -> dict[str, Any]:
    """The term a claim takes, and the process that takes it: histories say who did what."""
    return {"owner": command.term.owner, "fence": command.term.fence, "worker": command.worker}
