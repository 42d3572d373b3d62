"""The ledger's clock is stepped between claim and record: terms decide, and no worker's own clock does."""

import itertools
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.acceptance.stage import Stage, step

_numbers = itertools.count(1)

TEN_MINUTES_S = 600


@pytest.fixture(autouse=True)
def clock(stage: Stage) -> Iterator[None]:
    stage.tolerance = timedelta(seconds=2 * TEN_MINUTES_S)
    yield
    stage.move_clock(0)


def test_a_clock_stepped_ahead_makes_a_takeover_and_the_late_answer_evidence(stage: Stage) -> None:
    """By the ledger's clock the attempt is long over; by its worker's it has hardly begun."""
    reference = f"clock-{next(_numbers)}"
    # Longer than a takeover takes, which while fleets start or connections are cut is more than a moment.
    stage.sandbox.fault("delay_after_commit", reference=reference, delay_s=6)
    run = stage.send([step("patient.debit", "debit", reference=reference)], deadline_s=3600)
    stage.until_event(run, "ToolAttemptStarted")
    stage.move_clock(TEN_MINUTES_S)
    assert stage.ended(run) == ["COMPLETED"]
    assert len(stage.events(run, "ToolOutcomeMarkedUnknown")) == 1
    assert stage.until_event(run, "EvidenceFiled").data["applied"]
    assert (stage.effects(reference), stage.requests(reference)) == (["debit"], 1)


def test_a_clock_stepped_back_leaves_a_live_term_alone(stage: Stage) -> None:
    reference = f"clock-{next(_numbers)}"
    stage.sandbox.fault("delay_after_commit", reference=reference, delay_s=1)
    stage.move_clock(TEN_MINUTES_S)
    run = stage.send([step("patient.debit", "debit", reference=reference)], deadline_s=3600)
    stage.until_event(run, "ToolAttemptStarted")
    stage.move_clock(0)
    assert stage.ended(run) == ["COMPLETED"]
    assert stage.events(run, "ToolOutcomeMarkedUnknown") == []
    assert (stage.effects(reference), stage.requests(reference)) == (["debit"], 1)


def test_timers_and_deadlines_follow_the_ledgers_clock(stage: Stage) -> None:
    reference = f"clock-{next(_numbers)}"
    stage.sandbox.fault("throttle_429", reference=reference, nth=1, retry_after_s=300)
    run = stage.send([step("bank.debit", "debit", reference=reference)], deadline_s=3600)
    stage.until_event(run, "ToolAttemptFailed")
    stage.move_clock(TEN_MINUTES_S)
    assert stage.ended(run) == ["COMPLETED"]
    assert stage.effects(reference) == ["debit"]
