"""How events move the projection of one run, and what happens next: plain functions, no I/O.

`evolve(view, event)` is the only code that changes a `Run` or a `Call`; the ledger's rows are its results,
written as they are, so that replaying the events gives the rows again (I6). `next_row` says what happens next
to a subject, and when: it is computed under the locks and never carried by a caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fencepost import allowances, approvals
from fencepost.clock import NEVER, parse_rfc3339
from fencepost.events import Event, EventType
from fencepost.records import amended
from fencepost.states import CALL_ENDS, CALL_UNSETTLED, CallState, Queue, RunStatus
from fencepost.subjects import Call, Run, View
from fencepost.taint import first

E, C, R = EventType, CallState, RunStatus


def evolve(view: View | None, event: Event, data: dict[str, Any] | None = None) -> View:
    """The projection after `event`. `data` is its body, for a caller who has it; else it is parsed.

    Raises ValueError for an event type this version does not know and for a history that does not begin with
    RunCreated, KeyError for a call or a field that is not there.
    """
    kind, fact = EventType(event.type), _Fact(event, event.data if data is None else data)
    if kind == E.RUN_CREATED:
        return View(_created(fact))
    if view is None:
        raise ValueError(f"a history begins with RunCreated, not with {kind}")
    if kind == E.TOOL_PROPOSAL_RECORDED:
        return _proposed(view, fact)
    if event.call is None:
        return View(amended(view.run, seq=event.seq, **_RUN_RULES[kind](view.run, fact)), view.calls)
    old = view.calls[event.call]
    return _moved(view, old, fact, _CALL_RULES[kind](old, fact))


def next_row(subject: Run | Call) -> tuple[Queue, datetime] | None:
    """Whose turn it is on this subject, and from when; None when it has ended (it then has no outbox row)."""
    return _next_for_run(subject) if isinstance(subject, Run) else _next_for_call(subject)


def _next_for_run(run: Run) -> tuple[Queue, datetime] | None:
    if run.status in {R.QUEUED, R.PLANNING}:
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
    if call.state in {C.INTENT_RECORDED, C.AWAITING_APPROVAL}:
        return Queue.DISPATCHER, call.ready_at
    if call.state in CALL_UNSETTLED:
        return Queue.RECONCILER, call.ready_at
    if call.state == C.NEEDS_REPAIR:
        return Queue.RECONCILER, NEVER
    return None


# -- how one event is read -----------------------------------------------------------------------------------

Changes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Fact:
    """An event and its parsed body, read once."""

    event: Event
    data: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    @property
    def at(self) -> datetime:
        return self.event.recorded_at

    def time(self, name: str) -> datetime:
        return parse_rfc3339(self.data[name])

    def kept(self, *names: str) -> Changes:
        return {name: self.data[name] for name in names}


def _created(fact: _Fact) -> Run:
    created = fact.time("created_at")
    return Run(
        tenant=fact.event.tenant,
        id=fact.event.run,
        principal=fact.event.principal,
        created_at=created,
        ready_at=created,
        deadline=fact.time("deadline"),
        seq=fact.event.seq,
        tainted=first(None, fact.event.seq, fact.data),
        **fact.kept("run_key", "planner", "planner_version", "request", "on_stop"),
    )


def _proposed(view: View, fact: _Fact) -> View:
    event, run = fact.event, view.run
    if event.call is None:
        raise ValueError("a proposal without a call")
    call = Call(tenant=event.tenant, id=event.call, run=event.run, version=event.seq, **fact.data)
    run = amended(run, seq=event.seq, calls=run.calls + 1, open=run.open + 1)
    return View(run, {**view.calls, call.id: call})


def _moved(view: View, old: Call, fact: _Fact, changes: Changes) -> View:
    """The view with one call changed and the run's counters true again."""
    seq = fact.event.seq
    ended = changes.get("state", old.state) in CALL_ENDS and old.state not in CALL_ENDS
    settled = {"settled_seq": seq} if ended else {}
    new = amended(old, version=seq, **changes, **settled)
    tainted = first(view.run.tainted, seq, fact.data)
    run = amended(view.run, seq=seq, tainted=tainted, **_counts(view.run, old, new, fact))
    return View(run, {**view.calls, new.id: new})


def _counts(run: Run, old: Call, new: Call, fact: _Fact) -> Changes:
    if old.state == new.state:
        return {}
    opened = (new.state not in CALL_ENDS) - (old.state not in CALL_ENDS)
    woken = run.owner is None and (opened or C.NEEDS_REPAIR in {old.state, new.state})
    return {
        "attempts": run.attempts + new.attempts - old.attempts,
        "open": run.open + opened,
        "unsettled": run.unsettled + (new.state in CALL_UNSETTLED) - (old.state in CALL_UNSETTLED),
        "repairs": run.repairs + (new.state == C.NEEDS_REPAIR) - (old.state == C.NEEDS_REPAIR),
        "effects": run.effects + _own_effect(new) - _own_effect(old),
        "ready_at": fact.at if woken else run.ready_at,
    }


def _own_effect(call: Call) -> int:
    if call.state != C.SUCCEEDED or call.effect == "read" or call.reused:
        return 0
    return -1 if call.compensates else 1


# -- what each event changes in its run ----------------------------------------------------------------------


def _noted(_run: Run, _fact: _Fact) -> Changes:
    return {}


def _run_leased(_run: Run, fact: _Fact) -> Changes:
    return fact.kept("owner", "fence") | (
        {"ready_at": fact.time("ready_at")} if "ready_at" in fact.data else {}
    )


def _run_deferred(_run: Run, fact: _Fact) -> Changes:
    return {"owner": None, "ready_at": fact.time("ready_at")}


def _planning(run: Run, fact: _Fact) -> Changes:
    return {"status": R.PLANNING, "requests": run.requests + 1, "ready_at": fact.time("ready_at")}


def _planned(_run: Run, fact: _Fact) -> Changes:
    return {"status": R.ACTING, "turn": fact["turn"], "owner": None, "failures": 0, "ready_at": fact.at}


def _plan_lost(run: Run, fact: _Fact) -> Changes:
    return {"owner": None, "failures": run.failures + 1, "ready_at": fact.time("ready_at")}


def _completed(_run: Run, fact: _Fact) -> Changes:
    return {"status": R.COMPLETED, "owner": None, **fact.kept("result", "preview", "turn")}


def _stopping(_run: Run, fact: _Fact) -> Changes:
    why = {"stop_reason": fact["reason"], "stop_detail": fact["detail"]}
    return {"status": R.STOPPING, "owner": None, "fence": fact["fence"], "ready_at": fact.at, **why}


def _compensating(_run: Run, fact: _Fact) -> Changes:
    return {"status": R.COMPENSATING, "owner": None, "fence": fact["fence"], "ready_at": fact.at}


def _restored(_run: Run, fact: _Fact) -> Changes:
    return {"owner": None, "fence": fact["fence"], "ready_at": fact.at}


def _stopped(_run: Run, fact: _Fact) -> Changes:
    return {"status": R.STOPPED, "owner": None, "fence": fact["fence"]}


# -- what each event changes in its call ---------------------------------------------------------------------


def _canonical(_call: Call, _fact: _Fact) -> Changes:
    return {"state": C.VALIDATED}


def _leased(_call: Call, fact: _Fact) -> Changes:
    return fact.kept("owner", "fence") | (
        {"ready_at": fact.time("ready_at")} if "ready_at" in fact.data else {}
    )


def _call_noted(_call: Call, _fact: _Fact) -> Changes:
    return {}


def _put_off(fact: _Fact) -> Changes:
    """What a deferral changes; time a dependency was closed also moves the call's own deadline."""
    later = {"reconcile_until": fact.time("reconcile_until")} if "reconcile_until" in fact.data else {}
    return {"owner": None, "ready_at": fact.time("ready_at"), **later, **fact.kept("fence")}


def _deferred(_call: Call, fact: _Fact) -> Changes:
    return _put_off(fact) | fact.kept("waits")


def _reconciled_later(_call: Call, fact: _Fact) -> Changes:
    return _put_off(fact) | fact.kept("asks")


def _refused(call: Call, fact: _Fact) -> Changes:
    if call.state == C.UNKNOWN:  # a denial leaves a doubtful call where it is (R3)
        return {"error": fact["message"]}
    fence = fact.data.get("fence", call.fence)
    return {"state": C.REJECTED, "owner": None, "fence": fence, "error": fact["message"]}


def _allowed(call: Call, _fact: _Fact) -> Changes:
    return {"state": C.AUTHORIZED if call.state == C.VALIDATED else call.state}


def _approval_asked(call: Call, fact: _Fact) -> Changes:
    """A call's own deadline, if it has one, begins once it is approved."""
    rest = {"owner": None, "waits": False, "reconcile_until": None, "ready_at": fact.time("ready_at")}
    asked = {"fence": fact.data.get("fence", call.fence), "approval": approvals.opened(fact["asked"])}
    return {"state": C.AWAITING_APPROVAL, **rest, **asked}


def _approval_decided(call: Call, fact: _Fact) -> Changes:
    """A person's word, or that nobody gave it in time."""
    changes: Changes = {"state": CallState(fact["to"]), "owner": None, "fence": fact["fence"]}
    if "decision" in fact.data:
        changes["approval"] = approvals.answered(call.approval, fact["decision"])
    if changes["state"] == C.REJECTED:
        changes["error"] = fact["message"]
    return changes


def _intended(_call: Call, fact: _Fact) -> Changes:
    until = fact.time("reconcile_until") if fact["reconcile_until"] else None
    when = {"ready_at": fact.time("ready_at"), "reconcile_until": until}
    return {"state": C.INTENT_RECORDED, "waits": fact["waits"], **when}


def _reused(_call: Call, fact: _Fact) -> Changes:
    kept = fact.kept("receipt", "result", "preview", "fence")
    return {"state": C.SUCCEEDED, "reused": True, "waits": False, "owner": None, **kept}


def _attempted(call: Call, fact: _Fact) -> Changes:
    return {
        "state": C.DISPATCHING,
        "attempts": fact["attempt"],
        "ready_at": fact.time("ready_at"),
        "in_flight_until": fact.time("in_flight_until"),
        "quiet_at": fact.time("quiet_at"),
        "request": call.request or fact["request"],
        "fingerprint": call.fingerprint or fact.data.get("fingerprint"),
        "waits": False,
        "lost": False,
        "lookup": None,
        "reserved": allowances.kept(fact["reserved"]) if "reserved" in fact.data else call.reserved,
    }


def _succeeded(_call: Call, fact: _Fact) -> Changes:
    proved = {"doubt": False, "proof": fact.event.id}
    return {
        "state": C.SUCCEEDED,
        "owner": None,
        "error": None,
        **proved,
        **fact.kept("receipt", "result", "preview"),
    }


def _attempt_failed(_call: Call, fact: _Fact) -> Changes:
    if fact["final"]:
        ended = {"state": C.FAILED, "doubt": False, "proof": fact.event.id}
        return {"owner": None, "error": fact["message"], **ended}
    again = {"state": C.INTENT_RECORDED, "ready_at": fact.time("ready_at")}
    return {"owner": None, "error": fact["message"], **again}


def _unknown(_call: Call, fact: _Fact) -> Changes:
    restored: Changes = {}
    if "epoch" in fact.data:  # sent, perhaps, in a time the ledger lost: what was asked before says nothing
        until = {"in_flight_until": fact.time("in_flight_until"), "quiet_at": fact.time("quiet_at")}
        restored = {**until, **fact.kept("fence"), "waits": False, "asks": 0, "lookup": None}
        restored["restored"] = fact["epoch"]
    return {
        **restored,
        "state": C.UNKNOWN,
        "doubt": True,
        "owner": None,
        "ready_at": fact.time("ready_at"),
        "reconcile_until": fact.time("reconcile_until"),
        "lost": fact["lost"],
        "error": fact["message"],
    }


def _looked_up(call: Call, fact: _Fact) -> Changes:
    return {"owner": None, "ready_at": fact.time("ready_at"), "lookup": fact["lookup"], "asks": call.asks + 1}


def _settled(_call: Call, fact: _Fact) -> Changes:
    """ToolEffectReconciled and a person's RepairDecided: the proof that clears doubt, or asking again."""
    to = CallState(fact["to"])
    changes: Changes = {"state": to, "owner": None, "fence": fact["fence"], "proposed": None}
    if to == C.UNKNOWN:
        again = {
            "ready_at": fact.at,
            "reconcile_until": fact.time("reconcile_until"),
            "asks": 0,
            "lookup": None,
        }
        return changes | again
    if to == C.SUCCEEDED:
        changes |= fact.kept("receipt", "result", "preview")
        if fact.data.get("compensate"):
            changes |= {"offset_asked": fact.event.seq}
    return changes | {"doubt": False, "proof": fact.event.id}


def _decided(call: Call, fact: _Fact) -> Changes:
    """A person's word: on a call that needs repair, or on an effect that a stopped run did not offset."""
    if (word := fact.data.get("offset")) is None:
        return _settled(call, fact)
    column = "offset_asked" if word == "again" else "offset_left"
    return {column: fact.event.seq, "fence": fact["fence"], "owner": None}


def _proposed_repair(_call: Call, fact: _Fact) -> Changes:
    return {"proposed": fact.event.body, "fence": fact["fence"], "owner": None}


def _repair(_call: Call, fact: _Fact) -> Changes:
    why = {"error": fact["reason"], "fence": fact["fence"]}
    return {"state": C.NEEDS_REPAIR, "doubt": True, "owner": None, "waits": False, "ready_at": NEVER, **why}


def _evidence(call: Call, fact: _Fact) -> Changes:
    # Evidence wakes the reconciler of an UNKNOWN call nobody holds; a holder reads it under the lock anyway.
    return {"ready_at": fact.at} if call.state == C.UNKNOWN and call.owner is None else {}


def _cancelled(_call: Call, fact: _Fact) -> Changes:
    why = {"error": fact["reason"], "fence": fact["fence"]}
    return {"state": C.CANCELLED, "owner": None, "waits": False, **why}


_RUN_RULES: Mapping[EventType, Callable[[Run, _Fact], Changes]] = {
    E.LEASE_ACQUIRED: _run_leased,
    E.MODEL_REQUEST_STARTED: _planning,
    E.MODEL_RESPONSE_RECORDED: _planned,
    E.MODEL_OUTCOME_UNKNOWN: _plan_lost,
    E.RUN_COMPLETED: _completed,
    E.RUN_STOPPING: _stopping,
    E.COMPENSATION_REQUESTED: _compensating,
    E.RUN_STOPPED: _stopped,
    E.CANCEL_REQUESTED: _noted,
    E.LEDGER_RESTORED: _restored,
    E.COMPENSATION_DEFERRED: _run_deferred,
    E.REPAIR_DECIDED: _compensating,
}

_CALL_RULES: Mapping[EventType, Callable[[Call, _Fact], Changes]] = {
    E.LEASE_ACQUIRED: _leased,
    E.ARGUMENTS_CANONICALIZED: _canonical,
    E.PROPOSAL_REJECTED: _refused,
    E.AUTHORIZATION_ALLOWED: _allowed,
    E.AUTHORIZATION_DENIED: _refused,
    E.APPROVAL_REQUESTED: _approval_asked,
    E.APPROVAL_DECIDED: _approval_decided,
    E.DISPATCH_INTENT_RECORDED: _intended,
    E.DISPATCH_DEFERRED: _deferred,
    E.RESULT_REUSED: _reused,
    E.TOOL_ATTEMPT_STARTED: _attempted,
    E.TOOL_RESULT_RECORDED: _succeeded,
    E.TOOL_ATTEMPT_FAILED: _attempt_failed,
    E.TOOL_OUTCOME_MARKED_UNKNOWN: _unknown,
    E.TOOL_LOOKUP_RECORDED: _looked_up,
    E.RECONCILIATION_DEFERRED: _reconciled_later,
    E.TOOL_EFFECT_RECONCILED: _settled,
    E.REPAIR_REQUESTED: _repair,
    E.REPAIR_DECIDED: _decided,
    E.REPAIR_PROPOSED: _proposed_repair,
    E.EVIDENCE_FILED: _evidence,
    E.HIDDEN_RETRY_SEEN: _call_noted,
    E.CALL_CANCELLED: _cancelled,
}
