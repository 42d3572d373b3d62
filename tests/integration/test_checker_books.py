"""Whatever a service's book says against the ledger is named: I1, I2, and requests on the wire (I9)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from fencepost.events import Event
from fencepost_ops.checker import Origin, Report, ToolTerms
from fencepost_ops.local import LocalPostgres
from tests.integration.checker_world import (
    TERMS,
    World,
    built,
    changed,
    copy_of,
    culprit,
    place,
    sentence,
)

SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def original(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[World]:
    with built(postgres, template) as world:
        yield world


@pytest.fixture
def world(original: World, postgres: LocalPostgres) -> Iterator[World]:
    with copy_of(original, postgres) as made:
        yield made


def goes_red(report: Report, invariant: str, *names: object) -> None:
    """Exactly this invariant is violated, and its sentences name the culprit."""
    assert report.violated == [invariant], {n: sentence(report, n) for n in report.violated}
    assert not report.ok
    for name in names:
        assert str(name) in sentence(report, invariant)


# -- I1 --


def test_a_second_effect_of_one_intent_is_found(world: World) -> None:
    paid = world.effect("r-paid")
    world.books.kept.append(replace(paid, receipt="r-again", at=paid.at + SECOND))
    report = world.check()
    goes_red(report, "I1", "2 effects of one intent", "r-paid", "r-again", world.paid, world.completed)
    named, events = culprit(report, "I1"), world.bench.events(world.completed)
    assert (named.attempt, named.event) == (1, events[place(events, "ToolAttemptStarted")].seq)


def test_a_success_without_an_effect_is_found(world: World) -> None:
    world.books.kept.remove(world.effect("r-paid"))
    goes_red(world.check(), "I1", "no effect in the book of wallet", world.paid)


def test_an_effect_of_a_call_that_failed_is_found(world: World) -> None:
    failed = world.bench.call(world.refused)
    attempt = next(r for r in world.books.asked if r.key == failed.operation)
    stray = replace(world.effect("r-offset"), receipt="r-stray", key=failed.operation)
    world.books.kept.append(replace(stray, at=attempt.at, origin=attempt.origin))
    goes_red(world.check(), "I1", "an effect that should not be", "r-stray", world.refused, "FAILED")


def test_a_receipt_that_the_book_does_not_have_is_found(world: World) -> None:
    world.books.change("r-paid", receipt="r-other")
    goes_red(world.check(), "I1", "carries receipt r-paid", "r-other", world.paid)


def test_a_second_effect_of_a_compensation_is_found_under_its_own_key(world: World) -> None:
    refund = world.effect("r-refund")
    world.books.kept.append(replace(refund, receipt="r-refund-2", at=refund.at + SECOND))
    goes_red(world.check(), "I1", world.refund, refund.key)


def test_what_a_person_said_and_the_book_denies_is_found_with_the_persons_name(world: World) -> None:
    assert world.bench.repair(world.unknown, "SUCCEEDED", "r-said").state == "SUCCEEDED"
    goes_red(world.check(settled=False), "I1", world.unknown, "settled by ann")


def test_a_second_effect_after_the_downstream_forgot_the_key_is_reported_and_not_asserted(
    world: World,
) -> None:
    paid = world.effect("r-found")
    late = paid.at + timedelta(hours=2)
    again = replace(paid, receipt="r-again", at=late, origin=Origin(world.found, 1))
    world.books.kept.append(again)
    report = world.check()
    assert report.ok
    assert "remembers a key for 1:00:00" in sentence(report, "I1")
    world.books.change("r-again", origin=Origin(world.found, 2))
    assert "2 effects of one intent" in sentence(world.check(), "I1"), "both are of the second attempt"


def test_a_lookup_only_tool_does_not_promise_what_lands_after_its_settle_time(world: World) -> None:
    lookup_only = TERMS | {("wallet.debit", 1): ToolTerms("lookup_only", 3, None, SECOND)}
    found, first = world.effect("r-found"), Origin(world.found, 1)
    # The first attempt may take two seconds, and land a second later; a lookup found nothing after that.
    world.books.kept.append(replace(found, receipt="r-late", origin=first))
    report = world.check(terms=lookup_only)
    assert report.ok
    assert "landed later than the contract says" in sentence(report, "I1")
    world.books.change("r-late", at=found.at - 2 * SECOND)
    goes_red(world.check(terms=lookup_only), "I1", "r-late", world.found)


def test_a_service_without_a_book_is_reported_and_not_asserted(world: World) -> None:
    world.books.kept.clear()
    world.books.services = lambda: ("shipping",)  # type: ignore[method-assign]
    report = world.check()
    assert report.ok
    assert "calls of wallet were not checked" in sentence(report, "I1")


def test_without_any_book_nothing_outside_counts_as_checked(world: World) -> None:
    world.books.services = tuple  # type: ignore[method-assign]
    report = world.check()
    assert [v.invariant for v in report.verdicts if v.verdict == "unchecked"] == ["I1", "I2"]


# -- I2 --


def test_an_effect_before_its_attempt_was_recorded_is_found(world: World) -> None:
    world.books.change("r-paid", at=world.effect("r-paid").at - 5 * SECOND)
    goes_red(world.check(), "I2", "before its attempt was recorded", "r-paid", world.paid)


def test_an_effect_within_the_clocks_tolerance_is_not_early(world: World) -> None:
    world.books.change("r-paid", at=world.effect("r-paid").at - 5 * SECOND)
    assert world.check(tolerance=6 * SECOND).ok


def test_an_effect_under_a_key_nobody_recorded_is_found(world: World) -> None:
    paid = world.effect("r-paid")
    world.books.kept.append(replace(paid, receipt="r-alien", key="f" * 64, origin=Origin()))
    goes_red(world.check(), "I2", "r-alien", "no such attempt was ever recorded")


def test_an_effect_of_an_attempt_that_was_never_started_is_found(world: World) -> None:
    paid = world.effect("r-paid")
    world.books.change("r-paid", origin=replace(paid.origin, attempt=7))
    goes_red(world.check(), "I2", "attempt 7", world.paid)


def test_an_effect_without_a_key_is_found(world: World) -> None:
    paid = world.effect("r-paid")
    world.books.kept.append(replace(paid, receipt="r-bare", key=None))
    goes_red(world.check(), "I2", "r-bare", "without a key")


def test_an_effect_asked_for_under_another_fence_is_found(world: World) -> None:
    paid = world.effect("r-paid")
    world.books.change("r-paid", origin=replace(paid.origin, fence=999))
    goes_red(world.check(), "I3", "fence 999", world.paid)


def test_an_effect_of_another_body_than_the_stored_one_is_found(world: World) -> None:
    world.books.change("r-paid", digest="0" * 64)
    goes_red(world.check(), "I2", "another body", "r-paid")


# -- I9 --


def test_a_hidden_retry_on_the_wire_is_found(world: World) -> None:
    mine = next(r for r in world.books.asked if r.origin.call == world.paid)
    world.books.asked.append(replace(mine, id="99"))
    goes_red(world.check(), "I9", "attempt 1", "sent 2 requests", world.paid)


def test_a_request_of_an_attempt_that_was_never_recorded_is_found(world: World) -> None:
    mine, stranger = world.books.asked[0], uuid4()
    world.books.asked.append(replace(mine, id="99", origin=Origin(stranger, 1)))
    goes_red(world.check(), "I9", "never recorded", stranger)


def test_a_request_that_does_not_say_whose_it_is_is_found(world: World) -> None:
    world.books.asked.append(replace(world.books.asked[0], id="99", origin=Origin()))
    goes_red(world.check(), "I9", "does not say of which attempt")


def test_more_attempts_than_the_tool_may_make_are_found(world: World) -> None:
    def let_go(limits: Mapping[int, int | None]) -> Callable[[list[Event]], list[Event]]:
        return lambda events: [
            changed(e, limit=limits[e.attempt or 0]) if e.type == "ToolAttemptStarted" else e for e in events
        ]

    stingy = TERMS | {("wallet.debit", 1): ToolTerms("dedupes", 1)}
    assert world.check(terms=stingy).ok  # what the application says now was not so when they were made
    world.forge(world.doubted, let_go({1: 1, 2: 1}))
    goes_red(world.check(), "I9", "attempt 2 of", "whose tool may make 1", world.found)
    world.forge(world.doubted, let_go({1: 2, 2: 1}))
    assert world.check().ok  # it was decided under the limit of the first, which its worker knew
    world.forge(world.doubted, let_go({1: None, 2: None}))
    report = world.check(terms=stingy)
    assert report.ok
    assert "whose limit was not recorded; the application loaded now says 1" in sentence(report, "I9")


def test_one_run_is_checked_alone(world: World) -> None:
    paid = world.effect("r-paid")
    world.books.kept.append(replace(paid, receipt="r-again", at=paid.at + SECOND))
    assert world.check(runs=[world.stopped]).ok
    report = world.check(runs=[world.completed])
    assert report.violated == ["I1"]
    assert report.totals.runs == 1
