"""What a worker is worth, by its stamps."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost.ledger.listings import WorkerInfo

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TTL, LIMIT = timedelta(seconds=10), timedelta(seconds=30)
WELL = WorkerInfo(
    "t", "planner", "h", 1, NOW - timedelta(hours=1), NOW, None, progress_at=NOW, busy=0, slots=4
)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("differs", "state"),
    [
        ({}, "alive"),
        ({"busy": 2}, "busy"),
        ({"busy": None, "slots": None, "progress_at": None}, "alive"),  # it has just begun
        ({"last_seen": ago(10)}, "alive"),
        ({"last_seen": ago(10.1)}, "silent"),
        ({"last_seen": ago(10.1), "draining": True}, "silent"),
        ({"draining": True, "busy": 2}, "draining"),
        ({"ended_at": NOW, "last_seen": ago(99), "draining": True}, "ended"),
        ({"progress_at": ago(31)}, "alive"),  # nothing waits for it
        ({"progress_at": ago(30), "waiting": 5}, "alive"),
        ({"progress_at": ago(31), "waiting": 5}, "stalled"),
        ({"progress_at": None, "waiting": 5}, "stalled"),
        ({"progress_at": None, "waiting": 5, "started_at": ago(5)}, "alive"),
        ({"progress_at": ago(31), "waiting": 5, "busy": 3}, "stalled"),
        ({"progress_at": ago(31), "waiting": 5, "busy": 4}, "busy"),  # it has no room
        ({"progress_at": ago(31), "waiting": 5, "draining": True}, "draining"),
    ],
)
def test_a_worker_is(differs: dict[str, Any], state: str) -> None:
    assert replace(WELL, **differs).state(NOW, TTL, LIMIT) == state


def test_without_a_limit_nobody_is_stalled() -> None:
    assert replace(WELL, progress_at=ago(999), waiting=5).state(NOW, TTL, None) == "alive"
