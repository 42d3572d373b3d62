"""How a run stops: what is unsent is cancelled, what is in flight settles, then effects are offset."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from fencepost.clock import rfc3339
from fencepost.decide import children
from fencepost.decide.fold import Fold, Presented
from fencepost.events import EventType
from fencepost.models import Spent
from fencepost.states import (
    CALL_ENDS,
    CALL_UNSENT,
    GROUNDS,
    CallState,
    Ground,
    RunStatus,
    StopReason,
)
from fencepost.subjects import Call, Run

E, C, R = EventType, CallState, RunStatus

_REASON_OF_END = {
    C.FAILED: StopReason.TOOL_FAILED,
    C.REJECTED: StopReason.TOOL_FAILED,
    C.CANCELLED: StopReason.CANCELLED,
    C.ACCEPTED_UNKNOWN: StopReason.OUTCOME_UNKNOWN,
}
_DENIALS = frozenset({E.AUTHORIZATION_DENIED, E.APPROVAL_DECIDED})


def stop(fold: Fold, reason: StopReason, detail: str | None = None, *, asked: bool = True) -> None:
    """Stop a run that plans or acts; it ends at once if nothing is in flight and nothing to be offset."""
    if asked and asking(fold.run):
        body = {"code": "stopped", "message": str(reason), "ready_at": rfc3339(fold.now)}
        fold.emit(E.MODEL_OUTCOME_UNKNOWN, body | settled(fold.run, None))
    fold.emit(E.RUN_STOPPING, {"reason": reason, "detail": detail, "fence": fold.run_fence()})
    for call in list(fold.view.open_calls()):
        if call.state in CALL_UNSENT and not call.doubt:
            cancel_call(fold, call, f"the run stopped: {reason}")
    children.hurry(fold)
    settle_stopping(fold)


def waits(run: Run, reason: StopReason) -> bool:
    """Whether the run waits for a person instead of stopping for this reason: it would have effects offset
    for one that says nothing of them. Of a run below another one nobody here knows what its end has offset.
    """
    spared = run.effects > 0 or run.open > 0 or run.parent is not None
    return GROUNDS[reason] is Ground.PLUMBING and run.offsets and not run.hasty and spared


def asking(run: Run) -> bool:
    """Whether a request to its planner is open: somebody holds it, or what it may use is still held."""
    return run.status == R.PLANNING and (run.owner is not None or bool(run.held_tokens or run.held_cost))


def settled(run: Run, spent: Spent | None) -> dict[str, Any]:
    """What the event says that ends a request to the planner: what it used, in place of what it held.

    Where nobody can tell, all that was held is charged. More than was held is charged as it is told.
    """
    if spent is None or not spent.known:
        told = spent or Spent()
        spent = Spent(max(run.held_tokens, told.tokens), max(run.held_cost, told.cost), known=False)
    nothing = not (spent.tokens or spent.cost or run.held_tokens or run.held_cost)
    return {} if nothing else {"spent": spent.to_json()}


def cancel_call(fold: Fold, call: Call, reason: str) -> None:
    """Cancel a call that was never sent; the fence rises so that a claimer of the old term finds it taken."""
    fold.presented.setdefault(call.id, Presented("cancel"))
    fold.emit(E.CALL_CANCELLED, {"reason": reason, "fence": call.fence + 1}, call=call.id)


def settle_stopping(fold: Fold) -> None:
    """Leave STOPPING once nothing is DISPATCHING or UNKNOWN: compensate if asked for, else end."""
    run = fold.run
    if run.status != R.STOPPING or run.unsettled:
        return
    # A person stops a run to have an effect offset, whatever else it was to do (offices.decide_repair).
    offsets = run.offsets or run.stop_reason == StopReason.OPERATOR
    if offsets and (run.effects > 0 or run.repairs > 0):
        fold.emit(E.COMPENSATION_REQUESTED, {"effects": run.effects, "fence": fold.run_fence()})
    else:
        end = {"offset": [], "not_offset": [], "effects": run.effects, "fence": fold.run_fence()}
        fold.emit(E.RUN_STOPPED, end)


def after_call(fold: Fold, call_id: UUID) -> None:
    """What a call's new state means for its run: a required end stops it, a last settlement lets it end."""
    call = fold.call(call_id)
    status, row = fold.run.status, fold.presented.get(call_id)
    if status == R.STOPPING:
        settle_stopping(fold)
    elif fold.forward and call.required and not call.compensates and call.state in CALL_ENDS:
        _stop_for(fold, call)
    if call.state in CALL_ENDS:
        children.go_on(fold, cancel_call)
    if fold.run.status != status and row is not None:
        fold.present_run_by(call_id)


def _stop_for(fold: Fold, call: Call) -> None:
    if call.state == C.SUCCEEDED:
        return
    reason = _REASON_OF_END[CallState(call.state)]
    if any(e.type in _DENIALS and e.call == call.id for e in fold.events):
        reason = StopReason.AUTHORIZATION_DENIED
    stop(fold, reason, f"{call.tool}: {call.error or call.state}")
