"""What each invariant asks of one run's history, event by event and at its end (I4 to I9, I11).

`RULES` holds those of I3, I4's doubts, I10 and I13 too: they are in `dispatches`, `proofs` and `spending`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from fencepost.states import CallState, RunStatus
from fencepost_ops.checker import dispatches, proofs, spending
from fencepost_ops.checker.facts import EventRow
from fencepost_ops.checker.report import Violation, at
from fencepost_ops.checker.story import ENDED, OUTCOMES, CallStory, RunStory

C, R = CallState, RunStatus

_OFFICES_AFTER_END = frozenset(
    {
        "EvidenceFiled",
        "ToolEffectReconciled",
        "ChildRunSettled",
        "RepairRequested",
        "RepairProposed",
        "RepairDecided",
    }
)
_ASKING = frozenset({"LeaseAcquired", "ToolLookupRecorded", "ReconciliationDeferred"})
"""How a call that a person sent back to be asked about is reconciled: bookkeeping, no effect."""
_AFTER_CALL_END = frozenset({"EvidenceFiled", "RepairRequested"})
_HOLDERS = OUTCOMES | {
    "ToolAttemptStarted",
    "ToolLookupRecorded",
    "ReconciliationDeferred",
    "ToolEffectReconciled",
    "ChildRunStarted",
    "ChildRunSettled",
}
_RUN_HOLDERS = frozenset({"ModelRequestStarted", "ModelResponseRecorded", "RunCompleted"})
_NEVER_FIRST = _RUN_HOLDERS | {
    "ToolProposalRecorded",
    "ArgumentsCanonicalized",
    "AuthorizationAllowed",
    "DispatchIntentRecorded",
    "ToolAttemptStarted",
    "ToolResultRecorded",
    "ToolLookupRecorded",
    "ToolEffectReconciled",
    "ChildRunStarted",
    "ChildRunSettled",
    "CompensationRequested",
    "RunStopped",
}
"""What no term begins with: it had acquired its lease before, or was the run's or another call's."""


def _restored(event: EventRow, body: dict[str, Any]) -> bool:
    """Whether it is a doubt that an operator marked after the ledger was restored: of no term, mostly of no
    attempt.
    """
    marked = event.type == "ToolOutcomeMarkedUnknown" and event.worker is None
    return marked and body.get("code") == "ledger_restored" and isinstance(body.get("epoch"), int)


# -- event by event: the story is as it was before the event -----------------------------------------------


def fences(story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
    """I5: a fence never falls, and what a holder records it records under the last term acquired."""
    subject = story if event.call is None else story.calls.get(event.call)
    if subject is None:
        return
    fence, accepted = body.get("fence"), subject.fence
    if isinstance(fence, int):
        if (
            event.type == "LeaseAcquired"
            and fence <= accepted
            and (body.get("owner"), fence) != subject.lease
        ):
            yield at(event, f"fence {fence} was accepted although {accepted} had been accepted before")
        elif fence < accepted:
            yield at(event, f"the fence fell from {accepted} to {fence}")
    holder = event.type in (_RUN_HOLDERS if event.call is None else _HOLDERS)
    if holder and not _restored(event, body) and (event.worker, event.fence) != subject.lease:
        owner, held = subject.lease or (None, None)
        yield at(
            event, f"recorded under fence {event.fence} of {event.worker}; fence {held} of {owner} holds it"
        )
    if event.type == "EvidenceFiled" and isinstance(subject, CallStory):
        yield from _evidence(subject, event)


def holders(story: RunStory, event: EventRow, _body: dict[str, Any]) -> Iterator[Violation]:
    """I5 for the event itself: whatever a worker records, it records under the last term of the run or of one
    of its calls; what an old term's evidence contradicts, under that. A claim that is given back or refused
    acquires no lease: its term is known only to be newer than its subject's last.
    """
    if event.worker is None or event.type == "EvidenceFiled" or story.holds(event):
        return
    subject = story.subject(event) or story
    last = max(subject.fence, (subject.term or (None, 0))[1] or 0)
    made = subject.attempts.values() if isinstance(subject, CallStory) else ()
    witness = event.type == "RepairRequested" and any(
        (a.started.worker, a.started.fence) == (event.worker, event.fence) for a in made
    )
    newer = (event.fence or 0) > last and event.type not in _NEVER_FIRST
    if not (newer or witness):
        yield at(
            event, f"recorded under fence {event.fence} of {event.worker}, which held no term of this run"
        )


def _evidence(call: CallStory, event: EventRow) -> Iterator[Violation]:
    made = call.attempts.get(event.attempt or 0)
    if made is None or (made.started.worker, made.started.fence) != (event.worker, event.fence):
        yield at(event, f"evidence of attempt {event.attempt} from a term that did not make it")


def completion(story: RunStory, event: EventRow, _body: dict[str, Any]) -> Iterator[Violation]:
    """I7: at RunCompleted nothing is open and nothing is in doubt."""
    for call in story.calls.values():
        if call.state not in ENDED or call.doubt:
            how = f"{call.state}{', in doubt' if call.doubt else ''}"
            yield _of(call, at(event, f"the run completed while {call.named} was {how}"))


def after_end(story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
    """I8: after a run's end, and after a call's, only what the tables of states allow."""
    call = story.calls.get(event.call) if event.call is not None else None
    if story.ended is not None:
        # A stopped run is reopened by a person; a call is asked about again only after a person sent it back.
        again = event.type in _ASKING or _restored(event, body)
        asked = call is not None and call.state == C.UNKNOWN and again
        reopened = event.type == "RepairDecided" and story.status == R.STOPPED
        allowed = reopened if call is None else event.type in _OFFICES_AFTER_END or asked
        if not allowed:
            yield at(event, f"it came after the run had ended with event {story.ended}")
            return
    # On an effect that a stopped run did not offset a person has a word: again, or left.
    word = event.type == "RepairDecided" and ("offset" in body or "release" in body)
    found = event.type == "RepairDecided" and call is not None and call.state == C.ACCEPTED_UNKNOWN
    word = word or (found and body.get("to") == C.SUCCEEDED)
    if call is not None and call.state in ENDED and event.type not in _AFTER_CALL_END and not word:
        yield at(event, f"{call.named} had already ended {call.state}")


def started(story: RunStory, event: EventRow, _body: dict[str, Any]) -> Iterator[Violation]:
    """I9: the run's budget of attempts. A repeat is reconciliation and bound by its own deadline instead."""
    call = story.calls.get(event.call) if event.call is not None else None
    if call is None or call.doubt or call.compensates:
        return
    made = story.attempts + story.beneath("attempts")
    if made >= (may := story.budgets.attempts):
        yield at(event, f"attempt {made + 1} of a run whose budget is {may} attempts")


def authority(story: RunStory, event: EventRow, _body: dict[str, Any]) -> Iterator[Violation]:
    """I11: each attempt of a compensation is authorised for itself."""
    call = story.calls.get(event.call) if event.call is not None else None
    if call is not None and call.compensates and call.allowed != event.causation:
        yield at(event, f"compensation {call.named} was sent without an authority of its own")


def offsets(story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
    """I11: a compensation is planned only of an effect of its own run that is known to have happened; and,
    unless its run or a person says otherwise, for a reason of the business and while nothing is in doubt.
    """
    key = body.get("compensates")
    if key is None:
        return
    forward = next((c for c in story.calls.values() if c.operation == key and c.own_effect), None)
    if forward is None:
        yield at(
            event, "it was planned to offset what had not succeeded in this run", key=body.get("operation")
        )
        return
    if story.on_stop == "compensate_at_once" or forward.offset_asked or forward.repaired_by is not None:
        return
    if story.stopped_for in _PLUMBING:
        why = f"{forward.named} was to be offset because of {story.stopped_for}, which says nothing of it"
        yield at(event, why, key=body.get("operation"))
    for call in story.calls.values():
        if call.state in _IN_THE_AIR and not call.compensates:
            why = f"{forward.named} was to be offset while {call.named} was {call.state}"
            yield at(event, why, key=body.get("operation"))


_PLUMBING = frozenset({"planner_failed"})
_IN_THE_AIR = frozenset({C.DISPATCHING, C.UNKNOWN, C.NEEDS_REPAIR})


def listed(story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
    """I11: the end of a stopped run says of every effect whether it was offset, and says it truly."""
    if story.on_stop not in {"compensate", "compensate_at_once"}:
        return
    offset = set(body.get("offset") or ())
    left = {entry.get("call") for entry in body.get("not_offset") or ()}
    for call in story.calls.values():
        if not call.own_effect:
            continue
        done = any(c.state == C.SUCCEEDED for c in story.compensation_of(call))
        if str(call.id) not in offset | left:
            yield _of(call, at(event, f"the end does not say whether {call.named} was offset"))
        elif (str(call.id) in offset) != done:
            said = "offset" if str(call.id) in offset else "not offset"
            yield _of(call, at(event, f"{call.named} is listed as {said}, which is not so"))


def stray_outcomes(story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
    """I4: what became of an attempt is recorded only of one that was started."""
    call = story.calls.get(event.call) if event.call is not None else None
    nobody_s = event.attempt is None and _restored(event, body)  # of one that was lost, if of any
    if call is not None and event.attempt not in call.attempts and not nobody_s:
        yield at(event, f"an outcome of attempt {event.attempt} of {call.named}, which was never started")


Rule = Callable[[RunStory, EventRow, dict[str, Any]], Iterator[Violation]]
_STARTED = frozenset({"ToolAttemptStarted"})
_LEAVES_DOUBT = frozenset({"CallCancelled", "ResultReused", "DispatchIntentRecorded"}) | proofs.PROOFS
_USES = frozenset({"ModelRequestStarted", "ToolProposalRecorded", "ChildRunStarted"}) | _STARTED
RULES: tuple[tuple[str, Rule, frozenset[str] | None], ...] = (
    ("I3", dispatches.dispatched, _STARTED),
    ("I4", proofs.doubts, _LEAVES_DOUBT),
    ("I4", stray_outcomes, OUTCOMES),
    ("I5", fences, None),
    ("I5", holders, None),
    ("I7", completion, frozenset({"RunCompleted"})),
    ("I8", after_end, None),
    ("I9", started, _STARTED),
    ("I10", dispatches.outlives, _STARTED),
    ("I11", authority, _STARTED),
    ("I11", offsets, frozenset({"ToolProposalRecorded"})),
    ("I11", listed, frozenset({"RunStopped"})),
    ("I13", spending.spent, _USES),
)
"""What is asked of events, by the invariant it belongs to, and of which types; None: of all."""


@cache
def rules_for(kind: str) -> tuple[tuple[str, Rule], ...]:
    """The rules that events of this type are held against."""
    return tuple((invariant, rule) for invariant, rule, of in RULES if of is None or kind in of)


# -- at the end of the history ------------------------------------------------------------------------------


def attempts(key: tuple[str, Any], story: RunStory) -> Iterator[Violation]:
    """I4: each attempt has one outcome; the last may still be in flight under its term."""
    tenant, run = key
    for call in story.calls.values():
        numbers = sorted(call.attempts)
        if numbers != list(range(1, len(numbers) + 1)):
            yield Violation(f"{call.named}: its attempts are numbered {numbers}", tenant, run, call.id)
        for number, attempt in call.attempts.items():
            in_flight = number == numbers[-1] and call.state == C.DISPATCHING
            names = [e.type for e in attempt.outcomes]
            if len(names) > 1 or not (names or in_flight):
                what = f"has {len(names)} outcomes: {', '.join(names)}" if names else "has no outcome"
                text = f"{call.named}: attempt {number} {what}, and the call is {call.state}"
                yield Violation(text, tenant, run, call.id, number, attempt.started.seq)


def _of(call: CallStory, violation: Violation) -> Violation:
    return Violation(
        violation.message, violation.tenant, violation.run, call.id, None, violation.event, call.operation
    )
