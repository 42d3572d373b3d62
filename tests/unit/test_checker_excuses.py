"""What excuses more effects than one, or a late one, and what does not: values in, verdicts out."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from fencepost_ops.checker import Origin, ToolTerms
from fencepost_ops.checker.facts import OperationRow
from fencepost_ops.checker.ledgered import Started
from fencepost_ops.checker.report import Verdict
from tests.unit.test_checker_classes import (
    CALL,
    DEDUPES,
    KEY,
    LOOKUP,
    NEITHER,
    T0,
    S,
    attempt,
    call,
    effect,
    held,
)

WINDOW = replace(DEDUPES, window=5 * S)


def test_spaced_beyond_the_window_two_effects_of_one_attempt_are_two_all_the_same() -> None:
    for known in (WINDOW, ToolTerms("dedupes", sets=True)):
        twice = [effect(1, 1), effect(1, 11, receipt="r-2")]
        for found in (twice, [replace(e, origin=Origin()) for e in twice]):
            assert held([call("SUCCEEDED", attempts=1)], [attempt(1)], found, known)["I1"].violations
        attempts = [attempt(1), attempt(2, first=False, decided=True)]
        assert held([call("SUCCEEDED")], attempts, twice, known)["I1"].violations
        others = [effect(1, 1), effect(2, 11)]
        assert held([call("SUCCEEDED")], attempts, others, known)["I1"].notes


def test_a_repeat_after_the_window_is_one_also_where_the_book_does_not_say_whose_its_effects_are() -> None:
    def verdict(**second: bool) -> Verdict:
        found = [effect(1, 1, origin=Origin()), effect(2, 11, origin=Origin())]
        return held([call("SUCCEEDED")], [attempt(1), attempt(2, **second)], found, WINDOW)["I1"]

    assert verdict(first=False).violations
    assert verdict(first=True).violations
    assert verdict(first=False, decided=True).notes
    assert verdict(first=False, proved_absent=True).notes


@pytest.mark.parametrize("second", [{}, {"decided": True}, {"proved_absent": True}])
def test_what_had_succeeded_is_not_sent_again_by_another_run_after_the_window(
    second: dict[str, bool],
) -> None:
    other, theirs = UUID(int=8), UUID(int=9)
    first = call("SUCCEEDED", receipt="r-1", attempts=1)
    again = call("SUCCEEDED", id=other, run=theirs, receipt="r-2", attempts=1)
    later = attempt(1, call=other, run=theirs, at=T0 + 10 * S, **second)
    found = [effect(1, 1), effect(1, 11, receipt="r-2", origin=Origin(other, 1, 5))]
    said = held([first, again], [attempt(1), later], found, WINDOW)["I1"].violations
    assert "2 effects of one intent" in said[0].message
    # Where a person had said that the first one did not happen, and later that it did, both are its own.
    settled = held([first, again], [attempt(1), later], found, WINDOW, {CALL: "ann"})["I1"]
    assert not [v for v in settled.violations if "2 effects" in v.message] or not second


def test_of_one_run_two_effects_of_one_attempt_are_seen_where_no_other_can_have_sent() -> None:
    row = call("SUCCEEDED", receipt="r-1", attempts=1)
    found = [effect(1, 1, origin=Origin()), effect(1, 11, origin=Origin())]

    def verdict(since: datetime, holder: UUID) -> Verdict:
        kept = OperationRow("shop", KEY, "completed", False, holder, "r-1", since, False)
        return held([row], [attempt(1)], found, WINDOW, whole=False, keys=[kept])["I1"]

    assert verdict(T0, CALL).violations
    assert verdict(T0 - 60 * S, CALL).notes  # another run had sent it before
    assert verdict(T0, UUID(int=8)).notes  # and another holds it now


def test_that_it_failed_by_its_own_workers_word_excuses_no_late_effect() -> None:
    def verdict(attempts: Sequence[Started], known: ToolTerms, **told: Any) -> Verdict:
        row = call("FAILED", attempts=len(attempts))
        return held([row], attempts, [effect(1, 9)], known, **told)["I1"]

    for known in (DEDUPES, LOOKUP):
        assert verdict([attempt(1, answered=True)], known).violations
        assert not verdict([attempt(1)], known, absent=[CALL]).violations


def test_another_run_may_send_what_was_found_absent_though_it_then_landed_late() -> None:
    other, theirs = UUID(int=8), UUID(int=9)
    rows = [call("FAILED", attempts=1), call("SUCCEEDED", id=other, run=theirs, receipt="r-2", attempts=1)]
    made = [attempt(1), attempt(1, call=other, run=theirs, at=T0 + 10 * S)]
    found = [effect(1, 4), effect(1, 11, receipt="r-2", origin=Origin(other, 1, 5))]
    assert not held(rows, made, found, WINDOW, absent=[CALL])["I1"].violations
    assert held(rows, made, found, WINDOW)["I1"].violations


@pytest.mark.parametrize(
    ("state", "known"),
    [("NEEDS_REPAIR", NEITHER), ("UNKNOWN", LOOKUP), ("NEEDS_REPAIR", WINDOW), ("SUCCEEDED", None)],
)
def test_what_came_while_the_ledger_was_read_is_not_yet_counted(state: str, known: ToolTerms | None) -> None:
    """It may be of an attempt that was let go, rightly, after the ledger had been read."""
    row, first, second = call(state, attempts=1), effect(1, 9), effect(2, 31)
    assert not held([row], [attempt(1)], [first], known, since=[second])["I1"].violations
    assert "2 effects" in held([row], [attempt(1)], [first, second], known)["I1"].violations[0].message


def test_what_came_while_the_ledger_was_read_is_the_effect_of_what_had_succeeded() -> None:
    done = call("SUCCEEDED", receipt="r-1", attempts=1)
    assert not held([done], [attempt(1)], [], DEDUPES, since=[effect(1, 1)])["I1"].violations
    assert held([done], [attempt(1)], [], DEDUPES)["I1"].violations


def test_of_some_runs_an_effect_under_a_key_that_nobody_ever_sent_is_nobodys_but_theirs() -> None:
    free = OperationRow("shop", KEY, "open", False, CALL, None, None, False)
    for keys in ([free], []):
        row = call("INTENT_RECORDED", attempts=0)
        found = held([row], [], [effect(1, 1, origin=Origin())], DEDUPES, whole=False, keys=keys)
        assert "an effect that should not be" in found["I1"].violations[0].message
        assert "no such attempt was ever recorded" in found["I2"].violations[0].message
