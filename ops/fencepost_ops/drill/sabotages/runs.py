"""Defences in what is decided of a run: when it ends, what is offset after it, and what its history says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from fencepost import commands as c
from fencepost import machine
from fencepost.decide import compensate, fold, planning, stopping
from fencepost.decide.fold import Fold, Presented
from fencepost.events import EventType
from fencepost.ledger import folding, write
from fencepost.states import RunStatus
from fencepost.subjects import Call, Run, View
from fencepost_ops.drill.protocol import Asked, Event, Expect, Fault, Protocol
from fencepost_ops.drill.sabotages.decisions import calls, once
from fencepost_ops.drill.sabotages.switch import (
    EXPECTATION,
    Sabotage,
    code,
    entry,
    every,
    in_depth,
    muted,
    without,
    without_index,
)
from fencepost_workers import compensator, sweep

Made = Callable[..., Any]
E = EventType
_DECIDE = folding._DECIDE  # noqa: SLF001 - what is switched off


# -- how a run ends ----------------------------------------------------------------------------------------


def _completed_early(record_turn: Made) -> Made:
    def recorded(tray: Fold, command: c.RecordTurn) -> c.Answer:
        answer: c.Answer = record_turn(tray, command)
        if tray.run.status == RunStatus.ACTING and tray.run.open:
            tray.emit(
                E.RUN_COMPLETED, {"turn": tray.run.turn, "answer": None, "result": None, "preview": None}
            )
        return answer

    return recorded


def _anybody_s_turn(record_turn: Made) -> Made:
    def recorded(tray: Fold, command: c.RecordTurn) -> c.Answer:
        run = tray.run
        if run.status != RunStatus.PLANNING or run.owner is None:
            return record_turn(tray, command)  # type: ignore[no-any-return]
        term = c.Term(run.owner, run.fence)
        return record_turn(tray, replace(command, term=term))  # type: ignore[no-any-return]

    return recorded


def _cancelled_late(request_cancel: Made) -> Made:
    def cancelled(tray: Fold, command: c.RequestCancel) -> c.Answer:
        if tray.run.status != RunStatus.COMPLETED:
            return request_cancel(tray, command)  # type: ignore[no-any-return]
        tray.by = command.by
        tray.presented[tray.run.id] = Presented("cancel")
        tray.emit(E.CANCEL_REQUESTED, {"reason": command.reason})
        return c.Done(tray.run.status)

    return cancelled


def _settled_early(_settle: Made) -> Made:
    def settled(tray: Fold) -> None:
        if tray.run.status == RunStatus.STOPPING:
            end = {"offset": [], "not_offset": [], "effects": tray.run.effects, "fence": tray.run_fence()}
            tray.emit(E.RUN_STOPPED, end)

    return settled


_ENDS: Final = (
    *in_depth(
        Sabotage(
            name="completed_while_open",
            invariant="I7",
            about="no run completes with an open or doubtful call",
            off=entry(_DECIDE, c.RecordTurn, _completed_early),
            shows=Protocol(
                name="sabotage.completed_while_open", runs=calls("dedupes"), expect=once("dedupes")
            ),
        ),
        muted("guard_run", "it has an open or doubtful call"),
    ),
    *in_depth(
        Sabotage(
            name="stale_turn",
            invariant="I5",
            about="a planner's answer is recorded only under the term that Postgres has accepted last",
            off=entry(_DECIDE, c.RecordTurn, _anybody_s_turn),
            shows=Protocol(
                name="sabotage.stale_turn",
                runs=calls("dedupes"),
                faults=[
                    Fault(at="planner.after_model", do="pause"),
                    Fault(at="planner.after_model", do="pause", nth=2, for_s=1),
                ],
                expect=once("dedupes"),
            ),
        ),
        every(
            muted("guard_run", "is not the accepted one"),
            muted("guard_call", "proposed without the term of its run"),
        ),
    ),
    *in_depth(
        Sabotage(
            name="cancelled_after_end",
            invariant="I8",
            about="after its end nothing happens to a run any more",
            off=entry(_DECIDE, c.RequestCancel, _cancelled_late),
            shows=Protocol(
                name="sabotage.cancelled_after_end",
                runs=calls("dedupes"),
                events=[Event(at_s=1, do="cancel", run=0)],
                expect=once("dedupes"),
            ),
        ),
        muted("guard_run", "raises the fence and clears the owner", "may not move it from"),
    ),
    *in_depth(
        Sabotage(
            name="stopped_while_unsettled",
            invariant="I8",
            about="a run that stops ends only once nothing of it is in flight or in doubt",
            off=code(stopping, "settle_stopping", _settled_early),
            shows=Protocol(
                name="sabotage.stopped_while_unsettled",
                runs=calls("dedupes", on_stop="leave"),
                faults=[Fault(at="dispatch.after_effect", do="pause", for_s=2)],
                events=[Event(at_s=1, do="cancel", run=0)],
                expect=Expect(effects={"dedupes": 1}, runs=["STOPPED"], calls={"first": "SUCCEEDED"}),
            ),
        ),
        every(without("guard_stopped", "runs"), muted("guard_run", "may not move it from")),
    ),
)

# -- what is offset ----------------------------------------------------------------------------------------


def _twice(to_offset: Made) -> Made:
    def again(view: View, forward: Call) -> bool:
        made = [one for one in view.calls.values() if one.compensates == forward.operation]
        return bool(to_offset(view, forward)) or len(made) == 1

    return again


def _said_nothing(_end: Made) -> Made:
    def ended(tray: Fold) -> None:
        end = {"offset": [], "not_offset": [], "effects": tray.run.effects, "fence": tray.run_fence()}
        tray.emit(E.RUN_STOPPED, end)

    return ended


_STOP: Final = [Asked(planner="stop")]
_OFFSET: Final = Expect(effects={"dedupes": 2}, runs=["STOPPED"])
_FORWARD_KEY: Final = every(
    code(compensator, "compensation_key", lambda _key: lambda key: key),
    code(compensate, "compensation_key", lambda _key: lambda key: key),
)

_OFFSETS: Final = (
    *in_depth(
        Sabotage(
            name="compensated_twice",
            invariant="I11",
            about="there is at most one living compensation of an effect",
            off=code(compensate, "to_offset", _twice),
            shows=Protocol(name="sabotage.compensated_twice", runs=_STOP, expect=_OFFSET),
        ),
        without_index("calls_one_compensation"),
    ),
    Sabotage(
        name="offset_untold",
        invariant="I11",
        about="the end of a stopped run says of each effect whether it was offset",
        off=code(compensate, "_end", _said_nothing),
        shows=Protocol(name="sabotage.offset_untold", runs=_STOP, expect=_OFFSET),
    ),
    Sabotage(
        name="compensation_under_forward_key",
        invariant="I11",
        about="a compensation has a key of its own, made from that of the effect it offsets",
        off=_FORWARD_KEY,
        shows=Protocol(name="sabotage.compensation_under_forward_key", runs=_STOP, expect=_OFFSET),
    ),
)

_DOUBTED: Final = Protocol(
    name="sabotage.offset_while_in_doubt",
    runs=[Asked(planner="two", input={"contract": "neither"}, deadline_s=30)],
    faults=[Fault(at="dispatch.after_effect", do="crash", nth=2)],
    expect=Expect(
        effects={"neither": 2}, runs=["COMPENSATING"], calls={"first": "SUCCEEDED", "second": "NEEDS_REPAIR"}
    ),
)

_SPARED: Final = (
    Sabotage(
        name="offset_while_in_doubt",
        invariant="I11",
        about="no effect is offset while another call of its run is in doubt or with a person",
        off=code(compensate, "in_the_air", lambda _open: lambda _view: []),
        shows=_DOUBTED,
    ),
    Sabotage(
        name="offset_for_plumbing",
        invariant="I11",
        about="an effect is offset for reasons of the business; a planner that fails after it waits",
        off=code(planning, "waits", lambda _waits: lambda _run, _reason: False),
        shows=Protocol(
            name="sabotage.offset_for_plumbing",
            runs=[Asked(planner="breaks", deadline_s=300)],
            expect=_OFFSET,  # at its deadline
        ),
    ),
)

# -- what the history says ---------------------------------------------------------------------------------


def _uncounted(counts: Made) -> Made:
    def counted(run: Run, old: Call, new: Call, fact: Any) -> dict[str, Any]:
        return {name: value for name, value in counts(run, old, new, fact).items() if name != "attempts"}

    return counted


_TOLD: Final = (
    *in_depth(
        Sabotage(
            name="attempts_uncounted",
            invariant="I13",
            about="what a run has used is counted as it is used",
            off=code(machine, "_counts", _uncounted),
            shows=Protocol(name="sabotage.attempts_uncounted", runs=calls("dedupes"), expect=once("dedupes")),
        ),
        muted("guard_run", "what it has used moves with the events of that"),
    ),
    Sabotage(
        name="body_unhashed",
        invariant="I6",
        about="the chain covers what each event says",
        off=code(fold, "body_digest", lambda digest: lambda _text: digest("")),
        shows=Protocol(name="sabotage.body_unhashed", runs=calls("dedupes"), expect=once("dedupes")),
    ),
    Sabotage(
        name="projection_unhashed",
        invariant="I6.replay",
        about="each change records the hash of what it led to, and a replay must come to the same",
        off=code(folding, "projection_hash", lambda _hash: lambda _run: "0" * 64),
        shows=Protocol(name="sabotage.projection_unhashed", runs=calls("dedupes"), expect=once("dedupes")),
    ),
)

# -- whose turn it is --------------------------------------------------------------------------------------


def _nobody_missed(_missing: Made) -> Made:
    return lambda *_given: ([], None)


SWEEP_OFF: Final = code(sweep, "missing", _nobody_missed)
_SHARED: Final = {"contract": "dedupes", "reference": "shared"}

_TURNS: Final = (
    Sabotage(
        name="waiters_not_woken",
        invariant=EXPECTATION,
        about="whoever waits for a key goes on as soon as it is settled; without that a run only ends at "
        "its deadline",
        off=code(write, "WAKE", lambda wake: wake.replace("k.waits", "NOT k.waits")),
        shows=Protocol(
            name="sabotage.waiters_not_woken",
            runs=[Asked(input=_SHARED), Asked(input=_SHARED, run_key="another")],
            faults=[Fault(at="dispatch.after_effect", do="pause", for_s=2)],
            expect=Expect(effects={"dedupes": 1}, runs=["COMPLETED", "COMPLETED"]),
        ),
    ),
)

RUNS: Final = (*_ENDS, *_OFFSETS, *_SPARED, *_TOLD, *_TURNS)
