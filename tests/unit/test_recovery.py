from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost.contracts import Contract, Dedupes, Effect, FirstFailure, Lookup, Natural
from fencepost.recovery import (
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
    recover,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TICK, SECOND, MINUTE, HOUR = (
    timedelta(microseconds=1),
    timedelta(seconds=1),
    timedelta(minutes=1),
    timedelta(hours=1),
)
STRONG = Lookup(strong=True)
EVENTUAL = Lookup(lag=20 * SECOND, horizon=HOUR)
DEDUPES = Dedupes(window=10 * MINUTE, first_failure=FirstFailure.REPLAYED)
SETTLE = 10 * SECOND


def facts(**changes: Any) -> Facts:
    """Two attempts of at most three, the last one over a minute ago; nine minutes are left to reconcile."""
    base: dict[str, Any] = {
        "now": NOW,
        "effect": Effect.REVERSIBLE,
        "contract": Contract(),
        "attempts": 2,
        "max_attempts": 3,
        "per_attempt": 5 * SECOND,
        "margin": MINUTE,
        "in_flight_until": NOW - MINUTE,
        "first_sent_at": NOW - 2 * MINUTE,
        "reconcile_until": NOW + 9 * MINUTE,
        "run": "ACTING",
    }
    return Facts(**base | changes)


class TestProofs:
    def test_an_absence_or_a_refusal_proves_nothing_of_what_left_late(self) -> None:
        absent = LookupAnswer(Answer.ABSENT, NOW)
        asked = facts(contract=Contract(lookup=STRONG, settle=SETTLE), has_lookup=True, lookup=absent)
        assert isinstance(recover(asked), Repeat)
        late = Evidence(1, applied=False, code="sent_late")
        assert isinstance(recover(replace(asked, evidence=(late,))), Repair)
        refused = Evidence(2, applied=False)
        assert isinstance(recover(facts(evidence=(late, refused))), Repair)

    def test_the_receipt_and_result_come_from_evidence_before_the_lookup(self) -> None:
        answer = LookupAnswer(Answer.FOUND, NOW, receipt="r", result="of lookup")
        told = facts(evidence=(Evidence(2, applied=True, result="of evidence"),), lookup=answer)
        assert recover(told) == Succeed("r", "of evidence", "evidence of attempt 2")

    def test_a_found_effect_needs_no_receipt(self) -> None:
        told = facts(lookup=LookupAnswer(Answer.FOUND, NOW))
        assert recover(told) == Succeed(None, None, "the lookup found it with the same arguments")

    def test_a_found_effect_counts_whenever_it_was_asked(self) -> None:
        told = facts(lookup=LookupAnswer(Answer.FOUND, NOW - HOUR), in_flight_until=NOW + HOUR)
        assert isinstance(recover(told), Succeed)

    @pytest.mark.parametrize("attempt", [-1, 0, 3])
    def test_evidence_of_an_attempt_that_never_was_counts_for_nothing(self, attempt: int) -> None:
        for applied in (True, False):
            stray = (Evidence(attempt, applied=applied), Evidence(1, applied=False))
            assert isinstance(recover(facts(evidence=stray)), Repair)

    def test_without_an_attempt_nothing_is_proved(self) -> None:
        assert recover(facts(attempts=0, first_sent_at=None)) == Repair(
            "the ledger was restored to an earlier moment; whether it was sent after that is not known"
        )

    def test_the_same_no_twice_speaks_for_one_attempt(self) -> None:
        twice = (Evidence(1, applied=False), Evidence(1, applied=False))
        assert isinstance(recover(facts(evidence=twice)), Repair)


class TestAbsence:
    """When an absent answer is a proof: not before anything sent may still land and be seen."""

    LAST = NOW - MINUTE  # the last attempt's deadline

    def decide(self, lookup: Lookup, asked_at: datetime, **changes: Any) -> Decision:
        terms = Contract(lookup=lookup, settle=SETTLE)
        answer = LookupAnswer(Answer.ABSENT, asked_at)
        told = {
            "contract": terms,
            "has_lookup": True,
            "lookup": answer,
            "in_flight_until": self.LAST,
            "now": asked_at,
        }
        return recover(facts(**told | changes))

    def test_a_strong_lookup_is_believed_after_the_settle_time(self) -> None:
        settled = self.LAST + SETTLE
        assert self.decide(STRONG, settled) == Wait(settled + TICK, "an absence proves nothing yet")
        assert self.decide(STRONG, settled + TICK) == Repeat()

    def test_an_eventual_lookup_is_believed_a_lag_after_the_last_moment_of_settling(self) -> None:
        visible = self.LAST + SETTLE + 20 * SECOND
        assert self.decide(EVENTUAL, visible) == Wait(visible + TICK, "an absence proves nothing yet")
        assert self.decide(EVENTUAL, visible + TICK) == Repeat()

    def test_an_old_absence_proves_nothing_however_late_it_is_read(self) -> None:
        assert self.decide(STRONG, self.LAST, now=NOW + MINUTE) == Ask()

    def test_an_absence_asked_before_the_next_attempt_proves_nothing_about_it(self) -> None:
        asked = self.LAST + MINUTE
        assert self.decide(STRONG, asked) == Repeat()
        assert isinstance(self.decide(STRONG, asked, attempts=3, in_flight_until=asked + SECOND), Wait)

    def test_an_absence_is_believed_only_while_the_first_attempt_could_still_be_found(self) -> None:
        # The horizon of an hour ends a margin of a minute early.
        end = NOW - HOUR + MINUTE
        assert self.decide(EVENTUAL, NOW, first_sent_at=end + TICK) == Repeat()
        assert isinstance(self.decide(EVENTUAL, NOW, first_sent_at=end), Repair)
        assert isinstance(self.decide(EVENTUAL, NOW, first_sent_at=None), Repair)
        assert self.decide(STRONG, NOW, first_sent_at=None) == Repeat()

    def test_nobody_waits_for_a_proof_that_comes_after_the_reconciliation_deadline(self) -> None:
        soon = self.LAST + SETTLE + TICK
        early = self.LAST + TICK
        assert isinstance(self.decide(STRONG, early, reconcile_until=soon + TICK), Wait)
        assert isinstance(self.decide(STRONG, early, reconcile_until=soon), Repair)

    def test_a_proved_absence_fails_the_call_where_no_repeat_is_left(self) -> None:
        failed = Fail("the lookup proved the key absent")
        assert self.decide(STRONG, NOW, attempts=3) == failed
        assert self.decide(STRONG, NOW, reconcile_until=NOW) == failed
        assert self.decide(STRONG, NOW, run="STOPPING", compensable=True) == failed

    def test_an_unprovable_absence_is_asked_again_once_the_attempt_is_over(self) -> None:
        told = {
            "lookup": LookupAnswer(Answer.ABSENT, NOW),
            "has_lookup": True,
            "in_flight_until": NOW + MINUTE,
        }
        wait = Wait(NOW + MINUTE + TICK, "an effect may not be visible yet")
        assert recover(facts(**told)) == wait
        assert recover(facts(**told | {"now": wait.until})) == Ask()
        assert recover(facts(**told, reconcile_until=NOW + SECOND)) == replace(wait, until=NOW + SECOND)
        assert isinstance(recover(facts(**told | {"has_lookup": False})), Repair)


class TestAsking:
    def test_the_first_question_is_asked_even_past_the_reconciliation_deadline(self) -> None:
        late = facts(has_lookup=True, reconcile_until=NOW)
        assert recover(late) == Ask()
        assert recover(replace(late, asks=1)) == Repair("the reconciliation deadline has passed")

    @pytest.mark.parametrize(
        ("asks", "rand", "seconds"),
        [(1, 0.0, 0.2), (1, 0.9, 0.2), (2, 0.75, 0.3), (4, 0.5, 0.8), (50, 0.5, 15)],
    )
    def test_an_unclear_answer_is_asked_again_after_a_growing_pause(
        self, asks: int, rand: float, seconds: float
    ) -> None:
        unclear = facts(has_lookup=True, asks=asks, rand=rand, lookup=LookupAnswer(Answer.UNCLEAR, NOW))
        until = NOW + timedelta(seconds=seconds)
        assert recover(unclear) == Wait(until, "the lookup was unclear")
        assert recover(replace(unclear, now=until)) == Ask()

    def test_an_unclear_lookup_goes_to_a_person_at_the_reconciliation_deadline(self) -> None:
        unclear = facts(has_lookup=True, asks=9, lookup=LookupAnswer(Answer.UNCLEAR, NOW))
        assert recover(replace(unclear, reconcile_until=NOW + TICK)) == Wait(
            NOW + TICK, "the lookup was unclear"
        )
        late = recover(replace(unclear, reconcile_until=NOW))
        assert late == Repair("the lookup stayed unclear until the reconciliation deadline")

    def test_a_lookup_that_the_engine_refuses_is_asked_once(self) -> None:
        told = LookupAnswer(Answer.NOT_ASKED, NOW, detail="path '/a?b' must hold no '?'")
        refused = facts(has_lookup=True, asks=1, lookup=told)
        assert recover(refused) == Repair("its lookup cannot be asked: path '/a?b' must hold no '?'")
        asking = Contract(lookup=Lookup(strong=True), settle=SETTLE)
        early = replace(refused, contract=asking, in_flight_until=NOW + MINUTE)
        assert recover(early) == recover(refused), "there is no later question to wait for"
        keyed = replace(refused, contract=Contract(repeat=DEDUPES, settle=SETTLE))
        assert recover(keyed) == Repeat()


class TestRepeats:
    DEDUPING = Contract(repeat=DEDUPES, settle=SETTLE)

    def test_a_repeat_lands_a_margin_inside_the_window(self) -> None:
        # 5 s to answer + 10 s to settle + 1 min margin before the end of 10 min.
        last = NOW - 10 * MINUTE + 5 * SECOND + SETTLE + MINUTE
        assert recover(facts(contract=self.DEDUPING, first_sent_at=last + TICK)) == Repeat()
        over = Repair("the downstream may no longer know the key")
        assert recover(facts(contract=self.DEDUPING, first_sent_at=last)) == over
        assert recover(facts(contract=self.DEDUPING, first_sent_at=None)) == over

    def test_a_request_still_under_way_must_also_land_inside_the_window(self) -> None:
        last = NOW - 10 * MINUTE + 30 * SECOND + SETTLE + MINUTE
        under_way = facts(
            contract=self.DEDUPING, in_flight_until=NOW + 30 * SECOND, first_sent_at=last + TICK
        )
        assert recover(under_way) == Repeat()
        assert isinstance(recover(replace(under_way, first_sent_at=last)), Repair)

    def test_a_window_counted_from_completion_is_counted_from_the_first_send_while_in_doubt(self) -> None:
        terms = replace(self.DEDUPING, repeat=replace(DEDUPES, starts="completion"))
        assert isinstance(recover(facts(contract=terms, first_sent_at=NOW - 20 * MINUTE)), Repair)

    def test_an_undocumented_settle_time_counts_as_zero_for_the_window(self) -> None:
        last = NOW - 10 * MINUTE + 5 * SECOND + MINUTE
        assert recover(facts(contract=Contract(repeat=DEDUPES), first_sent_at=last + TICK)) == Repeat()

    def test_a_lost_request_is_given_its_time_to_land_before_the_repeat(self) -> None:
        lost = facts(contract=self.DEDUPING, taken_over=True, in_flight_until=NOW + SECOND)
        wait = Wait(NOW + 11 * SECOND, "the lost attempt may still land")
        assert recover(lost) == wait
        assert recover(replace(lost, now=wait.until)) == Repeat()

    def test_a_lost_request_is_not_waited_for_past_the_window_or_the_deadline(self) -> None:
        lost = facts(contract=self.DEDUPING, taken_over=True, in_flight_until=NOW + SECOND)
        assert recover(replace(lost, reconcile_until=NOW + 11 * SECOND)) == Repeat()
        closing = NOW - 10 * MINUTE + 11 * SECOND + 5 * SECOND + SETTLE + MINUTE
        assert recover(replace(lost, first_sent_at=closing)) == Repeat()
        assert isinstance(recover(replace(lost, first_sent_at=closing + TICK)), Wait)

    def test_a_natural_repeat_waits_until_everything_sent_is_quiet(self) -> None:
        terms = Contract(repeat=Natural(resource=str), settle=SETTLE)
        quiet = NOW - MINUTE + SETTLE
        told = facts(contract=terms, resource_locked=True, now=quiet)
        assert recover(told) == Wait(quiet + TICK, "what was sent may still land")
        assert recover(replace(told, now=quiet + TICK)) == Repeat()
        assert isinstance(recover(replace(told, reconcile_until=quiet + TICK)), Repair)
        assert isinstance(recover(replace(told, contract=replace(terms, settle=None))), Repair)

    def test_no_repeat_is_made_at_the_last_attempt_or_the_reconciliation_deadline(self) -> None:
        ready = facts(contract=self.DEDUPING)
        assert recover(replace(ready, max_attempts=2)) == Repair("no attempt is left")
        late = Repair("the reconciliation deadline has passed")
        assert recover(replace(ready, reconcile_until=NOW)) == late
        assert recover(replace(ready, reconcile_until=NOW + TICK)) == Repeat()

    def test_a_person_is_told_why_nobody_else_could_decide(self) -> None:
        assert recover(facts()) == Repair("the contract offers neither a proof of absence nor a safe repeat")
        undocumented = Dedupes(HOUR, first_failure=FirstFailure.UNKNOWN)
        assert recover(facts(contract=Contract(repeat=undocumented))) == Repair(
            "the downstream deduplicates, yet first_failure=UNKNOWN: what a repeat meets after a first "
            "failure is not known"
        )
        assert recover(facts(taken_over=True)) == Repair(
            "the worker was lost and the contract allows no repeat after that"
        )
        stopped = facts(contract=self.DEDUPING, run="STOPPED")
        assert recover(stopped) == Repair("a run that is STOPPED may not repeat this call")


class TestOvertaken:
    """A later call was sent to set the same thing: this one is not repeated, whatever proves it absent."""

    NATURAL = Contract(repeat=Natural(resource=str), lookup=STRONG, settle=SETTLE)

    @pytest.mark.parametrize(
        ("known", "free"),
        [
            ({}, Repeat()),
            (
                {"evidence": (Evidence(1, applied=False), Evidence(2, applied=False, retryable=True))},
                Repeat(),
            ),
            ({"has_lookup": True, "lookup": LookupAnswer(Answer.ABSENT, NOW)}, Repeat()),
        ],
        ids=["nothing", "every attempt refused", "absent"],
    )
    def test_no_rule_repeats_it(self, known: dict[str, Any], free: Decision) -> None:
        told = facts(contract=self.NATURAL, resource_locked=True, **known)
        assert recover(told) == free
        overtaken = recover(replace(told, resource_locked=False, overtaken=True))
        assert isinstance(overtaken, Repair if not known else Fail)

    def test_a_person_is_told_so(self) -> None:
        told = facts(contract=self.NATURAL, overtaken=True)
        assert recover(told) == Repair(
            "a later call has set the same resource since; a repeat would overwrite what it set"
        )
