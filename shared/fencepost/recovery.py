"""What to do with a call whose outcome is unknown: one pure function, `recover`.

The order is fixed, and the first rule that has an answer gives it:

1. claims that contradict each other go to a person;
2. proof of the effect, from evidence or a lookup, ends the call well;
3. evidence that every single attempt had no effect settles it: tried again where the last refusal may pass,
   else it ends badly; one attempt's evidence says nothing about the others;
4. a read is repeated, or fails without harm;
5. a lookup: absence counts only for the instant it was asked, and only once nothing sent before can still
   land or still be invisible; then the call is repeated or fails. Until then: wait, and ask again. One that
   the engine refuses to put is asked once;
6. a downstream that dedupes is sent the same request under the same key, well inside its window;
7. a natural tool is repeated when everything sent is quiet, if no later call has set its resource since;
8. everything else goes to a person.

Nothing here turns doubt into success or failure without a proof, and nothing is repeated past the call's
reconciliation deadline, beyond its attempts, or when its run may not act. Whoever acts on a decision takes it
again under the locks, because facts may have changed since.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from fencepost.contracts import AfterTakeover, Dedupes, Effect, Natural
from fencepost.deadlines import backoff, plus, quiet_at
from fencepost.doubts import (
    Answer,
    Ask,
    Decision,
    Evidence,
    Facts,
    Fail,
    LookupAnswer,
    Repair,
    Repeat,
    Succeed,
    Wait,
)

__all__ = [
    "Answer",
    "Ask",
    "Decision",
    "Evidence",
    "Facts",
    "Fail",
    "LookupAnswer",
    "Repair",
    "Repeat",
    "Succeed",
    "Wait",
    "recover",
]

_LEAST_PAUSE = timedelta(milliseconds=50)
_TICK = timedelta(microseconds=1)  # the ledger's resolution: the first instant strictly after another


@dataclass(frozen=True, slots=True)
class _Claims:
    """Evidence and lookup, sorted by what they say."""

    receipts: list[str]
    results: list[str]
    applied: set[int]
    not_applied: set[int]
    found: bool
    every_attempt_negative: bool

    @property
    def positive(self) -> bool:
        return bool(self.applied) or self.found


def recover(facts: Facts) -> Decision:
    """The one decision these facts allow; total, and a function of the facts alone."""
    for rule in _RULES:
        if (decision := rule(facts)) is not None:
            return decision
    return Repair(_why_nobody_else(facts))


def _claims(facts: Facts) -> _Claims:
    known = [item for item in facts.evidence if 1 <= item.attempt <= facts.attempts]
    found = facts.lookup is not None and facts.lookup.answer is Answer.FOUND
    positive: list[Evidence | LookupAnswer] = [item for item in known if item.applied]
    if facts.lookup is not None and found:
        positive.append(facts.lookup)
    not_applied = {item.attempt for item in known if not item.applied and not item.late}
    return _Claims(
        receipts=[item.receipt for item in positive if item.receipt is not None],
        results=[item.result for item in positive if item.result is not None],
        applied={item.attempt for item in known if item.applied},
        not_applied=not_applied,
        found=found,
        every_attempt_negative=0 < facts.attempts == len(not_applied) and not facts.restored,
    )


def _contradiction(facts: Facts) -> Decision | None:
    if facts.effect is Effect.READ:
        return None  # nothing is at stake that a person would have to weigh
    claims = _claims(facts)
    if facts.lookup is not None and facts.lookup.answer is Answer.FOUND_OTHER:
        return Repair("the downstream knows the key for another request")
    if len(set(claims.receipts)) > 1:
        return Repair(f"two receipts are claimed: {', '.join(sorted(set(claims.receipts)))}")
    if both := claims.applied & claims.not_applied:
        return Repair(f"attempt {min(both)} is said to have been applied and not applied")
    if claims.positive and claims.every_attempt_negative:
        return Repair("the effect was found, yet every attempt is said not to have been applied")
    if claims.positive and _absence_proved(facts):
        return Repair("an attempt is said to have been applied, yet the lookup proved the key absent")
    return None


def _proved_effect(facts: Facts) -> Decision | None:
    claims = _claims(facts)
    if not claims.positive:
        return None
    proof = "the lookup found it with the same arguments"
    if claims.applied:
        proof = f"evidence of attempt {min(claims.applied)}"
    return Succeed(next(iter(claims.receipts), None), next(iter(claims.results), None), proof)


def _proved_no_effect(facts: Facts) -> Decision | None:
    """Nothing was ever applied: one more attempt is as safe as the first, where its refusal may pass."""
    if not _claims(facts).every_attempt_negative:
        return None
    last = [item for item in facts.evidence if item.attempt == facts.attempts]
    if all(item.retryable for item in last) and _may_act(facts):
        return Repeat()
    return Fail("every attempt proved not applied")


def _read(facts: Facts) -> Decision | None:
    if facts.effect is not Effect.READ:
        return None
    return Repeat() if _may_act(facts) else Fail("a read has no effect")


def _lookup(facts: Facts) -> Decision | None:
    answer = facts.lookup
    if answer is None:
        return _ask(facts)
    if answer.answer is Answer.UNCLEAR:
        return _ask_later(facts, answer)
    if answer.answer is Answer.NOT_ASKED:
        return None
    if _absence_proved(facts):
        return Repeat() if _repeat_after_absence(facts) else Fail("the lookup proved the key absent")
    proof_from = _absence_provable_from(facts)
    if proof_from is None or answer.asked_at >= proof_from or _past(facts):
        return None
    return Ask() if facts.now >= proof_from else Wait(proof_from, "an absence proves nothing yet")


def _ask(facts: Facts) -> Decision | None:
    # Past the deadline one question may still spare a person the work, if none was asked before.
    return Ask() if facts.has_lookup and (facts.asks == 0 or not _past(facts)) else None


def _ask_later(facts: Facts, unclear: LookupAnswer) -> Decision:
    if _past(facts):
        return Repair("the lookup stayed unclear until the reconciliation deadline")
    # Full jitter may be no pause at all; a downstream is never asked in a loop without one.
    pause = max(
        _LEAST_PAUSE,
        facts.backoff_base,
        backoff(facts.asks, facts.backoff_base, facts.backoff_cap, facts.rand),
    )
    until = min(plus(unclear.asked_at, pause), facts.reconcile_until)
    return Wait(until, "the lookup was unclear") if until > facts.now else Ask()


def _absence_believable_from(facts: Facts) -> datetime | None:
    """The first instant at which an absent answer can be the truth for good; None: never.

    What was sent may land until `settle` after the last deadline, and stay invisible for `lag` after that. Of
    what left late nobody knows when it lands.
    """
    if any(item.late for item in facts.evidence):
        return None
    lookup, settle = facts.contract.lookup, facts.contract.settle
    if lookup is None or lookup.delay is None or settle is None:
        return None
    return plus(plus(quiet_at(facts.in_flight_until, settle), lookup.delay), _TICK)


def _within_horizon(facts: Facts, asked_at: datetime) -> bool:
    """Whether an effect of the very first attempt could still be found at `asked_at`."""
    horizon = None if facts.contract.lookup is None else facts.contract.lookup.horizon
    if horizon is None:
        return True
    if facts.first_sent_at is None:
        return False
    return plus(asked_at, facts.margin) < plus(facts.first_sent_at, horizon)


def _absence_proved(facts: Facts) -> bool:
    answer, believable = facts.lookup, _absence_believable_from(facts)
    if answer is None or answer.answer is not Answer.ABSENT or believable is None:
        return False
    return answer.asked_at >= believable and _within_horizon(facts, answer.asked_at)


def _absence_provable_from(facts: Facts) -> datetime | None:
    """From when on a question can prove absence; None where none can before the reconciliation deadline."""
    instant = _absence_believable_from(facts)
    if instant is None or instant >= facts.reconcile_until or not _within_horizon(facts, instant):
        return None
    return instant


def _repeat_after_absence(facts: Facts) -> bool:
    # A stopping run gains nothing from a new effect where the old one is known not to exist.
    # What this ledger never sent and a restore left in doubt is then as unsent as it says.
    return _may_act(facts) and (facts.attempts == 0 or not _lost_for_good(facts))


def _by_key(facts: Facts) -> Decision | None:
    if not _key_repeats(facts) or not _may_act(facts, stopping=True) or _lost_for_good(facts):
        return None
    if not _window_open(facts, facts.now):
        return None
    quiet = plus(facts.in_flight_until, facts.contract.settle or timedelta(0))
    lost_may_land = facts.taken_over and facts.now < quiet
    if lost_may_land and quiet < facts.reconcile_until and _window_open(facts, quiet):
        return Wait(quiet, "the lost attempt may still land")
    return Repeat()


def _key_repeats(facts: Facts) -> bool:
    return facts.contract.repeats_by_key_if(compares=facts.compares)


def _window_open(facts: Facts, at: datetime) -> bool:
    """Whether all that was sent and a repeat sent at `at` land while the key is still remembered."""
    repeat = facts.contract.repeat
    if not isinstance(repeat, Dedupes) or facts.first_sent_at is None:
        return False
    last_deadline = max(plus(at, facts.per_attempt), facts.in_flight_until)
    landed = plus(last_deadline, facts.contract.settle or timedelta(0))
    return plus(landed, facts.margin) < plus(facts.first_sent_at, repeat.window)


def _natural(facts: Facts) -> Decision | None:
    repeat, settle = facts.contract.repeat, facts.contract.settle
    if not isinstance(repeat, Natural) or repeat.resource is None or not facts.resource_locked:
        return None
    if settle is None or not _may_act(facts) or _lost_for_good(facts):
        return None
    quiet = plus(quiet_at(facts.in_flight_until, settle), _TICK)
    if facts.now >= quiet:
        return Repeat()
    return Wait(quiet, "what was sent may still land") if quiet < facts.reconcile_until else None


def _patience(facts: Facts) -> Decision | None:
    """No absence can be proved, but an effect that is only not visible yet may still be found."""
    answer, lookup = facts.lookup, facts.contract.lookup
    if answer is None or answer.answer is not Answer.ABSENT or not facts.has_lookup or _past(facts):
        return None
    visible = plus(facts.in_flight_until, ((lookup.delay if lookup else None) or timedelta(0)) + _TICK)
    if answer.asked_at >= visible:
        return None
    until = min(visible, facts.reconcile_until)
    return Wait(until, "an effect may not be visible yet") if until > facts.now else Ask()


def _past(facts: Facts) -> bool:
    return facts.now >= facts.reconcile_until


def _may_act(facts: Facts, *, stopping: bool = False) -> bool:
    """Whether attempts, deadline and run leave room for one more attempt.

    `stopping`: the repeat settles what happened, so a stopping run may make it if the effect can be offset.
    """
    room = facts.attempts < facts.max_attempts and not _past(facts) and not facts.overtaken
    return room and _run_allows(facts, stopping=stopping)


def _run_allows(facts: Facts, *, stopping: bool) -> bool:
    if facts.is_compensation:
        return facts.run == "COMPENSATING"
    return facts.run == "ACTING" or (stopping and facts.run == "STOPPING" and facts.compensable)


def _lost_for_good(facts: Facts) -> bool:
    return facts.taken_over and facts.contract.takeover is AfterTakeover.REPAIR


def _why_nobody_else(facts: Facts) -> str:
    if facts.lookup is not None and facts.lookup.answer is Answer.NOT_ASKED:
        return f"its lookup cannot be asked: {facts.lookup.detail}"
    if _past(facts):
        return "the reconciliation deadline has passed"
    if facts.attempts < 1:
        return "the ledger was restored to an earlier moment; whether it was sent after that is not known"
    if _lost_for_good(facts):
        return "the worker was lost and the contract allows no repeat after that"
    if facts.attempts >= facts.max_attempts:
        return "no attempt is left"
    if facts.overtaken:
        return "a later call has set the same resource since; a repeat would overwrite what it set"
    if not _run_allows(facts, stopping=_key_repeats(facts)):
        return f"a run that is {facts.run} may not repeat this call"
    if _key_repeats(facts):
        return "the downstream may no longer know the key"
    if (why := facts.contract.unrepeated(compares=facts.compares)) is not None:
        return f"the downstream deduplicates, yet {why}"
    return "the contract offers neither a proof of absence nor a safe repeat"


_RULES: tuple[Callable[[Facts], Decision | None], ...] = (
    _contradiction,
    _proved_effect,
    _proved_no_effect,
    _read,
    _lookup,
    _by_key,
    _natural,
    _patience,
)
