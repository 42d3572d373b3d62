"""Defences of trees of runs: what a child may use, what its end proves, and that it is told to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from fencepost import slices
from fencepost.decide import child_ends, children
from fencepost_ops.drill.protocol import Asked, Event, Expect, Fault, Protocol
from fencepost_ops.drill.sabotages.switch import (
    BOTH,
    EXPECTATION,
    Sabotage,
    code,
    every,
    in_depth,
    muted,
    without,
)

Made = Callable[..., Any]
_APP: Final = "fencepost_ops.drill.script:app"
_PROOF: Final = "only by a proof of its own"


def _step(tool: str, label: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "label": label, "arguments": arguments}


def _asks(*labels: str, tools: tuple[str, ...] = ("dedupes.do",), **how: Any) -> Asked:
    """A run that asks as many others, of which each takes a turn for each of these tools."""
    turns = [
        _step("team.ask", label, turns=[[_step(tool, tool, reference=label)] for tool in tools])
        for label in labels
    ]
    return Asked(planner="script", input={"turns": [turns]}, **how)


def _shown(name: str, run: Asked, expect: Expect, **how: Any) -> Protocol:
    return Protocol(name=f"sabotage.{name}", app=_APP, runs=[run], expect=expect, **how)


_ONE_FITS: Final = Expect(
    effects={"dedupes": 1},
    runs=["COMPLETED", "COMPLETED"],
    calls={"left": "SUCCEEDED", "right": "REJECTED"},
)
_SLOW: Final = Fault(at="dispatch.before_wire", do="delay", for_s=3)
_CANCELLED: Final = Event(at_s=1, do="cancel", run=0)


def _whatever_is_wanted(_carve: Made) -> Made:
    return lambda _budget, _usage, _below, wanted, **_how: wanted


def _nothing_held(_hold: Made) -> Made:
    return lambda text, _call, _piece: text


def _at_once(_ended: Made) -> Made:
    return lambda _run: True


def _as_if_nothing_had_happened(settle: Made) -> Made:
    def settled(fold: Any, call: Any, tool: Any, child: Any) -> None:
        settle(fold, call, tool, replace(child, run=replace(child.run, effects=0)))

    return settled


FAMILIES: Final = (
    *in_depth(
        Sabotage(
            name="slice_not_asked",
            invariant="I13",
            about="a run is started only with what is left of the budget of the one that starts it",
            off=code(slices, "carve", _whatever_is_wanted),
            shows=_shown("slice_not_asked", _asks("left", "right", turns=6), _ONE_FITS),
        ),
        muted("guard_child", "its slice is more than is left of"),
    ),
    *in_depth(
        Sabotage(
            name="slice_not_held",
            invariant="I13",
            about="what a child may still use is nobody else's until it has ended",
            off=code(slices, "hold", _nothing_held),
            shows=_shown("slice_not_held", _asks("left", "right", turns=6), _ONE_FITS),
        ),
        every(muted("guard_run", "they hold from their start to their end"), without("guard_child", "runs")),
    ),
    *in_depth(
        Sabotage(
            name="settled_before_its_end",
            invariant="I4",
            about="the end of a run is the proof of the call that started it, and nothing before it",
            off=code(child_ends, "_ended", _at_once),
            shows=_shown(
                "settled_before_its_end",
                _asks("slow"),
                Expect(effects={"dedupes": 2}, runs=["STOPPED", "STOPPED"], calls={"slow": "FAILED"}),
                faults=[_SLOW],
                events=[_CANCELLED],
            ),
        ),
        muted("guard_call", _PROOF),
    ),
    Sabotage(
        name="effects_called_a_failure",
        invariant="I4",
        about="a run that stopped and left effects is told as what it is: never as one that failed",
        off=every(code(child_ends, "_settle", _as_if_nothing_had_happened), muted("guard_call", _PROOF)),
        layer=BOTH,
        shows=_shown(
            "effects_called_a_failure",
            _asks("half", tools=("brief.do", "dedupes.do")),
            Expect(
                effects={"brief": 1, "dedupes": 2}, runs=["STOPPED", "STOPPED"], calls={"half": "SUCCEEDED"}
            ),
            faults=[_SLOW.model_copy(update={"nth": 2})],
            events=[_CANCELLED],
        ),
    ),
    Sabotage(
        name="children_not_told",
        invariant=EXPECTATION,
        about="a run that stops has those stop that it has started",
        off=code(children, "hurry", lambda _hurry: lambda _fold: None),
        shows=_shown(
            "children_not_told",
            _asks("slow"),
            Expect(runs=["STOPPED", "STOPPED"], reasons=["cancelled", "cancelled"]),
            faults=[_SLOW],
            events=[_CANCELLED],
        ),
    ),
)
