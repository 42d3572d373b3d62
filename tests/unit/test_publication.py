"""When a row is published again, when it is set aside, and how one bad item is told from its neighbours."""

from collections.abc import Sequence
from datetime import timedelta

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import Conflict, FaultInjected, NotFound, Unreachable, UsageError
from fencepost.ledger.outbox import failure_text, its_own
from fencepost.publication import MOST_FAILURES, apart, next_try, pauses, republish_delay

BASE = timedelta(seconds=15)


@pytest.mark.parametrize(
    ("publish_count", "seconds"),
    [
        (0, 15),  # 15 * 1, after the first publication
        (1, 30),  # 15 * 2
        (2, 60),  # 15 * 4
        (3, 120),  # 15 * 8
        (4, 120),
        (10**6, 120),
    ],
)
def test_the_pause_doubles_up_to_eight_intervals(publish_count: int, seconds: int) -> None:
    assert republish_delay(publish_count, BASE) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(1, 15), (2, 30), (3, 60), (4, 120), (5, None), (6, None), (10**6, None)],
)
def test_a_failing_row_is_tried_five_times_with_pauses_and_then_set_aside(
    failures: int, seconds: int | None
) -> None:
    assert next_try(failures, BASE) == (None if seconds is None else timedelta(seconds=seconds))


def test_the_table_of_pauses_ends_where_a_row_is_set_aside() -> None:
    assert pauses(BASE) == [next_try(n, BASE) for n in range(1, MOST_FAILURES)]
    assert sum(pauses(BASE), timedelta()) == 15 * BASE


def sqlstate(kind: type[psycopg.Error], state: str | None) -> psycopg.Error:
    error = kind("said so")
    error.sqlstate = state
    return error


@pytest.mark.parametrize(
    ("error", "own"),
    [
        (ValueError("x"), True),
        (LookupError("no such queue"), True),
        (RecursionError(), True),
        (Conflict(), True),
        (psycopg.DataError("PostgreSQL text fields cannot contain NUL"), True),
        (sqlstate(psycopg.errors.NumericValueOutOfRange, "22003"), True),
        (sqlstate(psycopg.errors.CheckViolation, "23514"), True),
        (sqlstate(psycopg.errors.DataCorrupted, "XX001"), True),
        (sqlstate(psycopg.Error, "FP001"), True),
        (Unreachable(), False),
        (UsageError("a login that may not"), False),
        (NotFound("no ledger"), False),
        (FaultInjected("a drill"), False),
        (ConnectionResetError(), False),
        (OSError(24, "too many open files"), False),
        (MemoryError(), False),
        (sqlstate(psycopg.OperationalError, None), False),
        (sqlstate(psycopg.errors.AdminShutdown, "57P01"), False),
        (sqlstate(psycopg.errors.LockNotAvailable, "55P03"), False),
        (sqlstate(psycopg.errors.DeadlockDetected, "40P01"), False),
        (sqlstate(psycopg.errors.DiskFull, "53100"), False),
        (sqlstate(psycopg.errors.SyntaxError, "42601"), False),
    ],
)
def test_an_outage_a_login_or_a_drill_is_no_rows_own_failure(error: Exception, own: bool) -> None:
    assert its_own(error) is own


def test_what_a_row_keeps_of_an_error_is_one_short_line() -> None:
    assert failure_text(ValueError("two\nlines")) == "ValueError: two lines"
    assert failure_text("said plainly") == "said plainly"
    assert len(failure_text(ValueError("x" * 10_000))) <= 510


def own(error: Exception) -> bool:
    return not isinstance(error, OSError)


@given(st.lists(st.booleans(), max_size=40))
def test_whoever_is_bad_fails_alone_and_all_others_are_answered(bad: list[bool]) -> None:
    asked: list[int] = []

    def action(items: Sequence[int]) -> list[str]:
        asked.append(len(items))
        if any(bad[n] for n in items):
            raise ValueError("one of us")
        return [f"ok {n}" for n in items]

    answers = apart(range(len(bad)), action, own)

    for n, answer in enumerate(answers):
        assert isinstance(answer, ValueError) if bad[n] else answer == f"ok {n}"
    assert len(answers) == len(bad)


def test_one_bad_item_of_a_hundred_costs_few_questions() -> None:
    asked: list[int] = []

    def action(items: Sequence[int]) -> list[int]:
        asked.append(len(items))
        if 63 in items:
            raise ValueError
        return list(items)

    apart(range(100), action, own)

    assert len(asked) <= 15


def test_an_outage_is_the_answer_to_all_and_is_asked_once() -> None:
    asked: list[int] = []

    def action(items: Sequence[int]) -> list[int]:
        asked.append(len(items))
        raise ConnectionResetError

    answers = apart(range(100), action, own)

    assert asked == [100]
    assert [type(answer) for answer in answers] == [ConnectionResetError] * 100
