"""Defences in what is made of a proposal: valid, allowed, under one key, and within its run's budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fencepost import operations, tools
from fencepost.authority import AuthorizationDecision
from fencepost.decide import dispatch, planning
from fencepost.decide.fold import Fold
from fencepost.events import EventType
from fencepost.subjects import Call
from fencepost_ops.drill.protocol import Asked, Expect, Fault, Protocol
from fencepost_ops.drill.sabotages.decisions import once
from fencepost_ops.drill.sabotages.switch import Sabotage, code, every, in_depth, without

Made = Callable[..., Any]
SCRIPT: Final = "fencepost_ops.drill.script:app"


def scripted(tool: str, **more: Any) -> Asked:
    """A run of one call of this tool, told turn by turn."""
    call = {"tool": tool, "label": "first", "arguments": {"reference": "r"}}
    return Asked(planner="script", input={"turns": [[call]]}, **more)


def _as_recorded(authorize: Made) -> Made:
    def decided(fold: Fold, call: Call, tool: Any, phase: str, attempt: int, **more: Any) -> Any:
        found = authorize(fold, call, tool, phase, attempt, **more)
        recorded = AuthorizationDecision(True, "it was allowed when it was recorded", "recorded")
        return found._replace(decision=recorded) if phase == "claim" else found

    return decided


def _untold(emit: Made) -> Made:
    def told(fold: Fold, kind: EventType, body: dict[str, Any], **named: Any) -> Any:
        skipped = kind == EventType.AUTHORIZATION_ALLOWED and body.get("phase") == "claim"
        return None if skipped else emit(fold, kind, body, **named)

    return told


_UNAUTHORISED: Final = every(code(dispatch, "authorize", _as_recorded), code(Fold, "emit", _untold))


def _other_arguments(proposal_body: Made) -> Made:
    def body(proposal: Any, *place: Any) -> dict[str, Any]:
        told: dict[str, Any] = proposal_body(proposal, *place)
        return told | {"arguments": told["arguments"].replace("r-", "s-")}

    return body


_WHOSE: Final = {"contract": "dedupes", "reference": "shared"}
_SHARED: Final = {"contract": "lookup", "reference": "shared"}

PROPOSALS: Final = (
    Sabotage(
        name="authority_at_recording_only",
        invariant="I3",
        about="what may be sent is decided in the claim that sends it, not when it was proposed",
        off=_UNAUTHORISED,
        shows=Protocol(
            name="sabotage.authority_at_recording_only",
            app=SCRIPT,
            runs=[scripted("dedupes.do", principal="leaver:ann")],
            expect=Expect(effects={"dedupes": 0}, runs=["STOPPED"], dispatches=0),
        ),
    ),
    Sabotage(
        name="compensation_unauthorised",
        invariant="I11",
        about="each compensation is authorised for itself",
        off=_UNAUTHORISED,
        shows=Protocol(
            name="sabotage.compensation_unauthorised",
            runs=[Asked(planner="stop")],
            expect=Expect(effects={"dedupes": 2}, runs=["STOPPED"]),
        ),
    ),
    Sabotage(
        name="arguments_swapped",
        invariant="I3",
        about="what is sent are the very arguments that were found valid and authorised",
        off=code(planning, "_proposal_body", _other_arguments),
        shows=Protocol(
            name="sabotage.arguments_swapped",
            runs=[Asked(input={"reference": "r"})],
            expect=once("dedupes"),
        ),
    ),
    Sabotage(
        name="tenant_left_out_of_key",
        invariant="I1",
        about="the same intent of two tenants is two intents: their keys differ",
        off=code(tools, "operation_key", lambda key: lambda _tenant, *parts: key("", *parts)),
        shows=Protocol(
            name="sabotage.tenant_left_out_of_key",
            runs=[Asked(input=_WHOSE), Asked(input=_WHOSE, tenant="another", at_s=1)],
            expect=Expect(effects={"dedupes": 2}, runs=["COMPLETED", "COMPLETED"]),
        ),
    ),
    *in_depth(
        Sabotage(
            name="key_shared",
            invariant="I1",
            about="a key is held by one call at a time; others wait, and are given its result",
            off=code(
                operations, "admit", lambda _admit: lambda *_given: (operations.Rule.OWN, "it may have it")
            ),
            shows=Protocol(
                name="sabotage.key_shared",
                runs=[Asked(input=_SHARED), Asked(input=_SHARED, run_key="another", at_s=1)],
                faults=[Fault(at="dispatch.after_effect", do="pause", for_s=2)],
                expect=Expect(effects={"lookup": 1}, runs=["COMPLETED", "COMPLETED"]),
            ),
        ),
        without("guard_operation", "operations"),
    ),
    Sabotage(
        name="turns_unlimited",
        invariant="I13",
        about="a planner is asked only as often as its run's budget allows",
        off=code(planning, "exhausted", lambda _exhausted: lambda *_given, **_named: None),
        shows=Protocol(
            name="sabotage.turns_unlimited",
            runs=[Asked(planner="two", turns=2, on_stop="leave")],
            expect=Expect(effects={"dedupes": 2}, runs=["STOPPED"]),
        ),
    ),
)
