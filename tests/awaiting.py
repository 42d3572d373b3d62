"""Conditions that come true in their own time. Nothing sleeps for a fixed time: it looks until a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
SLOWEST_S = 0.06


def until(
    what: str, look: Callable[[], Found | None], within_s: float = 60.0, *, every_s: float = 0.02
) -> Found:
    """The first true thing `look` gives. AssertionError, saying what was awaited for how long and what was
    seen last, if none comes in time. What takes seconds is looked for less often: each look may ask a ledger.
    """
    began = time.monotonic()
    while not (found := look()):
        waited = time.monotonic() - began
        assert waited < within_s, f"after {within_s:g} s still not: {what}; seen last: {found!r}"
        time.sleep(max(every_s, min(SLOWEST_S, waited / 20)))
    return found
