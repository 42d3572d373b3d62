"""When an outbox row is published again, and when no more. Pure.

A row nobody claims is published for ever, ever more slowly: its message may be lost, or nobody may know its
tool yet. A row that *fails* (it cannot be published, or a worker cannot begin it) is tried `MOST_FAILURES`
times and then set aside for a person. What fails for all alike, an outage, is nobody's failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

MOST_DOUBLINGS: Final = 3  # the longest pause between publications is eight intervals
MOST_FAILURES: Final = 5
"""How often one generation of a row may fail before it is set aside."""

T = TypeVar("T")
R = TypeVar("R")


def republish_delay(publish_count: int, base: timedelta) -> timedelta:
    """The pause after a publication that `publish_count` others preceded: base, doubling up to base * 8."""
    return base * (1 << min(publish_count, MOST_DOUBLINGS))


def next_try(failures: int, base: timedelta) -> timedelta | None:
    """How long after its `failures`th failure a row is published again; None: it is set aside.

    The pauses are those of a row nobody claims: all five failures take fifteen intervals at least.
    """
    return republish_delay(failures - 1, base) if failures < MOST_FAILURES else None


def pauses(base: timedelta) -> list[timedelta]:
    """`next_try` as a table: the pause after the first failure, the second, and so on until there is none."""
    found = (next_try(failures, base) for failures in range(1, MOST_FAILURES + 1))
    return [pause for pause in found if pause is not None]


def apart(
    items: Sequence[T], action: Callable[[Sequence[T]], Sequence[R]], own: Callable[[Exception], bool]
) -> list[R | Exception]:
    """What `action`, which takes and answers a list, says to each item; or the error of that item alone.

    A list that fails is asked in halves, if the error may be an item's `own`: among N, one bad item costs its
    neighbours 2 log N calls more, not their turn. Any other error is the answer to all that were asked
    together, and nobody is asked again.
    """
    if not items:
        return []
    try:
        return list(action(items))
    except Exception as error:  # noqa: BLE001 - it is the answer
        if len(items) == 1 or not own(error):
            return [error] * len(items)
    half = len(items) // 2
    return apart(items[:half], action, own) + apart(items[half:], action, own)
