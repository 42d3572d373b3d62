import os
import random
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.clock import NEVER, boottime, new_id, parse_rfc3339, rfc3339, token, uuid7

instants = st.datetimes(timezones=st.just(UTC))
zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(instants)
def test_an_instant_survives_its_text(instant: datetime) -> None:
    assert parse_rfc3339(rfc3339(instant)) == instant


@given(instants, instants)
def test_texts_sort_as_their_instants(one: datetime, other: datetime) -> None:
    assert (rfc3339(one) < rfc3339(other)) == (one < other)


@given(st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1), timezones=zones))  # noqa: DTZ001
def test_a_zone_is_turned_into_utc(instant: datetime) -> None:
    assert parse_rfc3339(rfc3339(instant)) == instant
    assert parse_rfc3339(instant.isoformat()) == instant


def test_there_are_always_six_decimals() -> None:
    assert rfc3339(datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)) == "2026-01-02T03:04:05.000006Z"
    assert rfc3339(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02T00:00:00.000000Z"
    assert rfc3339(NEVER) == "9999-01-01T00:00:00.000000Z"


def test_decimals_past_the_sixth_are_cut_off() -> None:
    assert parse_rfc3339("2026-01-02t03:04:05.1234569z").microsecond == 123456
    assert parse_rfc3339("2026-01-02T03:04:05.5Z").microsecond == 500_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-02",
        "2026-01-02T03:04:05",
        "2026-01-02 03:04:05Z",
        "2026-01-02T03:04:05.Z",
        "2026-01-02T03:04:60Z",
        "2026-13-02T03:04:05Z",
        "2026-01-02T03:04:05+24:00",
        "2026-01-02T03:04:05Z ",
        "٢٠٢٦-01-02T03:04:05Z",
        "0001-01-01T00:00:00+12:00",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_rfc3339(text)


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        rfc3339(datetime(2026, 1, 2))  # noqa: DTZ001


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_an_id_is_a_version_7_uuid_that_holds_its_time(now_ms: int, rand: int) -> None:
    made = new_id(now_ms, rand)
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert made.int >> 80 == now_ms


@given(st.tuples(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1)), st.data())
def test_ids_sort_by_time_and_then_by_chance(first: tuple[int, int], data: st.DataObject) -> None:
    second = data.draw(st.tuples(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1)))
    assert (new_id(*first).bytes < new_id(*second).bytes) == (first < second)


def test_a_time_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="48 bits"):
        new_id(2**48, 0)


def test_ids_and_tokens_do_not_repeat() -> None:
    assert len({uuid7() for _ in range(1000)}) == len({token() for _ in range(1000)}) == 1000
    assert len(token()) == 32
    assert abs((uuid7().int >> 80) - time.time_ns() // 1_000_000) < 60_000


def test_the_workers_clock_never_goes_back() -> None:
    readings = [boottime() for _ in range(100)]
    assert readings == sorted(readings)


def test_no_application_that_seeds_the_interpreters_generator_repeats_our_ids() -> None:
    kept = random.getstate()
    try:
        random.seed(1)
        one = uuid7()
        random.seed(1)
        other = uuid7()
    finally:
        random.setstate(kept)
    assert one.int & (1 << 62) - 1 != other.int & (1 << 62) - 1


def test_a_fork_does_not_go_on_with_the_ids_of_its_parent() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, uuid7().bytes[8:])
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 8) != uuid7().bytes[8:]
    os.close(reading)
    os.close(writing)
