"""The pace of a fleet, and how often it may be counted."""

from datetime import UTC, datetime, timedelta

import pytest

from fencepost.ledger.listings import QueueInfo
from fencepost.ledger.tail import Overview, oldest_wait
from fencepost_ops.commands.live import Ages, count_due, overview_line, paced

AT = datetime(2026, 1, 1, tzinfo=UTC)
S = timedelta(seconds=1)
LIMITS = Ages(S, S)


def seen(after_s: float, opened: int, ended: dict[str, int] | None) -> Overview:
    runs = {"ACTING": opened} if opened else {}
    return Overview(AT + after_s * S, runs, ended, queues=(), workers=(), unresolved=0, repairs=0, dead=0)


def test_the_pace_is_what_changed_between_two_counts() -> None:
    first = paced(None, seen(0, 5, {"COMPLETED": 10}), 0.001)
    assert first is not None
    assert (first.started_per_s, first.ended_per_s) == (None, None)
    then = paced(first, seen(2, 8, {"COMPLETED": 15, "STOPPED": 1}), 0.001)
    assert then is not None
    assert (then.started_per_s, then.ended_per_s) == (4.5, 3.0)
    assert paced(then, seen(3, 9, None), 0.001) == then  # one that did not count says nothing new
    pruned = paced(then, seen(4, 8, {"COMPLETED": 1}), 0.001)
    assert pruned is not None
    assert (pruned.started_per_s, pruned.ended_per_s) == (0, 0)
    stopped_clock = paced(then, seen(2, 8, {"COMPLETED": 99}), 0.001)
    assert stopped_clock is not None
    assert stopped_clock.ended_per_s is None


@pytest.mark.parametrize(
    ("cost_s", "after_s", "due"),
    [(0.001, 1, True), (0.019, 1, True), (0.5, 1, False), (0.5, 24, False), (0.5, 25, True)],
)
def test_a_count_may_take_a_fiftieth_of_the_time(cost_s: float, after_s: float, due: bool) -> None:
    assert count_due(paced(None, seen(0, 0, {}), cost_s), AT + after_s * S) is due
    assert count_due(None, AT)


def queue(oldest: datetime | None, due: int) -> QueueInfo:
    rows = {"rows": 9, "held": 0, "republished": 0, "waiting": 0, "next_due_at": None}
    return QueueInfo(queue="planner", due=due, oldest_due_at=oldest, **rows)  # type: ignore[arg-type]


def test_a_line_says_what_waits_longest() -> None:
    found = seen(60, 0, None)
    assert oldest_wait(found) is None
    assert "due 0 · workers none" in overview_line(found, None, LIMITS)
    queues = (queue(AT, 2), queue(None, 0), queue(AT - 30 * S, 1))
    waiting = Overview(AT, {}, None, queues, (), 0, 0, 3)
    assert oldest_wait(waiting) == 30 * S
    assert overview_line(waiting, None, LIMITS) == (
        "2026-01-01T00:00:00Z  open 0 · due 3, oldest 30 s · workers none · unresolved 0 · dead 3"
    )
