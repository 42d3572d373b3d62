"""Moments as operators type them."""

from datetime import UTC, datetime, timedelta

import click
import pytest

from fencepost_ops.commands.durations import MOMENT, at

NOW = datetime(2026, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("24h", datetime(2026, 2, 2, 4, 5, tzinfo=UTC)),
        ("1h30m", datetime(2026, 2, 3, 2, 35, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_a_moment_is_a_span_back_a_day_or_a_time(text: str, moment: datetime) -> None:
    assert at(MOMENT.convert(text, None, None), NOW) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "-1h", "0s", "2026-13-01", "2026-01-31T12:00:00", "24"])
def test_anything_else_is_one_sentence(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"a moment is 24h \(ago\), 2026-01-31 or 2026-01-31T"):
        MOMENT.convert(text, None, None)


def test_a_span_longer_than_history_ends_where_time_begins() -> None:
    assert at(timedelta(days=999_999), NOW) == datetime.min.replace(tzinfo=UTC)
