"""Postgres is away for a moment: who waits for it, and for how long. Only for what may be asked twice."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from fencepost.errors import Unreachable

T = TypeVar("T")

log = logging.getLogger(__name__)

PAUSE_S = 0.2  # between two tries, times 0.5 to 1.5

# Classes of SQLSTATE: connection lost, session ended or read-only, deadlock, out of resources, lock timeout,
# shut down or cancelled, system error.
_PASSING = ("08", "25", "40", "53", "55", "57", "58")


def passes(error: Exception) -> bool:
    """Whether Postgres was away, full or crowded, so that the same may succeed later."""
    if isinstance(error, Unreachable):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate.startswith(_PASSING)


class Patience:
    """Tries again for so many seconds; less once it is told to hurry, because the process ends."""

    def __init__(self) -> None:
        self._hurried = threading.Event()
        self._until = float("inf")

    def hurry(self, seconds: float) -> None:
        """Whoever waits gives up so many seconds from now at the latest."""
        self._until = time.monotonic() + seconds
        self._hurried.set()

    def call(self, action: Callable[[], T], seconds: float, waiting: str) -> T:
        """What `action` returns, at last; raises its last error. `waiting` says in the log what is held
        up.
        """
        until = time.monotonic() + seconds
        while True:
            try:
                return action()
            except Exception as error:
                if not passes(error) or time.monotonic() > min(until, self._until):
                    raise
                log.warning("the ledger is away, %s: %s", waiting, error)
            pause = PAUSE_S * (0.5 + random.random())
            if not self._hurried.wait(pause):
                continue
            time.sleep(min(pause, PAUSE_S))
