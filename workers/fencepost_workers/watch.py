"""The watch over one worker process: what can no longer do its work must end, not idle.

A process is of no use once its loop, its committer or its releaser has died, once the loop or the committer
hangs in something that does not return, once tools that never return hold its threads, or once it no longer
hears its queue (`hearing.py`). It then ends, its pulse hands its rows back, and the supervisor starts it
anew. A process that drains ends too, within a bound, whatever its other threads do.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

TICK_S = 1.0
PATIENCE = 30  # ticks without a sign of life; ticks, so that a process that was frozen is not blamed for it
COMMIT_PATIENCE = 90  # ticks for one batch at least: it waits 60 s for Postgres to come back
LEAVE_PATIENCE = 20  # ticks to leave in good order once what was in flight has been given its time
IDLE_PATIENCE = 3  # ticks to hand back what was taken but not begun

_exit_code = 0


def end_at_once(why: str) -> None:
    """End this process without waiting for anything: whoever would have to be waited for is what hangs."""
    log.critical("%s; this process ends", why)
    logging.shutdown()
    os._exit(1)


def ask_to_end(why: str) -> None:
    """Drain and end with exit code 1: what can still finish does."""
    global _exit_code  # noqa: PLW0603 - there is one process
    _exit_code = 1
    log.critical("%s; this process drains and ends", why)
    os.kill(os.getpid(), signal.SIGTERM)


def exit_code(code: int) -> int:
    """With what code to end, when the end would otherwise be `code`: a supervisor must see that it failed."""
    return code or _exit_code


@dataclass(frozen=True)
class Watched:
    """How a watch learns what it judges. Asked once a tick, by its thread; none of it may wait.

    `broken` says what has died, if anything, `held` how many threads are held by functions whose items have
    ended, `batch` which batch the committer is writing (0: none), `draining` whether nothing more is claimed,
    `busy` how many items are in flight.
    """

    broken: Callable[[], str | None]
    held: Callable[[], int] = lambda: 0
    batch: Callable[[], int] = lambda: 0
    draining: Callable[[], bool] = lambda: False
    busy: Callable[[], int] = lambda: 0
    well: Callable[[], None] = field(default=lambda: None)
    """Called at every tick that found nothing wrong."""
    tick: Callable[[], None] = field(default=lambda: None)
    """Called at every tick."""


class Watch:
    """A thread that looks once a second.

    At `held_limit` held threads the process is asked to end. One batch of the committer may take
    `batch_ticks`, and never less than `COMMIT_PATIENCE`. A drain may take `drain_ticks`; one that the
    process began by itself ends sooner, when nothing is in flight any more.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        of: Watched,
        *,
        held_limit: int,
        drain_ticks: int,
        batch_ticks: int = COMMIT_PATIENCE,
        tick_s: float = TICK_S,
        patience: int = PATIENCE,
        end: Callable[[str], None] = end_at_once,
        ask: Callable[[str], None] = ask_to_end,
    ) -> None:
        self._loop = loop
        self._of = of
        self._held_limit = held_limit
        self._drain_ticks = drain_ticks
        self._batch_limit = max(batch_ticks, COMMIT_PATIENCE)
        self._tick_s = tick_s
        self._patience = patience
        self._end = end
        self._ask = ask
        self._beat = threading.Event()
        self._beat.set()
        self._missed = 0
        self._crowded = 0
        self._batch = self._batch_ticks = 0
        self._leaving = self._idle = 0
        self._asked = False
        self._closing = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def ask(self, why: str) -> None:
        """Have the process drain and end: it is of no use. From any thread; the first reason counts."""
        if not self._asked:
            self._asked = True
            self._ask(why)

    def closing(self) -> None:
        """From now on parts may end: it is the process that ends, in good order and within its bound."""
        self._closing = True

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._tick_s):
            self._look()

    def _look(self) -> None:
        self._look_at_leaving()
        if not self._closing:
            self._look_at_parts()
        self._of.tick()

    def _look_at_leaving(self) -> None:
        if not self._asked and not self._closing and not self._of.draining():
            return
        self._leaving += 1
        self._idle = self._idle + 1 if self._asked and self._of.busy() == 0 else 0
        if self._leaving >= self._drain_ticks + LEAVE_PATIENCE:
            self._end("it did not leave in time")
        elif self._idle >= IDLE_PATIENCE and not self._closing:
            self._end("it is idle but does not leave")

    def _look_at_parts(self) -> None:
        wrong = self._of.broken()
        if wrong is not None:
            self._end(f"{wrong} has died")
        if self._beat.is_set():
            self._missed = 0
            self._beat.clear()
            self._loop.call_soon_threadsafe(self._beat.set)
        else:
            self._missed += 1
        if self._missed == self._patience:
            self._end("the event loop hangs in code that does not return (a parse, a check, an async tool?)")
        batch = self._of.batch()
        self._batch_ticks = self._batch_ticks + 1 if batch and batch == self._batch else 0
        self._batch = batch
        if self._batch_ticks == self._batch_limit:
            self._end("the committer hangs in a batch")
        held = self._of.held()
        self._crowded = self._crowded + 1 if held >= self._held_limit else 0
        if self._crowded == self._patience:
            self.ask(f"{held} threads are held by tools that did not return")
        if wrong is None and not self._asked:
            self._of.well()
