"""What chaos shows while it runs: on a terminal one line that changes, elsewhere a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from rich.status import Status

from fencepost_ops.commands.output import console

_PLAIN_EVERY_S: Final = 5.0


class ChaosScreen:
    """Says how far it is, and keeps a log of every strike in `log`. Use as a context manager."""

    def __init__(self, log: Path, *, err: bool = False) -> None:
        self._console = console(err=err)
        self._log = log.open("w", encoding="utf-8")
        self._began = time.monotonic()
        self._last = 0.0
        self._ended = 0
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
        self._log.close()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """One line about what happens, on the screen and in the log."""
        self._console.print(f"{self.elapsed:5.1f} s  {text}", soft_wrap=True)
        self.note(text)

    def note(self, text: str) -> None:
        """One line in the log only: there are hundreds of strikes."""
        self._log.write(f"{self.elapsed:7.2f} s  {text}\n")
        self._log.flush()

    def ended(self, count: int) -> None:
        """So many orders have ended by now."""
        self._ended = count

    def progress(self, now_s: float, of_s: float, enqueued: int, of: int, strikes: Mapping[str, int]) -> None:
        """How far it is: seconds, orders, and strikes so far."""
        text = (
            f"{min(now_s, of_s):.0f} of {of_s:g} s; {enqueued} of {of} orders enqueued, {self._ended} ended; "
            f"{', '.join(f'{count} {fault}' for fault, count in strikes.items()) or 'no strikes yet'}"
        )
        if self._status is not None:
            self._status.update(text)
        elif self.elapsed - self._last >= _PLAIN_EVERY_S:
            self._last = self.elapsed
            self.say(text)
