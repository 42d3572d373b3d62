"""Durations as people type and read them."""

from datetime import timedelta

import click
import pytest

from fencepost_ops.commands.durations import DURATION, parse_duration, spoken


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("90s", timedelta(seconds=90)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("250ms", timedelta(milliseconds=250)),
        ("1h30m", timedelta(minutes=90)),
        (" 1.5H ", timedelta(minutes=90)),
        ("-5m", timedelta(minutes=-5)),
        ("0s", timedelta(0)),
    ],
)
def test_what_people_type_is_read(text: str, span: timedelta) -> None:
    assert parse_duration(text) == span


@pytest.mark.parametrize(
    "text", ["", "5", "5 m", "m", "5x", "1h-5m", "٣m", "2026-01-02T03:04:05Z", "9" * 99 + "s"]
)
def test_anything_else_is_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="duration") as caught:
        parse_duration(text)
    assert len(str(caught.value)) < 150


def test_a_duration_too_long_to_keep_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than any duration"):
        parse_duration("9999999999d")


@pytest.mark.parametrize("text", ["0s", "-5m"])
def test_a_deadline_in_the_past_is_told_so(text: str) -> None:
    with pytest.raises(click.BadParameter, match="lies in the past"):
        DURATION.convert(text, None, None)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(0), "0 ms"),
        (timedelta(milliseconds=12), "12 ms"),
        (timedelta(seconds=1.234), "1.23 s"),
        (timedelta(seconds=59.97), "1 m"),
        (timedelta(seconds=185), "3 m 05 s"),
        (timedelta(seconds=7384), "2 h 03 m"),
        (timedelta(days=2, hours=3), "2 d 03 h"),
        (timedelta(hours=24), "1 d"),
        (timedelta(seconds=-5), "-5 s"),
    ],
)
def test_durations_are_told_in_two_units_at_most(span: timedelta, text: str) -> None:
    assert spoken(span) == text
