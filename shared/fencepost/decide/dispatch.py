"""The dispatcher's two halves: the claim (steps 6, 7 and 8, for real) and what became of the attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from fencepost import breaker, deadlines, lineage, operations
from fencepost.allowances import Refusal, Share
from fencepost.authority import AuthorizationDecision
from fencepost.budgets import exhausted, overgrown
from fencepost.clock import NEVER, rfc3339
from fencepost.commands import (
    Answer,
    Claim,
    ClaimCall,
    Done,
    Fenced,
    Full,
    Gone,
    Late,
    Moved,
    RecordOutcome,
    Send,
    Unfamiliar,
)
from fencepost.decide import allow, children, gate, holds, prints
from fencepost.decide.approvals import ask, claim_awaiting
from fencepost.decide.authorize import Judged, authorize, decision_body, denial
from fencepost.decide.capable import capability_said, granted
from fencepost.decide.fold import Fold, lease_body
from fencepost.decide.planning import budget, refused_key, rejection, usage
from fencepost.decide.stopping import after_call, stop
from fencepost.decide.unknown import mark_unknown, room
from fencepost.events import EventType
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.states import CALL_ENDS, CALL_UNSENT, CallState, RunStatus, StopReason
from fencepost.subjects import Call
from fencepost.taint import UNTRUSTED, brought
from fencepost.tools import Tool

E, C, R = EventType, CallState, RunStatus

_LATE_PAUSE = timedelta(seconds=1)


def claim_call(fold: Fold, command: ClaimCall) -> Answer:
    """Take a call whose dispatch is due and start its attempt, or say why nothing may be sent."""
    call = fold.view.calls.get(command.subject)
    if call is None or call.state in CALL_ENDS:
        return Gone()
    if call.state not in CALL_UNSENT or not fold.allows(call):
        return Moved()
    if fold.now >= fold.run.deadline and not call.compensates:
        return Late()  # the planner's claim, due at this instant too, stops the run
    if call.state == C.AWAITING_APPROVAL:
        return claim_awaiting(fold, call, command)
    if call.ready_at > fold.now and not call.waits:
        return Moved()  # anybody may lower a row's due_at; when a call may be sent its own state says
    if command.term.fence <= call.fence:
        return Fenced()
    tool = fold.known.tool(call.tool, call.tool_version)
    if tool is None or (tool.child is not None and command.child is None):
        return _unfamiliar(fold, call, command)
    fold.present(call.id, "claim")
    fold.takeovers = 0
    judged = authorize(fold, call, tool, "claim", call.attempts + 1, request=command.request)
    decision = judged.decision
    if not decision.allowed and decision.approval is None:
        return _denied(fold, call, decision, command.term.fence)
    if call.compensates and call.reconcile_until is not None and call.reconcile_until <= fold.now:
        what = "the compensation's own deadline has passed"  # also while it waits for another call
        return _reject(fold, call, 8, "late", what, command.term.fence)
    if not decision.allowed:
        ask(fold, call, tool, judged, "claim", request=command.request, fence=command.term.fence)
        return Done(C.AWAITING_APPROVAL)
    return (
        _key(fold, call, tool, command)
        or _resource(fold, call, command)
        or _start(fold, call, tool, command, judged)
    )


def _unfamiliar(fold: Fold, call: Call, command: ClaimCall) -> Answer:
    """A version another process may know; a compensation is given up at its own deadline, a run at its."""
    what = f"tool {call.tool} version {call.tool_version}"
    if not call.compensates or call.reconcile_until is None or fold.now < call.reconcile_until:
        return Unfamiliar(what)
    fold.present(call.id, "claim")
    return _reject(fold, call, 8, "late", f"no worker knew {what} before the deadline", command.term.fence)


def _end(fold: Fold, call: Call) -> Answer:
    after_call(fold, call.id)
    return Done(fold.call(call.id).state)


def _denied(fold: Fold, call: Call, decision: AuthorizationDecision, fence: int) -> Answer:
    body = decision_body(fold, call, decision, "claim") | {"message": denial(decision), "fence": fence}
    fold.emit(E.AUTHORIZATION_DENIED, body, call=call.id, policy=decision.policy_version)
    return _end(fold, call)


def _reject(fold: Fold, call: Call, step: int, code: str, message: str, fence: int) -> Answer:
    return _refuse(fold, call, rejection(step, code, message), fence)


def _refuse(fold: Fold, call: Call, refusal: Mapping[str, Any], fence: int) -> Answer:
    fold.emit(E.PROPOSAL_REJECTED, {**refusal, "fence": fence}, call=call.id)
    return _end(fold, call)


def _key(fold: Fold, call: Call, tool: Tool, command: ClaimCall) -> Answer | None:
    """Step 7: the four rules of a repeated key, and the forward effect a compensation is to offset."""
    fence = command.term.fence
    if call.operation is None:
        return None
    held = fold.operations[call.operation]
    own = held.call == call.id
    meaning = None if own else prints.meaning(tool, call.operation, call.request or command.request)
    rule, why = children.admit(fold, held, call, tool.contract, meaning)
    if rule == operations.Rule.REJECT:
        return _refuse(fold, call, refused_key(why), fence)
    if rule == operations.Rule.WAIT:
        return _defer(fold, call, fence, waits=True)
    if rule == operations.Rule.REUSE and meaning is None:
        return _unbuilt(fold, call, command)
    if rule == operations.Rule.REUSE:
        kept = {"receipt": held.receipt, "result": held.result, "preview": held.preview}
        body = {**kept, "meaning": meaning, "fence": fence}
        outside = {UNTRUSTED: True} if held.untrusted else brought(tool)
        fold.emit(E.RESULT_REUSED, {**body, "from": str(held.call), **outside}, call=call.id)
        fold.set_operation(replace(held, reused=held.reused + (held.run != call.run)))
        return _end(fold, call)
    if not own:
        fold.set_operation(operations.take(held, call))
    if call.compensates is not None and fold.operations[call.compensates].reused:
        return _reject(fold, call, 7, "shared", "another run has taken the result of this effect", fence)
    return None


def _resource(fold: Fold, call: Call, command: ClaimCall) -> Answer | None:
    """Step 7 for a natural tool: nobody sets what another call may still be setting."""
    if call.resource is None:
        return None
    free = operations.settable_from(fold.operations[call.resource], call)
    if free is None and fold.operations[call.resource].run in lineage.above(fold.run.request):
        return _refuse(fold, call, refused_key("key_held_above"), command.term.fence)
    if free is None:
        return _defer(fold, call, command.term.fence, waits=True)
    return _defer(fold, call, command.term.fence, waits=False, until=free) if free > fold.now else None


def _defer(
    fold: Fold,
    call: Call,
    fence: int,
    *,
    waits: bool,
    until: datetime | None = None,
    why: Mapping[str, Any] | None = None,
) -> Answer:
    # At the run's deadline its planner stops it; past it, a second at a time, so that nothing spins. What
    # compensates is not stopped by its run, but has a deadline of its own.
    own = call.reconcile_until if call.compensates else None
    again = until or own or max(fold.run.deadline, fold.now + _LATE_PAUSE)
    body = {"ready_at": rfc3339(again), "waits": waits, "fence": fence, **(why or {})}
    fold.emit(E.DISPATCH_DEFERRED, body, call=call.id)
    return Done(C.INTENT_RECORDED) if waits else Late()


def _gate(fold: Fold, call: Call, tool: Tool, timeout: timedelta, fence: int) -> Answer | None:
    """A closed dependency spends no attempt: the call goes back, for a while of its own or for good."""
    held_up = gate.admit(fold, call, tool, timeout)
    if held_up is None or isinstance(held_up, Full):
        return held_up
    if call.compensates:  # its own deadline waits with it
        due, why = gate.put_off(fold, call, held_up, NEVER)
        assert due is not None
        _defer(fold, call, fence, waits=False, until=due, why=why | gate.extended(call, due, fold.now))
        return Done(C.INTENT_RECORDED)
    due, why = gate.put_off(fold, call, held_up, _last_start(fold, call, tool))
    late = _defer(fold, call, fence, waits=False, until=due, why=why)
    return late if due is None else Done(C.INTENT_RECORDED)


def _start(fold: Fold, call: Call, tool: Tool, command: ClaimCall, judged: Judged) -> Answer:
    """Step 8 and the attempt itself: from this commit on the call may have had its effect."""
    fence, spec = command.term.fence, tool.dependency
    if (held := holds.admit(fold, call, tool, fence)) is not None:
        return held  # before the budgets: what waits for a person is not stopped for what waiting cost
    if (used := exhausted(budget(fold), usage(fold), next="attempt")) is not None and not call.compensates:
        return _spent(fold, call, f"the run's budget of {used} is used up", used, fence)
    if (grown := overgrown(budget(fold), usage(fold))) is not None and not call.compensates:
        return _spent(fold, call, f"the run may not go on ({grown})", grown, fence, StopReason.HISTORY_LIMIT)
    if isinstance(piece := children.piece(fold, call, tool, usage(fold)), str):
        if not call.required:  # the planner is told
            return _reject(fold, call, 8, "budget", piece, fence)
        return _spent(fold, call, piece, piece.partition(":")[0], fence)
    if (why_not := prints.drifted(call)) is not None:
        return _reject(fold, call, 5, "request_changed", why_not, fence)
    if call.request is None and command.request is None and tool.sends_request:
        return _unbuilt(fold, call, command)
    if call.compensates and call.reconcile_until is not None:
        timeout = min(spec.per_attempt, call.reconcile_until - fold.now)
    else:
        timeout = children.timeout(fold, tool)
    if timeout <= timedelta(0):
        return _defer(fold, call, fence, waits=False)
    before = dict(fold.dependencies)
    if (held_up := _gate(fold, call, tool, timeout, fence)) is not None:
        return held_up
    if isinstance(taken := allow.room(fold, call, tool, judged.asked), Refusal):
        fold.dependencies = before  # what is not sent takes no place there
        return _denied(fold, call, allow.denial(taken, judged.decision), fence)
    sent = start_attempt(fold, call, tool, command, timeout, judged, request=command.request, taken=taken)
    if piece is None:
        return sent
    children.begin(fold, call, tool, command, piece, sent.deadline)
    return Done(C.DISPATCHING)


def _unbuilt(fold: Fold, call: Call, command: ClaimCall) -> Answer:
    why = command.request_error or "the tool built no request"
    return _reject(fold, call, 5, command.request_code or "request_failed", why, command.term.fence)


def _spent(
    fold: Fold,
    call: Call,
    message: str,
    detail: str,
    fence: int,
    reason: StopReason = StopReason.BUDGET_EXHAUSTED,
) -> Answer:
    code = "budget" if reason == StopReason.BUDGET_EXHAUSTED else str(reason)
    fold.emit(E.PROPOSAL_REJECTED, rejection(8, code, message) | {"fence": fence}, call=call.id)
    stop(fold, reason, detail)
    fold.present_run_by(call.id)
    return Done(fold.call(call.id).state)


def start_attempt(
    fold: Fold,
    call: Call,
    tool: Tool,
    command: Claim,
    timeout: timedelta,
    judged: Judged,
    *,
    request: str | None = None,
    taken: tuple[Share, ...] = (),
) -> Send:
    """Record the lease, the authorisation and the attempt; the order to send follows the COMMIT (R2)."""
    spec, repeat, decision = tool.dependency, call.doubt, judged.decision
    fold.emit(E.LEASE_ACQUIRED, lease_body(command), call=call.id)
    evidence = decision_body(fold, call, decision, "claim")
    fold.emit(E.AUTHORIZATION_ALLOWED, evidence, call=call.id, policy=decision.policy_version)
    deadline = fold.now + timeout
    stored = call.request or request
    in_flight = max(deadline, call.in_flight_until or deadline)
    meaning = prints.meaning(tool, call.operation, stored) if call.operation is not None else None
    body: dict[str, Any] = {
        "attempt": call.attempts + 1,
        "deadline": rfc3339(deadline),
        "in_flight_until": rfc3339(in_flight),
        "quiet_at": rfc3339(deadlines.quiet_at(in_flight, tool.contract.settle)),
        "ready_at": rfc3339(deadlines.takeover_at(deadline, spec.grace)),
        "request": request if call.request is None else None,
        "fingerprint": prints.of(call, stored) if stored and prints.kept(call) else None,
        "meaning": meaning,
        "repeat": repeat,
        # By which limits it was let go: the checker judges an attempt by those, not by a later release's.
        "limit": holds.limit(call, tool),
        "reserve_ms": deadlines.millis(spec.reserve),
        **allow.said(call, taken),
        **capability_said(tool),
    }
    fold.emit(E.TOOL_ATTEMPT_STARTED, body, call=call.id, attempt=call.attempts + 1)
    if call.operation is not None:
        fold.set_operation(operations.sent(fold.operations[call.operation], fold.now, tool.contract, meaning))
    if call.resource is not None:
        fold.set_operation(operations.hold(fold.operations[call.resource], fold.call(call.id)))
    started = fold.call(call.id)
    who, may = fold.run.principal, granted(fold, started, tool, judged.asked, deadline)
    tainted = fold.run.tainted is not None
    return Send(started, who, started.attempts, call.operation, deadline, timeout, repeat, may, tainted)


def record_outcome(fold: Fold, command: RecordOutcome) -> Answer:
    """Record what became of an attempt, under the term that made it; no real answer is too late there."""
    call = fold.view.calls.get(command.call)
    if call is None:
        return Gone()
    accepted = (call.owner, call.fence, call.attempts)
    if accepted != (command.term.owner, command.term.fence, command.attempt) or call.state != C.DISPATCHING:
        return Fenced()
    tool = fold.known.tool(call.tool, call.tool_version)
    if tool is None:
        return Unfamiliar(f"tool {call.tool} version {call.tool_version}")
    fold.present(call.id, "term")
    fold.takeovers = 0
    outcome = command.outcome
    gate.learn(fold, call, tool, breaker.learnt(outcome))
    if command.requests > 1:  # something between us and the wire retries (R4)
        fold.emit(E.HIDDEN_RETRY_SEEN, {"requests": command.requests}, call=call.id, attempt=call.attempts)
        call = fold.call(call.id)
    if isinstance(outcome, Applied):
        _applied(fold, call, tool, command, outcome)
    elif isinstance(outcome, Refused):
        refused(fold, call, tool, outcome, command.rand, requests=command.requests)
    else:
        mark_unknown(fold, call, tool, outcome, requests=command.requests)
        if outcome.repair:
            why = {"reason": f"{outcome.code}: {outcome.message}", "fence": call.fence}
            fold.emit(E.REPAIR_REQUESTED, why, call=call.id)
    after_call(fold, call.id)
    return Done(fold.call(call.id).state)


def _applied(fold: Fold, call: Call, tool: Tool, command: RecordOutcome, outcome: Applied) -> None:
    others = {e.receipt for e in fold.evidence.get(call.id, ()) if e.applied and e.receipt}
    if outcome.receipt and others - {outcome.receipt}:
        seen = ", ".join(sorted({outcome.receipt, *others}))
        unsure = {"code": "contradiction", "message": f"several receipts for one key: {seen}", "lost": False}
        when = {"ready_at": rfc3339(fold.now), "reconcile_until": rfc3339(fold.now)}
        told = unsure | when | brought(tool)
        fold.emit(E.TOOL_OUTCOME_MARKED_UNKNOWN, told, call=call.id, attempt=call.attempts)
        why = {"reason": f"several receipts for one key: {seen}", "fence": call.fence}
        fold.emit(E.REPAIR_REQUESTED, why, call=call.id)
        return
    kept = {
        "receipt": outcome.receipt,
        "result": command.result.digest if command.result else None,
        "preview": command.result.preview if command.result else None,
        "requests": command.requests,
        **({UNTRUSTED: True} if outcome.strange else brought(tool)),
        **({"grounds": [dict(one) for one in command.grounds]} if command.grounds else {}),
        **({"ungrounded": dict(command.ungrounded)} if command.ungrounded else {}),
    }
    fold.emit(E.TOOL_RESULT_RECORDED, kept, call=call.id, attempt=call.attempts)


def _last_start(fold: Fold, call: Call, tool: Tool) -> datetime:
    """From when on no attempt of it is begun any more."""
    if call.compensates and call.reconcile_until is not None:
        return call.reconcile_until
    return fold.run.deadline - tool.dependency.reserve


def refused(fold: Fold, call: Call, tool: Tool, outcome: Refused, rand: float, *, requests: int = 0) -> None:
    """Proof that an attempt had no effect. In doubt it settles nothing, unless it speaks for the key (R3)."""
    spec, wait, throttled = tool.dependency, outcome.retry_after, breaker.throttled(outcome)
    again = deadlines.retry_at(fold.now, call.attempts, spec.backoff, spec.backoff_cap, rand, wait)
    contradicted = any(e.applied for e in fold.evidence.get(call.id, ())) and call.effect != "read"
    if contradicted or (call.doubt and not outcome.final_answer_stored):
        unsure = Unsure(outcome.code, outcome.message, wait)
        mark_unknown(fold, call, tool, unsure, ready_at=again, requests=requests)
        return
    in_time = again < _last_start(fold, call, tool)
    left = spec.attempts + call.throttled + throttled - call.attempts
    held = holds.holds(outcome, tool)
    again = max(again, fold.now + holds.AGAIN) if held else again
    retry = outcome.retryable and fold.allows(call) and not call.doubt and (held or (left > 0 and in_time))
    body = {"code": outcome.code, "message": outcome.message, "final": not retry, "ready_at": rfc3339(again)}
    # Whether this answer speaks for the key: only then may it clear doubt.
    body |= {"stored": outcome.final_answer_stored, "requests": requests, **brought(tool)}
    body |= {"throttled": True} if throttled else {}
    body |= room(fold, call, tool) | gate.decision(fold, call, outcome.code, again)
    fold.emit(E.TOOL_ATTEMPT_FAILED, body, call=call.id, attempt=call.attempts)
