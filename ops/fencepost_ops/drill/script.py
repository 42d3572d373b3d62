"""The application of protocols that tell their runs turn by turn: `fencepost_ops.drill.script:app`.

It has the drill's own tools and two more: `brief.do` deduplicates for a minute only, and the request that
`drifting.do` makes is another one each second. Planner `script` proposes what the run's input says, as in
`{"turns": [[{"tool": "lookup.do", "label": "debit", "arguments": {"reference": "r"}}]]}`, where `arguments`
may be a text as models write it. After the last turn it finishes, or with `"for_ever": true` begins again.
`team.ask` starts a run of it whose turns are its arguments; with `"join": {"need": 1, "by_s": 5}` each turn
waits for so many of those, so long.
`svc:` principals may use everything, `guest:` ones only what has no effect, and the grants of `leaver:` ones
are gone by the time their calls are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel

from fencepost import (
    PER_PROPOSAL,
    App,
    Budget,
    Context,
    Contract,
    Dedupes,
    Effect,
    FirstFailure,
    Join,
    Proposal,
    Request,
    Turn,
)
from fencepost.authority import AllowList, AuthorizationDecision, AuthorizationRequest, Grant
from fencepost.clock import boottime
from fencepost.services import DependencyOptions
from fencepost_ops.drill import app as usual
from fencepost_ops.drill.app import REFUSED, SECOND, SETTLE, Done, Order
from fencepost_ops.drill.services import SUFFIX

MINUTE: Final = timedelta(minutes=1)
_IRREVERSIBLE: Final = ("brief.do", "drifting.do", "team.ask")


class _Leaving:
    """The drill's grants. Those of a `leaver:` hold while its calls are recorded, and no more when sent."""

    def __init__(self, grants: tuple[Grant, ...]) -> None:
        everything = grants[0].tools + _IRREVERSIBLE
        self._grants = AllowList(
            (
                Grant("svc:*", everything),
                Grant("leaver:*", everything),
                Grant("guest:*", ("read.*",)),
            )
        )

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        """By the grants, at this time."""
        decision = self._grants.decide(request)
        if request.phase == "claim" and request.principal.startswith("leaver:"):
            return replace(decision, allowed=False, reason="the grant has been revoked")
        return decision


_usual = usual.app.authority
assert isinstance(_usual, AllowList)
app = App("script", authority=_Leaving(_usual.grants))
app.registry.update(usual.app.registry)

TIMES: Final[DependencyOptions] = {
    "attempts": 4,
    "per_attempt": 5 * SECOND,
    "grace": SECOND,
    "reserve": 2 * SECOND,
    "backoff": SECOND,
    "backoff_cap": 4 * SECOND,
    "reconcile_for": 60 * SECOND,
    "margin": timedelta(0),
}
_brief = app.dependency("brief", f"http://brief{SUFFIX}", **TIMES)
_drifting = app.dependency("dedupes", f"http://dedupes{SUFFIX}", **TIMES)


@_brief.http(
    "brief.do",
    effect=Effect.IRREVERSIBLE,
    returns=Done,
    contract=Contract(
        repeat=Dedupes(window=MINUTE, first_failure=FirstFailure.UNKNOWN), settle=SETTLE, not_applied=REFUSED
    ),
    intent=lambda a: ("do", a.reference),
)
def brief(args: Order) -> Request:
    """An effect whose key is remembered for a minute."""
    return Request.post("/effects", json={"reference": args.reference})


@_drifting.http(
    "drifting.do",
    effect=Effect.IRREVERSIBLE,
    returns=Done,
    contract=usual.CONTRACTS["dedupes"],
    intent=lambda a: ("drifting", a.reference),
)
def drifting(args: Order) -> Request:
    """An effect whose request would be another one each time it is made."""
    return Request.post("/effects", json={"reference": args.reference, "memo": f"made at {boottime():.3f}"})


class Turns(BaseModel):
    """What a run is to do, turn by turn."""

    turns: list[list[dict[str, Any]]]


app.child(
    "team.ask",
    planner="script",
    arguments=Turns,
    effect=Effect.IRREVERSIBLE,
    intent=PER_PROPOSAL,
    budget=Budget(turns=4, calls=8, attempts=16, depth=0, children=0),
    deadline=30 * SECOND,
    grace=SECOND,
    reserve=2 * SECOND,
    reconcile_for=60 * SECOND,
    required=False,
)


@app.planner("script", version=1, timeout=10 * SECOND)
def script(context: Context) -> Turn:
    """What the input says for this turn."""
    turns: list[list[dict[str, Any]]] = context.input["turns"]
    if context.turn > len(turns) and not context.input.get("for_ever"):
        return Turn(finish={"done": True})
    wanted = turns[(context.turn - 1) % len(turns)]
    return Turn([_proposed(one) for one in wanted], join=_join(context.input.get("join")))


def _join(told: Mapping[str, Any] | None) -> Join | None:
    if told is None:
        return None
    by = timedelta(seconds=told["by_s"]) if "by_s" in told else None
    return Join(told.get("need"), by, told.get("rest", "cancel"))


def _proposed(one: Mapping[str, Any]) -> Proposal:
    return Proposal(one["tool"], one.get("arguments", {}), call_id=one.get("label", ""))
