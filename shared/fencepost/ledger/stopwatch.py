"""How long a batch stands still under its locks while its commands are judged; who takes too long is named.

An engine, and `acts_on` and `amount` of a tool, are the application's code, and run between two statements.
Postgres ends a session that stands still for `IDLE_IN_TRANSACTION_S`; that would look like an outage.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from fencepost.commands import Command
from fencepost.errors import FencepostError
from fencepost.ledger.connect import IDLE_IN_TRANSACTION_S

JUDGED_S: Final = 0.75 * IDLE_IN_TRANSACTION_S
"""Seconds a batch may take to be judged: what is left of Postgres's patience is for the way to it."""


_TICK_S: Final = 0.1


class _Awake:
    """A thread that does nothing but tick: for how long it could not, this whole process stood still."""

    def __init__(self) -> None:
        self._lost_s = 0.0
        self._ticked = time.monotonic()
        self.pid = os.getpid()
        threading.Thread(target=self._tick, name="awake", daemon=True).start()

    def lost_s(self) -> float:
        """So far. A thread that wakes before this one has ticked is told of the gap all the same."""
        return self._lost_s + self._gap(time.monotonic())

    def _gap(self, now: float) -> float:
        late = now - self._ticked - _TICK_S
        return late if late > _TICK_S else 0.0

    def _tick(self) -> None:
        while True:
            time.sleep(_TICK_S)
            now = time.monotonic()
            self._lost_s += self._gap(now)
            self._ticked = now


_awake: _Awake | None = None


def stood_still_s() -> float:
    """Seconds this process has stood still since it was first asked: it was frozen, or starved."""
    global _awake  # noqa: PLW0603 - there is one process
    if _awake is None or _awake.pid != os.getpid():
        _awake = _Awake()
    return _awake.lost_s()


class TooSlowError(FencepostError):
    """Judging took too long: `command` was the last that was judged, and took `seconds` by itself, without
    those in which the whole process stood still.
    """

    def __init__(self, command: Command, seconds: float) -> None:
        super().__init__(
            f"judging it took {seconds:.1f} s, and it may hold locks for {JUDGED_S:g} s at most: "
            "make the policies, or acts_on and amount of the tool, quicker"
        )
        self.command = command
        self.seconds = seconds

    @property
    def alone(self) -> bool:
        """Whether it would have been too slow without its neighbours."""
        return self.seconds > JUDGED_S


class Stopwatch:
    """Runs from one statement of a batch to the next. It cannot interrupt: who never ends is never told."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, stood: Callable[[], float] = stood_still_s
    ) -> None:
        self._clock = clock
        self._stood = stood
        self.begin()

    def begin(self) -> None:
        """The transaction stands still from now on."""
        self._began = self._last = self._clock()
        self._still, self._worked = self._stood(), time.thread_time()

    def judged(self, command: Command) -> None:
        """This command was judged since `begin`, or since the one before it. Raises TooSlowError."""
        before, self._last = self._last, self._clock()
        still, self._still = self._still, self._stood()
        worked, self._worked = self._worked, time.thread_time()
        if self._last - self._began > JUDGED_S:
            took = self._last - before
            # Code that holds the interpreter keeps others from ticking too, but it works.
            idle = max(0.0, took - (self._worked - worked))
            raise TooSlowError(command, took - min(self._still - still, idle))
