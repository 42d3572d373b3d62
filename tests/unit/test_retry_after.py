"""What a Retry-After says, whoever wrote it: a wait of an hour at most, or nothing."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fencepost import breaker
from fencepost.contracts import Contract
from fencepost.outcomes import Answered, Applied, Outcome, Refused, Unsure, classify, retry_after
from fencepost.tools import Response
from tests.typing.user_code import debit

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
        ("1.5", timedelta(seconds=1.5)),
        ("2.0", timedelta(seconds=2)),
        ("0.4931", timedelta(milliseconds=494)),
        ("2s", timedelta(seconds=2)),
        ("1m30s", timedelta(seconds=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("2026-01-02T03:04:15Z", timedelta(seconds=10)),
        ("2026-01-02T03:04:15.5+00:00", timedelta(seconds=10.5)),
        ("1767323055", timedelta(seconds=10)),
        ("nan", None),
        ("1e3", None),
        ("2 s or so", None),
        ("soon", None),
        ("", None),
        ("9" * 30, None),
        ("Fri, 99 Jan 2026 03:04:15 GMT", None),
    ],
)
def test_retry_after_is_a_wait_or_a_date_within_an_hour(value: str, wait: timedelta | None) -> None:
    assert retry_after(Response(429, {"retry-after": value}), NOW) == wait


def test_no_header_is_no_wait() -> None:
    assert retry_after(Response(429), NOW) is None


@pytest.mark.parametrize(
    ("status", "headers", "wait"),
    [
        (429, {"retry-after-ms": "1500"}, timedelta(seconds=1.5)),
        (429, {"retry-after": "7", "retry-after-ms": "1500"}, timedelta(seconds=7)),
        (429, {"x-ratelimit-reset": "1767323055"}, timedelta(seconds=10)),
        (429, {"x-ratelimit-reset": "1767323055500"}, timedelta(seconds=10.5)),
        (429, {"ratelimit-reset": "3"}, timedelta(seconds=3)),
        (429, {"x-ratelimit-reset-requests": "1m0s", "x-ratelimit-reset-tokens": "6s"}, timedelta(seconds=6)),
        (429, {"anthropic-ratelimit-tokens-reset": "2026-01-02T03:04:15Z"}, timedelta(seconds=10)),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1767323055"}, timedelta(seconds=10)),
        (403, {"x-ratelimit-remaining": "9", "x-ratelimit-reset": "1767323055"}, None),
        (403, {"x-ratelimit-reset": "1767323055"}, None),
        (500, {"ratelimit-reset": "3"}, None),
        (429, {"ratelimit-reset": "soon"}, None),
    ],
)
def test_limits_tell_when_they_begin_anew(
    status: int, headers: dict[str, str], wait: timedelta | None
) -> None:
    assert retry_after(Response(status, headers), NOW) == wait


@pytest.mark.parametrize("not_applied", [frozenset({403}), frozenset()])
def test_a_403_that_says_too_many_closes_the_dependency_and_is_tried_again(
    not_applied: frozenset[int],
) -> None:
    tool = replace(debit.tool, contract=Contract(not_applied=not_applied))
    headers = {"x-ratelimit-remaining": "0", "ratelimit-reset": "3"}
    outcome = classify(tool, Answered(Response(403, headers)), now=NOW)
    assert isinstance(outcome, Refused if not_applied else Unsure)
    assert breaker.throttled(outcome)
    assert breaker.learnt(outcome).failed
    assert breaker.learnt(outcome).retry_after == timedelta(seconds=3)
    assert not isinstance(outcome, Refused) or outcome.retryable


@pytest.mark.parametrize(
    ("outcome", "throttled"),
    [
        (Refused("http_429", "", retryable=True), True),
        (Refused("http_503", "", retryable=True, retry_after=timedelta(seconds=1)), True),
        (Refused("http_503", "", retryable=True), False),
        (Refused("http_429", "", retryable=False, final_answer_stored=True), False),
        (Unsure("http_429", ""), True),
        (Unsure("timeout", ""), False),
        (Refused("http_402", "", retryable=False), False),
        (Applied("null", None), False),
    ],
)
def test_what_only_says_later_is_no_answer_about_its_call(outcome: Outcome, throttled: bool) -> None:
    assert breaker.throttled(outcome) is throttled
