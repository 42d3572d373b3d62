"""The reconciler's halves: taking a call in doubt, and recording what the downstream said when asked."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

from fencepost import breaker, deadlines, recovery
from fencepost.allowances import Refusal
from fencepost.authority import AuthorizationDecision
from fencepost.budgets import exhausted
from fencepost.clock import NEVER, parse_rfc3339, rfc3339
from fencepost.commands import (
    Answer,
    Ask,
    ClaimDoubt,
    Done,
    Fenced,
    Full,
    Gone,
    Moved,
    RecordLookup,
    Unfamiliar,
)
from fencepost.decide import allow, gate
from fencepost.decide.authorize import authorize, decision_body, denial
from fencepost.decide.child_ends import claim_child, look_again
from fencepost.decide.dispatch import refused, start_attempt
from fencepost.decide.fold import Fold, lease_body
from fencepost.decide.planning import budget, usage
from fencepost.decide.prints import drifted
from fencepost.decide.stopping import after_call
from fencepost.decide.unknown import mark_unknown
from fencepost.events import EventType, body_text
from fencepost.outcomes import Refused, Unsure
from fencepost.recovery import Facts, LookupAnswer
from fencepost.states import CALL_ENDS, CALL_UNSETTLED, CallState, RunStatus
from fencepost.subjects import Call
from fencepost.taint import brought
from fencepost.tools import Tool

E, C, R = EventType, CallState, RunStatus

_ASK_BACKOFF = timedelta(milliseconds=100)
UNFAMILIAR_PATIENCE = timedelta(minutes=10)
"""How long a lost attempt waits for a process that knows its tool, before a person is asked."""


def claim_doubt(fold: Fold, command: ClaimDoubt) -> Answer:
    """Take a call whose attempt nobody answered for or whose outcome is unknown; do what its contract allows.

    A lost attempt is never executed again blindly: it becomes UNKNOWN first, then the recovery table decides.
    """
    call = fold.view.calls.get(command.subject)
    if call is None or (call.state in CALL_ENDS and call.child is None):
        return Gone()
    if call.state in CALL_ENDS:
        return look_again(fold, call, command)
    if call.state not in CALL_UNSETTLED:
        return Moved()
    if command.term.fence <= call.fence:
        return Fenced()
    tool = fold.known.tool(call.tool, call.tool_version)
    if tool is None:
        return _unfamiliar(fold, call, command)
    if tool.child is not None:
        return claim_child(fold, call, tool, command)
    if call.state == C.UNKNOWN and (full := gate.no_room(fold, call, tool)) is not None:
        return full
    fold.present(call.id, "claim")
    fold.takeovers = fold.takeovers + 1 if call.owner is not None else 0
    owed = allow.caught_up(fold, call, tool) if call.restored is not None and call.reserved is None else {}
    fold.emit(E.LEASE_ACQUIRED, lease_body(command) | owed, call=call.id)
    if call.state == C.DISPATCHING:
        _take_over(fold, fold.call(call.id), tool, command.rand)
    if fold.call(call.id).state != C.UNKNOWN:
        after_call(fold, call.id)
        return Done(fold.call(call.id).state)
    if fold.takeovers >= fold.known.takeover_limit:
        return _repair(fold, call, f"its worker was lost {fold.takeovers} times in a row")
    return _recover(fold, fold.call(call.id), tool, command)


def _unfamiliar(fold: Fold, call: Call, command: ClaimDoubt) -> Answer:
    """A version that another process may know, until the reconciliation deadline; then a person is asked."""
    what = f"tool {call.tool} version {call.tool_version}"
    until = call.reconcile_until if call.doubt else deadlines.plus(call.ready_at, UNFAMILIAR_PATIENCE)
    if until is None or fold.now < until:
        return Unfamiliar(what)
    fold.present(call.id, "claim")
    fold.emit(E.LEASE_ACQUIRED, lease_body(command), call=call.id)
    if call.state == C.DISPATCHING:
        lost = {"code": "worker_lost", "message": f"no worker knows {what}", "lost": True, "requests": 0}
        when = {"ready_at": rfc3339(fold.now), "reconcile_until": rfc3339(fold.now)}
        fold.emit(E.TOOL_OUTCOME_MARKED_UNKNOWN, lost | when, call=call.id, attempt=call.attempts)
    return _repair(fold, call, f"no worker of this fleet knows {what}")


def _take_over(fold: Fold, call: Call, tool: Tool, rand: float) -> None:
    lost = "the worker that made the attempt was lost; its outcome is not known"
    if call.effect == "read":
        refused(fold, call, tool, Refused("worker_lost", lost, retryable=True), rand)
    else:
        mark_unknown(fold, call, tool, Unsure("worker_lost", lost), lost=True)


def facts(fold: Fold, call: Call, tool: Tool, rand: float, answer: LookupAnswer | None) -> Facts:
    """What the recovery table judges, read under the locks."""
    held = fold.operations.get(call.operation or "")
    setting = fold.operations.get(call.resource or "")
    return Facts(
        now=fold.now,
        effect=tool.effect,
        contract=tool.contract,
        attempts=call.attempts,
        max_attempts=call.attempts if _spent(fold, call) else tool.dependency.attempts + call.throttled,
        per_attempt=tool.dependency.per_attempt,
        margin=tool.dependency.margin,
        in_flight_until=call.in_flight_until or fold.now,
        first_sent_at=held.first_sent_at if held else None,
        reconcile_until=call.reconcile_until or fold.now,
        run=fold.run.status,
        compensable=tool.compensable,
        is_compensation=call.compensates is not None,
        taken_over=call.lost,
        has_lookup=tool.has_lookup,
        compares=tool.same is not None,
        asks=call.asks,
        evidence=fold.evidence.get(call.id, ()),
        lookup=answer,
        rand=rand,
        backoff_base=tool.dependency.backoff,
        backoff_cap=tool.dependency.backoff_cap,
        resource_locked=setting is not None and setting.call == call.id,
        overtaken=setting is not None and setting.call != call.id,
        restored=call.restored is not None,
    )


def _spent(fold: Fold, call: Call) -> bool:
    """Whether the run's budget leaves no attempt; what is to be offset is not held back by a budget."""
    return not call.compensates and exhausted(budget(fold), usage(fold), next="attempt") is not None


def _recover(fold: Fold, call: Call, tool: Tool, command: ClaimDoubt) -> Answer:
    decision = recovery.recover(facts(fold, call, tool, command.rand, _stored(call)))
    if isinstance(decision, recovery.Ask):
        if (put_off := _gate(fold, call, tool)) is not None:
            return put_off
        timeout = tool.dependency.per_attempt
        due = rfc3339(deadlines.takeover_at(fold.now + timeout, tool.dependency.grace))
        lease = lease_body(command) | {"ready_at": due}
        fold.emit(E.LEASE_ACQUIRED, lease, call=call.id)
        return Ask(fold.call(call.id), fold.run.principal, fold.now, timeout)
    if isinstance(decision, recovery.Repeat):
        return _repeat(fold, call, tool, command)
    _settle(fold, call, decision)
    return Done(fold.call(call.id).state)


def _gate(fold: Fold, call: Call, tool: Tool) -> Answer | None:
    """Questions and repeats wait for a closed dependency too, and their deadline waits with them."""
    held_up = gate.admit(fold, call, tool, tool.dependency.per_attempt)
    if held_up is None:
        return None
    if isinstance(held_up, Full):
        due, why = gate.wait_for_room(fold, held_up)
    else:
        found, why = gate.put_off(fold, call, held_up, NEVER)
        assert found is not None
        due = found
    now = fold.call(call.id)
    body = {"ready_at": rfc3339(due), "fence": now.fence, "asks": now.asks, **why}
    fold.emit(E.RECONCILIATION_DEFERRED, body | gate.extended(now, due, fold.now), call=call.id)
    return Done(C.UNKNOWN)


def _repeat(fold: Fold, call: Call, tool: Tool, command: ClaimDoubt) -> Answer:
    """Resend the stored request under the same key, authorised anew; a denial leaves the call in doubt."""
    if (why_not := drifted(call) or _unbuilt(call, tool, command)) is not None:
        return _repair(fold, call, why_not)
    judged = authorize(fold, call, tool, "claim", call.attempts + 1, request=command.request)
    if not judged.decision.allowed:
        return _denied(fold, call, tool, command, judged.decision)
    # The last hurdles: what is not sent after all must not take the place of a probe.
    before = dict(fold.dependencies)
    if (put_off := _gate(fold, call, tool)) is not None:
        return put_off
    if isinstance(taken := allow.room(fold, call, tool, judged.asked), Refusal):
        fold.dependencies = before
        return _denied(fold, call, tool, command, allow.denial(taken, judged.decision))
    until = call.reconcile_until or fold.now
    timeout = min(tool.dependency.per_attempt, until - fold.now)
    return start_attempt(fold, call, tool, command, timeout, judged, request=command.request, taken=taken)


def _denied(
    fold: Fold, call: Call, tool: Tool, command: ClaimDoubt, decision: AuthorizationDecision
) -> Answer:
    body = decision_body(fold, call, decision, "claim") | {"message": f"repeat {denial(decision)}"}
    fold.emit(E.AUTHORIZATION_DENIED, body, call=call.id, policy=decision.policy_version)
    # Where nothing may be sent again, what proves that there was no effect settles it at once.
    unsent = replace(facts(fold, call, tool, command.rand, _stored(call)), max_attempts=call.attempts)
    settled = recovery.recover(unsent)
    if isinstance(settled, recovery.Fail):
        _settle(fold, call, settled)
        return Done(fold.call(call.id).state)
    pause = deadlines.backoff(call.asks + 1, _ASK_BACKOFF, tool.dependency.backoff_cap, command.rand)
    denied = "the repeat is not authorised"
    _wait(fold, call, fold.now + max(pause, _ASK_BACKOFF), denied, asks=call.asks + 1)
    return Done(C.UNKNOWN)


def _unbuilt(call: Call, tool: Tool, command: ClaimDoubt) -> str | None:
    """Why a call of which no request is stored, because the claim that stored it was lost, cannot be sent."""
    if call.request is not None or command.request is not None or not tool.sends_request:
        return None
    return f"its request could not be built: {command.request_error or 'the tool built none'}"


def _wait(fold: Fold, call: Call, until: datetime, reason: str, *, asks: int | None = None) -> None:
    # Never beyond the reconciliation deadline: at that instant a person is asked.
    last = call.reconcile_until
    due = min(until, last) if last is not None and last > fold.now else until
    now = fold.call(call.id)
    asked = now.asks if asks is None else asks
    body = {"ready_at": rfc3339(due), "reason": reason, "fence": now.fence, "asks": asked}
    fold.emit(E.RECONCILIATION_DEFERRED, body, call=call.id)


def _repair(fold: Fold, call: Call, reason: str) -> Answer:
    body = {"reason": reason, "fence": fold.call(call.id).fence}
    fold.emit(E.REPAIR_REQUESTED, body, call=call.id)
    after_call(fold, call.id)
    return Done(C.NEEDS_REPAIR)


def _settle(fold: Fold, call: Call, decision: recovery.Decision) -> None:
    """Write a decision that needs nobody outside: proof, patience, or a person."""
    tool = fold.known.tool(call.tool, call.tool_version)
    fence, outside = fold.call(call.id).fence, brought(tool)
    stopped = fold.run.status == R.STOPPED and fold.run.offsets and call.effect != "read"
    if isinstance(decision, recovery.Succeed) and stopped:
        # After its end a run does nothing by itself: a person says that it happened, and it is offset.
        why = f"the effect was found ({decision.proof}, receipt {decision.receipt}) after the run had stopped"
        fold.emit(E.REPAIR_REQUESTED, {"reason": why, "fence": fence}, call=call.id)
    elif isinstance(decision, recovery.Succeed):
        known = {"receipt": decision.receipt, "result": decision.result}
        body = {"to": C.SUCCEEDED, "proof": decision.proof, "fence": fence}
        body |= known | {"preview": _preview(fold, decision.result), **outside}
        if tool is not None and tool.grounds is not None:  # only who has the result itself can tell them
            body["ungrounded"] = {"unread": f"it was settled by {decision.proof}, not by its own answer"}
        fold.emit(E.TOOL_EFFECT_RECONCILED, body, call=call.id)
    elif isinstance(decision, recovery.Fail):
        body = {"to": C.FAILED, "proof": decision.proof, "fence": fence, **outside}
        fold.emit(E.TOOL_EFFECT_RECONCILED, body, call=call.id)
    elif isinstance(decision, recovery.Wait):
        _wait(fold, call, decision.until, decision.reason)
    elif isinstance(decision, recovery.Repair):
        fold.emit(E.REPAIR_REQUESTED, {"reason": decision.reason, "fence": fence}, call=call.id)
    after_call(fold, call.id)


def _preview(fold: Fold, digest: str | None) -> str | None:
    kept = {p.digest: p.preview for p in fold.command.payloads}
    return kept.get(digest or "")


def record_lookup(fold: Fold, command: RecordLookup) -> Answer:
    """Record what the downstream said, and settle the call if that is proof; a repeat is the next claim's."""
    call = fold.view.calls.get(command.call)
    if call is None:
        return Gone()
    if (call.owner, call.fence) != (command.term.owner, command.term.fence) or call.state != C.UNKNOWN:
        return Fenced()
    tool = fold.known.tool(call.tool, call.tool_version)
    if tool is None:
        return Unfamiliar(f"tool {call.tool} version {call.tool_version}")
    fold.present(call.id, "term")
    fold.takeovers = 0
    said = breaker.learnt_of_question(command.code, command.retry_after)
    gate.learn(fold, call, tool, said)
    body = {"lookup": _lookup_text(command.answer), "ready_at": rfc3339(fold.now)}
    fold.emit(E.TOOL_LOOKUP_RECORDED, body, call=call.id, attempt=call.attempts)
    asked = fold.call(call.id)
    judged = facts(fold, asked, tool, command.rand, command.answer)
    if said.failed:
        _ask_when_it_answers(fold, asked, judged, command.answer)
        return Done(C.UNKNOWN)
    decision = recovery.recover(judged)
    if not isinstance(decision, recovery.Ask | recovery.Repeat):
        _settle(fold, asked, decision)
    return Done(fold.call(call.id).state)


def _ask_when_it_answers(fold: Fold, call: Call, judged: Facts, answer: LookupAnswer) -> None:
    """A service that is away has said nothing: that time does not count against the call, and the question is
    put again until it answers, before a person is asked.
    """
    decision = recovery.recover(replace(judged, reconcile_until=NEVER))
    due = decision.until if isinstance(decision, recovery.Wait) else fold.now
    until = deadlines.plus(judged.reconcile_until, max(due, fold.now) - answer.asked_at)
    reason = f"its service did not answer: {answer.detail}"
    body = {"ready_at": rfc3339(due), "reason": reason, "fence": call.fence, "asks": call.asks}
    fold.emit(E.RECONCILIATION_DEFERRED, body | {"reconcile_until": rfc3339(until)}, call=call.id)
    after_call(fold, call.id)


def _lookup_text(answer: LookupAnswer) -> str:
    said = {"receipt": answer.receipt, "result": answer.result, "detail": answer.detail}
    return body_text({"answer": str(answer.answer), "asked_at": rfc3339(answer.asked_at)} | said)


def _stored(call: Call) -> LookupAnswer | None:
    """The last answer, if it is younger than the last attempt (an attempt clears it) and may still count.

    An unclear one has been waited out when its call is claimed again: the question is then put anew.
    """
    kept = json.loads(call.lookup) if call.lookup is not None else None
    if kept is None or kept["answer"] == recovery.Answer.UNCLEAR:
        return None
    return LookupAnswer(
        answer=recovery.Answer(kept["answer"]),
        asked_at=parse_rfc3339(kept["asked_at"]),
        receipt=kept["receipt"],
        result=kept["result"],
        detail=kept["detail"],
    )
