"""Defences of what models may use: held before they are asked, charged whatever becomes of the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fencepost import machine
from fencepost.decide import planning, stopping
from fencepost_ops.drill.protocol import Asked, Expect, Fault, Protocol
from fencepost_ops.drill.sabotages.switch import EXPECTATION, Sabotage, code, every, in_depth, muted
from fencepost_workers import planner

Made = Callable[..., Any]
_APP: Final = "fencepost_ops.drill.thrift:app"
_RUN: Final = Asked(planner="model", input={"calls": 9}, on_stop="leave", tokens=900)
_LOST: Final = Fault(at="planner.after_model", do="crash", nth=2)


def _shown(name: str, **how: Any) -> Protocol:
    return Protocol(name=f"sabotage.{name}", app=_APP, runs=[_RUN], expect=Expect(runs=["STOPPED"]), **how)


def _unheld(_held: Made) -> Made:
    return lambda _fold: {"model": "drilled"}


def _never_dear(_dear: Made) -> Made:
    return lambda _fold, _model: None


def _uncharged(settled: Made) -> Made:
    return lambda run, spent: settled(run, spent) if spent is not None else {}


def _uncounted(_spent: Made) -> Made:
    return lambda run, _fact: {
        "tokens": run.tokens, "cost": run.cost, "held_tokens": 0, "held_cost": 0
    }  # fmt: skip


def _never_stuck(_stuck: Made) -> Made:
    return lambda *_, **__: None


_CIRCLE: Final = Protocol(
    name="sabotage.standstill_unseen",
    app="fencepost_ops.drill.script:app",
    runs=[
        Asked(
            planner="script",
            input={
                "turns": [[{"tool": "dedupes.do", "label": "again", "arguments": {"reference": "r"}}]],
                "for_ever": True,
            },
            on_stop="leave",
        )
    ],
    expect=Expect(effects={"dedupes": 1}, runs=["STOPPED"], reasons=["no_progress"]),
)

SPENDING: Final = (
    Sabotage(
        name="reservation_not_taken",
        invariant="I13",
        about="what a model may use is held before it is asked",
        off=code(planning, "_held", _unheld),
        shows=_shown("reservation_not_taken"),
    ),
    Sabotage(
        name="worst_case_not_asked",
        invariant="I13",
        about="a model is not asked for more than is left of the budget, whatever it then uses",
        off=code(planning, "_dear", _never_dear),
        shows=_shown("worst_case_not_asked"),
    ),
    Sabotage(
        name="lost_answer_not_charged",
        invariant="I13",
        about="of an answer that is lost nobody knows what it used: all that was held is charged",
        off=every(code(planning, "settled", _uncharged), code(stopping, "settled", _uncharged)),
        shows=_shown("lost_answer_not_charged", faults=[_LOST]),
    ),
    *in_depth(
        Sabotage(
            name="answers_uncounted",
            invariant="I13",
            about="what models use is counted as their answers tell it",
            off=code(machine, "_spent", _uncounted),
            shows=_shown("answers_uncounted"),
        ),
        muted("guard_run", "what its models use and hold moves"),
    ),
    Sabotage(
        name="standstill_unseen",
        invariant=EXPECTATION,
        about="a run that does and learns the same turn after turn is ended, and does not use up its turns",
        off=code(planner, "stuck", _never_stuck),
        shows=_CIRCLE,
    ),
)
