"""The sweep: open subjects that have lost their outbox row get it back, once a minute, in a reconciler's
process.

Nothing should ever lose one: a subject without a row is a run that stands still for ever. So any found
is an alarm.
"""

from __future__ import annotations

import logging
import threading

from fencepost.errors import FencepostError
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Pool
from fencepost.ledger.outbox import missing
from fencepost.testing import fault

log = logging.getLogger(__name__)

EVERY_S = 60.0
AT_ONCE = 100  # rows re-created by one transaction


def sweep(pool: Pool, ledger: Ledger) -> int:
    """Look once, and re-create what is missing, under the locks and only if it still is; how many were
    found.
    """
    with pool.connection() as connection:
        found = missing(connection)
    fault("sweep.after_look")
    for start in range(0, len(found), AT_ONCE):
        ledger.apply(found[start : start + AT_ONCE])
    return len(found)


class Sweeper:
    """A thread that sweeps every so many seconds until it is stopped. Outages are logged and outlived."""

    def __init__(self, pool: Pool, ledger: Ledger, every_s: float = EVERY_S) -> None:
        self._pool = pool
        self._ledger = ledger
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sweep no more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                found = sweep(self._pool, self._ledger)
            except FencepostError as error:
                log.warning("could not look for missing outbox rows: %s", error)
            except Exception:
                log.exception("could not look for missing outbox rows")
            else:
                if found:
                    log.error("re-created %d missing outbox rows", found)
