"""The first outcome of a command that was recorded although its COMMIT's reply was lost.

The claimer looks for its own term before the generation: if the subject is still under it, the order is given
again with the time that is left; if not, somebody has moved on and nothing is left to do.
"""

from __future__ import annotations

from fencepost import commands as c
from fencepost.authority import AuthorizationRequest
from fencepost.decide.authorize import request_of
from fencepost.decide.capable import granted
from fencepost.decide.compensate import next_to_offset
from fencepost.decide.fold import Fold
from fencepost.states import CallState, RunStatus
from fencepost.subjects import Call
from fencepost.tools import Tool


def again(fold: Fold, command: c.Command) -> c.Answer:
    """What `command` answered when it was recorded, as far as it still holds.

    `fold.signals` is what its own request was pinned to: later ones are for the turn after it.
    """
    if isinstance(command, c.ClaimRun | c.ClaimStopped):
        return _run_order(fold, command)
    if isinstance(command, c.ClaimCall | c.ClaimDoubt):
        return _call_order(fold, command)
    call_id = getattr(command, "call", None)
    call = fold.view.calls.get(call_id) if call_id is not None else None
    return c.Done(call.state if call is not None else fold.run.status)


def _run_order(fold: Fold, command: c.ClaimRun | c.ClaimStopped) -> c.Answer:
    run = fold.run
    if (run.owner, run.fence) != (command.term.owner, command.term.fence):
        return c.Done(run.status)
    left = run.ready_at - command.grace - fold.now
    if run.status == RunStatus.PLANNING:
        return c.Plan(run, left, fold.signals)
    forward = next_to_offset(fold)
    return c.Offset(run, forward, left) if forward is not None else c.Done(run.status)


def _call_order(fold: Fold, command: c.ClaimCall | c.ClaimDoubt) -> c.Answer:
    call = fold.view.calls.get(command.subject)
    if call is None or (call.owner, call.fence) != (command.term.owner, command.term.fence):
        return c.Done(call.state if call is not None else fold.run.status)
    tool = fold.known.tool(call.tool, call.tool_version)
    grace = tool.dependency.grace if tool is not None else fold.now - fold.now
    deadline = call.ready_at - grace
    if call.state == CallState.DISPATCHING:
        key = call.operation
        told = granted(fold, call, tool, _asked(fold, call, tool), deadline) if tool is not None else None
        left = deadline - fold.now
        who, tainted = fold.run.principal, fold.run.tainted is not None
        return c.Send(call, who, call.attempts, key, deadline, left, call.doubt, told, tainted)
    return c.Ask(call, fold.run.principal, fold.now, deadline - fold.now)


def _asked(fold: Fold, call: Call, tool: Tool) -> AuthorizationRequest | None:
    try:
        return request_of(fold.standing, fold.run, call, tool, "claim", call.attempts, fold.now)
    except Exception:  # noqa: BLE001 - the application's functions answered before; without it nothing is sent
        return None
