"""What a demo shows while it runs: on a terminal a bar and what happens, elsewhere plain lines."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from typing import Final, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fencepost_ops.commands.output import console

_PLAIN_EVERY_S: Final = 5.0
_FENCED: Final = re.compile(r"not recorded: Fenced|fenced out; its answer is filed")


class Screen:
    """Says what happens, and how many orders have ended. Use as a context manager."""

    def __init__(self, total: int, *, err: bool = False) -> None:
        self._console = console(err=err)
        self._started = time.monotonic()
        self._total = total
        self._ended = 0
        self._last = 0.0
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("orders ended", total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """One line about what happens."""
        self._console.print(f"{self.elapsed:5.1f} s  {text}", soft_wrap=True)

    def ended(self, count: int) -> None:
        """So many orders have ended by now."""
        if self._bar is not None:
            self._bar.update(self._task, completed=count)
        elif count != self._ended and self.elapsed - self._last >= _PLAIN_EVERY_S:
            self._last = self.elapsed
            self.say(f"{count} of {self._total} orders have ended")
        self._ended = count


class FleetLog(io.TextIOWrapper):
    """Where the fleet's processes write: a file, in which writes that were fenced out are counted."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("wb"), encoding="utf-8", errors="replace")
        self.fenced_writes = 0

    def write(self, text: str) -> int:
        """Keep a line."""
        self.fenced_writes += len(_FENCED.findall(text))
        return super().write(text)
