"""The watch over one worker process: what can no longer do its work must end, not idle.

A process is of no use once its loop, its committer or its releaser has died, once the loop hangs in code
that does not return, or once tools that never return hold its threads. It then ends, its pulse hands its
rows back, and the supervisor starts it anew.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable

log = logging.getLogger(__name__)

TICK_S = 1.0
PATIENCE = 30  # ticks without a sign of life; ticks, so that a process that was frozen is not blamed for it


def end_at_once(why: str) -> None:
    """End this process without waiting for anything: whoever would have to be waited for is what hangs."""
    log.critical("%s; this process ends", why)
    logging.shutdown()
    os._exit(1)


def ask_to_end(why: str) -> None:
    """Drain and end: what can still finish does."""
    log.critical("%s; this process drains and ends", why)
    os.kill(os.getpid(), signal.SIGTERM)


class Watch:
    """A thread that looks once a second.

    `broken` says what has died, if anything, and `held` how many threads are held by functions whose
    items have ended; at `held_limit` of them the process is asked to end.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        broken: Callable[[], str | None],
        held: Callable[[], int],
        held_limit: int,
        *,
        tick_s: float = TICK_S,
        patience: int = PATIENCE,
        end: Callable[[str], None] = end_at_once,
        ask: Callable[[str], None] = ask_to_end,
    ) -> None:
        self._loop = loop
        self._broken = broken
        self._held = held
        self._held_limit = held_limit
        self._tick_s = tick_s
        self._patience = patience
        self._end = end
        self._ask = ask
        self._beat = threading.Event()
        self._beat.set()
        self._missed = 0
        self._crowded = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more: the process ends in good order."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._tick_s):
            self._look()

    def _look(self) -> None:
        if (what := self._broken()) is not None:
            self._end(f"{what} has died")
        if self._beat.is_set():
            self._missed = 0
            self._beat.clear()
            self._loop.call_soon_threadsafe(self._beat.set)
        else:
            self._missed += 1
        if self._missed == self._patience:
            self._end("the event loop hangs in code that does not return (a parse, a check, an async tool?)")
        held = self._held()
        self._crowded = self._crowded + 1 if held >= self._held_limit else 0
        if self._crowded == self._patience:
            self._ask(f"{held} threads are held by tools that did not return")
