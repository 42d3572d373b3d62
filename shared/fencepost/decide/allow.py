"""Allowances in the claim: what a call is about to take, and whether there is room for it. Pure.

Asked twice of each claim: before its counters are locked, to know which those are, and under their locks.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from fencepost.allowances import Allowance, Asked, Refusal, Share, refused, shares, taken, told
from fencepost.authority import AuthorizationDecision
from fencepost.authority.standing import Standing
from fencepost.decide.fold import Fold, Known
from fencepost.states import CallState
from fencepost.subjects import Call, Run
from fencepost.tools import Tool

C = CallState


def in_force(known: Known, standing: Standing, tenant: str) -> tuple[Allowance, ...]:
    """The allowances of the policy in force for a tenant; without one those of the application."""
    version = standing.policies.get(tenant)
    if version is None or known.engines is None:
        return known.allowances
    return tuple(getattr(standing.engines.get(version), "allowances", ()))


def wanted(
    known: Known, standing: Standing, run: Run, call: Call, tool: Tool, now: datetime
) -> tuple[Share, ...] | Refusal:
    """What this call would take if it were sent now, beside what it holds.

    Nothing for what compensates, and nothing for the repeat of an attempt that may have had its effect: that
    holds what its first attempt took. Raises what the tool's own functions raise.
    """
    may = in_force(known, standing, call.tenant)
    if not may or call.compensates is not None or (call.doubt and call.attempts > 0):
        return ()
    who = standing.who(call.tenant, run.principal, tool.name, now)
    args = tool.read_arguments(call.arguments) if tool.acts_on or tool.amount else None
    asked = Asked(
        tenant=call.tenant,
        principal=run.principal,
        tool=tool.name,
        at=now,
        names=who.on_behalf_of,
        roles=who.roles,
        resource=tool.acts_on(args) if tool.acts_on else None,
        amount=tool.amount(args) if tool.amount else None,
    )
    return shares(may, asked, frozenset(share.allowance for share in taken(call.reserved)))


def room(fold: Fold, call: Call, tool: Tool) -> tuple[Share, ...] | Refusal:
    """What this call takes of its counters, which are locked; or why it is not sent.

    RuntimeError for a counter whose lock is not held: nothing is let go past it.
    """
    found = wanted(fold.known, fold.standing, fold.run, call, tool, fold.now)
    if isinstance(found, Refusal):
        return found
    for share in found:
        used = fold.counters.get((call.tenant, share.key))
        if used is None:
            raise RuntimeError(f"the counter of allowance {share.allowance} is not locked")
        if (why := refused(share, used)) is not None:
            return why
    return found


def denial(refusal: Refusal, allowed: AuthorizationDecision) -> AuthorizationDecision:
    """The decision of a call that was allowed but for an allowance."""
    by = (f"allowance:{refusal.allowance}",)
    return replace(allowed, allowed=False, reason=refusal.reason, deciding=by, code=refusal.code)


def said(call: Call, more: tuple[Share, ...]) -> dict[str, Any]:
    """What ToolAttemptStarted tells of a call that takes more: all it then holds."""
    return {"reserved": told((*taken(call.reserved), *more))} if more else {}
