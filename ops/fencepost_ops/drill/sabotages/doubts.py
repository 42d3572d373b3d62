"""Defences in how a doubt is settled: what speaks for a key, and how long a downstream remembers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from fencepost import outcomes, recovery
from fencepost.outcomes import Applied
from fencepost.tools import Found
from fencepost_ops.drill.protocol import Event, Expect, Fault, Limits, Protocol
from fencepost_ops.drill.sabotages.decisions import calls, once
from fencepost_ops.drill.sabotages.switch import Sabotage, code

Made = Callable[..., Any]
_DAY_S: Final = 86_400.0


def _one_for_all(claims: Made) -> Made:
    def said(facts: recovery.Facts) -> Any:
        found = claims(facts)
        return replace(found, every_attempt_negative=bool(found.not_applied))

    return said


DOUBTS: Final = (
    Sabotage(
        name="evidence_of_one_for_all",
        invariant="I1",
        about="that one attempt had no effect says nothing of the others under its key",
        off=code(recovery, "_claims", _one_for_all),
        shows=Protocol(
            name="sabotage.evidence_of_one_for_all",
            runs=calls("dedupes"),
            faults=[
                Fault(at="dispatch.response_lost", do="lost"),
                Fault(at="dispatch.before_wire", do="lost", nth=2, answers=400),
                Fault(at="dispatch.after_effect", do="pause", nth=2, for_s=6.5),
            ],
            expect=once("dedupes"),
        ),
    ),
    Sabotage(
        name="any_answer_a_success",
        invariant="I1",
        about="a success is an answer that the tool understands, not any 200",
        off=code(outcomes, "_success", lambda _success: lambda *_given, **_named: Applied("null", None)),
        shows=Protocol(
            name="sabotage.any_answer_a_success",
            runs=calls("lookup"),
            faults=[Fault(at="dispatch.before_wire", do="lost", answers=200)],
            expect=once("lookup"),
        ),
    ),
    Sabotage(
        name="any_answer_found",
        invariant="I1",
        about="a lookup has found what its answer identifies, not whatever it answers 200 to",
        off=code(outcomes, "_looked_up", lambda _looked: lambda *_given: Found()),
        shows=Protocol(
            name="sabotage.any_answer_found",
            runs=calls("lookup"),
            faults=[
                Fault(at="dispatch.before_wire", do="lost"),
                Fault(at="reconcile.before_lookup", do="lost", answers=200),
            ],
            expect=once("lookup"),
        ),
    ),
    Sabotage(
        name="repeated_while_stopping",
        invariant="I3",
        about="a run that stops makes no new effect where there was none",
        off=code(recovery, "_run_allows", lambda _allows: lambda _facts, **_named: True),
        shows=Protocol(
            name="sabotage.repeated_while_stopping",
            runs=calls("lookup"),
            faults=[Fault(at="dispatch.before_wire", do="lost")],
            events=[Event(at_s=1, do="cancel", run=0)],
            expect=Expect(effects={"lookup": 0}, runs=["STOPPED"], calls={"first": "FAILED"}),
        ),
    ),
    Sabotage(
        name="window_ignored",
        invariant="I1",
        about="a key is used again only well inside the time for which the downstream remembers it",
        off=code(recovery, "_window_open", lambda _open: lambda *_given: True),
        shows=Protocol(
            name="sabotage.window_ignored",
            runs=calls("dedupes", deadline_s=1.25 * _DAY_S),
            limits=Limits(reconcile_for_s=2 * _DAY_S),
            faults=[Fault(at="dispatch.response_lost", do="lost")],
            events=[Event(at_s=0.005, do="redis_away"), Event(at_s=1.2 * _DAY_S, do="redis_back")],
            expect=Expect(effects={"dedupes": 1}, calls={"first": "NEEDS_REPAIR"}, waiting=1),
        ),
    ),
)
