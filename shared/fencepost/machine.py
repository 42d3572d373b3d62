"""How events move the projection of one run, and what happens next: plain functions, no I/O.

`evolve(view, event)` is the only code that changes a `Run` or a `Call`; the ledger's rows are its results,
written as they are, so that replaying the events gives the rows again (I6). `next_row` says what happens next
to a subject, and when: it is computed under the locks and never carried by a caller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from fencepost import slices
from fencepost.clock import NEVER
from fencepost.events import COUNTED_FROM, Event, EventType
from fencepost.joins import until
from fencepost.markers import marked
from fencepost.moves import CALL_RULES, Changes, Fact
from fencepost.records import amended
from fencepost.states import CALL_ENDS, CALL_UNSETTLED, CallState, Queue, RunStatus
from fencepost.subjects import Call, Replayed, Run, View
from fencepost.taint import first

E, C, R = EventType, CallState, RunStatus


def evolve(view: View | None, event: Event, data: dict[str, Any] | None = None) -> View:
    """The projection after `event`. `data` is its body, for a caller who has it; else it is parsed.

    Raises ValueError for an event type this version does not know and for a history that does not begin with
    RunCreated, KeyError for a call or a field that is not there.
    """
    kind, fact = EventType(event.type), Fact(event, event.data if data is None else data)
    if kind == E.RUN_CREATED:
        return View(_created(fact))
    if view is None:
        raise ValueError(f"a history begins with RunCreated, not with {kind}")
    if kind == E.TOOL_PROPOSAL_RECORDED:
        return _proposed(view, fact)
    if event.call is None:
        changes = _RUN_RULES[kind](view.run, fact)
        return View(amended(view.run, **_grown(view.run, event), **changes), view.calls)
    old = view.calls[event.call]
    return _moved(view, old, fact, CALL_RULES[kind](old, fact))


def _grown(run: Run, event: Event) -> Changes:
    """How long its history is now. The bytes of the first versions' events were not counted, and are not."""
    size = len(event.body.encode()) if event.version >= COUNTED_FROM else 0
    return {"seq": event.seq, "bytes": run.bytes + size, "written": max(run.written, event.version)}


def next_row(subject: Run | Call) -> tuple[Queue, datetime] | None:
    """Whose turn it is on this subject, and from when; None when it has ended (it then has no outbox row)."""
    return _next_for_run(subject) if isinstance(subject, Run) else _next_for_call(subject)


def _next_for_run(run: Run) -> tuple[Queue, datetime] | None:
    if run.status in {R.QUEUED, R.PLANNING}:
        return Queue.PLANNER, run.ready_at
    if run.status == R.ACTING:
        return Queue.PLANNER, _goes_on(run) if run.open > run.detached else run.ready_at
    if run.status == R.STOPPING:
        return Queue.COMPENSATOR, NEVER if run.unsettled else run.ready_at
    if run.status == R.COMPENSATING:
        busy = run.owner is None and run.open > run.repairs
        return Queue.COMPENSATOR, NEVER if busy else run.ready_at
    return None


def _goes_on(run: Run) -> datetime:
    """When a run that waits for calls goes on without them: by what its turn said, or to stop."""
    join = slices.read(run.below).join if run.below is not None else None
    last = until(join)
    # What other tools do is waited for all the same.
    if join is None or last is None or run.open - run.detached > len(join["calls"]):
        return run.deadline
    return min(run.deadline, last)


def _next_for_call(call: Call) -> tuple[Queue, datetime] | None:
    if call.state in {C.INTENT_RECORDED, C.AWAITING_APPROVAL}:
        return Queue.DISPATCHER, call.ready_at
    if call.state in CALL_UNSETTLED:
        return Queue.RECONCILER, call.ready_at
    if call.state == C.NEEDS_REPAIR:
        return Queue.RECONCILER, NEVER
    return None


def _created(fact: Fact) -> Run:
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
        bytes=len(fact.event.body.encode()) if fact.event.version >= COUNTED_FROM else 0,
        written=fact.event.version,
        **fact.kept("run_key", "planner", "planner_version", "request", "on_stop"),
        **_placed(fact.data),
    )


def _placed(said: Mapping[str, Any]) -> Changes:
    """Where in a tree of runs it stands, and whose trace it belongs to."""
    ids = {name: UUID(said[name]) for name in ("root", "parent", "parent_call") if name in said}
    return ids | {name: said[name] for name in ("depth", "traceparent") if name in said}


def _proposed(view: View, fact: Fact) -> View:
    event, run = fact.event, view.run
    if event.call is None:
        raise ValueError("a proposal without a call")
    call = Call(tenant=event.tenant, id=event.call, run=event.run, version=event.seq, **fact.data)
    run = amended(run, **_grown(run, event), calls=run.calls + 1, open=run.open + 1)
    return View(run, _with(view.calls, call))


def _with(calls: Mapping[UUID, Call], call: Call) -> Mapping[UUID, Call]:
    if isinstance(calls, Replayed):
        calls.put(call)
        return calls
    return {**calls, call.id: call}


def _moved(view: View, old: Call, fact: Fact, changes: Changes) -> View:
    """The view with one call changed and the run's counters true again."""
    seq = fact.event.seq
    ended = changes.get("state", old.state) in CALL_ENDS and old.state not in CALL_ENDS
    settled = {"settled_seq": seq} if ended else {}
    new = amended(old, version=seq, **changes, **settled)
    run, tainted = view.run, first(view.run.tainted, seq, fact.data)
    changed = _counts(run, old, new, fact) | _beneath(run, new, fact, ended=ended)
    run = amended(run, **_grown(run, fact.event), tainted=tainted, **changed)
    return View(run, _with(view.calls, new))


def _beneath(run: Run, new: Call, fact: Fact, *, ended: bool) -> Changes:
    """What the event changes in what the run's children hold, have used and are waited for."""
    below, kind = run.below, fact.event.type
    if kind == E.CHILD_RUN_STARTED and "held" in fact.data:
        below = slices.hold(below, new.id, fact["held"])
    elif below is not None and (ended or kind == E.CHILD_RUN_SETTLED):
        below = slices.give_back(below, new.id, fact.data.get("used"))
    elif kind == E.CALL_DETACHED:
        below = slices.left(below, new.id, stop=fact["stop"])
    if ended and below is not None:
        below = slices.ended(below, new.id, answered=_answered(fact))
    return {"below": below} if below != run.below else {}


def _answered(fact: Fact) -> bool:
    """Whether the end of a call is an answer: a run that COMPLETED, or its result once more. The report of
    one that stopped is none, nor is a person's word that something happened.
    """
    kind = fact.event.type
    return kind == E.RESULT_REUSED or (kind == E.CHILD_RUN_SETTLED and fact["status"] == R.COMPLETED)


_FRUIT = frozenset({E.DISPATCH_INTENT_RECORDED, E.APPROVAL_REQUESTED})
"""From a turn of which one of these comes something may come."""


def _counts(run: Run, old: Call, new: Call, fact: Fact) -> Changes:
    fruit: Changes = {"fruitless": 0} if fact.event.type in _FRUIT and not new.compensates else {}
    waited = (new.detached and new.state not in CALL_ENDS) - (old.detached and old.state not in CALL_ENDS)
    beside: Changes = fruit | ({"detached": run.detached + waited} if waited else {})
    if (unknowns := _unknowns(run, old, new, fact)) != run.unknowns:
        beside["unknowns"] = unknowns
    if run.owed is not None and (fact.data.get("offset") == "left" or old.state != new.state):
        beside["owed"] = _owed(call for call in json.loads(run.owed) if call != str(new.id))
    if old.state == new.state:
        return beside
    opened = (new.state not in CALL_ENDS) - (old.state not in CALL_ENDS)
    woken = run.owner is None and (opened or C.NEEDS_REPAIR in {old.state, new.state})
    if old.detached and run.status == R.PLANNING:  # nobody waits for it: a planner that failed is left alone
        woken = False
    return {
        "attempts": run.attempts + new.attempts - old.attempts,
        "open": run.open + opened,
        "unsettled": run.unsettled + (new.state in CALL_UNSETTLED) - (old.state in CALL_UNSETTLED),
        "awaiting": run.awaiting + (new.state == C.AWAITING_APPROVAL) - (old.state == C.AWAITING_APPROVAL),
        "repairs": run.repairs + (new.state == C.NEEDS_REPAIR) - (old.state == C.NEEDS_REPAIR),
        "effects": run.effects + _own_effect(new) - _own_effect(old),
        "ready_at": fact.at if woken else run.ready_at,
        **beside,
    }


def _unknowns(run: Run, old: Call, new: Call, fact: Fact) -> int:
    """Effects nobody knows of: its own, and those that the end of a run below it tells."""
    told: int = fact.data.get("unknown", 0) if fact.event.type == E.CHILD_RUN_SETTLED else 0
    if new.effect == "read" or old.state == new.state or C.ACCEPTED_UNKNOWN not in {old.state, new.state}:
        return run.unknowns + told
    if new.state == C.ACCEPTED_UNKNOWN:
        return run.unknowns + (fact.event.version >= COUNTED_FROM)
    return max(0, run.unknowns - 1)  # one of the first versions was not counted


def _owed(calls: Iterable[str]) -> str | None:
    """The effects that a stopped run owes, as they are kept; None for none."""
    return json.dumps(sorted(calls)) if (calls := list(calls)) else None


def _own_effect(call: Call) -> int:
    if call.state != C.SUCCEEDED or call.effect == "read" or call.reused:
        return 0
    return -1 if call.compensates else 1


# -- what each event changes in its run ----------------------------------------------------------------------


def _noted(_run: Run, _fact: Fact) -> Changes:
    return {}


def _run_leased(_run: Run, fact: Fact) -> Changes:
    return fact.kept("owner", "fence") | (
        {"ready_at": fact.time("ready_at")} if "ready_at" in fact.data else {}
    )


def _run_deferred(_run: Run, fact: Fact) -> Changes:
    return {"owner": None, "ready_at": fact.time("ready_at")}


def _planning(run: Run, fact: Fact) -> Changes:
    held = fact.data.get("held", {})
    may = {"held_tokens": held.get("tokens", 0), "held_cost": held.get("cost", 0)}
    return {"status": R.PLANNING, "requests": run.requests + 1, "ready_at": fact.time("ready_at"), **may}


def _spent(run: Run, fact: Fact) -> Changes:
    """What the model request that ends here has used; it holds nothing any more."""
    spent = fact.data.get("spent", {})
    used = {"tokens": run.tokens + spent.get("tokens", 0), "cost": run.cost + spent.get("cost", 0)}
    return used | {"held_tokens": 0, "held_cost": 0}


def _planned(run: Run, fact: Fact) -> Changes:
    counted = fact.event.version >= COUNTED_FROM
    kept: Changes = {"fruitless": run.fruitless + 1} if counted else {}
    if met := fact.data.get("markers"):
        kept["markers"] = marked(run.markers, met)
    if run.below is not None or "join" in fact.data:
        kept["below"] = slices.joining(run.below, fact.data.get("join"))
    done = {"turn": fact["turn"], "owner": None, "failures": 0, "outages": 0, "ready_at": fact.at}
    return {"status": R.ACTING, **done, **kept, **_spent(run, fact)}


def _plan_lost(run: Run, fact: Fact) -> Changes:
    again: Changes = {"failures": run.failures + 1, "ready_at": fact.time("ready_at")}
    if fact.data.get("drained"):  # its worker's end was ordered: nobody has failed
        again["failures"] = run.failures
    if fact.data.get("outage"):  # its provider's failure, not its own
        again["outages"] = run.outages + 1
    if fact.data.get("taken") is False:  # turned away unread, or given up: no turn was spent
        again["requests"] = run.requests - 1
    return {"owner": None, **again, **_spent(run, fact)}


def _plan_deferred(_run: Run, fact: Fact) -> Changes:
    return {"owner": None, "ready_at": fact.time("ready_at"), **fact.kept("fence")}


def _passed_over(run: Run, fact: Fact) -> Changes:
    failures: int = fact["failures"]
    return {"failures": failures, "outages": run.outages + failures - run.failures}


def _completed(run: Run, fact: Fact) -> Changes:
    kept = fact.kept("result", "preview", "turn")
    return {"status": R.COMPLETED, "owner": None, **kept, **_spent(run, fact)}


def _repinned(_run: Run, fact: Fact) -> Changes:
    version = {"planner_version": fact["to"], "fence": fact["fence"]}
    return {"owner": None, "failures": 0, "outages": 0, "ready_at": fact.at, **version}


def _stopping(_run: Run, fact: Fact) -> Changes:
    why = {"stop_reason": fact["reason"], "stop_detail": fact["detail"]}
    return {"status": R.STOPPING, "owner": None, "fence": fact["fence"], "ready_at": fact.at, **why}


def _compensating(_run: Run, fact: Fact) -> Changes:
    again = {"status": R.COMPENSATING, "owner": None, "fence": fact["fence"], "ready_at": fact.at}
    return again | {"owed": None}


def _restored(_run: Run, fact: Fact) -> Changes:
    return {"owner": None, "fence": fact["fence"], "ready_at": fact.at}


def _stopped(_run: Run, fact: Fact) -> Changes:
    owed = _owed(left["call"] for left in fact.data.get("not_offset", ()) if left.get("owed"))
    return {"status": R.STOPPED, "owner": None, "fence": fact["fence"], "owed": owed}


_RUN_RULES: Mapping[EventType, Callable[[Run, Fact], Changes]] = {
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
    E.RUN_REPINNED: _repinned,
    E.PLAN_DEFERRED: _plan_deferred,
    E.MODEL_PASSED_OVER: _passed_over,
}
