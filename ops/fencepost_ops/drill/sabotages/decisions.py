"""Defences in what is decided of a call: what may be sent, sent again, believed and ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from fencepost import commands as c
from fencepost import deadlines, operations, recovery
from fencepost.contracts import Effect
from fencepost.decide import dispatch, reconcile
from fencepost.decide.fold import Fold
from fencepost.doubts import Decision, Facts, Repeat
from fencepost.ledger import folding
from fencepost.outcomes import Outcome, Refused, Unsure
from fencepost.records import amended
from fencepost.states import CallState
from fencepost.subjects import Call, View
from fencepost_ops.drill.protocol import Asked, Expect, Fault, Fleet, Limits, Protocol
from fencepost_ops.drill.sabotages.switch import Sabotage, code, entry, in_depth, muted
from fencepost_ops.drill.shipped import shipped_protocol
from fencepost_workers import attempts

Made = Callable[..., Any]


def calls(contract: str, **more: Any) -> list[Asked]:
    """One run of one call, of a tool of this class of contract."""
    return [Asked(input={"contract": contract}, **more)]


def once(contract: str) -> Expect:
    """It ends well, and its effect happened once."""
    return Expect(effects={contract: 1}, runs=["COMPLETED"], calls={"first": "SUCCEEDED"})


# -- what is sent again ------------------------------------------------------------------------------------


def _blind(recover: Made) -> Made:
    def blind(facts: Facts) -> Decision:
        room = facts.attempts < facts.max_attempts and facts.now < facts.reconcile_until
        acts = facts.run == ("COMPENSATING" if facts.is_compensation else "ACTING")
        if facts.effect is not Effect.READ and room and acts:
            return Repeat()
        return recover(facts)  # type: ignore[no-any-return]

    return blind


def _unasked_takeover(recover: Made) -> Made:
    blind = _blind(recover)
    return lambda facts: (blind if facts.taken_over and facts.has_lookup else recover)(facts)


def _unlimited(facts: Made) -> Made:
    return lambda *given: replace(facts(*given), max_attempts=99)


def _key_of_its_own(send: Made) -> Made:
    def made(call: Call, principal: str, attempt: int, key: str | None, *more: Any) -> Any:
        return send(call, principal, attempt, f"{key}-{attempt}", *more)

    return made


_SENT_AGAIN: Final = (
    Sabotage(
        name="blind_retry",
        invariant="I1",
        about="an unknown outcome is looked into before anything is sent again; without that it is sent "
        "again at once, and happens twice wherever the downstream does not deduplicate",
        off=code(recovery, "recover", _blind),
        shows=Protocol(
            name="sabotage.blind_retry",
            runs=calls("lookup"),
            faults=[Fault(at="dispatch.after_effect", do="crash")],
            expect=once("lookup"),
        ),
    ),
    Sabotage(
        name="takeover_unasked",
        invariant="I1",
        about="whoever takes over a lost worker's call asks the downstream first",
        off=code(recovery, "recover", _unasked_takeover),
        shows=Protocol(
            name="sabotage.takeover_unasked",
            runs=calls("eventual"),
            faults=[Fault(at="dispatch.after_effect", do="crash")],
            expect=once("eventual"),
        ),
    ),
    Sabotage(
        name="key_per_attempt",
        invariant="I2",
        about="all attempts of an intent carry one key; with a key of its own an attempt is another intent "
        "to the downstream, and its effect is one that no attempt in the ledger explains",
        off=code(dispatch, "Send", _key_of_its_own),
        shows=Protocol(
            name="sabotage.key_per_attempt",
            runs=calls("dedupes"),
            faults=[Fault(at="dispatch.response_lost", do="lost")],
            expect=once("dedupes"),
        ),
    ),
    Sabotage(
        name="attempts_unlimited",
        invariant="I9",
        about="a call is repeated at most as often as its dependency allows",
        off=code(reconcile, "facts", _unlimited),
        shows=Protocol(
            name="sabotage.attempts_unlimited",
            runs=calls("dedupes"),
            limits=Limits(attempts=2),
            faults=[Fault(at="dispatch.response_lost", do="lost", nth=n) for n in (1, 2)],
            expect=Expect(effects={"dedupes": 1}, calls={"first": "NEEDS_REPAIR"}, waiting=1),
        ),
    ),
    Sabotage(
        name="budget_unlocked",
        invariant="I9",
        about="an attempt is made only if the run's budget has one left",
        off=code(dispatch, "exhausted", lambda _exhausted: lambda *_given, **_named: None),
        shows=Protocol(
            name="sabotage.budget_unlocked",
            runs=calls("dedupes", attempts=1),
            faults=[Fault(at="dispatch.before_wire", do="error")],
            expect=Expect(effects={"dedupes": 0}, runs=["STOPPED"], dispatches=0),
        ),
    ),
)

# -- what is believed --------------------------------------------------------------------------------------


def _as_answered(classify: Made) -> Made:
    def judged(*given: Any, **named: Any) -> Outcome:
        outcome: Outcome = classify(*given, **named)
        if isinstance(outcome, Unsure):
            return Refused(outcome.code, outcome.message, retryable=False)
        return outcome

    return judged


def _lost_is_failed(_take_over: Made) -> Made:
    def failed(fold: Fold, call: Call, tool: Any, rand: float) -> None:
        lost = Refused("worker_lost", "its worker was lost, so it has failed", retryable=True)
        dispatch.refused(fold, call, tool, lost, rand)

    return failed


def _doubt_forgotten(refused: Made) -> Made:
    return lambda fold, call, *more, **named: refused(fold, amended(call, doubt=False), *more, **named)


_BELIEVED: Final = (
    Sabotage(
        name="absence_at_once",
        invariant="I1",
        about="that a lookup finds nothing counts once nothing sent can still land or be invisible",
        off=code(
            recovery, "_absence_believable_from", lambda _from: lambda facts: facts.now - timedelta(days=1)
        ),
        shows=Protocol(
            name="sabotage.absence_at_once",
            runs=calls("eventual"),
            faults=[Fault(at="dispatch.response_lost", do="lost")],
            expect=once("eventual"),
        ),
    ),
    Sabotage(
        name="settle_ignored",
        invariant="I1",
        about="after an attempt's deadline its request may still land for as long as the contract says",
        off=code(recovery, "quiet_at", lambda _quiet_at: lambda until, _settle: until),
        shows=Protocol(
            name="sabotage.settle_ignored",
            runs=calls("lookup"),
            faults=[Fault(at="dispatch.before_wire", do="delay", for_s=6)],
            expect=once("lookup"),
        ),
    ),
    Sabotage(
        name="timeout_is_failed",
        invariant="I1",
        about="a lost answer proves nothing: FAILED means proof that there was no effect",
        off=code(attempts, "classify", _as_answered),
        shows=Protocol(
            name="sabotage.timeout_is_failed",
            runs=calls("dedupes"),
            faults=[Fault(at="dispatch.response_lost", do="lost")],
            expect=once("dedupes"),
        ),
    ),
    *in_depth(
        Sabotage(
            name="lost_is_failed",
            invariant="I1",
            about="an attempt whose worker was lost is unknown, not failed",
            off=code(reconcile, "_take_over", _lost_is_failed),
            shows=Protocol(
                name="sabotage.lost_is_failed",
                runs=calls("lookup"),
                faults=[Fault(at="dispatch.after_effect", do="crash")],
                expect=once("lookup"),
            ),
        ),
        muted("guard_call", "an attempt is made again only after one that is known to have failed"),
    ),
    *in_depth(
        Sabotage(
            name="doubt_forgotten",
            invariant="I4",
            about="no later failure clears the doubt an earlier attempt has left",
            off=code(dispatch, "refused", _doubt_forgotten),
            shows=Protocol(
                name="sabotage.doubt_forgotten",
                runs=calls("dedupes"),
                limits=Limits(attempts=2),
                faults=[
                    Fault(at="dispatch.response_lost", do="lost"),
                    Fault(at="dispatch.before_wire", do="error", nth=2),
                ],
                expect=Expect(effects={"dedupes": 1}, calls={"first": "NEEDS_REPAIR"}, waiting=1),
            ),
        ),
        muted("guard_call", "only by a proof of its own, written in this change"),
    ),
)

# -- whether it may be sent, and for how long --------------------------------------------------------------


def _without_deadline(claim_call: Made) -> Made:
    def claimed(fold: Fold, command: c.ClaimCall) -> c.Answer:
        until: datetime = fold.run.deadline
        fold.view = View(amended(fold.run, deadline=until + timedelta(days=1)), fold.view.calls)
        answer: c.Answer = claim_call(fold, command)
        fold.view = View(amended(fold.run, deadline=until), fold.view.calls)
        return answer

    return claimed


def _without_reserve(_timeout: Made) -> Made:
    return lambda cap, until, now, _reserve: min(cap, until - now)


_ALLOWED: Final = (
    *in_depth(
        Sabotage(
            name="expired_run_dispatched",
            invariant="I3",
            about="nothing is sent for a run whose deadline has passed",
            off=entry(folding._DECIDE, c.ClaimCall, _without_deadline),  # noqa: SLF001 - what is switched off
            shows=Protocol(
                name="sabotage.expired_run_dispatched",
                runs=calls("dedupes", deadline_s=30),
                fleet=Fleet(dispatcher=1),
                faults=[Fault(at="dispatch.after_lease", do="pause", for_s=29.997)],
                expect=Expect(effects={"dedupes": 0}, runs=["STOPPED"], dispatches=0),
            ),
        ),
        muted("guard_call", "and sends nothing"),
    ),
    Sabotage(
        name="reserve_ignored",
        invariant="I10",
        about="an attempt ends before its run's deadline less what is kept back for recovery",
        off=code(deadlines, "attempt_timeout", _without_reserve),
        shows=Protocol(
            name="sabotage.reserve_ignored", runs=calls("dedupes", deadline_s=6), expect=once("dedupes")
        ),
    ),
)

# -- who may record it -------------------------------------------------------------------------------------


def _anybody_records(record: Made) -> Made:
    def recorded(fold: Fold, command: c.RecordOutcome) -> c.Answer:
        call = fold.view.calls.get(command.call)
        if call is None or call.state not in (CallState.DISPATCHING, CallState.UNKNOWN):
            return record(fold, command)  # type: ignore[no-any-return]
        owner = call.owner or command.term.owner
        held = amended(call, owner=owner, state=CallState.DISPATCHING, attempts=command.attempt)
        fold.view = View(fold.run, {**fold.view.calls, call.id: held})
        term = c.Term(owner, call.fence)
        return record(fold, replace(command, term=term))  # type: ignore[no-any-return]

    return recorded


_RECORDED: Final = (
    *in_depth(
        Sabotage(
            name="stale_record",
            invariant="I5",
            about="an outcome is recorded only under the term that Postgres has accepted last",
            off=entry(folding._DECIDE, c.RecordOutcome, _anybody_records),  # noqa: SLF001 - see above
            shows=Protocol(
                name="sabotage.stale_record",
                runs=calls("dedupes"),
                faults=[Fault(at="dispatch.after_effect", do="pause")],
                expect=once("dedupes"),
            ),
        ),
        muted("guard_call", "is not the accepted one", "only by a proof of its own, written in this change"),
    ),
)

_TAKEN: Final = in_depth(
    Sabotage(
        name="result_of_another_request",
        invariant="I1",
        about="the result of a completed key is taken only by what would ask for the same; else a call "
        "SUCCEEDED by the effect of another request",
        off=code(
            operations, "_completed", lambda _judge: lambda _held, _meaning: (operations.Rule.REUSE, "")
        ),
        shows=shipped_protocol("same_key_other_request"),
    ),
    muted("guard_call", "there is no such result to reuse"),
)

DECISIONS: Final = (*_SENT_AGAIN, *_BELIEVED, *_ALLOWED, *_RECORDED, *_TAKEN)
