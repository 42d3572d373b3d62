"""Offsetting what a stopped run has done: new effects in reverse order of success, each with its own key.

Never a rollback: the first effect was real and may have been seen. One compensation at a time; the failure of
one does not stop the others, and neither does one whose planning kills its worker every time; the end lists
what was offset and what was not, and what a person may ask for again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fencepost import deadlines
from fencepost.clock import NEVER, rfc3339
from fencepost.commands import (
    Answer,
    ClaimStopped,
    Denied,
    Done,
    Fenced,
    Gone,
    Moved,
    Offset,
    RecordCompensation,
    Unfamiliar,
)
from fencepost.decide.fold import Fold, lease_body
from fencepost.decide.planning import propose
from fencepost.decide.stopping import settle_stopping
from fencepost.events import EventType
from fencepost.proposals import Validated
from fencepost.states import RUN_ENDS, CallState, OperationStatus, RunStatus
from fencepost.subjects import Call, View
from fencepost.tools import compensation_key

E, C, R = EventType, CallState, RunStatus

UNFAMILIAR_PATIENCE = timedelta(minutes=10)
"""How long a stopped run waits for a process that knows the tool of an effect to be offset."""


def effects(view: View) -> list[Call]:
    """The run's own committed forward effects, the latest success first."""
    done = (c for c in view.calls.values() if c.state == C.SUCCEEDED and c.effect != "read")
    own = [c for c in done if not (c.reused or c.compensates)]
    return sorted(own, key=lambda c: c.settled_seq or 0, reverse=True)


def compensation_of(view: View, forward: Call) -> Call | None:
    """The call of this run that compensates `forward`, whatever became of it; the latest if there are
    several.
    """
    key = forward.operation
    found = [c for c in view.calls.values() if c.compensates is not None and c.compensates == key]
    return max(found, key=lambda c: (c.turn, c.ordinal), default=None)


def claim_stopped(fold: Fold, command: ClaimStopped) -> Answer:
    """Take a stopped run: plan its next compensation, wait for those in flight or in repair, or end it."""
    run = fold.run
    if run.status in RUN_ENDS:
        return Gone()
    if run.status not in (R.STOPPING, R.COMPENSATING):
        return Moved()
    if command.term.fence <= run.fence:
        return Fenced()
    # Another process may know the tool; after a while the effect is listed as not offset instead.
    strange = _strange_tool(fold)
    if strange is not None and fold.now < deadlines.plus(run.ready_at, UNFAMILIAR_PATIENCE):
        return Unfamiliar(strange)
    fold.present(run.id, "claim")
    fold.takeovers = fold.takeovers + 1 if run.owner is not None else 0
    ready_at = fold.now + command.cap + command.grace
    lease: dict[str, Any] = lease_body(command)
    fold.emit(E.LEASE_ACQUIRED, {**lease, "ready_at": rfc3339(ready_at)})
    if run.status == R.STOPPING:
        settle_stopping(fold)
        return Done(fold.run.status)
    if run.open > run.repairs:
        return _rest(fold, "a compensation is in flight")
    candidate = next_to_offset(fold)
    if candidate is not None:
        return Offset(fold.run, candidate, command.cap)
    if run.repairs:
        return _rest(fold, "a call needs repair")
    _end(fold)
    return Done(fold.run.status)


def _strange_tool(fold: Fold) -> str | None:
    """A tool whose effect may have to be offset and that only another process knows."""
    for call in effects(fold.view):
        if fold.known.tool(call.tool, call.tool_version) is None and compensation_of(fold.view, call) is None:
            return f"tool {call.tool} version {call.tool_version}"
    return None


def _rest(fold: Fold, reason: str) -> Answer:
    """Give the run back until one of its calls moves (which wakes it)."""
    fold.emit(E.COMPENSATION_DEFERRED, {"ready_at": rfc3339(NEVER), "reason": reason})
    return Done(fold.run.status)


def next_to_offset(fold: Fold) -> Call | None:
    """The latest effect that can be offset and has no compensation yet.

    One whose planning has lost as many workers in a row as a subject may is passed over for the one before
    it, and tried again once that is planned.
    """
    may = [c for c in effects(fold.view) if compensation_of(fold.view, c) is None and not _why_not(fold, c)]
    given_up = fold.takeovers // fold.known.takeover_limit
    return may[given_up] if given_up < len(may) else None


def _why_not(fold: Fold, call: Call) -> str | None:
    """Why this effect can have no compensation at all; None when it can."""
    tool = fold.known.tool(call.tool, call.tool_version)
    if call.effect == "irreversible":
        return "irreversible"
    if tool is None:
        return f"tool {call.tool} version {call.tool_version} is not known here"
    if not tool.compensable:
        return "its tool declares no compensation"
    held = fold.operations.get(call.operation or "")
    return "shared" if held is not None and held.reused else None


def _end(fold: Fold) -> None:
    offset, left = [], []
    for call in effects(fold.view):
        made = compensation_of(fold.view, call)
        if made is not None and made.state == C.SUCCEEDED:
            offset.append(str(call.id))
        else:
            left.append({"call": str(call.id), "tool": call.tool, **_left(fold, call, made)})
    end = {"offset": offset, "not_offset": left, "effects": fold.run.effects, "fence": fold.run_fence()}
    fold.emit(E.RUN_STOPPED, end)


def _left(fold: Fold, call: Call, made: Call | None) -> dict[str, Any]:
    """Why an effect is not offset. `again`: it was given up, and a person may ask for it once more."""
    if made is not None:
        return {"why": _why_not(fold, call) or f"compensation {made.state.lower()}"}
    if fold.known.tool(call.tool, call.tool_version) is None and call.effect != "irreversible":
        return {"why": _why_not(fold, call), "again": True}
    if (why := _why_not(fold, call)) is not None:
        return {"why": why}
    lost = f"its planning was given up after {fold.known.takeover_limit} lost workers in a row"
    return {"why": lost, "again": True}


def ask_again(fold: Fold, call: Call) -> str | None:
    """Why a person cannot have this effect of a stopped run offset after all; None when they can."""
    run = fold.run
    if call.state != C.SUCCEEDED or call.effect != "reversible" or call.compensates or call.reused:
        return "it is no effect of this run's own that could be offset"
    if run.status != R.STOPPED or run.on_stop != "compensate":
        return f"the run is {run.status}; only a run that stopped to offset its effects takes this up again"
    held = fold.operations.get(call.operation or "")
    if held is not None and held.status in (OperationStatus.COMPENSATING, OperationStatus.COMPENSATED):
        return f"its effect is {held.status} already"
    return None


def record_compensation(fold: Fold, command: RecordCompensation) -> Answer:
    """Record one effect's compensation: own key, authority and deadline, not before the effect is quiet."""
    run = fold.run
    if (run.owner, run.fence) != (command.term.owner, command.term.fence) or run.status != R.COMPENSATING:
        return Fenced()
    forward = fold.view.calls.get(command.forward)
    if forward is None:
        return Gone()
    if forward.state != C.SUCCEEDED or compensation_of(fold.view, forward) is not None:
        return Moved()
    proposal = command.proposal
    if isinstance(proposal, Validated) and proposal.operation != compensation_key(forward.operation or ""):
        return Denied(
            "a compensation's key is that of the effect it offsets, whatever its tool's intent (I11)"
        )
    fold.present(run.id, "term")
    fold.takeovers = 0
    tool = fold.known.tool(forward.tool, forward.tool_version)
    patience = tool.dependency.reconcile_for if tool else deadlines.MAX_RETRY_AFTER
    quiet = forward.quiet_at if forward.quiet_at and forward.quiet_at < NEVER else forward.in_flight_until
    start = max(fold.now, quiet or fold.now)
    propose(
        fold,
        proposal,
        command.call_id,
        turn=run.turn + 1,
        ordinal=run.calls,
        compensates=forward.operation,
        not_before=start,
        reconcile_until=deadlines.plus(start, patience),
    )
    fold.emit(E.COMPENSATION_DEFERRED, {"ready_at": rfc3339(fold.now), "reason": "compensation recorded"})
    return Done(fold.run.status)
