"""Step 6: who may have exactly this done, now. Asked when a proposal is recorded, and again in the claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, cast

from fencepost import lineage
from fencepost.approvals import Approval, read
from fencepost.authority import (
    UNKNOWN_POLICY,
    Approver,
    Authority,
    AuthorizationDecision,
    AuthorizationRequest,
    approve_safely,
    decide_safely,
)
from fencepost.authority.standing import TOO_MANY, Standing, few
from fencepost.canonical import arguments_hash, parse, sanitize
from fencepost.decide.fold import Fold
from fencepost.money import Money
from fencepost.subjects import Call, Run
from fencepost.tools import Tool
from fencepost.wire import fingerprint

Phase = Literal["recording", "claim"]


class Judged(NamedTuple):
    """A decision and what it was about: what is asked of persons, taken of allowances and handed to an
    attempt is of this. None where it was denied before that was looked at; never beside an approval or leave.
    """

    decision: AuthorizationDecision
    asked: AuthorizationRequest | None


def authorize(
    fold: Fold, call: Call, tool: Tool, phase: Phase, attempt: int, *, request: str | None = None
) -> Judged:
    """The decision for these exact arguments, under what stands in the ledger now.

    `request` is the one that would be sent, where one is: approvals count only for what persons were shown.

    Whatever fails on the way denies: an engine, the application's functions that name what a call acts on
    and moves, a policy that does not compile.
    """
    standing, tenant = fold.standing, call.tenant
    if (why := standing.withdrawn.get((tool.name, tool.version))) is not None:
        return _denied("tool_withdrawn", f"{tool.name} version {tool.version} was withdrawn: {why}")
    if (why := standing.disabled(tenant, fold.run.principal)) is not None:
        who = sanitize(fold.run.principal, 80)
        return _denied("principal_disabled", f"{who} is disabled: {why}")
    if (tenant, fold.run.principal) in standing.crowded:
        return _denied("too_many_delegations", f"{sanitize(fold.run.principal, 80)}: {TOO_MANY}")
    # What offsets an effect comes from the effect's own tool, not from what the run asks for.
    if call.compensates is None and (why := lineage.outside(fold.run.request, tool)) is not None:
        return _denied("not_handed_down", why)
    engine = engine_of(fold, tenant)
    if engine is None:
        version = standing.policies[tenant]
        return _denied("policy_error", f"policy version {version} could not be loaded here")
    try:
        asked = request_of(standing, fold.run, call, tool, phase, attempt, fold.now)
    except Exception as error:  # noqa: BLE001 - what names resource and amount is the application's code
        reason = f"what it acts on or moves cannot be told: {type(error).__name__}: {sanitize(error, 200)}"
        return _denied("policy_error", reason)
    approval = read(call.approval)
    if approval is None or not approval.said:
        return Judged(decide_safely(engine, asked), asked)
    digest = request_digest(call, call.request or request)
    return Judged(_approved(fold, call, approval, engine, asked, digest), asked)


def _approved(
    fold: Fold,
    call: Call,
    approval: Approval,
    engine: Authority,
    asked: AuthorizationRequest,
    digest: str | None,
) -> AuthorizationDecision:
    """The decision with the approvals that still count; one that asks for more says why others do not."""
    bound = {
        "operation": call.operation,
        "definition": asked.definition,
        "arguments_hash": arguments_hash(asked.arguments),  # of what is there, whatever it is said to be
        "request_digest": digest,
    }
    why = approval.lapsed(bound, fold.now)
    count, lost = (0, None) if why else _standing_by(fold, call, approval, engine, asked)
    decision = decide_safely(engine, replace(asked, approvals=count))
    if count and decision.policy_version != (was := approval.asked["policy"]):
        why = f"it was given under policy {was}, and now {decision.policy_version} holds"
        decision = decide_safely(engine, asked)
    why = why or lost
    if decision.approval is None or why is None:
        return decision
    return replace(decision, reason=f"{decision.reason}; an earlier approval counts no longer: {why}")


def _standing_by(
    fold: Fold, call: Call, approval: Approval, engine: Authority, asked: AuthorizationRequest
) -> tuple[int, str | None]:
    """How many of those who have approved may do so now, and why one of them may not.

    Each of them by another authority than the others': whoever acts for one of them is no second person.
    """
    count, lost, standing = 0, None, fold.standing
    people = frozenset(one.who for one in approval.approved)
    for one in approval.approved:
        if (disabled := standing.disabled(call.tenant, one.who)) is not None:
            lost = f"{one.who}, who gave it, is disabled: {disabled}"
            continue
        if (call.tenant, one.who) in standing.crowded:
            lost = f"{one.who}, who gave it: {TOO_MANY}"
            continue
        acts_for = standing.who(call.tenant, one.who, call.tool, fold.now).on_behalf_of
        if not {one.who, *acts_for}.isdisjoint({asked.principal, *asked.on_behalf_of}):
            lost = f"{one.who}, who gave it, asks for it by now, by itself or by who acts for it"
            continue
        who = standing.who(call.tenant, one.who, call.tool, fold.now, without=people)
        person = Approver(one.who, who.roles, who.on_behalf_of)
        may = approve_safely(engine, replace(asked, approvals=count), person)
        if may.allowed:
            count += 1
        else:
            lost = f"{one.who}, who gave it, may do so no longer: {may.reason}"
    return count, lost


def request_digest(call: Call, request: str | None) -> str | None:
    """By what an approval knows the request that will be sent; None where none is, or it is not known."""
    if request is None:
        return None
    return fingerprint(call.tenant, call.scope, call.tool, call.tool_version, request)


def engine_of(fold: Fold, tenant: str) -> Authority | None:
    """The engine in force for a tenant; None if its policy is not compiled here."""
    version = fold.standing.policies.get(tenant)
    if version is None or fold.known.engines is None:
        return fold.known.authority
    return fold.standing.engines.get(version)


def request_of(
    standing: Standing, run: Run, call: Call, tool: Tool, phase: Phase, attempt: int, now: datetime
) -> AuthorizationRequest:
    """All a decision on this call may depend on. Raises what the tool's own functions raise."""
    args = tool.read_arguments(call.arguments) if tool.acts_on or tool.amount else None
    who = standing.who(call.tenant, run.principal, tool.name, now)
    amount = tool.amount(args) if tool.amount else None
    if amount is not None and not isinstance(amount, Money):
        raise TypeError(f"amount of {tool.name} must give Money or None, not {type(amount).__name__}")
    return AuthorizationRequest(
        tenant=call.tenant,
        principal=run.principal,
        tool=tool.name,
        tool_version=tool.version,
        effect=tool.effect,
        arguments=cast("Mapping[str, Any]", parse(call.arguments)),
        arguments_hash=call.arguments_hash,
        operation=call.operation,
        run=str(call.run),
        call=str(call.id),
        attempt=attempt,
        phase=phase,
        at=now,
        definition=tool.definition_digest,
        resource=_pair(tool, tool.acts_on(args)) if tool.acts_on else None,
        amount=amount,
        roles=who.roles,
        on_behalf_of=who.on_behalf_of,
        delegation=who.links,
        tainted=run.tainted is not None,
        egress=tool.egress,
        compensates=call.compensates is not None,
    )


def _pair(tool: Tool, named: object) -> tuple[str, str]:
    if not isinstance(named, tuple) or len(named) != 2 or not all(isinstance(part, str) for part in named):
        raise TypeError(f"acts_on of {tool.name} must give a type and an id, two texts")
    return named


def denial(decision: AuthorizationDecision) -> str:
    """What a planner and people are told of a denial: its code, for machines, and its reason."""
    return f"not authorised ({decision.code}): {decision.reason}"


def decision_body(fold: Fold, call: Call, decision: AuthorizationDecision, phase: str) -> dict[str, Any]:
    """The evidence of one authorisation decision: by which roles and delegations, too, if there are any."""
    body: dict[str, Any] = {
        "phase": phase,
        "reason": decision.reason,
        "deciding": list(decision.deciding),
    }
    if decision.code:
        body["code"] = decision.code
    if decision.digests:
        body["digests"] = dict(decision.digests)
    if fold.standing.principals or fold.standing.delegations:
        who = fold.standing.who(call.tenant, fold.run.principal, call.tool, fold.now)
        body |= {"roles": few(who.roles), "delegation": few(who.links)}
    return body


def _denied(code: str, reason: str) -> Judged:
    denied = AuthorizationDecision(
        allowed=False, reason=reason, policy_version=UNKNOWN_POLICY, deciding=(code,), code=code
    )
    return Judged(denied, None)
