"""Conditions that come true in their own time."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
LOOK_EVERY_S = 0.03


def until(what: str, look: Callable[[], Found | None], within_s: float = 60) -> Found:
    """The first true thing `look` gives. AssertionError, saying what was awaited, if none comes in time."""
    end = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < end, f"after {within_s:g} s still not: {what}"
        time.sleep(LOOK_EVERY_S)
    return found
