"""What a Retry-After says, whoever wrote it: a wait of an hour at most, or nothing."""

from datetime import UTC, datetime, timedelta

import pytest

from fencepost.outcomes import retry_after
from fencepost.tools import Response

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("0", timedelta(0)),
        ("7", timedelta(seconds=7)),
        ("3600", timedelta(hours=1)),
        ("99999", timedelta(hours=1)),
        ("Fri, 02 Jan 2026 03:04:15 GMT", timedelta(seconds=10)),
        ("Fri, 02 Jan 2026 03:04:15 -0000", timedelta(seconds=10)),
        ("Fri, 02 Jan 2026 03:00:00 GMT", timedelta(0)),
        ("Fri, 02 Jan 2037 03:00:00 GMT", timedelta(hours=1)),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("9" * 30, None),
        ("Fri, 99 Jan 2026 03:04:15 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_within_an_hour(value: str, wait: timedelta | None) -> None:
    assert retry_after(Response(429, {"retry-after": value}), NOW) == wait


def test_no_header_is_no_wait() -> None:
    assert retry_after(Response(429), NOW) is None
