"""The group committer: outcomes that finish one by one are recorded in batches, one transaction each.

While a batch is being written the next one gathers, so that a busy worker commits rarely and an idle one at once.
A batch whose reply was lost is applied again: every command returns its first outcome (R2 needs the answer).
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from concurrent.futures import Future

from fencepost.commands import Answer, Command
from fencepost.errors import FencepostError, Unreachable
from fencepost.ledger.apply import Ledger

log = logging.getLogger(__name__)

MAX_BATCH = 100
PATIENCE_S = 60.0  # how long an outcome waits for Postgres to come back before its takeover has to settle it
_PAUSE_S = 0.2

_Entry = tuple[Command, "Future[Answer]"]


class Committer:
    """One thread that applies what it is handed. `submit` never blocks; its future holds the answer, or raises
    `Unreachable` when Postgres stayed away for `PATIENCE_S`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
        self._thread.start()

    def submit(self, command: Command) -> Future[Answer]:
        """Have a command applied with whatever else is waiting."""
        future: Future[Answer] = Future()
        self._waiting.put((command, future))
        return future

    def close(self) -> None:
        """Apply what is waiting and end."""
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
            self._commit(batch)
            if ending:
                return

    def _commit(self, batch: list[_Entry]) -> None:
        try:
            answers = apply_patiently(self._ledger, [command for command, _ in batch])
        except Exception as error:  # noqa: BLE001 - one batch's failure must not end the committer
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            future.set_result(answer)


def apply_patiently(ledger: Ledger, commands: list[Command], patience_s: float = PATIENCE_S) -> list[Answer]:
    """Apply, and again while Postgres is away: each command returns its first outcome. Raises `Unreachable`."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return ledger.apply(commands)
        except Unreachable as error:
            if time.monotonic() > until:
                raise
            log.warning("the ledger is away, %d outcomes wait: %s", len(commands), error)
        except FencepostError:
            raise
        time.sleep(_PAUSE_S * (0.5 + random.random()))
