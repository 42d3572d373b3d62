"""What was let go though it must not be, planted in a real ledger: I3 and I10, each named alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from fencepost.clock import rfc3339
from fencepost.events import Event
from fencepost.outcomes import Applied, Refused
from fencepost_ops.checker import BookRequest, Origin, Terms, ToolTerms
from fencepost_ops.local import LocalPostgres
from tests.integration.checker_world import (
    TERMS,
    World,
    built,
    changed,
    copy_of,
    culprit,
    forged,
    like,
    place,
    sentence,
)
from tests.integration.test_checker_books import goes_red

Events = list[Event]
Edit = Callable[[Events], Events]
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def original(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[World]:
    with built(postgres, template) as world:
        yield world


@pytest.fixture(scope="module")
def shared(original: World, postgres: LocalPostgres) -> Iterator[World]:
    with copy_of(original, postgres) as made:
        yield made


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    """One world for all: whoever forges a history in it forges it back."""
    kept, asked = list(shared.books.kept), list(shared.books.asked)
    yield shared
    shared.books.kept, shared.books.asked = kept, asked


def started(events: Events, call: UUID | None = None, nth: int = 1) -> Event:
    return events[place(events, "ToolAttemptStarted", nth, call)]


def on_attempt(nth: int = 1, **fields: Any) -> Edit:
    """The nth attempt of the history, with other fields in its body."""

    def edit(events: Events) -> Events:
        at = place(events, "ToolAttemptStarted", nth)
        return [*events[:at], changed(events[at], **fields), *events[at + 1 :]]

    return edit


# -- I3: authority, term, arguments --


def unauthorised(events: Events) -> Events:
    del events[place(events, "AuthorizationAllowed", nth=2)]
    return events


def authorised_at_recording_only(events: Events) -> Events:
    at = place(events, "AuthorizationAllowed", nth=2)
    return [*events[:at], changed(events[at], phase="recording"), *events[at + 1 :]]


def authorised_in_an_earlier_claim(events: Events) -> Events:
    at = place(events, "AuthorizationAllowed", nth=2)
    return [*events[:at], replace(events[at], causation=uuid4()), *events[at + 1 :]]


def authorised_and_then_denied(events: Events) -> Events:
    at = place(events, "AuthorizationAllowed", nth=3)  # of the repeat, which a denial leaves UNKNOWN
    denied = like(events[at], "AuthorizationDenied", body={"message": "no", **events[at].data})
    return [*events[: at + 1], denied, *events[at + 1 :]]


def never_found_valid(events: Events) -> Events:
    del events[place(events, "ArgumentsCanonicalized")]
    return events


def other_arguments(events: Events) -> Events:
    at = place(events, "ArgumentsCanonicalized")
    return [*events[:at], changed(events[at], arguments_hash="1:" + "0" * 64), *events[at + 1 :]]


IN_ITS_CLAIM = "without being authorised in its own claim"


@pytest.mark.parametrize(
    ("name", "attempt", "edit", "says"),
    [
        ("completed", 1, unauthorised, IN_ITS_CLAIM),
        ("completed", 1, authorised_at_recording_only, IN_ITS_CLAIM),
        ("completed", 1, authorised_in_an_earlier_claim, IN_ITS_CLAIM),
        ("doubted", 2, authorised_and_then_denied, IN_ITS_CLAIM),
        ("completed", 1, never_found_valid, "never found valid"),
        ("completed", 1, other_arguments, "other arguments than those that were found valid"),
        ("doubted", 2, on_attempt(2, fingerprint="f" * 64), "another request than the first attempt"),
        ("doubted", 2, on_attempt(2, repeat=False), "is told as a first one, which it is not"),
        ("completed", 1, on_attempt(repeat=True), "is told as a repeat, which it is not"),
    ],
)
def test_what_was_sent_without_the_right_to_is_found(
    world: World, name: str, attempt: int, edit: Edit, says: str
) -> None:
    run = getattr(world, name)
    call = world.paid if name == "completed" else world.found
    with forged(world, run, edit):
        report = world.check()
        goes_red(report, "I3", says)
        named = culprit(report, "I3")
        seq = started(world.bench.events(run), call, attempt).seq
        assert (named.run, named.call, named.attempt, named.event) == (run, call, attempt, seq)


def test_a_row_whose_arguments_were_changed_after_they_were_authorised_is_found(
    original: World, postgres: LocalPostgres
) -> None:
    with copy_of(original, postgres) as world:
        world.sql("UPDATE fencepost.calls SET arguments = '{}' WHERE id = %s", world.paid)
        report = world.check()
        assert report.violated == ["I3", "I6.replay"]
        assert culprit(report, "I3").call == world.paid


@pytest.mark.parametrize("own", [True, False])
def test_a_second_attempt_under_the_term_of_the_first_is_found(
    original: World, postgres: LocalPostgres, own: bool
) -> None:
    with copy_of(original, postgres) as world:
        bench = world.bench
        run = bench.enqueue("another")
        call = bench.debit(run, "another")
        bench.record(*bench.dispatch(run, call), Refused("http_429", "later", retryable=True))
        bench.ahead(4)
        bench.record(*bench.dispatch(run, call), Applied('{"id":"r-2"}', "r-2"))

        def reuse(events: Events) -> Events:
            first, again = started(events, call), started(events, call, 2)
            term: dict[str, Any] = {"worker": first.worker if own else "zombie", "fence": first.fence}
            kept = [e for e in events if e.type != "LeaseAcquired" or e.worker != again.worker]
            return [replace(e, **term) if e.worker == again.worker else e for e in kept]

        world.forge(run, reuse)
        world.completed = run
        world.write_books()
        report = world.check(settled=False, runs=[run])
        assert "no lease was acquired since the attempt before it" in sentence(report, "I3")
        assert report.violated == (["I3"] if own else ["I3", "I5"])
        assert culprit(report, "I3").attempt == 2


def test_an_attempt_under_a_term_that_holds_nothing_is_found(world: World) -> None:
    def zombie(events: Events) -> Events:
        at = place(events, "ToolAttemptStarted")
        return [*events[:at], replace(events[at], worker="zombie"), *events[at + 1 :]]

    with forged(world, world.completed, zombie):
        report = world.check()
        assert report.violated == ["I3", "I5"]
        assert "of zombie; fence" in sentence(report, "I3")


# -- I3: where call and run stand, and until when --


def test_an_attempt_of_a_call_that_waits_for_a_person_is_found(world: World) -> None:
    def once_more(events: Events) -> Events:
        first, last = place(events, "LeaseAcquired", call=world.unknown), len(events)
        unknown = place(events, "ToolOutcomeMarkedUnknown")
        fence = max(e.fence or 0 for e in events) + 1
        term: dict[str, Any] = {"worker": "late", "fence": fence}
        again = [like(e, **term, attempt=2 if e.attempt else None) for e in events[first : unknown + 1]]
        again[0] = changed(again[0], owner="late", fence=fence)
        again = [changed(e, attempt=2, repeat=True) if e.type == "ToolAttemptStarted" else e for e in again]
        return [*events, *again, like(events[last - 1], body={"fence": fence}, **term)]

    with forged(world, world.waiting, once_more):
        goes_red(world.check(), "I3", "although the call was NEEDS_REPAIR", world.unknown, world.waiting)


def stopping(before: int) -> Edit:
    """The run stops just before the nth attempt's claim."""

    def edit(events: Events) -> Events:
        made = started(events, nth=before)
        at = next(n for n, e in enumerate(events) if e.causation == made.causation)
        fence = max(e.fence or 0 for e in events[:at] if e.call is None)
        body = {"reason": "cancelled", "detail": None, "fence": fence}
        return [*events[:at], like(events[at], "RunStopping", body=body, call=None), *events[at:]]

    return edit


def test_a_first_attempt_while_its_run_stops_is_found(world: World) -> None:
    with forged(world, world.completed, stopping(before=1)):
        goes_red(world.check(), "I3", "although the run was STOPPING", world.paid)


def test_a_compensation_of_a_run_that_does_not_compensate_is_found(world: World) -> None:
    def unasked(events: Events) -> Events:
        del events[place(events, "CompensationRequested")]
        return events

    with forged(world, world.stopped, unasked):
        goes_red(world.check(), "I3", "although the run was STOPPING", world.refund)


@pytest.mark.parametrize(
    ("known", "may"),
    [
        (ToolTerms("dedupes", compensable=True), True),
        (ToolTerms("dedupes", compensable=False), False),
        (ToolTerms("lookup_only"), False),
        (None, True),
    ],
)
def test_a_stopping_run_repeats_what_is_deduplicated_and_can_be_offset_and_nothing_else(
    world: World, known: ToolTerms | None, may: bool
) -> None:
    terms: Terms = {} if known is None else TERMS | {("wallet.debit", 1): known}
    with forged(world, world.doubted, stopping(before=2)):
        report = world.check(terms=terms)
        if not may:
            goes_red(report, "I3", "although the run was STOPPING", world.found)
        else:
            assert report.ok
            assert ("may be repeated while its run stops is not known" in sentence(report, "I3")) == (
                known is None
            )


def test_a_first_attempt_after_its_runs_deadline_is_found(world: World) -> None:
    def too_late(events: Events) -> Events:
        until = rfc3339(started(events).recorded_at)
        events[0] = changed(events[0], deadline=until)
        return on_attempt(deadline=until, reserve_ms=0)(events)

    with forged(world, world.completed, too_late):
        goes_red(world.check(), "I3", "its run's deadline was", world.paid)


def test_a_repeat_after_its_own_deadline_is_found(world: World) -> None:
    def too_late(events: Events) -> Events:
        at = place(events, "ToolOutcomeMarkedUnknown")
        until = rfc3339(started(events, nth=2).recorded_at)
        return [*events[:at], changed(events[at], reconcile_until=until), *events[at + 1 :]]

    with forged(world, world.doubted, too_late):
        goes_red(world.check(), "I3", "its own deadline was", world.found)


def test_a_compensation_after_its_own_deadline_is_found(world: World) -> None:
    def too_late(events: Events) -> Events:
        at = place(events, "DispatchIntentRecorded", call=world.refund)
        until = rfc3339(started(events, world.refund).recorded_at)
        return [*events[:at], changed(events[at], reconcile_until=until), *events[at + 1 :]]

    with forged(world, world.stopped, too_late):
        goes_red(world.check(), "I3", "its own deadline was", world.refund)


def test_a_compensation_without_a_deadline_of_its_own_is_found(world: World) -> None:
    def unbound(events: Events) -> Events:
        at = place(events, "DispatchIntentRecorded", call=world.refund)
        return [*events[:at], changed(events[at], reconcile_until=None), *events[at + 1 :]]

    with forged(world, world.stopped, unbound):
        assert "was started without any deadline: its own was never told" in sentence(world.check(), "I3")
        assert str(world.refund) in sentence(world.check(), "I3")


# -- I3: on the wire --


def test_a_request_under_another_fence_than_its_attempts_is_found(world: World) -> None:
    mine = next(r for r in world.books.asked if r.origin.call == world.paid)
    world.books.asked.remove(mine)
    world.books.asked.append(replace(mine, origin=replace(mine.origin, fence=999)))
    report = world.check()
    goes_red(report, "I3", "under fence 999", world.paid, world.completed)
    assert culprit(report, "I3").event == started(world.bench.events(world.completed)).seq


def test_a_request_of_a_call_that_was_cancelled_unsent_is_found(
    original: World, postgres: LocalPostgres
) -> None:
    with copy_of(original, postgres) as world:
        bench = world.bench
        run = bench.enqueue("another")
        call = bench.debit(run, "another")
        bench.cancel(run)
        assert bench.state(call) == "CANCELLED"
        origin, key = Origin(call, 1, 5), bench.call(call).operation
        world.books.asked.append(BookRequest("wallet", "99", key, bench.now(), None, origin))
        goes_red(world.check(), "I3", call, run, "which is CANCELLED and was never started")
        effect = replace(world.effect("r-paid"), receipt="r-x", key=key, origin=origin, at=bench.now())
        world.books.kept.append(effect)
        assert world.check().violated == ["I1", "I2", "I3"]


# -- I10 --


def near_the_end(world: World, **fields: Any) -> Edit:
    """The first attempt may take until half a second before its run's deadline; a second is kept back."""
    deadline = datetime.fromisoformat(world.bench.events(world.completed)[0].data["deadline"])
    return on_attempt(deadline=rfc3339(deadline - SECOND / 2), **fields)


def test_an_attempt_that_may_outlast_its_runs_deadline_less_the_reserve_is_found(world: World) -> None:
    with forged(world, world.completed, near_the_end(world)):
        report = world.check()
        goes_red(report, "I10", "less a reserve of 0:00:01", world.completed)
        named, seq = culprit(report, "I10"), started(world.bench.events(world.completed)).seq
        assert (named.call, named.attempt, named.event) == (world.paid, 1, seq)


def test_a_reserve_that_was_not_recorded_is_the_applications_or_noted(world: World) -> None:
    reserved = TERMS | {("wallet.debit", 1): ToolTerms("dedupes", reserve=SECOND)}
    with forged(world, world.completed, near_the_end(world, reserve_ms=None)):
        goes_red(world.check(terms=reserved), "I10", "less a reserve of 0:00:01")
        report = world.check()
        assert report.ok
        assert "the reserve of wallet.debit version 1 is not known" in sentence(report, "I10")
    with forged(world, world.completed, on_attempt(deadline="2999-01-01T00:00:00Z", reserve_ms=None)):
        goes_red(world.check(), "I10", "may take until 2999")


def test_an_answered_request_that_arrived_after_its_attempts_time_is_found(world: World) -> None:
    mine = next(n for n, r in enumerate(world.books.asked) if r.origin.call == world.paid)
    world.books.asked[mine] = replace(world.books.asked[mine], at=world.books.asked[mine].at + 8 * SECOND)
    report = world.check()
    goes_red(report, "I10", "and an answer, yet wallet's request", world.paid)
    assert culprit(report, "I10").event == started(world.bench.events(world.completed)).seq
    assert world.check(tolerance=7 * SECOND).ok
    settling = TERMS | {("wallet.debit", 1): ToolTerms("dedupes", settle=6 * SECOND)}
    assert world.check(terms=settling).ok


def test_a_late_request_that_nobody_answered_is_noted_and_not_asserted(world: World) -> None:
    mine = next(n for n, r in enumerate(world.books.asked) if r.origin == first_of(world, world.found))
    world.books.asked[mine] = replace(world.books.asked[mine], at=world.books.asked[mine].at + 8 * SECOND)
    report = world.check()
    assert report.ok
    assert "1 requests reached wallet after their attempt's time" in sentence(report, "I10")


def first_of(world: World, call: UUID) -> Origin:
    return next(r.origin for r in world.books.asked if r.origin.call == call and r.origin.attempt == 1)
