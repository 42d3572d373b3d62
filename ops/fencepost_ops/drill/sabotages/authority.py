"""Defences in who may have what done: approvals, delegations, taint, and what is read anew in each claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, cast

from fencepost import approvals, machine, names
from fencepost.authority import AuthorizationDecision, standing
from fencepost.decide import allow, authorize, dispatch
from fencepost.decide import approvals as deciding
from fencepost.ledger import folding
from fencepost.ledger import standing as read_standing
from fencepost_ops.drill.protocol import Protocol
from fencepost_ops.drill.sabotages.switch import (
    EXPECTATION,
    Sabotage,
    code,
    every,
    in_depth,
    muted,
    without,
    without_check,
)
from fencepost_ops.drill.shipped import shipped_protocol

Made = Callable[..., Any]


def _shown_by(name: str, sabotage: str) -> Protocol:
    """The shipped protocol of this name, as that of a sabotage."""
    return shipped_protocol(name).model_copy(update={"name": f"sabotage.{sabotage}"})


def _kept(read: Made) -> Made:
    """What stands, read once and never again."""
    known: list[standing.Standing] = []

    def first(*given: Any) -> standing.Standing:
        if not known:
            known.append(read(*given))
        return known[0]

    return first


def _anybody(_safely: Made) -> Made:
    return lambda *_given: AuthorizationDecision(True, "whoever asks may approve", "none")


def _unspent(refused: Made) -> Made:
    return lambda share, used: refused(share, used._replace(minor=0))


def _unasked(decide: Made) -> Made:
    def decided(fold: Any, call: Any, tool: Any, phase: str, attempt: int, **more: Any) -> Any:
        found = decide(fold, call, tool, phase, attempt, **more)
        asks = found.decision.approval is not None
        allowed = replace(found.decision, allowed=True, approval=None)
        return found._replace(decision=allowed) if asks else found

    return decided


_UNCLAIMED: Final = code(dispatch, "authorize", _unasked)
"""The claim sends what was approved, whoever had to approve it."""

_ENDED: Final = " AND d.until > fencepost.now()"
"""What has ended is not even read."""

AUTHORITY: Final = (
    *in_depth(
        Sabotage(
            name="approval_of_one_suffices",
            invariant="I3",
            about="what takes two persons is not sent on the word of one",
            off=code(approvals.Approval, "missing", lambda _missing: cast("Any", property(lambda _self: 0))),
            shows=_shown_by("approved_by_one_of_two", "approval_of_one_suffices"),
        ),
        every(muted("guard_call", "cannot approve or deny it like this"), _UNCLAIMED),
    ),
    *in_depth(
        Sabotage(
            name="another_spelling",
            invariant="I3",
            about="a name has one spelling: nobody approves his own call under another",
            off=code(names, "fits", lambda _fits: lambda *_given: True),
            shows=_shown_by("approved_under_another_spelling", "another_spelling"),
        ),
        every(
            without_check("principals", "principals_names_check"),
            without_check("events", "events_names_check"),
            muted("guard_call", "who decides has no name with one spelling"),
        ),
    ),
    Sabotage(
        name="approval_outlives_its_time",
        invariant=EXPECTATION,
        about="an approval counts in the claim only if it has not expired, and is of exactly this",
        off=code(approvals.Approval, "lapsed", lambda _lapsed: lambda *_given: None),
        shows=_shown_by("approved_too_long_ago", "approval_outlives_its_time"),
    ),
    Sabotage(
        name="anybody_approves",
        invariant=EXPECTATION,
        about="who approves must be allowed to when the word is said",
        off=every(code(deciding, "approve_safely", _anybody), code(authorize, "approve_safely", _anybody)),
        shows=_shown_by("approver_lost_the_role", "anybody_approves"),
    ),
    Sabotage(
        name="standing_kept",
        invariant="I3",
        about="who is disabled and what is withdrawn is read in each claim, and never kept",
        off=code(read_standing, "read", _kept),
        shows=_shown_by("principal_disabled_in_the_queue", "standing_kept"),
    ),
    Sabotage(
        name="withdrawn_is_sent",
        invariant="I3",
        about="nothing of a tool version that was withdrawn is sent",
        off=code(read_standing, "read", lambda read: lambda *given: replace(read(*given), withdrawn={})),
        shows=_shown_by("tool_withdrawn_in_the_queue", "withdrawn_is_sent"),
    ),
    Sabotage(
        name="delegated_for_ever",
        invariant=EXPECTATION,
        about="a delegation gives authority until its end, and not after it",
        off=every(
            code(standing.Delegation, "valid", lambda _valid: lambda *_given: True),
            code(read_standing, "READ_STANDING", lambda asked: asked.replace(_ENDED, "")),
        ),
        shows=_shown_by("delegated_for_a_while", "delegated_for_ever"),
    ),
    Sabotage(
        name="taint_forgotten",
        invariant=EXPECTATION,
        about="a run that has read what nobody vouches for stays tainted, whoever dies in between",
        off=code(machine, "first", lambda _first: lambda *_given: None),
        shows=_shown_by("page_asks_to_send_data_out", "taint_forgotten"),
    ),
    Sabotage(
        name="allowance_not_taken",
        invariant=EXPECTATION,
        about="what a call takes of its allowances is taken in the claim that sends it",
        off=code(allow, "room", lambda _room: lambda *_given: ()),
        shows=_shown_by("allowance_used_up_by_siblings", "allowance_not_taken"),
    ),
    Sabotage(
        name="allowance_not_counted",
        invariant="I13",
        about="a counter is what its calls hold: what one takes is written with it",
        off=code(folding, "follow", lambda _follow: lambda *_given: None),
        shows=_shown_by("allowance_used_up_by_siblings", "allowance_not_counted"),
    ),
    *in_depth(
        Sabotage(
            name="allowance_let_go_too_early",
            invariant="I13",
            about="what is under way counts until it is known what became of it",
            off=code(allow, "refused", _unspent),
            shows=_shown_by("allowance_held_while_unknown", "allowance_let_go_too_early"),
        ),
        without("guard_allowance", "allowances"),
    ),
)
