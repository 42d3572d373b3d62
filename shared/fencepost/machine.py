"""The projection of one run and how events move it: plain functions, no I/O.

`evolve(view, event)` is the only code that changes a `Run` or a `Call`; the ledger's rows are its results, written
as they are, so that replaying the events gives the rows again (I6). `next_row` says what happens next to a subject,
and when: it is computed under the locks and never carried by a caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from fencepost.clock import NEVER, parse_rfc3339
from fencepost.events import GENESIS, Event, EventType
from fencepost.states import CALL_ENDS, CALL_OPEN, CALL_UNSETTLED, CallState, Queue, RunStatus

E, C, R = EventType, CallState, RunStatus


@dataclass(frozen=True, slots=True)
class Run:
    """One run as the `runs` table holds it. Counters are folds of the events, never set by a caller.

    `open`: calls not ended; `unsettled`: DISPATCHING or UNKNOWN; `repairs`: NEEDS_REPAIR; `effects`: own committed
    effects not offset; `failures`: planner failures in a row; `ready_at`: when its next step is due.
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


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the `calls` table holds it; `version` is the number of the last event that touched it.

    `doubt`: an earlier attempt of this key may have had its effect; only the event named by `proof` clears it (R3).
    `in_flight_until` and `quiet_at` are the greatest over all attempts; `lost`: the last attempt's worker never
    answered; `waits`: another call holds the operation; `reused`: the result is another call's.
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


@dataclass(frozen=True, slots=True)
class View:
    """A run and those of its calls that a decision may touch."""

    run: Run
    calls: Mapping[UUID, Call] = field(default_factory=dict)

    def open_calls(self) -> Iterator[Call]:
        """The loaded calls that have not ended, in the order they were proposed."""
        return iter(sorted((c for c in self.calls.values() if c.state in CALL_OPEN), key=lambda c: (c.turn, c.ordinal)))


def evolve(view: View | None, event: Event) -> View:
    """The projection after `event`. Raises KeyError for an event type this version does not know."""
    data = event.data
    if event.type == E.RUN_CREATED:
        return View(_created(event, data))
    assert view is not None
    view = _RULES[EventType(event.type)](view, event, data)
    return replace(view, run=replace(view.run, seq=event.seq))


def next_row(subject: Run | Call) -> tuple[Queue, datetime] | None:
    """Which queue's turn it is on this subject, and from when; None when it has ended (it then has no outbox row)."""
    return _next_for_run(subject) if isinstance(subject, Run) else _next_for_call(subject)


def _next_for_run(run: Run) -> tuple[Queue, datetime] | None:
    if run.status in (R.QUEUED, R.PLANNING):
        return Queue.PLANNER, run.ready_at
    if run.status == R.ACTING:
        return Queue.PLANNER, run.deadline if run.open else run.ready_at
    if run.status == R.STOPPING:
        return Queue.COMPENSATOR, NEVER if run.unsettled else run.ready_at
    if run.status == R.COMPENSATING:
        busy = run.owner is None and run.open > run.repairs
        return Queue.COMPENSATOR, NEVER if busy else run.ready_at
    return None


def _next_for_call(call: Call) -> tuple[Queue, datetime] | None:
    if call.state in (C.INTENT_RECORDED, C.AWAITING_APPROVAL):
        return Queue.DISPATCHER, call.ready_at
    if call.state in CALL_UNSETTLED:
        return Queue.RECONCILER, call.ready_at
    if call.state == C.NEEDS_REPAIR:
        return Queue.RECONCILER, NEVER
    return None


# -- the rules, one per event type ---------------------------------------------------------------------------------

Rule = Callable[[View, Event, dict[str, Any]], View]


def _time(data: dict[str, Any], name: str) -> datetime:
    return parse_rfc3339(data[name])


def _created(event: Event, data: dict[str, Any]) -> Run:
    return Run(
        tenant=event.tenant,
        id=event.run,
        run_key=data["run_key"],
        planner=data["planner"],
        planner_version=data["planner_version"],
        principal=event.principal,
        request=data["request"],
        on_stop=data["on_stop"],
        created_at=_time(data, "created_at"),
        deadline=_time(data, "deadline"),
        ready_at=_time(data, "created_at"),
        seq=event.seq,
    )


def _noted(view: View, event: Event, data: dict[str, Any]) -> View:
    return view


def _planning(view: View, event: Event, data: dict[str, Any]) -> View:
    run = replace(view.run, status=R.PLANNING, requests=view.run.requests + 1, ready_at=_time(data, "ready_at"))
    return replace(view, run=run)


def _planned(view: View, event: Event, data: dict[str, Any]) -> View:
    run = replace(view.run, status=R.ACTING, turn=data["turn"], owner=None, failures=0, ready_at=event.recorded_at)
    return replace(view, run=run)


def _plan_lost(view: View, event: Event, data: dict[str, Any]) -> View:
    run = replace(view.run, owner=None, failures=view.run.failures + 1, ready_at=_time(data, "ready_at"))
    return replace(view, run=run)


def _completed(view: View, event: Event, data: dict[str, Any]) -> View:
    done = {"result": data["result"], "preview": data["preview"], "turn": data["turn"]}
    return replace(view, run=replace(view.run, status=R.COMPLETED, owner=None, **done))


def _stopping(view: View, event: Event, data: dict[str, Any]) -> View:
    why = {"stop_reason": data["reason"], "stop_detail": data["detail"], "fence": data["fence"]}
    return replace(view, run=replace(view.run, status=R.STOPPING, owner=None, ready_at=event.recorded_at, **why))


def _compensating(view: View, event: Event, data: dict[str, Any]) -> View:
    run = replace(view.run, status=R.COMPENSATING, owner=None, fence=data["fence"], ready_at=event.recorded_at)
    return replace(view, run=run)


def _stopped(view: View, event: Event, data: dict[str, Any]) -> View:
    return replace(view, run=replace(view.run, status=R.STOPPED, owner=None, fence=data["fence"]))


def _leased(view: View, event: Event, data: dict[str, Any]) -> View:
    changes: dict[str, Any] = {"owner": data["owner"], "fence": data["fence"]}
    if "ready_at" in data:
        changes["ready_at"] = _time(data, "ready_at")
    if event.call is None:
        return replace(view, run=replace(view.run, **changes))
    return _call(**changes)(view, event, data)


def _deferred(view: View, event: Event, data: dict[str, Any]) -> View:
    changes: dict[str, Any] = {"ready_at": _time(data, "ready_at"), "owner": None}
    if event.call is None:
        return replace(view, run=replace(view.run, **changes))
    call = view.calls[event.call]
    if call.state in CALL_UNSETTLED:
        changes["asks"] = call.asks + 1
    else:
        changes["waits"] = data["waits"]
    return _call(fence=data.get("fence", call.fence), **changes)(view, event, data)


def _proposed(view: View, event: Event, data: dict[str, Any]) -> View:
    assert event.call is not None
    call = Call(tenant=event.tenant, id=event.call, run=event.run, version=event.seq, **data)
    run = replace(view.run, calls=view.run.calls + 1, open=view.run.open + 1)
    return View(run, {**view.calls, call.id: call})


def _call(**changes: Any) -> Rule:
    """A rule that changes the event's call and keeps the run's counters true."""

    def rule(view: View, event: Event, data: dict[str, Any]) -> View:
        assert event.call is not None
        old = view.calls[event.call]
        new = replace(old, version=event.seq, **changes)
        if new.state in CALL_ENDS and old.state not in CALL_ENDS:
            new = replace(new, settled_seq=event.seq)
        return View(_counted(view.run, old, new, event), {**view.calls, new.id: new})

    return rule


def _own_effect(call: Call) -> int:
    if call.state != C.SUCCEEDED or call.effect == "read" or call.reused:
        return 0
    return -1 if call.compensates else 1


def _counted(run: Run, old: Call, new: Call, event: Event) -> Run:
    if old.state == new.state:
        return run
    opened = (new.state not in CALL_ENDS) - (old.state not in CALL_ENDS)
    woken = run.owner is None and (opened or C.NEEDS_REPAIR in (old.state, new.state))
    return replace(
        run,
        open=run.open + opened,
        unsettled=run.unsettled + (new.state in CALL_UNSETTLED) - (old.state in CALL_UNSETTLED),
        repairs=run.repairs + (new.state == C.NEEDS_REPAIR) - (old.state == C.NEEDS_REPAIR),
        effects=run.effects + _own_effect(new) - _own_effect(old),
        ready_at=event.recorded_at if woken else run.ready_at,
    )


def _refused(view: View, event: Event, data: dict[str, Any]) -> View:
    assert event.call is not None
    call = view.calls[event.call]
    if call.state == C.UNKNOWN:  # a denial leaves a doubtful call where it is (R3)
        return _call(error=data["message"])(view, event, data)
    fence = data.get("fence", call.fence)
    return _call(state=C.REJECTED, owner=None, fence=fence, error=data["message"])(view, event, data)


def _allowed(view: View, event: Event, data: dict[str, Any]) -> View:
    assert event.call is not None
    call = view.calls[event.call]
    return _call(state=C.AUTHORIZED if call.state == C.VALIDATED else call.state)(view, event, data)


def _intended(view: View, event: Event, data: dict[str, Any]) -> View:
    until = parse_rfc3339(data["reconcile_until"]) if data["reconcile_until"] else None
    changes = {"ready_at": _time(data, "ready_at"), "waits": data["waits"], "reconcile_until": until}
    return _call(state=C.INTENT_RECORDED, **changes)(view, event, data)


def _reused(view: View, event: Event, data: dict[str, Any]) -> View:
    kept = {name: data[name] for name in ("receipt", "result", "preview", "fence")}
    return _call(state=C.SUCCEEDED, reused=True, waits=False, owner=None, **kept)(view, event, data)


def _attempted(view: View, event: Event, data: dict[str, Any]) -> View:
    assert event.call is not None
    call = view.calls[event.call]
    view = replace(view, run=replace(view.run, attempts=view.run.attempts + 1))
    return _call(
        state=C.DISPATCHING,
        attempts=data["attempt"],
        ready_at=_time(data, "ready_at"),
        in_flight_until=_time(data, "in_flight_until"),
        quiet_at=_time(data, "quiet_at"),
        request=call.request or data["request"],
        waits=False,
        lost=False,
        lookup=None,
    )(view, event, data)


def _succeeded(view: View, event: Event, data: dict[str, Any]) -> View:
    kept = {name: data[name] for name in ("receipt", "result", "preview")}
    return _call(state=C.SUCCEEDED, doubt=False, proof=event.id, owner=None, error=None, **kept)(view, event, data)


def _attempt_failed(view: View, event: Event, data: dict[str, Any]) -> View:
    if data["final"]:
        ended = {"state": C.FAILED, "doubt": False, "proof": event.id}
        return _call(owner=None, error=data["message"], **ended)(view, event, data)
    again = {"state": C.INTENT_RECORDED, "ready_at": _time(data, "ready_at")}
    return _call(owner=None, error=data["message"], **again)(view, event, data)


def _unknown(view: View, event: Event, data: dict[str, Any]) -> View:
    return _call(
        state=C.UNKNOWN,
        doubt=True,
        owner=None,
        ready_at=_time(data, "ready_at"),
        reconcile_until=_time(data, "reconcile_until"),
        lost=data["lost"],
        error=data["message"],
    )(view, event, data)


def _looked_up(view: View, event: Event, data: dict[str, Any]) -> View:
    assert event.call is not None
    asked = {"lookup": data["lookup"], "asks": view.calls[event.call].asks + 1}
    return _call(owner=None, ready_at=_time(data, "ready_at"), **asked)(view, event, data)


def _settled(view: View, event: Event, data: dict[str, Any]) -> View:
    """ToolEffectReconciled and a person's RepairDecided on a call: the proof that clears doubt, or asking again."""
    if event.call is None:
        return _compensating(view, event, data)
    changes: dict[str, Any] = {"state": CallState(data["to"]), "owner": None, "fence": data["fence"]}
    if data["to"] == C.UNKNOWN:
        again = {"ready_at": event.recorded_at, "reconcile_until": _time(data, "reconcile_until"), "asks": 0}
        return _call(lookup=None, **again, **changes)(view, event, data)
    if data["to"] == C.SUCCEEDED:
        changes |= {name: data[name] for name in ("receipt", "result", "preview")}
    return _call(doubt=False, proof=event.id, **changes)(view, event, data)


def _repair(view: View, event: Event, data: dict[str, Any]) -> View:
    why = {"error": data["reason"], "fence": data["fence"]}
    return _call(state=C.NEEDS_REPAIR, doubt=True, owner=None, waits=False, ready_at=NEVER, **why)(view, event, data)


def _evidence(view: View, event: Event, data: dict[str, Any]) -> View:
    assert event.call is not None
    call = view.calls[event.call]
    # Evidence wakes the reconciler of an UNKNOWN call nobody holds; a holder reads it under the lock anyway.
    waiting = call.state == C.UNKNOWN and call.owner is None
    return _call(ready_at=event.recorded_at if waiting else call.ready_at)(view, event, data)


def _cancelled(view: View, event: Event, data: dict[str, Any]) -> View:
    return _call(state=C.CANCELLED, owner=None, waits=False, fence=data["fence"], error=data["reason"])(view, event, data)


_RULES: dict[EventType, Rule] = {
    E.LEASE_ACQUIRED: _leased,
    E.MODEL_REQUEST_STARTED: _planning,
    E.MODEL_RESPONSE_RECORDED: _planned,
    E.MODEL_OUTCOME_UNKNOWN: _plan_lost,
    E.RUN_COMPLETED: _completed,
    E.RUN_STOPPING: _stopping,
    E.COMPENSATION_REQUESTED: _compensating,
    E.RUN_STOPPED: _stopped,
    E.CANCEL_REQUESTED: _noted,
    E.TOOL_PROPOSAL_RECORDED: _proposed,
    E.ARGUMENTS_CANONICALIZED: _call(state=C.VALIDATED),
    E.PROPOSAL_REJECTED: _refused,
    E.AUTHORIZATION_ALLOWED: _allowed,
    E.AUTHORIZATION_DENIED: _refused,
    E.DISPATCH_INTENT_RECORDED: _intended,
    E.DISPATCH_DEFERRED: _deferred,
    E.RESULT_REUSED: _reused,
    E.TOOL_ATTEMPT_STARTED: _attempted,
    E.TOOL_RESULT_RECORDED: _succeeded,
    E.TOOL_ATTEMPT_FAILED: _attempt_failed,
    E.TOOL_OUTCOME_MARKED_UNKNOWN: _unknown,
    E.TOOL_LOOKUP_RECORDED: _looked_up,
    E.RECONCILIATION_DEFERRED: _deferred,
    E.TOOL_EFFECT_RECONCILED: _settled,
    E.REPAIR_REQUESTED: _repair,
    E.REPAIR_DECIDED: _settled,
    E.EVIDENCE_FILED: _evidence,
    E.CALL_CANCELLED: _cancelled,
}
