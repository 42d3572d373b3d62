"""Threads of which one runs at a time: a step of a simulated process runs until it ends or is held.

A fault point is passed deep inside code that knows nothing of drills. So each step has a thread of its own,
which hands the baton back where it is held, and gets it again when it goes on. Whoever holds it is the only
one that runs: nothing depends on how the machine schedules threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Killed(BaseException):
    """The simulated process this runs in is dead: nothing of it goes on. No code of the fleet catches it."""


class Execution:
    """One step of one simulated process. Driven by one thread, which is not its own."""

    _local = threading.local()

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self.name = name
        self.point: str | None = None
        """Where it is held; None while it runs and once it has ended."""
        self.ended = False
        self.error: BaseException | None = None
        self._work = work
        self._doomed = False
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @classmethod
    def here(cls) -> Execution | None:
        """The execution this thread belongs to."""
        return getattr(cls._local, "execution", None)

    def go_on(self) -> None:
        """Run it until it is held or ends."""
        if self._thread.ident is None:
            self._thread.start()
        self.point = None
        self._go.release()
        self._back.acquire()
        if self.ended:
            self._thread.join()

    def hold(self, point: str) -> None:
        """Stand still here until somebody lets it go on. Called by its own thread; raises `Killed`."""
        self.point = point
        self._back.release()
        self._go.acquire()
        if self._doomed:
            raise Killed

    def end(self) -> None:
        """Have it unwind, if it is held."""
        if not self.ended and self._thread.ident is not None:
            self._doomed = True
            self.go_on()

    def abandon(self, within_s: float) -> None:
        """Whoever drove it has gone: have it unwind at its next point, and wait so long for that."""
        self._doomed = True
        self._go.release()
        if self._thread.ident is not None:
            self._thread.join(within_s)

    def _run(self) -> None:
        self._go.acquire()
        self._local.execution = self
        try:
            self._work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - whoever drives it decides what that means
            self.error = error
        self.ended = True
        self._back.release()
