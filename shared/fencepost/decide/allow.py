"""Allowances in the claim: what a call is about to take, and whether there is room for it. Pure.

Asked twice of each claim: before its counters are locked, to know which those are, and under their locks.

After a restore a call may have been sent of which no attempt is known here. It takes its share where it is
marked, whatever the limit says; or, if the process that recovered did not know its tool or the allowances, as
the first process that does takes it up. What no such process sees is not counted, and the checker says so.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from fencepost.allowances import (
    Allowance,
    Refusal,
    Share,
    Used,
    owed,
    refused,
    shares,
    taken,
    told,
    until,
)
from fencepost.authority import AuthorizationDecision, AuthorizationRequest
from fencepost.authority.standing import Standing
from fencepost.canonical import CanonicalError, sanitize
from fencepost.decide.authorize import request_of
from fencepost.decide.fold import Fold, Known
from fencepost.states import CALL_UNSENT, CallState
from fencepost.subjects import Call, Run
from fencepost.tools import Tool

C = CallState


def in_force(known: Known, standing: Standing, tenant: str) -> tuple[Allowance, ...]:
    """The allowances that hold for a tenant: those of the policy in force, and beside them the application's,
    but for one whose id the policy declares itself.
    """
    version = standing.policies.get(tenant)
    if version is None or known.engines is None:
        return known.allowances
    published: tuple[Allowance, ...] = tuple(getattr(standing.engines.get(version), "allowances", ()))
    ids = {one.id for one in published}
    return (*published, *(one for one in known.allowances if one.id not in ids))


def wanted(
    known: Known, standing: Standing, run: Run, call: Call, tool: Tool, now: datetime
) -> tuple[Share, ...] | Refusal:
    """What this call would take if it were sent now, beside what it holds.

    Nothing for what compensates, and nothing for the repeat of an attempt that may have had its effect: that
    holds what its first attempt took. Raises what the tool's own functions raise.
    """
    may = _limiting(known, standing, call)
    return shares(may, _asked(standing, run, call, tool, now), _of(call)) if may else ()


def _limiting(known: Known, standing: Standing, call: Call) -> tuple[Allowance, ...]:
    offsets, repeats = call.compensates is not None, call.doubt and call.attempts > 0
    return () if offsets or repeats else in_force(known, standing, call.tenant)


def _of(call: Call) -> frozenset[str]:
    return frozenset(share.allowance for share in taken(call.reserved))


def _asked(standing: Standing, run: Run, call: Call, tool: Tool, now: datetime) -> AuthorizationRequest:
    return request_of(standing, run, call, tool, "claim", call.attempts + 1, now)


def may_owe(call: Call) -> bool:
    """Whether it may have been sent under terms nobody here knows, so that it holds less than it should."""
    unsent = call.state in CALL_UNSENT or (call.state == C.UNKNOWN and call.attempts == 0)
    return unsent and call.operation is not None and call.compensates is None


def missing(
    known: Known, standing: Standing, run: Run, call: Call, tool: Tool, now: datetime
) -> tuple[tuple[Share, ...], tuple[str, ...]] | None:
    """What a call that may have been sent has yet to take, and the allowances of which that cannot be told.

    None where no allowance is known here. Nothing that the tool's own functions raise stops a recovery.
    """
    may = in_force(known, standing, call.tenant)
    if not may or not may_owe(call):
        return None
    try:
        return owed(may, _asked(standing, run, call, tool, now), _of(call))
    except Exception:  # noqa: BLE001 - the application's functions
        return (), tuple(one.id for one in may)


def caught_up(fold: Fold, call: Call, tool: Tool | None) -> dict[str, Any]:
    """What the event that marks such a call, or takes it up, tells of its shares. Its counters are locked.

    RuntimeError for one that is not.
    """
    found = None if tool is None else missing(fold.known, fold.standing, fold.run, call, tool, fold.now)
    if found is None:
        return {}
    more, unclear = found
    for share in more:
        _locked(fold, call, share)
    body: dict[str, Any] = {"reserved": told((*taken(call.reserved), *more))}
    return body | ({"uncounted": list(unclear)} if unclear else {})


def brought_in(call: Call, now: datetime) -> tuple[Share, ...]:
    """What a call holds of windows that last, though no attempt has taken it: its first one needs room."""
    if call.attempts or call.state != C.UNKNOWN:
        return ()
    return tuple(one for one in taken(call.reserved) if (end := until(one)) is None or now < end)


def room(
    fold: Fold, call: Call, tool: Tool, asked: AuthorizationRequest | None
) -> tuple[Share, ...] | Refusal:
    """What this call takes of its counters, which are locked; or why it is not sent.

    `asked` is what was allowed. What the call holds since a restore marked it is among what it takes: it was
    not let go then. RuntimeError for a counter whose lock is not held: nothing is let go past it. A resource
    that has no canonical text is refused.
    """
    assert asked is not None
    try:
        found = shares(_limiting(fold.known, fold.standing, call), asked, _of(call))
    except CanonicalError as error:
        why = f"what it takes of allowances cannot be told: {type(error).__name__}: {sanitize(error, 200)}"
        return Refusal("allowance_error", "", why)
    if isinstance(found, Refusal):
        return found
    marked = tuple(_today(fold, call, one) for one in brought_in(call, fold.now))
    for share in (*marked, *found):
        if (call.tenant, share.key) not in fold.counters and (tool.acts_on or tool.amount):
            why = (
                f"allowance {share.allowance}: what names the resource or amount does not answer alike twice"
            )
            return Refusal("allowance_error", share.allowance, why)
        used = _locked(fold, call, share)
        more = share if share in found else replace(share, count=0, minor=0)  # counted already
        if (refusal := refused(more, used)) is not None:
            return refusal
    return (*marked, *found)


def _locked(fold: Fold, call: Call, share: Share) -> Used:
    used = fold.counters.get((call.tenant, share.key))
    if used is None:
        raise RuntimeError(f"the counter of allowance {share.allowance} is not locked")
    return used


def _today(fold: Fold, call: Call, share: Share) -> Share:
    """A share under the limits that hold now; without any where its allowance does not."""
    may = in_force(fold.known, fold.standing, call.tenant)
    now = next((one for one in may if one.id == share.allowance), None)
    spend = now.spend if now is not None else None
    same = spend is not None and spend.currency == share.currency
    return replace(
        share,
        limit_count=now.count if now is not None else None,
        limit_minor=spend.amount_minor if spend is not None and same else None,
    )


def denial(refusal: Refusal, allowed: AuthorizationDecision) -> AuthorizationDecision:
    """The decision of a call that was allowed but for an allowance."""
    by = (f"allowance:{refusal.allowance}" if refusal.allowance else refusal.code,)
    return replace(allowed, allowed=False, reason=refusal.reason, deciding=by, code=refusal.code)


def said(call: Call, more: tuple[Share, ...]) -> dict[str, Any]:
    """What ToolAttemptStarted tells of a call that takes more: all it then holds."""
    all_of_it = {one.key: one for one in (*taken(call.reserved), *more)}
    return {"reserved": told(tuple(all_of_it.values()))} if more else {}
