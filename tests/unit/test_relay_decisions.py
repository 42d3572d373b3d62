"""What the relay decides, without a clock, a database or a broker."""

import itertools
import json
import logging
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from fencepost.errors import Unreachable
from fencepost.ledger.outbox import Setback
from fencepost.telemetry import logs
from fencepost_relay.__main__ import Report
from fencepost_relay.relay import PassResult
from fencepost_relay.silence import Stamp, judge_silence, uninterrupted
from fencepost_relay.taking import LAG, Floor, Row, Sent, lists

TTL = timedelta(seconds=10)
T0 = datetime(2026, 1, 1, tzinfo=UTC)
T1 = T0 + timedelta(microseconds=1)


# ---- messages


def row(subject: int, queue: str = "planner", publish_count: int = 1) -> Row:
    return Row("shop", str(subject), 7, queue, publish_count)


def test_rows_become_lists_per_queue_in_their_order() -> None:
    rows = [row(1), row(2, "dispatcher"), row(3), row(4), row(5, "dispatcher")]

    assert lists(rows, 2) == [
        ("planner", [("shop", "1", 7), ("shop", "3", 7)]),
        ("planner", [("shop", "4", 7)]),
        ("dispatcher", [("shop", "2", 7), ("shop", "5", 7)]),
    ]


def test_no_rows_make_no_message() -> None:
    assert lists([], 100) == []


# ---- what a queue can hold


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def sent(*added: tuple[float, int]) -> Sent:
    history = Sent()
    for seconds, count in added:
        history.add(at(seconds), count)
    return history


@pytest.mark.parametrize(
    ("length", "left"),
    [
        (1, at(2)),  # the last message may be there, so all before it have left
        (3, at(2)),
        (4, at(1)),  # one of the two sent at 2 s is there as well: nothing is known of the other
        (5, at(1)),
        (6, at(0)),
        (10, at(0)),  # as many as were ever sent: what was there before this relay has left
        (11, None),  # more than it has sent: the rest is older, or another relay's
    ],
)
def test_a_queue_holds_what_was_sent_to_it_last(length: int, left: datetime | None) -> None:
    assert sent((0, 0), (1, 5), (2, 2), (3, 3)).left(length) == left


def test_of_a_queue_nothing_was_sent_to_nothing_is_known() -> None:
    assert Sent().left(1) is None
    assert sent((5, 0)).left(1) is None


def test_a_history_that_grows_too_fine_is_kept_coarse_and_on_the_safe_side() -> None:
    history = sent((0, 0), *((1 + n / 1000, 1) for n in range(1000)))

    assert len(history.times) < 14
    for length in range(1, 1000):
        really = at(1 + (1000 - length - 1) / 1000)
        left = history.left(length)
        assert left is not None
        assert left <= really


def test_messages_of_one_pass_are_one_point_and_a_clock_set_back_makes_it_earlier() -> None:
    assert sent((0, 0), (1, 1), (1, 1)).left(1) == at(0)
    assert sent((10, 0), (20, 1), (5, 1)).times == [at(10), at(5)]


# ---- from where on


def test_a_look_begins_where_the_last_one_ended_and_now_and_then_at_the_beginning() -> None:
    floor = Floor()
    assert floor.begins(100.0) is None, "the first look is thorough"
    floor = floor.looked(None, at(10), None, at=100.01, took_s=0.01)
    assert floor.begins(100.02) == at(10) - LAG
    floor = floor.looked(floor.after, at(10.1), None, at=100.11, took_s=0.01)
    assert floor.begins(100.12) == at(10.1) - LAG
    assert floor.begins(101.01) is None, "a second after the last thorough one"


def test_a_look_that_left_something_is_followed_by_one_that_begins_there() -> None:
    floor = Floor().looked(None, at(10), at(3), at=100.0, took_s=0.0)
    assert floor.begins(100.5) == at(3)


def test_thorough_looks_take_a_twentieth_of_the_time_at_most() -> None:
    floor = Floor().looked(None, at(10), None, at=100.0, took_s=0.4)
    assert floor.begins(107.9) is not None
    assert floor.begins(108.0) is None


def test_a_relay_that_was_frozen_while_it_looked_looks_thoroughly_again_within_a_minute() -> None:
    floor = Floor().looked(None, at(10), None, at=4000.0, took_s=3600)
    assert floor.begins(4039.9) is not None
    assert floor.begins(4040.0) is None


def test_a_clock_set_back_makes_the_next_look_thorough() -> None:
    floor = Floor(at(10), thorough_at=1000.0)
    assert floor.looked(at(10), at(9.9), None, at=100.0, took_s=0.0).begins(100.0) is None


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

    report.passed(PassResult(3, 2, None, ("0123456789abcdef",)), 0.04)
    report.passed(PassResult(4, 4, None, ()))
    report.flush()
    report.flush()

    assert caplog.messages == [
        "worker 01234567 is silent; its rows are due",
        "took 7 rows, published 6; longest pass 40 ms",
    ]


def test_what_cannot_be_published_is_told_in_a_line_each_for_what_goes_on_and_what_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.handler.setFormatter(logs.json_lines())

    def setback(number: int, *, dead: bool) -> Setback:
        of, said = UUID(int=number), "LookupError: no queue"
        return Setback("shop", of, "ghosts", 5 if dead else 1, dead, said, of, UUID(int=7))

    Report().passed(PassResult(3, 0, None, (), (setback(1, dead=False), setback(2, dead=False))))
    Report().passed(PassResult(3, 0, None, (), (setback(3, dead=True),)))

    tried = f"2 rows could not be published and are tried again later; the first, shop/{UUID(int=1)}"
    aside = f"1 rows are set aside, see `fencepost outbox --dead`; the first, shop/{UUID(int=3)}"
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", f"{tried}: LookupError: no queue"),
        ("ERROR", f"{aside}: LookupError: no queue"),
    ]
    lines = [json.loads(line) for line in caplog.text.splitlines()]
    first = [(UUID(int=7).hex, str(UUID(int=n))) for n in (1, 3)]
    assert [(line["trace_id"], line["run"]) for line in lines] == first
