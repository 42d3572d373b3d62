"""How long a batch stands still under its locks while its commands are judged; who takes too long is named.

An engine, and `acts_on` and `amount` of a tool, are the application's code, and run between two statements.
Postgres ends a session that stands still for `IDLE_IN_TRANSACTION_S`; that would look like an outage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fencepost.commands import Command
from fencepost.errors import FencepostError
from fencepost.ledger.connect import IDLE_IN_TRANSACTION_S

JUDGED_S: Final = 0.75 * IDLE_IN_TRANSACTION_S
"""Seconds a batch may take to be judged: what is left of Postgres's patience is for the way to it."""


class TooSlowError(FencepostError):
    """Judging took too long: `command` was the last that was judged, and took `seconds` by itself."""

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

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._last = clock()

    def begin(self) -> None:
        """The transaction stands still from now on."""
        self._began = self._last = self._clock()

    def judged(self, command: Command) -> None:
        """This command was judged since `begin`, or since the one before it. Raises TooSlowError."""
        before, self._last = self._last, self._clock()
        if self._last - self._began > JUDGED_S:
            raise TooSlowError(command, self._last - before)
