"""The values of the kernel: one run, one call, and the view of both that a decision reads. No behaviour.

Their fields are the columns of the ledger's tables, name for name, so that rows and replay can be compared
(I6).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from fencepost.clock import NEVER
from fencepost.events import GENESIS
from fencepost.states import CALL_OPEN, CallState, RunStatus

C, R = CallState, RunStatus


@dataclass(frozen=True, slots=True)
class Run:
    """One run as the `runs` table holds it. Counters are folds of the events, never set by a caller.

    `open`: calls not ended; `unsettled`: DISPATCHING or UNKNOWN; `repairs`: NEEDS_REPAIR; `effects`: own
    committed effects not offset; `failures`: planner failures in a row, `outages` of them its model
    provider's own; `ready_at`: when its next step is due; `tainted`: the number of the event by which it
    first learnt what nobody vouches for; `awaiting`: calls that wait for an approval.

    `tokens` and `cost` (millionths of the currency its models are priced in) are what its own models used,
    `held_tokens` and `held_cost` what the open model request may still use; `bytes`: of the bodies of its
    events; `fruitless`: turns in a row from which no intent came; `detached`: open calls its turn no longer
    waits for. `root`, `parent`, `parent_call` and `depth` say where in a tree of runs it stands (a root has
    none of the three and depth 0), `below` what its children may use and have used; `markers`: the patches it
    has met; `traceparent`: the trace its producer asked from; `written`: the newest version of its events,
    which a process has to know to take it on; `unknowns`: effects of which persons accepted that nobody
    knows, its own and those of runs below it that have ended;
    `owed`: effects (a JSON list of its calls) that it was to offset and did not although something could.
    """

    tenant: str
    id: UUID
    run_key: str
    planner: str
    planner_version: int
    principal: str
    request: str
    on_stop: str
    created_at: datetime
    deadline: datetime
    status: str = R.QUEUED
    stop_reason: str | None = None
    stop_detail: str | None = None
    turn: int = 0
    requests: int = 0
    calls: int = 0
    attempts: int = 0
    open: int = 0
    unsettled: int = 0
    repairs: int = 0
    effects: int = 0
    failures: int = 0
    ready_at: datetime = NEVER
    result: str | None = None
    preview: str | None = None
    fence: int = 0
    owner: str | None = None
    calls_sum: str = GENESIS
    seq: int = 0
    head_hash: str = GENESIS
    tainted: int | None = None
    awaiting: int = 0
    tokens: int = 0
    cost: int = 0
    held_tokens: int = 0
    held_cost: int = 0
    bytes: int = 0
    fruitless: int = 0
    detached: int = 0
    depth: int = 0
    root: UUID | None = None
    parent: UUID | None = None
    parent_call: UUID | None = None
    below: str | None = None
    markers: str | None = None
    traceparent: str | None = None
    outages: int = 0
    written: int = 1
    unknowns: int = 0
    owed: str | None = None

    @property
    def offsets(self) -> bool:
        """Whether its effects are offset when it stops."""
        return self.on_stop != "leave"

    @property
    def hasty(self) -> bool:
        """Whether they are, for whatever reason it stops, and whatever else of it is not settled."""
        return self.on_stop == "compensate_at_once"


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the `calls` table holds it; `version` is the number of the last event that touched it.

    `doubt`: an earlier attempt of this key may have had its effect; only the event named by `proof` clears it
    (R3). `in_flight_until` and `quiet_at` are the greatest over all attempts; `lost`: the last attempt's
    worker never answered; `waits`: another call holds the operation or the resource; `reused`: the result is
    another call's; `resource`: the key of what a natural tool sets; `fingerprint`: of the request as it was
    first sent; `offset_asked` and `offset_left`: the number of the event by which a person last had its
    effect offset, or left as it is; `proposed`: the decision that a person asked another one to confirm;
    `restored`: the epoch in which it may have been sent beyond the attempts counted here; `approval`: what
    persons were asked about it and have said; `reserved`: the allowances it holds or has used; `child`: the
    run it started; `detached`: its turn no longer waits for it; `throttled`: attempts that were answered
    "later" only, and count against none of its limits.
    """

    tenant: str
    id: UUID
    run: UUID
    turn: int
    ordinal: int
    label: str
    tool: str
    tool_version: int
    effect: str
    operation: str | None
    scope: str
    compensates: str | None
    arguments: str
    arguments_hash: str
    required: bool
    state: str = C.PROPOSED
    doubt: bool = False
    attempts: int = 0
    ready_at: datetime = NEVER
    waits: bool = False
    request: str | None = None
    in_flight_until: datetime | None = None
    quiet_at: datetime | None = None
    reconcile_until: datetime | None = None
    asks: int = 0
    lost: bool = False
    lookup: str | None = None
    receipt: str | None = None
    result: str | None = None
    preview: str | None = None
    error: str | None = None
    reused: bool = False
    proof: UUID | None = None
    settled_seq: int | None = None
    fence: int = 0
    owner: str | None = None
    version: int = 0
    resource: str | None = None
    fingerprint: str | None = None
    offset_asked: int | None = None
    offset_left: int | None = None
    proposed: str | None = None
    restored: int | None = None
    approval: str | None = None
    reserved: str | None = None
    child: UUID | None = None
    detached: bool = False
    throttled: int = 0


class Replayed(dict[UUID, Call]):
    """The calls of a history that is replayed, changed in place: a copy for each event would cost the square
    of a run's steps. `before` holds those that have changed since it was last emptied, as they were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[UUID, Call | None] = {}

    def put(self, call: Call) -> None:
        """Change a call, or add it."""
        self.before.setdefault(call.id, self.get(call.id))
        self[call.id] = call


@dataclass(frozen=True, slots=True)
class View:
    """A run and those of its calls that a decision may touch."""

    run: Run
    calls: Mapping[UUID, Call] = field(default_factory=dict)

    def open_calls(self) -> Iterator[Call]:
        """The loaded calls that have not ended, in the order they were proposed."""
        return iter(
            sorted(
                (c for c in self.calls.values() if c.state in CALL_OPEN), key=lambda c: (c.turn, c.ordinal)
            )
        )
