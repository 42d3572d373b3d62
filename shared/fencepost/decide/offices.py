"""What is decided outside any term: cancel, a person's repair, evidence of a fenced-out worker, the sweep."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fencepost import deadlines, operations
from fencepost.clock import NEVER, rfc3339
from fencepost.commands import (
    COMPENSATE,
    CONFIRM,
    LEAVE,
    OFFSET,
    RELEASE,
    Answer,
    DecideRepair,
    Denied,
    Done,
    FileEvidence,
    Gone,
    RequestCancel,
    Sweep,
)
from fencepost.contracts import Dedupes
from fencepost.decide import by_two, children
from fencepost.decide.compensate import accept, ask_again, cannot_offset
from fencepost.decide.fold import Fold, Presented
from fencepost.decide.stopping import after_call, stop
from fencepost.doubts import SENT_LATE
from fencepost.events import EventType
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.states import (
    CALL_ENDS,
    CALL_UNSENT,
    CALL_UNSETTLED,
    RUN_ENDS,
    CallState,
    OperationStatus,
    RunStatus,
    StopReason,
)
from fencepost.subjects import Call

E, C, R = EventType, CallState, RunStatus

ASK_AGAIN_FOR = timedelta(minutes=10)
"""For how long it is asked again where the office knows no tool, whose `reconcile_for` says otherwise."""
_CHANGED = "the call has changed since you looked at it; look again, then decide"


def request_cancel(fold: Fold, command: RequestCancel) -> Answer:
    """Stop the run. Cancelling twice, or while it stops already, changes nothing and says where it stands."""
    if fold.run.status in RUN_ENDS:
        return Gone()
    if not fold.forward:
        return Done(fold.run.status)
    fold.by = command.by
    fold.presented[fold.run.id] = Presented("cancel")
    fold.emit(E.CANCEL_REQUESTED, {"reason": command.reason})
    stop(fold, StopReason.CANCELLED, command.reason or None)
    return Done(fold.run.status)


def decide_repair(fold: Fold, command: DecideRepair) -> Answer:
    """A person settles a call in NEEDS_REPAIR; the decision, its reason and who made it are history."""
    call = fold.view.calls.get(command.call)
    if call is None:
        return Gone()
    if command.decision in {OFFSET, LEAVE}:
        return _of_what_was_left(fold, call, command)
    if command.decision == RELEASE:
        return _release(fold, call, command)
    found = call.state == C.ACCEPTED_UNKNOWN and command.decision == C.SUCCEEDED
    if call.state != C.NEEDS_REPAIR and not found:
        return Denied(_not_repairable(call))
    if found and command.confirm_within is not None:
        return Denied("where repairs take two persons, what was accepted as unknown is not corrected by one")
    if command.seen is not None and command.seen != call.version:
        return Denied(_CHANGED)
    if command.decision == CONFIRM:
        return by_two.confirm(fold, call, command, objection, _decide)
    if (why := objection(fold, call, command)) is not None:
        return Denied(why)
    if command.confirm_within is not None:
        return by_two.propose(fold, call, command, command.confirm_within)
    return _decide(fold, call, command, {})


def _not_repairable(call: Call) -> str:
    """Why nothing can be decided of it, and what can be done instead."""
    what = f"the call is {call.state}; only a call in NEEDS_REPAIR can be repaired"
    if call.state in CALL_UNSETTLED:
        return f"{what}: the reconciler is at it, and asks a person where it cannot tell"
    if call.state == C.ACCEPTED_UNKNOWN:
        return f"{what}, and of this one only be said that it happened after all, with its receipt"
    if call.state == C.FAILED:
        return f"{what}; its key may be released for another try"
    return what


def objection(fold: Fold, call: Call, command: DecideRepair) -> str | None:
    """Why this cannot be decided of a call that needs repair, as things stand; None when it can."""
    happened = command.decision in {C.SUCCEEDED, COMPENSATE}
    if not happened and command.decision not in {C.FAILED, C.UNKNOWN, C.ACCEPTED_UNKNOWN}:
        return f"{command.decision} is not among the decisions a person can make"
    if (why := _disproved(fold, call, command) or _alive(fold, call, command)) is not None:
        return why
    quiet = call.quiet_at if call.quiet_at and call.quiet_at < NEVER else call.in_flight_until
    if command.decision == C.FAILED and quiet is not None and fold.now <= quiet:
        return f"its last request may still take effect until {rfc3339(quiet)}; decide after that"
    if happened and not command.receipt:
        return "say how it is known that it happened: a receipt is required"
    return cannot_offset(fold, call) if command.decision == COMPENSATE else None


def _decide(fold: Fold, call: Call, command: DecideRepair, more: dict[str, Any]) -> Answer:
    fold.by = command.by
    effects_before = fold.run.effects
    fold.presented[call.id] = Presented("repair")
    offset = command.decision == COMPENSATE
    body: dict[str, Any] = {
        "to": C.SUCCEEDED if offset else command.decision,
        "reason": command.reason,
        "receipt": command.receipt,
        "result": call.result,
        "preview": call.preview,
        "fence": call.fence + 1,
        **children.known_use(fold, call),
        **({"login": command.login} if command.login is not None else {}),
        **({"compensate": True} if offset else {}),
        **more,
    }
    if command.decision == C.UNKNOWN:
        tool = fold.known.tool(call.tool, call.tool_version)
        patience = tool.dependency.reconcile_for if tool is not None else ASK_AGAIN_FOR
        body["reconcile_until"] = rfc3339(deadlines.plus(fold.now, patience))
    fold.emit(E.REPAIR_DECIDED, body, call=call.id)
    if offset and fold.forward:
        stop(fold, StopReason.OPERATOR, command.reason)
        fold.present_run_by(call.id)
    else:
        after_call(fold, call.id)
    if offset and fold.run.status == R.STOPPED:
        _reopen(fold, command.reason)
    elif fold.run.effects > effects_before:
        _reopen_stopped(fold)
    return Done(fold.call(call.id).state)


def _of_what_was_left(fold: Fold, call: Call, command: DecideRepair) -> Answer:
    """A person has the offsetting of this effect tried once more, or accepts that the effect stays."""
    again = command.decision == OFFSET
    if (why := (ask_again if again else accept)(fold, call)) is not None:
        return Denied(why)
    if command.seen is not None and command.seen != call.version:
        return Denied(_CHANGED)
    fold.by = command.by
    fold.presented[call.id] = Presented("repair")
    word = {"to": call.state, "offset": "again" if again else "left", "reason": command.reason}
    fold.emit(E.REPAIR_DECIDED, word | {"fence": call.fence + 1}, call=call.id)
    if again:
        _reopen(fold, command.reason)
    return Done(call.state)


def _release(fold: Fold, call: Call, command: DecideRepair) -> Answer:
    """A person has the key of a call that is proved to have had no effect used again: what it failed for, a
    wrong password or a limit, is mended.
    """
    held = fold.operations.get(call.operation or "")
    if call.state != C.FAILED or held is None:
        return Denied(f"the call is {call.state}; only of one that FAILED is the key released")
    if held.call != call.id or held.status != OperationStatus.FAILED or held.doubt:
        return Denied(f"its key is {held.status}, not closed by this call: there is nothing to release")
    if command.seen is not None and command.seen != call.version:
        return Denied(_CHANGED)
    fold.by = command.by
    fold.presented[call.id] = Presented("repair")
    word = {"to": C.FAILED, "release": True, "reason": command.reason, "fence": call.fence + 1}
    login = {"login": command.login} if command.login is not None else {}
    fold.emit(E.REPAIR_DECIDED, word | login, call=call.id)
    fold.set_operation(operations.released(held))
    return Done(call.state)


def _disproved(fold: Fold, call: Call, command: DecideRepair) -> str | None:
    """Filed evidence that a person's decision would contradict: a worker's real answer outranks a belief."""
    applied = [e for e in fold.evidence.get(call.id, ()) if e.applied]
    receipts = sorted({e.receipt for e in applied if e.receipt})
    named = f"receipt {' or '.join(receipts)}" if receipts else "without a receipt"
    if applied and command.decision in {C.FAILED, C.ACCEPTED_UNKNOWN}:
        return f"attempt {applied[0].attempt} is known to have been applied ({named}); say that it happened"
    happened = command.decision in {C.SUCCEEDED, COMPENSATE}
    if happened and receipts and command.receipt not in {*receipts, call.receipt}:
        return f"it is known to have been applied under another {named}; use that one"
    return None


def _alive(fold: Fold, call: Call, command: DecideRepair) -> str | None:
    """What the run that the call has started says against it: that it had no effect, or that nobody knows."""
    child = fold.children.get(call.child) if call.child is not None else None
    if child is None or command.decision not in {C.FAILED, C.ACCEPTED_UNKNOWN}:
        return None
    run = child.run
    if run.status not in RUN_ENDS or run.open:
        return (
            f"its run {run.id} is {run.status}: cancel that one, settle what it leaves open, then decide this"
        )
    if run.status == R.COMPLETED:
        return f"its run {run.id} has COMPLETED; say that it happened"
    left = "effect that is" if run.effects == 1 else "effects that are"
    # Half of what was to offset an effect is neither done nor undone: that much may be left unknown.
    if run.effects and (command.decision == C.FAILED or not call.compensates):
        return f"its run {run.id} left {run.effects} {left} not offset; say that it happened"
    if run.unknowns and command.decision == C.FAILED:
        return f"what its run {run.id} did is not known to the end; say ACCEPTED_UNKNOWN, or that it happened"
    return None


def _reopen_stopped(fold: Fold) -> None:
    """After a repair in a run that has stopped: what turned out to have happened is to be offset as well."""
    run = fold.run
    if run.status == R.STOPPED and run.offsets:
        _reopen(fold, "an effect of the stopped run came to light")


def _reopen(fold: Fold, why: str) -> None:
    fold.presented[fold.run.id] = Presented("repair")
    fold.emit(E.REPAIR_DECIDED, {"reason": why, "fence": fold.run_fence()})


def file_evidence(fold: Fold, command: FileEvidence) -> Answer:
    """Keep a fenced-out answer, or that bytes left late: it wakes the reconciler or reopens an end."""
    call = fold.view.calls.get(command.call)
    if call is None:
        return Gone()
    outcome = command.outcome
    late = isinstance(outcome, Unsure) and outcome.code == SENT_LATE
    if (isinstance(outcome, Unsure) and not late) or call.effect == "read":  # a read has no effect
        return Done(call.state)
    applied = isinstance(outcome, Applied)
    body = {
        "attempt": command.attempt,
        "applied": applied,
        "receipt": outcome.receipt if isinstance(outcome, Applied) else None,
        "result": command.result.digest if command.result else None,
        "code": "applied" if isinstance(outcome, Applied) else outcome.code,
        "retryable": isinstance(outcome, Refused) and outcome.retryable,
    }
    fold.emit(E.EVIDENCE_FILED, body, call=call.id, attempt=command.attempt)
    if isinstance(outcome, Applied | Unsure):
        _contradicted(fold, call, outcome)
    return Done(fold.call(call.id).state)


def _contradicted(fold: Fold, call: Call, outcome: Applied | Unsure) -> None:
    """Have a person look where the answer contradicts what is known.

    An effect has one compensation at a time (I11): where another was begun since, under the same key, it is
    that one which is looked at, before it is sent once more; one that is under way finds out by itself.
    """
    beside = (other for other in fold.view.calls.values() if _takes_its_place(other, call))
    asked = next(beside, call)
    tool = fold.known.tool(call.tool, call.tool_version)
    keyed = tool is not None and isinstance(tool.contract.repeat, Dedupes)
    why = _contradicts(asked, outcome) if isinstance(outcome, Applied) else _may_land(asked, keyed=keyed)
    if why is not None:
        fold.presented[asked.id] = Presented("evidence")
        fold.emit(E.REPAIR_REQUESTED, {"reason": why, "fence": asked.fence + 1}, call=asked.id)


def _takes_its_place(other: Call, call: Call) -> bool:
    dead = other.state in {C.REJECTED, C.FAILED, C.CANCELLED}
    return (
        call.compensates is not None and other.compensates == call.compensates and other != call and not dead
    )


def _contradicts(call: Call, outcome: Applied) -> str | None:
    if call.state == C.SUCCEEDED:
        differs = call.receipt and outcome.receipt and call.receipt != outcome.receipt
        return f"two receipts for one key: {call.receipt} and {outcome.receipt}" if differs else None
    if call.state in CALL_ENDS or call.state in CALL_UNSENT:
        return f"the call is {call.state}, yet an attempt was applied (receipt {outcome.receipt})"
    return None


def _may_land(call: Call, *, keyed: bool) -> str | None:
    """Bytes left late: an end without effect may be wrong, and a second attempt's effect one too many."""
    once = call.state == C.SUCCEEDED and (keyed or call.attempts == 1)
    if once or call.state not in CALL_ENDS | CALL_UNSENT:
        return None
    return f"the call is {call.state}, yet bytes of an attempt left after its time: look at what it did"


def sweep(fold: Fold, _command: Sweep) -> Answer:
    """Nothing to decide: `apply` gives the subject its row if it has none."""
    return Done(fold.run.status)
