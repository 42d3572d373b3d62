"""Offsetting what a stopped run has done: new effects in reverse order of success, each with its own key.

Never a rollback: the first effect was real and may have been seen. One compensation at a time, and none while
another call of the run is in doubt or with a person, whose word may be that all is well; the failure of one
does not stop the others, and neither does one whose planning kills its worker every time; the end lists what
was offset and what was not, and what a person may ask for again.
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


def wanted(view: View) -> list[Call]:
    """Those that are to be offset: all of a run that stops so, of any other what a person has asked for."""
    every = view.run.offsets
    return [c for c in effects(view) if every or c.offset_asked is not None]


def cannot_offset(fold: Fold, call: Call) -> str | None:
    """Why nothing can offset this call's effect, should it have happened; None when something may."""
    run, held = fold.run, fold.operations.get(call.operation or "")
    if call.effect != "reversible":
        return f"its tool is {call.effect.upper()}: nothing can offset it; say that it happened, and no more"
    if call.compensates is not None:
        return "it offsets an effect itself, and that is not offset again"
    if held is not None and held.reused:
        return "another run has taken its result; an effect that is shared is not offset"
    if run.status == R.COMPLETED:
        return "its run has COMPLETED; what such a run has done is not offset"
    if run.status == R.STOPPING and not run.offsets:
        return "its run is stopping; decide once it has stopped"
    return None


def compensation_of(view: View, forward: Call) -> Call | None:
    """The call of this run that compensates `forward`, whatever became of it; the latest if there are
    several.
    """
    key = forward.operation
    found = [c for c in view.calls.values() if c.compensates is not None and c.compensates == key]
    return max(found, key=lambda c: (c.turn, c.ordinal), default=None)


def in_the_air(view: View) -> list[Call]:
    """Forward calls of which nobody knows yet whether they had their effect: until then none is offset but
    what a person has asked for, unless the run said otherwise.
    """
    if view.run.hasty:
        return []
    undecided = {C.UNKNOWN, C.NEEDS_REPAIR, C.DISPATCHING}
    return [c for c in view.calls.values() if c.state in undecided and c.compensates is None]


def to_offset(view: View, forward: Call) -> bool:
    """Whether a compensation of this effect is to be planned: there is none, or none is left of it and a
    person has asked for it since. What a person leaves as it is stays.
    """
    if (forward.offset_left or 0) > (forward.offset_asked or 0):
        return False
    made = compensation_of(view, forward)
    if made is None:
        return True
    asked_since = (forward.offset_asked or 0) > (made.settled_seq or 0)
    return made.state in _DEAD and asked_since


_DEAD = frozenset({C.REJECTED, C.FAILED, C.CANCELLED})


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
    for call in wanted(fold.view):
        if fold.known.tool(call.tool, call.tool_version) is None and to_offset(fold.view, call):
            return f"tool {call.tool} version {call.tool_version}"
    return None


def _rest(fold: Fold, reason: str) -> Answer:
    """Give the run back until one of its calls moves (which wakes it)."""
    fold.emit(E.COMPENSATION_DEFERRED, {"ready_at": rfc3339(NEVER), "reason": reason})
    return Done(fold.run.status)


def next_to_offset(fold: Fold) -> Call | None:
    """The latest effect that can be offset and is to be.

    One whose planning has lost as many workers in a row as a subject may is passed over for the one before
    it, and tried again once that is planned.
    """
    open_still = bool(in_the_air(fold.view))
    may = [c for c in wanted(fold.view) if to_offset(fold.view, c) and not _why_not(fold, c)]
    may = [c for c in may if not open_still or c.offset_asked is not None]
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
    for call in wanted(fold.view):
        made = compensation_of(fold.view, call)
        if made is not None and made.state == C.SUCCEEDED:
            offset.append(str(call.id))
        else:
            left.append({"call": str(call.id), "tool": call.tool, **_left(fold, call, made)})
    end = {"offset": offset, "not_offset": left, "effects": fold.run.effects, "fence": fold.run_fence()}
    fold.emit(E.RUN_STOPPED, end)


def _left(fold: Fold, call: Call, made: Call | None) -> dict[str, Any]:
    """Why an effect is not offset. `owed`: something could offset it; without that it stays by design.
    `again`: it was given up, and a person may ask for it once more.
    """
    why = _why_not(fold, call)
    strange = fold.known.tool(call.tool, call.tool_version) is None and call.effect != "irreversible"
    stays = (call.offset_left or 0) > (call.offset_asked or 0)  # by a person's word
    owed = {"owed": True} if (why is None or strange) and not stays else {}
    if made is not None:
        again = {"again": True} if why is None and _key_held(fold, made) is None else {}
        refused = f": {made.error}" if made.error else ""
        return {"why": why or f"compensation {made.state.lower()}{refused}", **again, **owed}
    if strange or why is None:
        lost = f"its planning was given up after {fold.known.takeover_limit} lost workers in a row"
        return {"why": why or lost, "again": True, **owed}
    return {"why": why}


def _key_held(fold: Fold, made: Call) -> str | None:
    """Why the key of a compensation that came to nothing cannot be used again; None when it can.

    Never another key: if the first had its effect after all, a second would offset it twice.
    """
    held = fold.operations.get(made.operation or "")
    if held is None or (held.status == OperationStatus.RELEASED and not held.doubt):
        return None
    if held.status == OperationStatus.FAILED and held.releases and not held.doubt:
        return None
    if held.status == OperationStatus.FAILED:
        kept = "its compensation failed, and the downstream is not known to forget a failure under its key"
        return f"{kept}: settle it there, then accept that the effect stays"
    return f"the key of its compensation is {held.status}"


def ask_again(fold: Fold, call: Call) -> str | None:
    """Why a person cannot have this effect of a stopped run offset after all; None when they can."""
    if call.state != C.SUCCEEDED or call.effect != "reversible" or call.compensates or call.reused:
        return "it is no effect of this run's own that could be offset"
    if (why := _not_left(fold, call)) is not None:
        return why
    held = fold.operations.get(call.operation or "")
    if held is not None and held.reused:
        return "another run has taken its result; an effect that is shared is not offset"
    tool = fold.known.tool(call.tool, call.tool_version)
    if tool is not None and not tool.compensable:
        return "its tool declares no compensation"
    if held is not None and held.status == OperationStatus.COMPENSATING:
        return "its effect is compensating already"
    made = compensation_of(fold.view, call)
    return _key_held(fold, made) if made is not None else None


def accept(fold: Fold, call: Call) -> str | None:
    """Why a person cannot leave this effect of a stopped run as it is; None when they can."""
    if call.state != C.SUCCEEDED or call.effect == "read" or call.compensates or call.reused:
        return "it is no effect of this run's own that could be left"
    return _not_left(fold, call)


def _not_left(fold: Fold, call: Call) -> str | None:
    run, held = fold.run, fold.operations.get(call.operation or "")
    asked = run.offsets or call.offset_asked is not None
    if run.status != R.STOPPED or not asked:
        return f"the run is {run.status}; only a run that stopped to offset its effects takes this up again"
    offset = held is not None and held.status == OperationStatus.COMPENSATED
    return "its effect is compensated already" if offset else None


def record_compensation(fold: Fold, command: RecordCompensation) -> Answer:
    """Record one effect's compensation: own key, authority and deadline, not before the effect is quiet."""
    run = fold.run
    if (run.owner, run.fence) != (command.term.owner, command.term.fence) or run.status != R.COMPENSATING:
        return Fenced()
    forward = fold.view.calls.get(command.forward)
    if forward is None:
        return Gone()
    if forward.state != C.SUCCEEDED or not to_offset(fold.view, forward):
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
    if forward.child is not None:  # its run has ended: nothing of it can land any more
        quiet = None
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
