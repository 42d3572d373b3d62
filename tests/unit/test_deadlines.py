from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from fencepost.clock import NEVER
from fencepost.deadlines import (
    MAX_RETRY_AFTER,
    answer_timeout,
    attempt_timeout,
    backoff,
    millis,
    plus,
    quiet_at,
    retry_at,
    takeover_at,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
ALMOST_ONE = 1 - 2**-53

instants = st.datetimes(timezones=st.just(UTC))
durations = st.timedeltas(timedelta(0), timedelta.max)
jitter = st.floats(0, 1, exclude_max=True)


def test_an_attempt_gets_its_cap_while_the_deadline_is_far() -> None:
    assert attempt_timeout(10 * SECOND, NOW + MINUTE, NOW, 5 * SECOND) == 10 * SECOND


def test_an_attempt_near_the_deadline_gets_what_is_left_before_the_reserve() -> None:
    # 12 s left, 5 s kept back to settle an unknown outcome
    assert attempt_timeout(10 * SECOND, NOW + 12 * SECOND, NOW, 5 * SECOND) == 7 * SECOND


def test_an_attempt_that_would_eat_the_reserve_gets_nothing() -> None:
    assert attempt_timeout(10 * SECOND, NOW + 5 * SECOND, NOW, 5 * SECOND) == timedelta(0)
    assert attempt_timeout(10 * SECOND, NOW, NOW, 5 * SECOND) == -5 * SECOND


@given(cap=durations, left=st.timedeltas(-MINUTE, MINUTE), reserve=st.timedeltas(timedelta(0), MINUTE))
def test_no_attempt_outlives_the_deadline_less_the_reserve(
    cap: timedelta, left: timedelta, reserve: timedelta
) -> None:
    deadline = NOW + left
    timeout = attempt_timeout(cap, deadline, NOW, reserve)
    assert timeout <= cap
    assert NOW + timeout <= deadline - reserve


@given(st.none() | durations, durations, durations)
def test_a_planner_has_as_long_as_it_or_else_its_model_declares_and_no_longer_than_its_run(
    declared: timedelta | None, of_model: timedelta, left: timedelta
) -> None:
    said = declared or of_model
    assert answer_timeout(declared, of_model, left) == (min(left, said))


def test_events_tell_whole_milliseconds() -> None:
    assert [millis(n * timedelta(microseconds=500)) for n in (0, 1, 3, 2000)] == [0, 0, 1, 1000]


def test_a_takeover_is_due_a_grace_after_the_attempt() -> None:
    assert takeover_at(NOW, 2 * SECOND) == NOW + 2 * SECOND


def test_what_was_sent_is_quiet_after_settling_and_never_where_that_is_undocumented() -> None:
    assert quiet_at(NOW, 3 * SECOND) == NOW + 3 * SECOND
    assert quiet_at(NOW, timedelta(0)) == NOW
    assert quiet_at(NOW, None) == NEVER


@given(at=instants, delta=durations)
def test_sums_of_instants_never_overflow(at: datetime, delta: timedelta) -> None:
    assert plus(at, delta) <= NEVER
    assert takeover_at(NEVER, delta) == NEVER
    assert quiet_at(NEVER, delta) == NEVER


def test_the_ceiling_of_the_pause_doubles_up_to_its_cap() -> None:
    pauses = [backoff(n, timedelta(milliseconds=200), SECOND, ALMOST_ONE) for n in range(1, 6)]
    expected = [200, 400, 800, 1000, 1000]
    assert [round(pause / timedelta(milliseconds=1)) for pause in pauses] == expected


def test_jitter_is_full() -> None:
    assert backoff(3, SECOND, MINUTE, 0.0) == timedelta(0)
    assert backoff(3, SECOND, MINUTE, 0.5) == 2 * SECOND


@given(attempt=st.integers(-5, 10**9), base=durations, cap=durations, rand=jitter)
def test_a_pause_lies_between_nothing_and_its_cap_for_any_attempt(
    attempt: int, base: timedelta, cap: timedelta, rand: float
) -> None:
    assert timedelta(0) <= backoff(attempt, base, cap, rand) <= cap


def test_the_downstreams_wish_is_a_floor_for_the_next_attempt() -> None:
    assert retry_at(NOW, 1, SECOND, MINUTE, 0.5, 7 * SECOND) == NOW + 7 * SECOND
    assert retry_at(NOW, 5, SECOND, MINUTE, 0.5, 7 * SECOND) == NOW + 8 * SECOND
    assert retry_at(NOW, 1, SECOND, MINUTE, 0.5, None) == NOW + SECOND / 2


def test_the_downstreams_wish_is_followed_for_an_hour_at_most() -> None:
    assert retry_at(NOW, 1, SECOND, MINUTE, 0.0, timedelta(days=365)) == NOW + MAX_RETRY_AFTER


def test_a_negative_wish_changes_nothing() -> None:
    assert retry_at(NOW, 1, SECOND, MINUTE, 0.5, -MINUTE) == NOW + SECOND / 2
