"""When a dependency is left alone, for how long, and who tries it: the rules over values."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from fencepost import App, UsageError
from fencepost.breaker import (
    DEPENDENCY_FAILED,
    FORGET,
    Blocked,
    FailureClass,
    Full,
    Health,
    Learnt,
    State,
    admit,
    failure_class,
    learn,
    learnt,
    learnt_of_question,
    wake_at,
)
from fencepost.deadlines import MAX_RETRY_AFTER
from fencepost.dependencies import Breaker, DependencySpec
from fencepost.outcomes import Applied, Outcome, Refused, Unsure

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SPEC = DependencySpec("bank", breaker=Breaker(failures=3, pause=SECOND, pause_cap=8 * SECOND, probes=2))
NEW = Health("bank/default")
FAILED = Learnt(failed=True, code="timeout")
ANSWERED = Learnt(answered=True)


def told(
    held: Health, *said: Learnt, at: datetime = NOW, call: UUID | None = None, rand: float = 0
) -> Health:
    for one in said:
        held = learn(held, SPEC, one, call=call or uuid4(), now=at, rand=rand)
    return held


def asked(
    held: Health, call: UUID, at: datetime = NOW, spec: DependencySpec = SPEC
) -> Health | Blocked | Full:
    return admit(held, spec, call=call, now=at, until=at + 10 * SECOND)


def admitted(held: Health, call: UUID, at: datetime = NOW, spec: DependencySpec = SPEC) -> Health:
    found = asked(held, call, at, spec)
    assert isinstance(found, Health), found
    return found


@pytest.mark.parametrize(
    ("outcome", "kind", "says"),
    [
        (Refused("connect_failed", "", retryable=True), FailureClass.CONNECT, "failed"),
        (Refused("connect_timeout", "", retryable=True), FailureClass.CONNECT, "failed"),
        (Unsure("timeout", ""), FailureClass.TIMEOUT, "failed"),
        (Unsure("connection_lost", ""), FailureClass.LOST, "failed"),
        (Unsure("http_500", ""), FailureClass.SERVER, "failed"),
        (Refused("http_503", "", retryable=True), FailureClass.SERVER, "failed"),
        (Refused("http_429", "", retryable=True), FailureClass.THROTTLED, "failed"),
        (Refused("http_402", "", retryable=False), FailureClass.REFUSED, "answered"),
        (Unsure("http_404", ""), FailureClass.REFUSED, "answered"),
        (Unsure("http_409", ""), FailureClass.REFUSED, "answered"),
        (Refused("out_of_stock", "", retryable=True), FailureClass.REFUSED, "answered"),
        (Unsure("http_302", ""), FailureClass.UNCLEAR, "answered"),
        (Unsure("replayed_500", ""), FailureClass.UNCLEAR, "answered"),
        (Unsure("unreadable_answer", ""), FailureClass.UNCLEAR, "answered"),
        (Unsure("in_progress", ""), FailureClass.UNCLEAR, "answered"),
        (Unsure("exception", ""), FailureClass.OURS, "nothing"),
        (Unsure("not_awaited", ""), FailureClass.OURS, "nothing"),
        (Unsure("unheard", ""), FailureClass.OURS, "nothing"),
        (Refused("worker_lost", "", retryable=True), FailureClass.OURS, "nothing"),
        (Refused("deadline_passed", "", retryable=True), FailureClass.OURS, "nothing"),
        (Applied("{}", None), None, "answered"),
    ],
)
def test_what_an_outcome_says_of_its_dependency(
    outcome: Outcome, kind: FailureClass | None, says: str
) -> None:
    said = learnt(outcome)
    assert ("failed" if said.failed else "answered" if said.answered else "nothing") == says
    if not isinstance(outcome, Applied):
        assert failure_class(outcome.code) is kind
        assert (kind in DEPENDENCY_FAILED) == (says == "failed")


@pytest.mark.parametrize("code", ["http_500", "http_503", "http_429"])
def test_a_stored_answer_that_is_given_again_counts_for_the_dependency(code: str) -> None:
    wait = 7 * SECOND
    again = Refused(code, "", retryable=False, retry_after=wait, final_answer_stored=True)
    assert learnt(again) == Learnt(answered=True, code=code)


def test_the_flights_of_a_limit_are_a_reason_to_lock_a_row() -> None:
    """Whoever records an answer takes one out, also one left of a limit that is gone."""
    flying = admitted(NEW, uuid4(), spec=replace(SPEC, concurrency=3))
    assert (flying.state, flying.well) == (State.CLOSED, False)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("http_200", "answered"),
        ("http_404", "answered"),
        ("http_403", "answered"),
        ("http_503", "failed"),
        ("http_429", "failed"),
        ("timeout", "failed"),
        ("connect_failed", "failed"),
        ("deadline_passed", "nothing"),
        ("", "nothing"),
    ],
)
def test_what_a_question_says_of_its_dependency(code: str, says: str) -> None:
    said = learnt_of_question(code, None)
    assert ("failed" if said.failed else "answered" if said.answered else "nothing") == says


def test_a_question_closes_by_a_retry_after_as_well() -> None:
    assert learnt_of_question("http_503", 7 * SECOND).retry_after == 7 * SECOND
    assert learnt_of_question("http_200", 7 * SECOND).retry_after is None


def test_only_a_429_or_503_closes_by_its_retry_after() -> None:
    wait = 7 * SECOND
    assert learnt(Refused("http_429", "", retryable=True, retry_after=wait)).retry_after == wait
    assert learnt(Unsure("http_503", "", wait)).retry_after == wait
    for code in ("http_402", "http_500", "out_of_stock"):
        assert learnt(Refused(code, "", retryable=True, retry_after=wait)).retry_after is None


def test_a_healthy_dependency_is_neither_locked_nor_written() -> None:
    assert asked(NEW, uuid4()) is NEW
    assert told(NEW, ANSWERED) is NEW
    assert told(NEW, Learnt()) is NEW
    assert NEW.well


def test_failures_in_a_row_open_the_breaker_and_an_answer_between_them_does_not() -> None:
    assert told(NEW, FAILED, FAILED).state == State.CLOSED
    assert told(NEW, FAILED, FAILED, ANSWERED, FAILED, FAILED).state == State.CLOSED
    assert told(NEW, FAILED, FAILED, Learnt(), FAILED).state == State.OPEN
    opened = told(NEW, FAILED, FAILED, FAILED)
    assert (opened.state, opened.closed_until, opened.opened_at) == (State.OPEN, NOW + SECOND, NOW)
    assert opened.reason == "3 failures in a row, the last timeout"


def test_failures_far_apart_are_not_in_a_row() -> None:
    two = told(NEW, FAILED, FAILED)
    assert told(two, FAILED, at=NOW + FORGET).state == State.OPEN
    later = told(two, FAILED, at=NOW + FORGET + SECOND)
    assert (later.state, later.failures) == (State.CLOSED, 1)


@pytest.mark.parametrize(
    ("retry_after", "until"),
    [
        (timedelta(0), SECOND),  # the breaker's own pause is the least
        (7 * SECOND, 7 * SECOND),
        (timedelta(hours=5), MAX_RETRY_AFTER),
    ],
)
def test_a_retry_after_closes_the_dependency_at_once(retry_after: timedelta, until: timedelta) -> None:
    said = Learnt(failed=True, code="http_429", retry_after=retry_after)
    closed = told(NEW, said)
    assert (closed.state, closed.closed_until) == (State.OPEN, NOW + until)
    blocked = asked(closed, uuid4(), NOW + until - timedelta(microseconds=1))
    assert isinstance(blocked, Blocked)
    assert blocked.from_ == NOW + until
    assert isinstance(asked(closed, uuid4(), NOW + until), Health)


def test_while_open_only_a_longer_retry_after_changes_anything() -> None:
    opened = told(NEW, Learnt(failed=True, code="http_429", retry_after=9 * SECOND))
    assert told(opened, FAILED, ANSWERED) == opened
    shorter = told(opened, Learnt(failed=True, code="http_429", retry_after=3 * SECOND))
    assert shorter.closed_until == opened.closed_until
    longer = told(opened, Learnt(failed=True, code="http_429", retry_after=12 * SECOND))
    assert (longer.closed_until, longer.opens) == (NOW + 12 * SECOND, 1)


def test_half_open_lets_a_bounded_number_try_and_one_answer_closes_it() -> None:
    at = NOW + SECOND
    first, second, third = uuid4(), uuid4(), uuid4()
    tried = admitted(admitted(told(NEW, FAILED, FAILED, FAILED), first, at), second, at)
    assert tried.state == State.HALF_OPEN
    assert isinstance(asked(tried, third, at), Blocked)
    assert told(tried, ANSWERED, at=at, call=third) == tried, "what was sent before does not speak for now"
    assert told(tried, FAILED, at=at, call=third) == tried
    closed = told(tried, ANSWERED, at=at, call=first)
    assert (closed.state, closed.failures, closed.opens, closed.opened_at) == (State.CLOSED, 0, 0, None)
    assert asked(closed, third, at) is closed


def test_a_probe_that_says_nothing_leaves_its_place_and_a_lost_one_loses_it_in_time() -> None:
    at = NOW + SECOND
    probes = [uuid4(), uuid4()]
    tried = told(NEW, FAILED, FAILED, FAILED)
    for call in probes:
        tried = admitted(tried, call, at)
    left = told(tried, Learnt(), at=at, call=probes[0])
    assert list(json.loads(left.probes)) == [str(probes[1])]
    assert isinstance(asked(left, uuid4(), at), Health)
    assert isinstance(asked(tried, uuid4(), at + 9 * SECOND), Blocked)
    assert isinstance(asked(tried, uuid4(), at + 10 * SECOND), Health)


def test_a_failed_probe_opens_for_longer_each_time_up_to_the_cap() -> None:
    at, held, pauses = NOW, told(NEW, FAILED, FAILED, FAILED), []
    for _ in range(6):
        assert held.closed_until is not None
        pauses.append((held.closed_until - at) / SECOND)
        at, call = held.closed_until, uuid4()
        held = told(admitted(held, call, at), FAILED, at=at, call=call)
        assert held.opened_at == NOW
    assert pauses == [1, 2, 4, 8, 8, 8]


def test_the_pause_is_jittered() -> None:
    assert told(NEW, FAILED, FAILED, FAILED, rand=0.999).closed_until == NOW + timedelta(seconds=1.24975)


@pytest.mark.parametrize(
    ("age_s", "rand", "after_s"),
    [
        (0, 0.0, 0.1),
        (0, 1.0, 0.2),
        (10, 0.0, 2.5),
        (10, 1.0, 5.0),
        (600, 0.0, 15.0),
        (600, 1.0, 30.0),
    ],
)
def test_whoever_waits_comes_back_at_a_time_of_its_own(age_s: float, rand: float, after_s: float) -> None:
    held = replace(NEW, state=State.OPEN, opened_at=NOW - age_s * SECOND, closed_until=NOW + 3 * SECOND)
    last = NOW + timedelta(hours=1)
    found = wake_at(Blocked(NOW + 3 * SECOND, State.OPEN, ""), held, now=NOW, last=last, rand=rand)
    assert found == NOW + (3 + after_s) * SECOND


def test_a_call_that_waits_ten_minutes_is_put_off_some_forty_times() -> None:
    at, times = NOW, 0
    held = replace(NEW, state=State.OPEN, opened_at=NOW)
    while at < NOW + timedelta(minutes=10):
        found = wake_at(Blocked(at, State.OPEN, ""), held, now=at, last=NOW + timedelta(days=1), rand=0.5)
        assert found is not None
        assert found > at
        at, times = found, times + 1
    assert 25 <= times <= 45


@pytest.mark.parametrize("age_s", [0, 10, 600])
def test_who_meets_the_moment_in_which_others_try_comes_back_soon_after(age_s: float) -> None:
    held = replace(NEW, state=State.HALF_OPEN, opened_at=NOW - age_s * SECOND)
    blocked = Blocked(NOW, State.HALF_OPEN, "")
    found = wake_at(blocked, held, now=NOW, last=NOW + timedelta(hours=1), rand=0.999)
    assert found is not None
    assert NOW < found <= NOW + 5 * SECOND


def test_a_blocked_call_is_not_put_off_beyond_its_last_start() -> None:
    held = replace(NEW, state=State.OPEN, opened_at=NOW - 60 * SECOND, closed_until=NOW + 3 * SECOND)
    blocked = Blocked(NOW + 3 * SECOND, State.OPEN, "")
    found = wake_at(blocked, held, now=NOW, last=NOW + 5 * SECOND, rand=0.999)
    assert found is not None
    assert NOW + 3 * SECOND <= found < NOW + 4 * SECOND
    assert wake_at(blocked, held, now=NOW, last=NOW + 3 * SECOND, rand=0) is None


def test_concurrency_is_counted_over_the_fleet_and_a_lost_attempt_is_forgotten_in_time() -> None:
    spec = replace(SPEC, concurrency=2)
    first, second, third = uuid4(), uuid4(), uuid4()
    held = admitted(admitted(NEW, first, spec=spec), second, NOW + SECOND, spec)
    assert asked(held, third, NOW + SECOND, spec) == Full(NOW + 10 * SECOND, "concurrency")
    assert isinstance(asked(held, third, NOW + 10 * SECOND, spec), Health)
    freed = learn(held, spec, ANSWERED, call=first, now=NOW + SECOND, rand=0)
    assert list(json.loads(freed.flights)) == [str(second)]
    assert isinstance(asked(freed, third, NOW + SECOND, spec), Health)


def test_a_rate_is_kept_over_the_fleet_with_small_bursts_only() -> None:
    spec = replace(SPEC, rate=100)
    held, at, started = NEW, NOW, []
    while at < NOW + 3 * SECOND:
        found = asked(held, uuid4(), at, spec)
        if isinstance(found, Full):
            assert found.limit == "rate"
            assert found.until > at
            at = found.until
        else:
            assert isinstance(found, Health)
            held = found
            started.append(at)
    for second in range(3):
        since = NOW + second * SECOND
        assert 99 <= sum(since <= one < since + SECOND for one in started) <= 110


def test_a_slow_rate_starts_one_at_a_time() -> None:
    spec = replace(SPEC, rate=0.5)
    held = admitted(NEW, uuid4(), spec=spec)
    assert asked(held, uuid4(), NOW + SECOND, spec) == Full(NOW + 2 * SECOND, "rate")
    assert isinstance(asked(held, uuid4(), NOW + 2 * SECOND, spec), Health)


def test_what_a_closing_breaker_forgets_is_not_its_limits() -> None:
    spec = replace(SPEC, concurrency=3, rate=1)
    at, probe = NOW + SECOND, uuid4()
    other = admitted(NEW, uuid4(), spec=spec)
    failing = told(other, FAILED, FAILED, FAILED)
    tried = admitted(failing, probe, at + SECOND, spec)
    closed = learn(tried, spec, ANSWERED, call=probe, now=at + SECOND, rand=0)
    assert (closed.state, closed.failures) == (State.CLOSED, 0)
    assert closed.paced_at == tried.paced_at
    assert len(json.loads(closed.flights)) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0},
        {"rate": float("nan")},
        {"concurrency": 0},
        {"slots": 0},
    ],
)
def test_limits_that_cannot_be_are_refused(options: Mapping[str, float]) -> None:
    with pytest.raises(UsageError, match="dependency bank has"):
        App("a").dependency("bank", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"failures": 0}, {"probes": 0}, {"pause": timedelta(hours=1)}])
def test_a_breaker_that_cannot_be_is_refused(options: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError, match="a breaker's"):
        Breaker(**options)
