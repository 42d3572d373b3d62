"""What becomes of the run a call has started: its end is the proof of the call, whoever hears of it. Pure.

A call that waits for its run is held by nobody. Its row is due when the run ends, which makes it so, or when
the run's own deadline and grace are over: then the call is UNKNOWN, and owned by the reconciliation deadline.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any

from fencepost import deadlines, slices
from fencepost.canonical import sanitize
from fencepost.clock import rfc3339
from fencepost.commands import Answer, ClaimDoubt, Done, Moved, Payload, Tell, Unfamiliar
from fencepost.decide import allow
from fencepost.decide.fold import Child, Fold, Presented, lease_body
from fencepost.decide.stopping import after_call
from fencepost.decide.unknown import mark_unknown
from fencepost.events import EventType, body_text
from fencepost.outcomes import Unsure
from fencepost.states import RUN_ENDS, RUN_FORWARD, CallState, RunStatus
from fencepost.subjects import Call, Run
from fencepost.taint import UNTRUSTED
from fencepost.tools import Tool

E, C, R = EventType, CallState, RunStatus

TELL_AGAIN = timedelta(seconds=10)
"""How long a run has to heed that it is to stop before it is told once more."""
_PREVIEW = 500


def claim_child(fold: Fold, call: Call, tool: Tool, command: ClaimDoubt) -> Answer:
    """Settle a call by the end of its run; else wait for it, have it told to stop, or ask a person."""
    if not command.starts:
        return Unfamiliar(f"that {call.tool} starts runs")
    child = fold.children.get(call.child) if call.child is not None else None
    if child is not None and not _ended(child.run):
        return _wait(fold, call, tool, command, child.run)
    _take(fold, call, tool, command)
    if child is None:
        if call.state == C.DISPATCHING:
            mark_unknown(fold, call, tool, Unsure("child_lost", "its run is not in this ledger"))
        lost = "the ledger was restored; whether it had started a run is not known"
        return _repair(fold, call, lost if call.child is None else "its run is not in this ledger")
    _settle(fold, fold.call(call.id), tool, child)
    after_call(fold, call.id)
    return Done(fold.call(call.id).state)


def look_again(fold: Fold, call: Call, command: ClaimDoubt) -> Answer:
    """A call that has ended, though not as one that happened, and whose run's end has changed since (R9).

    A person looks at it where that run has an effect now, or may have, as after evidence of the call's own.
    """
    if not command.starts:
        return Unfamiliar(f"that {call.tool} starts runs")
    child = fold.children.get(call.child) if call.child is not None else None
    if child is None or (why := _contradicts(call, child.run)) is None:
        return Moved()
    fold.term = None  # nobody holds what has ended
    fold.presented[call.id] = Presented("evidence")
    fold.emit(E.REPAIR_REQUESTED, {"reason": why, "fence": call.fence + 1}, call=call.id)
    return Done(C.NEEDS_REPAIR)


def _contradicts(call: Call, run: Run) -> str | None:
    unknown = 0 if call.state == C.ACCEPTED_UNKNOWN else run.unknowns + run.repairs
    if call.state == C.SUCCEEDED or not (run.effects or unknown):
        return None
    left = f"{run.effects} effects, {run.repairs} calls to repair and {run.unknowns} that nobody knows of"
    return f"the call is {call.state}, yet its run {run.id} is {run.status} with {left}"


def _ended(run: Run) -> bool:
    """Whether nothing of it is open any more, a call that waits for a person included."""
    return run.status in RUN_ENDS and not run.open


def _take(fold: Fold, call: Call, tool: Tool, command: ClaimDoubt) -> None:
    fold.present(call.id, "claim")
    fold.takeovers = 0
    restored = call.restored is not None and call.reserved is None
    owed = allow.caught_up(fold, call, tool) if restored else {}
    fold.emit(E.LEASE_ACQUIRED, lease_body(command) | owed, call=call.id)


def _wait(fold: Fold, call: Call, tool: Tool, command: ClaimDoubt, run: Run) -> Answer:
    last = deadlines.takeover_at(run.deadline, tool.dependency.grace)
    late = fold.now >= last
    why = _why_stop(fold, call, late=late) if run.status in RUN_FORWARD else None
    if call.state == C.DISPATCHING and not late and why is None:
        if call.ready_at > fold.now:
            return Moved()  # nothing to say: the row goes back to where it stands
        _take(fold, call, tool, command)
        return _defer(fold, call, last, f"its run is {run.status}")
    _take(fold, call, tool, command)
    if call.state == C.DISPATCHING and late:
        silent = f"its run did not end by {rfc3339(run.deadline)}; it is {run.status}"
        mark_unknown(fold, call, tool, Unsure("child_silent", silent))
    call = fold.call(call.id)
    until = call.reconcile_until
    if call.state == C.UNKNOWN and until is not None and fold.now >= until:
        return _repair(fold, call, f"its run {run.id} is {run.status} beyond the reconciliation deadline")
    if why is None:
        return _defer(fold, call, until or last, f"its run is {run.status}")
    again = min(deadlines.plus(fold.now, TELL_AGAIN), until or last)
    _defer(fold, call, again, why)
    assert call.child is not None
    return Tell(fold.call(call.id), call.child, why)


def _why_stop(fold: Fold, call: Call, *, late: bool) -> str | None:
    """Why the run of this call is to stop; None where it is to go on."""
    if not fold.forward and not call.compensates:
        return f"its parent is {fold.run.status}: {fold.run.stop_reason}"
    if str(call.id) in slices.read(fold.run.below).stop:
        return "its parent goes on without it"
    return "its deadline has passed" if late else None


def _defer(fold: Fold, call: Call, until: datetime, reason: str) -> Answer:
    now = fold.call(call.id)
    body = {"ready_at": rfc3339(until), "reason": reason, "fence": now.fence, "asks": now.asks}
    fold.emit(E.RECONCILIATION_DEFERRED, body, call=call.id)
    return Done(now.state)


def _repair(fold: Fold, call: Call, reason: str) -> Answer:
    body = {"reason": reason, "fence": fold.call(call.id).fence}
    fold.emit(E.REPAIR_REQUESTED, body, call=call.id)
    after_call(fold, call.id)
    return Done(C.NEEDS_REPAIR)


def _settle(fold: Fold, call: Call, tool: Tool, child: Child) -> None:
    """The proof: COMPLETED is its result, STOPPED with nothing left is a failure, else it is a report.

    Of what was to offset an effect only COMPLETED says that it did: half of it is neither, and a person's.
    """
    run = child.run
    body: dict[str, Any] = {"child": str(run.id), "status": run.status, "used": slices.used_by(run)}
    if run.unknowns:
        body["unknown"] = run.unknowns
    if run.tainted is not None or tool.taints:
        body[UNTRUSTED] = True
    if nothing_left(run):
        why = f"its run stopped: {run.stop_reason}" + (f": {run.stop_detail}" if run.stop_detail else "")
        _heard(fold, call, body | {"to": C.FAILED, "message": why})
        return
    if (half := _half_done(call, run)) is not None:
        _ask_person(fold, call, tool, half)
        return
    if _stopped_before(fold, call):
        # After its end a run does nothing by itself: a person says that it happened, and it is offset.
        why = f"its run {run.id} is {run.status} with effects, and was heard of after this run had stopped"
        _ask_person(fold, call, tool, why)
        return
    if run.status == R.COMPLETED:
        said = {"receipt": str(run.id), "result": run.result, "preview": run.preview}
    else:
        report = _report(child)
        fold.kept.append(report)
        said = {"receipt": None, "result": report.digest, "preview": report.preview}
    _heard(fold, call, body | {"to": C.SUCCEEDED} | said)


def nothing_left(run: Run) -> bool:
    """Whether a run that has ended proves that its call had no effect: none that stays, and none unknown."""
    return run.status == R.STOPPED and not run.effects and not run.unknowns


def _half_done(call: Call, run: Run) -> str | None:
    """Why the end of what was to offset an effect says neither that it did nor that nothing happened."""
    if not call.compensates or run.status == R.COMPLETED:
        return None
    left = f"{run.effects} effects that stay and {run.unknowns} that nobody knows of"
    return f"its run {run.id}, which was to offset an effect, gave up with {left}: {run.stop_reason}"


def _ask_person(fold: Fold, call: Call, tool: Tool, why: str) -> None:
    if call.state == C.DISPATCHING:
        mark_unknown(fold, call, tool, Unsure("child_stopped", why))
    fold.emit(E.REPAIR_REQUESTED, {"reason": why, "fence": fold.call(call.id).fence}, call=call.id)


def _heard(fold: Fold, call: Call, body: dict[str, Any]) -> None:
    fold.emit(E.CHILD_RUN_SETTLED, body, call=call.id, attempt=call.attempts)


def _stopped_before(fold: Fold, call: Call) -> bool:
    return fold.run.status == R.STOPPED and fold.run.offsets and call.effect != "read"


def _report(child: Child) -> Payload:
    """What is said of a run that stopped and left effects, or may have: never that it failed."""
    run, end = child.run, child.end
    text = body_text(
        {
            "status": run.status,
            "stop_reason": run.stop_reason,
            "stop_detail": run.stop_detail,
            "run": str(run.id),
            "effects": run.effects,
            "offset": list(end.get("offset", ())),
            "not_offset": list(end.get("not_offset", ())),
            **({"unknown": run.unknowns} if run.unknowns else {}),
        }
    )
    data = text.encode()
    return Payload(hashlib.sha256(data).hexdigest(), data, sanitize(text, _PREVIEW))
