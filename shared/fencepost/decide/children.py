"""Runs that calls start: the slice one is let go with, and when its parent goes on without it. Pure.

What becomes of them is `child_ends`'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from fencepost import deadlines, joins, lineage, operations, slices
from fencepost.budgets import Budget, Usage, budget_of
from fencepost.clock import rfc3339
from fencepost.commands import ClaimCall
from fencepost.contracts import Contract, Effect
from fencepost.deadlines import plus, takeover_at
from fencepost.decide.fold import Fold
from fencepost.events import EventType
from fencepost.joins import Join
from fencepost.operations import Operation, Rule
from fencepost.proposals import Rejected, Validated
from fencepost.states import CALL_UNSENT, CALL_UNSETTLED, RUN_ENDS, CallState, OperationStatus, RunStatus
from fencepost.subjects import Call
from fencepost.tools import Tool

E, C, R = EventType, CallState, RunStatus

Cancel = Callable[[Fold, Call, str], None]


def admit(
    fold: Fold, operation: Operation, call: Call, contract: Contract, meaning: str | None = None
) -> tuple[Rule, str]:
    """`operations.admit`; but nobody waits for a run that it descends from, which waits for it, nor for one
    that waits for such a run.

    Of a key that runs are started under: what ended as FAILED is proved to have had no effect, and the same
    may be asked anew; the report of a run that stopped (it has no receipt) is nobody's result.
    """
    rule, why = operations.admit(operation, call, contract, meaning)
    if rule == Rule.WAIT and operation.run in (above := lineage.above(fold.run.request)):
        return Rule.REJECT, "key_held_above"
    if rule == Rule.WAIT and not call.waits:
        key = operation.tenant, operation.key
        if (way := fold.circles.way(key, {call.run, *above})) is not None:
            return Rule.REJECT, f"key_in_circle: {way}"
    if rule in (Rule.OWN, Rule.WAIT) or not _starts(fold, call.tool, call.tool_version):
        return rule, why
    if operation.status == OperationStatus.FAILED and operation.arguments_hash == call.arguments_hash:
        return Rule.OWN, ""
    if rule == Rule.REUSE and operation.receipt is None:
        return Rule.REJECT, "key_stopped_before"
    return rule, why


def waits(fold: Fold, call: Call, operation: Operation, rule: Rule) -> bool:
    """Whether a call begins to wait for a key now; whoever is decided after it in this batch is to know."""
    if rule == Rule.WAIT:
        fold.begun.append((call.run, (operation.tenant, operation.key)))
    return rule == Rule.WAIT


def piece(fold: Fold, call: Call, tool: Tool, usage: Usage) -> Budget | str | None:
    """Step 8 for a call that starts a run: its slice, or why there is none. None: it starts none."""
    if tool.child is None:
        return None
    if call.compensates:
        return tool.child.wanted
    usage = replace(usage, attempts=usage.attempts + 1)  # this one's own
    may, below, spec = budget_of(fold.run.request), fold.run.below, tool.child
    starting = sum(_to_start(fold, one, call.turn) for one in fold.view.open_calls())
    return slices.carve(may, usage, below, spec.wanted, starting=starting, whole=spec.firm)


def _to_start(fold: Fold, call: Call, turn: int) -> bool:
    """Whether it is a call of this turn whose run is still to be started."""
    unsent = call.turn == turn and call.state in CALL_UNSENT and not call.compensates
    return unsent and _starts(fold, call.tool, call.tool_version)


def timeout(fold: Fold, tool: Tool) -> timedelta:
    """How long an attempt may take; a run that it starts also ends within its parent's wall clock."""
    run, spec, clock = fold.run, tool.dependency, budget_of(fold.run.request).wall_clock
    until = run.deadline
    if tool.child is not None and clock is not None:
        until = min(until, plus(run.created_at, clock))
    return deadlines.attempt_timeout(spec.per_attempt, until, fold.now, spec.reserve)


def begin(fold: Fold, call: Call, tool: Tool, command: ClaimCall, piece: Budget, deadline: datetime) -> None:
    """The run itself, named by the event that starts it; it is inserted with this change.

    What offsets an effect is not held back by a budget: its run's slice is none of the parent's.
    """
    spec = tool.child
    assert spec is not None
    body: dict[str, Any] = {
        "child": str(command.child),
        "planner": spec.planner,
        "version": spec.planner_version,
        "deadline": rfc3339(deadline),
        "ready_at": rfc3339(takeover_at(deadline, tool.dependency.grace)),
        "budget": piece.to_json(),
        "tools": list(spec.tools),
        "on_stop": spec.on_stop.value,
        "reads": tool.effect is Effect.READ,
        "tainted": fold.run.tainted is not None,
        **({} if call.compensates else {"held": slices.held_for(piece)}),
    }
    fold.emit(E.CHILD_RUN_STARTED, body, call=call.id, attempt=fold.call(call.id).attempts)
    fold.starting.append(call.id)
    if call.operation is not None:  # its end is the proof: a failure holds the key no longer
        fold.set_operation(replace(fold.operations[call.operation], releases=True))


def joined(
    fold: Fold, pairs: Sequence[tuple[UUID, Validated | Rejected]], join: Join
) -> dict[str, Any] | None:
    """What a turn's event says of the runs it waits for; nothing where it waits for all, or starts none."""
    told = join.told(fold.now)
    starts = [
        str(call)
        for call, one in pairs
        if isinstance(one, Validated) and _starts(fold, one.tool_name, one.tool_version)
    ]
    return told | {"calls": starts} if told is not None and starts else None


def _starts(fold: Fold, name: str, version: int) -> bool:
    tool = fold.known.tool(name, version)
    return tool is not None and tool.child is not None


def optional(proposal: Validated | Rejected) -> Validated | Rejected:
    """A proposal whose failure stops nothing."""
    return replace(proposal, required=False) if isinstance(proposal, Validated) else proposal


def known_use(fold: Fold, call: Call) -> dict[str, Any]:
    """What a person's word on the call tells of its run's use; nothing where that run may still go on."""
    child = fold.children.get(call.child) if call.child is not None else None
    if child is None or child.run.status not in RUN_ENDS or child.run.open:
        return {}
    return {"used": slices.used_by(child.run)}


def hurry(fold: Fold) -> None:
    """Have the runs that this one's calls have started told that it stops: their rows are due now."""
    fold.hurried |= {c.id for c in fold.view.open_calls() if c.child and c.state in CALL_UNSETTLED}


def go_on(fold: Fold, cancel: Cancel) -> None:
    """Leave behind what a turn no longer waits for: enough of its runs have COMPLETED, or its time is over.

    What was not sent yet is cancelled; the rest is detached, and told to stop if the turn said so.
    """
    join = slices.read(fold.run.below).join
    if join is None or fold.run.status != R.ACTING:
        return
    if not joins.met(join, answered=join.get("got", 0), now=fold.now):
        return
    why = f"its turn went on with {join.get('got', 0)} answers"
    for call in list(fold.view.open_calls()):
        if str(call.id) not in join["calls"] or call.detached:
            continue
        if call.state in CALL_UNSENT and not call.doubt:
            cancel(fold, call, why)
            continue
        stop = join["rest"] == "cancel" and call.child is not None
        fold.emit(E.CALL_DETACHED, {"reason": why, "stop": stop}, call=call.id)
        if stop and call.state in CALL_UNSETTLED:
            fold.hurried.add(call.id)
