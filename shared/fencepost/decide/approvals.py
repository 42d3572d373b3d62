"""Approvals by persons: asking for them, what each of them says, and that nobody did in time.

Nothing waits for a person but a row: the call rests in AWAITING_APPROVAL, and whoever decides makes it due.
A claim judges the approval anew, with what stands then (`decide.authorize`): nothing here opens the wire.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, cast

from fencepost import deadlines, operations
from fencepost.approvals import Approval, Said, read
from fencepost.authority import Approver, AuthorizationRequest, approve_safely
from fencepost.authority.standing import TOO_MANY, few
from fencepost.canonical import parse, sanitize
from fencepost.clock import parse_rfc3339, rfc3339
from fencepost.commands import Answer, ClaimCall, DecideApproval, Denied, Done, Fenced, Gone, Moved
from fencepost.contracts import Effect
from fencepost.decide.authorize import Judged, decision_body, engine_of, request_digest
from fencepost.decide.fold import Fold, Presented
from fencepost.decide.stopping import after_call
from fencepost.events import EventType
from fencepost.money import Money
from fencepost.outcomes import told
from fencepost.states import CallState
from fencepost.subjects import Call
from fencepost.tools import Tool

E, C = EventType, CallState

EXPIRED: Final = "approval_expired"
DENIED: Final = "approval_denied"
LONGEST: Final = timedelta(days=90)
"""An approval is waited for so long at most, whatever a policy says."""
_CHANGED = "the call has changed since you looked at it; look again, then decide"


def ask(
    fold: Fold,
    call: Call,
    tool: Tool,
    judged: Judged,
    phase: str,
    *,
    request: str | None = None,
    fence: int | None = None,
    not_before: datetime | None = None,
) -> None:
    """Ask persons about exactly this call. They are shown what will be sent, as far as that is known."""
    decision = judged.decision
    assert decision.approval is not None
    until = deadlines.plus(fold.now, min(decision.approval.within, LONGEST))
    due = until if call.compensates else min(until, fold.run.deadline)
    message = f"needs an approval: {decision.reason}"
    body = decision_body(fold, call, decision, phase) | {"message": message, "ready_at": rfc3339(due)}
    body["asked"] = _asked(fold, call, tool, judged, request, until)
    if call.compensates:  # its own deadline begins once it is approved
        body["asked"]["patience_ms"] = deadlines.millis(tool.dependency.reconcile_for)
        body["asked"]["not_before"] = rfc3339(max(not_before or fold.now, fold.now))
    fenced = {"fence": fence} if fence is not None else {}
    fold.emit(E.APPROVAL_REQUESTED, body | fenced, call=call.id, policy=decision.policy_version)


def _asked(
    fold: Fold,
    call: Call,
    tool: Tool,
    judged: Judged,
    request: str | None,
    until: datetime,
) -> dict[str, Any]:
    decision, asked = judged
    assert decision.approval is not None
    assert asked is not None
    shown, why_not = (call.request or request), None
    if shown is None and tool.sends_request:
        shown, why_not = _built(call, tool)
    return {
        "operation": call.operation,
        "definition": tool.definition_digest,
        "arguments_hash": call.arguments_hash,
        "request_digest": request_digest(call, shown),
        "policy": decision.policy_version,
        "count": max(1, decision.approval.count),
        "requested_at": rfc3339(fold.now),
        "expires_at": rfc3339(until),
        "reason": decision.reason,
        "deciding": list(decision.deciding),
        "request": shown,
        **({"request_error": why_not} if why_not else {}),
        "effect": str(tool.effect),
        "egress": tool.egress,
        "amount": asked.amount.model_dump() if asked.amount is not None else None,
        "resource": list(asked.resource) if asked.resource is not None else None,
        "requester": asked.principal,
        "on_behalf_of": few(asked.on_behalf_of),
        "delegation": few(asked.delegation),
        "turn": call.turn,
        "planner": fold.run.planner,
        "planner_version": fold.run.planner_version,
        "tainted": fold.run.tainted,
    }


def _built(call: Call, tool: Tool) -> tuple[str | None, str | None]:
    """The request as the dispatcher will build it, or why there is none: its claim will refuse it."""
    try:
        return tool.stored_request(tool.read_arguments(call.arguments), call.operation).to_text(), None
    except Exception as problem:  # noqa: BLE001 - the request function is the application's
        return None, told(problem)


def claim_awaiting(fold: Fold, call: Call, command: ClaimCall) -> Answer:
    """End a call that nobody approved in time; before that there is nothing to do."""
    approval = read(call.approval)
    if approval is None or approval.expires_at > fold.now:
        return Moved()
    if command.term.fence <= call.fence:
        return Fenced()
    fold.present(call.id, "claim")
    fold.takeovers = 0
    had = f"{len(approval.approved)} of {approval.count} persons had approved it"
    message = f"{EXPIRED}: it was asked for until {approval.asked['expires_at']}, and {had}"
    body = {"to": C.REJECTED, "code": EXPIRED, "message": message, "fence": command.term.fence}
    fold.emit(E.APPROVAL_DECIDED, body, call=call.id)
    after_call(fold, call.id)
    return Done(fold.call(call.id).state)


# -- a person decides --------------------------------------------------------------------------------------


def decide_approval(fold: Fold, command: DecideApproval) -> Answer:
    """A person approves or denies; of two who decide at once the second is told what the first has said."""
    call = fold.view.calls.get(command.call)
    if call is None:
        return Gone()
    approval = read(call.approval)
    if approval is None:
        return Denied(f"nobody is asked to approve it: the call is {call.state}")
    mine = approval.said_by(command.by)
    same = mine is not None and (mine.approve, mine.login) == (command.approve, command.login)
    if same and command.approve == (call.state not in {C.REJECTED, C.CANCELLED}):
        return Done(call.state)  # the same word again changes nothing
    if (why := _closed(fold, call, approval, command)) is not None:
        return Denied(why)
    may = _may(fold, call, approval, command)
    if isinstance(may, str):
        return Denied(may)
    return _decide(fold, call, approval, command, may)


def _closed(fold: Fold, call: Call, approval: Approval, command: DecideApproval) -> str | None:
    """Why nobody can decide it now."""
    if call.state != C.AWAITING_APPROVAL:
        said = "; ".join(_told(one) for one in approval.said)
        if not said:
            return f"nobody has decided it, and nobody can any more: the call is {call.state}"
        return f"it is decided already: {said}; the call is {call.state}"
    if fold.now >= approval.expires_at:
        return f"it was asked for until {approval.asked['expires_at']}, and that is over"
    if not fold.allows(call):
        return f"its run is {fold.run.status}: nothing is sent for it any more"
    if not call.compensates and fold.now >= fold.run.deadline:
        return f"its run's deadline was {rfc3339(fold.run.deadline)}"
    if command.seen is not None and command.seen != call.version:
        since = "".join(f"; {_told(one)}" for one in approval.said)
        return _CHANGED + since
    return None


def _told(one: Said) -> str:
    what = "approved" if one.approve else "denied"
    return f"{one.who} (login {one.login}) {what} it at {rfc3339(one.at)}: {one.reason}"


def _may(fold: Fold, call: Call, approval: Approval, command: DecideApproval) -> dict[str, Any] | str:
    """By which authority this person may decide; or why not."""
    standing, tenant, who = fold.standing, call.tenant, command.by
    if (why := standing.disabled(tenant, who)) is not None:
        return f"{who} is disabled: {why}"
    for one in (who, fold.run.principal):
        if (tenant, one) in standing.crowded:
            return f"{one}: {TOO_MANY}"
    judged = asked_request(fold, call, approval, command.approve)
    acts_for = standing.who(tenant, who, call.tool, fold.now).on_behalf_of
    if command.approve and (why := _not_again(approval, judged, command, acts_for)) is not None:
        return why
    engine = engine_of(fold, tenant)
    if engine is None:
        return f"policy version {standing.policies[tenant]} could not be loaded here"
    others = frozenset(one.who for one in approval.approved) if command.approve else frozenset[str]()
    found = standing.who(tenant, who, call.tool, fold.now, without=others)
    decision = approve_safely(engine, judged, Approver(who, found.roles, found.on_behalf_of))
    if not decision.allowed:
        return f"{decision.reason} (policy {decision.policy_version})"
    authority = {"roles": found.roles, "on_behalf_of": found.on_behalf_of, "links": found.links}
    return {
        **{name: few(value) for name, value in authority.items()},
        "policy": decision.policy_version,
        "deciding": list(decision.deciding),
    }


def _not_again(
    approval: Approval, judged: AuthorizationRequest, command: DecideApproval, acts_for: tuple[str, ...]
) -> str | None:
    who = command.by
    if not {who, *acts_for}.isdisjoint({judged.principal, *judged.on_behalf_of}):
        return f"{who} asks for it, by itself or by who acts for it; another person has to approve it"
    if any(one.who == who for one in approval.approved):
        return f"{who} has approved it already; another person has to approve it as well"
    if any(one.login == command.login for one in approval.approved):
        return f"login {command.login} has approved it already; it takes {approval.count} persons' logins"
    return None


def asked_request(fold: Fold, call: Call, approval: Approval, approve: bool = True) -> AuthorizationRequest:
    """What was asked about, as an engine reads it: from the history alone, whoever knows the tool."""
    asked, amount = approval.asked, approval.asked.get("amount")
    who = fold.standing.who(call.tenant, fold.run.principal, call.tool, fold.now)
    resource = asked.get("resource")
    return AuthorizationRequest(
        tenant=call.tenant,
        principal=fold.run.principal,
        tool=call.tool,
        tool_version=call.tool_version,
        effect=Effect(call.effect),
        arguments=cast("dict[str, Any]", parse(call.arguments)),
        arguments_hash=call.arguments_hash,
        operation=call.operation,
        run=str(call.run),
        call=str(call.id),
        attempt=call.attempts + 1,
        phase="claim",
        at=fold.now,
        definition=str(asked["definition"]),
        resource=(resource[0], resource[1]) if resource else None,
        amount=Money(**amount) if amount else None,
        roles=who.roles,
        on_behalf_of=who.on_behalf_of,
        delegation=who.links,
        tainted=fold.run.tainted is not None,
        egress=bool(asked.get("egress")),
        approvals=len(approval.approved) if approve else 0,
        compensates=call.compensates is not None,
    )


def _decide(
    fold: Fold, call: Call, approval: Approval, command: DecideApproval, authority: dict[str, Any]
) -> Answer:
    fold.by = command.by
    fold.presented[call.id] = Presented("approval")
    complete = command.approve and approval.missing <= 1
    to = C.AUTHORIZED if complete else C.AWAITING_APPROVAL if command.approve else C.REJECTED
    decision = {
        "who": command.by,
        "login": command.login,
        "approve": command.approve,
        "at": rfc3339(fold.now),
        "reason": command.reason,
        **authority,
    }
    body: dict[str, Any] = {"to": to, "decision": decision, "fence": call.fence + 1}
    if not command.approve:
        message = f"{DENIED}: {command.by} denied it: {sanitize(command.reason, 200)}"
        body |= {"code": DENIED, "message": message}
    fold.emit(E.APPROVAL_DECIDED, body, call=call.id)
    if complete:
        _resume(fold, fold.call(call.id), approval)
    after_call(fold, call.id)
    return Done(fold.call(call.id).state)


def _resume(fold: Fold, call: Call, approval: Approval) -> None:
    """Make it due now, or as soon as the effect it offsets is quiet. The claim judges everything again."""
    due, until = fold.now, None
    if call.compensates:
        due = max(due, parse_rfc3339(approval.asked["not_before"]))
        until = rfc3339(deadlines.plus(due, timedelta(milliseconds=approval.asked["patience_ms"])))
    # A run that has a parent may close a circle as its call begins to wait: its claim looks.
    alone = fold.run.parent is None
    waits = alone and call.operation is not None and _held_by_another(fold, call, call.operation)
    if waits:  # whoever holds the key wakes it; at the deadline its run stops; no compensation: one is open
        due = fold.run.deadline
    body = {"ready_at": rfc3339(due), "waits": waits, "reconcile_until": until}
    fold.emit(E.DISPATCH_INTENT_RECORDED, body, call=call.id)


def _held_by_another(fold: Fold, call: Call, key: str) -> bool:
    held = fold.operations[key]
    return held.call != call.id and operations.held(held) and held.arguments_hash == call.arguments_hash
