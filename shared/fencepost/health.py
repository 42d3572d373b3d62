"""`python -m fencepost.health [--within SECONDS]`: whether the process beside it is healthy, for a container.

A worker or relay that has FENCEPOST_HEALTH_FILE set touches that file at every healthy tick: a worker once a
second while nothing of it is broken and it hears its queue, a relay after every pass that succeeded. This
program looks at the file's age and says one sentence; exit code 0 if it was touched within so many seconds
(15), 1 if not, 2 for wrong usage.

It imports nothing of Fencepost: a check that runs every few seconds must cost nothing.
"""

import os
import sys
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "FENCEPOST_HEALTH_FILE"
WITHIN_S: Final = 15.0
_USAGE: Final = "usage: python -m fencepost.health [--within SECONDS]"


class HealthFile:
    """The side of the process that is healthy. Without a path it does nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.error = ""
        """Why the last touch failed; empty if it did not."""

    def touch(self) -> bool:
        """Say "healthy now". Never raises; False, with `error` set, the first time it cannot be said."""
        if not self._path:
            return True
        before, self.error = self.error, ""
        try:
            Path(self._path).touch()
        except OSError as error:
            self.error = f"{VARIABLE} names {self._path}, which cannot be touched: {error.strerror}"
        return not self.error or self.error == before


def verdict(path: str, touched: float | None, now: float, within_s: float) -> tuple[bool, str]:
    """Whether a file touched then (None: there is none) speaks for a healthy process now, and a sentence.

    A touch in the future is as good as one equally far in the past: somebody set the clock.
    """
    if not path:
        return False, f"unhealthy: set {VARIABLE} to the file that the process touches"
    if touched is None:
        return False, f"unhealthy: there is no {path}; the process has not been healthy yet"
    age = abs(now - touched)
    if age > within_s:
        return False, f"unhealthy: {path} was touched {age:.0f} s ago, not within {within_s:g} s"
    return True, f"healthy: {path} was touched {age:.1f} s ago"


def main(arguments: list[str] | None = None) -> int:
    """The program; its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    within_s = _within(given)
    if within_s is None:
        sys.stderr.write(f"{_USAGE}\n")
        return 2
    path = os.environ.get(VARIABLE, "")
    try:
        touched = Path(path).stat().st_mtime if path else None
    except OSError:
        touched = None
    healthy, sentence = verdict(path, touched, time.time(), within_s)
    sys.stdout.write(f"{sentence}\n")
    return 0 if healthy else 1


def _within(given: list[str]) -> float | None:
    if not given:
        return WITHIN_S
    if len(given) != 2 or given[0] != "--within":
        return None
    try:
        within_s = float(given[1])
    except ValueError:
        return None
    return within_s if 0 < within_s < float("inf") else None


if __name__ == "__main__":
    sys.exit(main())
