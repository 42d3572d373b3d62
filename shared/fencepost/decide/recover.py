"""After a restore: what may have been sent in the time the ledger lost, and whom to refuse from now on.

The ledger stands where it stood at an earlier moment, T. Between T and the restore workers went on: calls
that are unsent here may have been sent, by terms that nobody here knows. So every such call is marked
UNKNOWN, as if a lost worker had sent it until just now, and the recovery table settles it. Its key counts
from T, the earliest it can have been sent, and it holds its share of every allowance known here (`allow`).
What was planned after T has left no trace here: while the ledger
is held nothing is planned, and an audit of the downstream says what happened. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from fencepost import deadlines, operations
from fencepost.clock import NEVER, rfc3339
from fencepost.commands import Answer, Restore, Restored
from fencepost.decide import allow
from fencepost.decide.fold import Fold, Presented
from fencepost.events import EventType
from fencepost.operations import Operation
from fencepost.states import CALL_UNSENT, CALL_UNSETTLED, CallState, OperationStatus, RunStatus
from fencepost.subjects import Call
from fencepost.tools import Tool

E, C, R, S = EventType, CallState, RunStatus, OperationStatus

FENCE_MARGIN = 1_000_000
"""How far fences rise: above whatever was granted in the time that was lost."""
UNFAMILIAR_ATTEMPT = timedelta(minutes=1)
"""How long an attempt of a tool that this process does not know may still take."""
UNFAMILIAR_PATIENCE = timedelta(minutes=10)
"""How long such a call waits for a process that knows its tool, before a person is asked."""
CODE = "ledger_restored"


def restore(fold: Fold, command: Restore) -> Answer:
    """Mark what may have been sent since `command.since`, and refuse all who held this run or its calls."""
    fold.by = command.by
    marked = [call for call in fold.view.open_calls() if may_have_been_sent(fold, call)]
    for call in marked:
        _mark(fold, call, command)
    run = fold.run
    if run.owner is not None or run.status in {R.PLANNING, R.COMPENSATING}:
        fold.presented[run.id] = Presented("recover")
        body = {"epoch": command.epoch, "since": rfc3339(command.since), "fence": run.fence + FENCE_MARGIN}
        fold.emit(E.LEDGER_RESTORED, body)
    return Restored(len(marked), sum(_tool(fold, call) is None for call in marked))


def may_have_been_sent(fold: Fold, call: Call) -> bool:
    """Whether a worker may have sent this call after the moment this ledger stands at.

    Not what waits for another call, which holds its key or resource and is in doubt itself now; not what
    would be given another's result; and not a read that was not begun, which has no effect.
    """
    if call.state in CALL_UNSETTLED:
        return True
    if call.state not in CALL_UNSENT or call.operation is None:
        return False
    held, setting = fold.operations[call.operation], fold.operations.get(call.resource or "")
    if setting is not None and setting.call != call.id and operations.held(setting):
        return False
    return held.call == call.id or _was_free(held, call)


def _was_free(held: Operation, call: Call) -> bool:
    """Whether the call that holds the key had let go of it by then, so that this one could take it."""
    if held.doubt:
        return False
    forgotten = held.status == S.FAILED and held.releases and held.arguments_hash == call.arguments_hash
    return held.status == S.RELEASED or forgotten


def _tool(fold: Fold, call: Call) -> Tool | None:
    return fold.known.tool(call.tool, call.tool_version)


def _mark(fold: Fold, call: Call, command: Restore) -> None:
    tool = _tool(fold, call)
    spec = tool.dependency if tool is not None else None
    may_take = spec.per_attempt if spec is not None else UNFAMILIAR_ATTEMPT
    patience = spec.reconcile_for if spec is not None else UNFAMILIAR_PATIENCE
    # An old worker's attempt began before the restore at the latest: it is over an attempt's time from now.
    in_flight = max(deadlines.plus(fold.now, may_take), call.in_flight_until or fold.now)
    quiet = deadlines.quiet_at(in_flight, tool.contract.settle if tool is not None else None)
    body: dict[str, Any] = {
        "code": CODE,
        "message": f"the ledger was restored to {rfc3339(command.since)}: it may have been sent since",
        "lost": True,
        "ready_at": rfc3339(fold.now),
        "reconcile_until": rfc3339(deadlines.plus(in_flight, patience)),
        "epoch": command.epoch,
        "in_flight_until": rfc3339(in_flight),
        "quiet_at": rfc3339(max(quiet, call.quiet_at or quiet)),
        "fence": call.fence + FENCE_MARGIN,
    }
    body |= allow.caught_up(fold, call, tool)
    _hold(fold, call, tool, command)
    fold.presented[call.id] = Presented("recover")
    begun = call.attempts if call.state == C.DISPATCHING else None  # of which nobody has told the outcome yet
    fold.emit(E.TOOL_OUTCOME_MARKED_UNKNOWN, body, call=call.id, attempt=begun)
    setting = fold.operations.get(call.resource or "")
    if setting is not None and (operations.settable_from(setting, call) or NEVER) <= fold.now:
        fold.set_operation(operations.hold(setting, fold.call(call.id)))


def _hold(fold: Fold, call: Call, tool: Tool | None, command: Restore) -> None:
    """The key is this call's, and counts from the earliest it can have been sent."""
    if call.operation is None:
        return
    held = fold.operations[call.operation]
    if held.call != call.id:
        held = operations.take(held, call)
    if held.first_sent_at is None and tool is not None:
        counted = operations.sent(held, command.since, tool.contract, held.meaning)
        held = replace(counted, releases=held.releases)  # that is noted as it is really sent
    elif held.first_sent_at is None:
        held = replace(held, first_sent_at=command.since)
    fold.set_operation(held)
