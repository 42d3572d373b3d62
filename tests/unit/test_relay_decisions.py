"""What the relay decides, without a clock, a database or a broker."""

import itertools
import logging
from datetime import UTC, datetime, timedelta

import pytest

from fencepost.errors import Unreachable
from fencepost_relay.__main__ import Report
from fencepost_relay.relay import (
    PassResult,
    Row,
    Stamp,
    judge_silence,
    may_republish,
    messages,
    republish_delay,
    uninterrupted,
)

TTL = timedelta(seconds=10)
BASE = timedelta(seconds=15)
T0 = datetime(2026, 1, 1, tzinfo=UTC)
T1 = T0 + timedelta(microseconds=1)


# ---- republication


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


def test_a_queue_at_its_limit_gets_nothing_twice() -> None:
    assert [may_republish(length, 1000) for length in (0, 999, 1000, 5000)] == [True, True, False, False]


# ---- messages


def row(subject: int, queue: str = "planner", publish_count: int = 1) -> Row:
    return Row("shop", str(subject), 7, queue, publish_count)


def test_rows_become_lists_per_queue_in_their_order() -> None:
    rows = [row(1), row(2, "dispatcher"), row(3), row(4), row(5, "dispatcher")]

    assert messages(rows, {}, limit=10, size=2) == [
        ("planner", [("shop", "1", 7), ("shop", "3", 7)]),
        ("planner", [("shop", "4", 7)]),
        ("dispatcher", [("shop", "2", 7), ("shop", "5", 7)]),
    ]


def test_a_long_queue_still_gets_what_it_has_never_held() -> None:
    rows = [row(1, publish_count=1), row(2, publish_count=2), row(3, "dispatcher", publish_count=2)]

    sent = messages(rows, {"planner": 10, "dispatcher": 9}, limit=10, size=100)

    assert sent == [("planner", [("shop", "1", 7)]), ("dispatcher", [("shop", "3", 7)])]


def test_no_rows_make_no_message() -> None:
    assert messages([], {}, limit=10, size=100) == []


# ---- silence


def look(seen: dict[str, Stamp], now: float, **stamps: datetime) -> tuple[dict[str, Stamp], tuple[str, ...]]:
    return judge_silence(seen, stamps.items(), now, TTL)


def test_a_worker_seen_for_the_first_time_is_alive_whatever_its_stamp_says() -> None:
    ancient = T0 - timedelta(days=1)

    assert look({}, 1000.0, a=ancient) == ({"a": (ancient, 1000.0)}, ())


def test_an_unchanged_stamp_is_dead_after_a_ttl_of_our_own_time_and_not_before() -> None:
    seen, _ = look({}, 100.0, a=T0)

    assert look(seen, 109.999, a=T0)[1] == ()
    assert look(seen, 110.0, a=T0)[1] == ("a",)


def test_any_other_stamp_starts_the_count_again_even_an_earlier_one() -> None:
    seen, _ = look({}, 100.0, a=T1, b=T0)

    after, dead = look(seen, 110.0, a=T0, b=T1)

    assert dead == ()
    assert after == {"a": (T0, 110.0), "b": (T1, 110.0)}


def test_the_dead_stay_dead_until_they_stamp() -> None:
    seen, _ = look({}, 100.0, a=T0)
    seen, dead = look(seen, 110.0, a=T0)
    seen, still = look(seen, 111.0, a=T0)
    seen, back = look(seen, 112.0, a=T1)

    assert (dead, still, back) == (("a",), ("a",), ())


def test_a_worker_that_has_left_the_table_is_forgotten() -> None:
    seen, _ = look({}, 100.0, a=T0, b=T0)

    assert look(seen, 120.0, b=T0) == ({"b": (T0, 100.0)}, ("b",))


def test_an_outage_that_made_us_start_again_declares_nobody_dead() -> None:
    seen, _ = look({}, 100.0, a=T0)
    assert look(seen, 1000.0, a=T0)[1] == ("a",), "what a relay that ignored the outage would say"

    assert look({}, 1000.0, a=T0)[1] == ()


@pytest.mark.parametrize(
    ("last_look", "now", "expected"),
    [
        (None, 50.0, False),  # the first look, or one after a failed one
        (50.0, 50.0, True),
        (50.0, 53.3, True),  # a third of 10 s: the workers had to stamp once
        (50.0, 53.4, False),  # a pause of ours, or a Postgres that was frozen
        (50.0, 90.0, False),
    ],
)
def test_looks_far_apart_are_not_one_observation(last_look: float | None, now: float, expected: bool) -> None:
    assert uninterrupted(last_look, now, TTL) is expected


def test_a_worker_that_stamps_every_third_of_a_ttl_is_never_declared_dead() -> None:
    seen: dict[str, Stamp] = {}
    for tick in itertools.islice(itertools.count(), 400):  # looks a second apart, stamps every 3.4 s
        now = 100.0 + tick
        seen, dead = look(seen, now, a=T0 + timedelta(seconds=int(now / 3.4)))
        assert dead == ()


# ---- what it says


def test_an_outage_is_told_once_without_passwords_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fencepost.relay")
    report, quiet = Report(), PassResult(0, 0, None, ())

    for _ in range(3):
        report.failed(Unreachable("no answer from redis://:secret@host/0"))
    report.failed(Unreachable("connection refused"))
    for _ in range(3):
        report.passed(quiet)

    assert caplog.messages == [
        "pass failed: no answer from redis://:***@host/0",
        "pass failed: connection refused",
        "passes succeed again",
    ]


def test_a_dead_worker_is_told_at_once_and_counts_are_gathered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fencepost.relay")
    report = Report()

    report.passed(PassResult(3, 2, None, ("0123456789abcdef",)))
    report.passed(PassResult(4, 4, None, ()))
    report.flush()
    report.flush()

    assert caplog.messages == ["worker 01234567 is silent; its rows are due", "took 7 rows, published 6"]
