"""The group committer: outcomes that finish one by one are recorded in batches, one transaction each.

While a batch is being written the next one gathers, so that a busy worker commits rarely and an idle one
at once. A batch whose reply was lost is applied again: every command returns its first outcome (R2 needs
the answer).
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress

from fencepost.commands import Answer, Command
from fencepost.ledger.apply import Ledger
from fencepost.ledger.outbox import its_own
from fencepost.publication import apart
from fencepost_workers import forks
from fencepost_workers.patience import Patience

MAX_BATCH = 100
PATIENCE_S = 60.0  # how long an outcome waits for Postgres to come back before its takeover has to settle it
CLOSE_WITHIN_S = 5.0  # how long it waits when the process ends

_Entry = tuple[Command, "asyncio.Future[Answer]"]


class Committer:
    """One thread that applies what it is handed, for one event loop.

    `submit`, called on the loop, never blocks; its future holds the answer, or raises what `Ledger.apply`
    raised: `Unreachable` when Postgres stayed away for `PATIENCE_S`.
    """

    def __init__(self, ledger: Ledger, loop: asyncio.AbstractEventLoop) -> None:
        self._ledger = ledger
        self._loop = loop
        self._pid = os.getpid()
        self._batches = 0
        self._working = False
        self._patience = Patience()
        self._waiting: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
        self._thread.start()

    def submit(self, command: Command) -> asyncio.Future[Answer]:
        """Have a command applied with whatever else is waiting."""
        forks.ours(self._pid)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.put((command, future))
        return future

    def alive(self) -> bool:
        """Whether somebody still applies what is submitted."""
        return self._thread.is_alive()

    def batch(self) -> int:
        """The number of the batch that is being written; 0 while none is."""
        return self._batches if self._working else 0

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Apply what is waiting and end; a Postgres that is away is waited for `within_s` and no longer, one
        that is silent for as long as a session waits for it.
        """
        self._patience.hurry(within_s)
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            ending = False
            while len(batch) < MAX_BATCH:
                try:
                    entry = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if entry is None:
                    ending = True
                    break
                batch.append(entry)
            self._batches += 1
            self._working = True
            self._commit(batch)
            self._working = False
            if ending:
                return

    def _commit(self, batch: Sequence[_Entry]) -> None:
        commands = [command for command, _ in batch]
        waiting = f"{len(batch)} outcomes wait"

        def patiently(part: Sequence[Command]) -> Sequence[Answer]:
            return self._patience.call(lambda: self._ledger.apply(part), PATIENCE_S, waiting)

        # What cannot be written must lose no other outcome, and end no committer.
        answers = apart(commands, patiently, its_own)
        futures = [future for _, future in batch]
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_deliver, futures, answers)  # waking it once, not for each


def _deliver(futures: Sequence[asyncio.Future[Answer]], answers: Sequence[Answer | Exception]) -> None:
    for future, answer in zip(futures, answers, strict=True):
        if future.done():  # whoever waited was cancelled; the outcome is recorded all the same
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
