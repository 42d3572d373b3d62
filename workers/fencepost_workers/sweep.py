"""The sweep, now and then in a reconciler's process: open subjects that have lost their outbox row get it
back, rows put off for longer than anything puts them off are published, lost workers are marked as ended, and
counters of allowances whose window is long past are forgotten. Where figures are served, those of the whole
ledger are read here.

Nothing should ever lose a row: a subject without one is a run that stands still for ever. So any found is an
alarm, which names the subjects. A row is put off too long when the clock was set back after it was published.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from fencepost import commands as c
from fencepost.clock import boottime
from fencepost.errors import FencepostError
from fencepost.ledger import figures
from fencepost.ledger.allowances import forget
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Pool
from fencepost.ledger.outbox import FIRST, Place, its_own, missing, replace_misplaced
from fencepost.publication import apart
from fencepost.telemetry import correlation, metrics
from fencepost.testing import fault
from fencepost_workers.lost import Lost

log = logging.getLogger(__name__)

EVERY_S = 60.0
PAGE = 1000  # missing rows looked for by one statement
AT_ONCE = 100  # rows re-created by one transaction
REPUBLISH = timedelta(seconds=15)
WORKER_TTL = timedelta(seconds=10)
_NAMED = 5  # subjects an alarm names


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep found: subjects without their row, and rows that were put off too long."""

    missing: tuple[UUID, ...] = ()
    misplaced: tuple[UUID, ...] = ()


def sweep(pool: Pool, ledger: Ledger, republish: timedelta = REPUBLISH, page: int = PAGE) -> Swept:
    """Look once, page by page, and mend under the locks whatever still needs it.

    What cannot be given its row is logged and hides nothing behind it. Raises Unreachable in an outage.
    """
    found: list[UUID] = []
    place: Place | None = FIRST
    while place is not None:
        with pool.connection() as connection:
            commands, place = missing(connection, place, page)
        fault("sweep.after_look")
        for start in range(0, len(commands), AT_ONCE):
            _mend(ledger, commands[start : start + AT_ONCE])
        found += [command.subject for command in commands]
    with pool.connection() as connection:
        misplaced = replace_misplaced(connection, republish)
    return Swept(tuple(found), tuple(subject for _, subject in misplaced))


def _mend(ledger: Ledger, commands: Sequence[c.Sweep]) -> None:
    for command, answer in zip(commands, apart(commands, ledger.apply, its_own), strict=True):
        if isinstance(answer, Exception) and not its_own(answer):
            raise answer
        if isinstance(answer, Exception | c.Broken):
            of = {"tenant": command.tenant, "root": command.root or command.run, "run": command.run}
            with correlation.bound(**of):
                log.error("the outbox row of %s/%s cannot be made: %s", of["tenant"], command.subject, answer)


class Sweeper:
    """A thread that sweeps every so many seconds until it is stopped. Outages are logged and outlived."""

    def __init__(
        self,
        pool: Pool,
        ledger: Ledger,
        every_s: float = EVERY_S,
        republish: timedelta = REPUBLISH,
        worker_ttl: timedelta = WORKER_TTL,
    ) -> None:
        self._pool = pool
        self._ledger = ledger
        self._every_s = every_s
        self._republish = republish
        self._lost = Lost(pool, worker_ttl)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sweep no more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        tasks = (
            ("look for missing outbox rows", self._sweep),
            ("look for lost workers", lambda: self._lost.look(boottime())),
            ("forget counters of allowances", self._forget),
            ("read figures of the ledger", self._figures),
        )
        while not self._stopped.wait(self._every_s):
            for what, task in tasks:
                try:
                    task()
                except FencepostError as error:
                    log.warning("could not %s: %s", what, error)
                except Exception:
                    log.exception("could not %s", what)

    def _sweep(self) -> None:
        _tell(sweep(self._pool, self._ledger, self._republish))

    def _forget(self) -> None:
        with self._pool.connection() as connection:
            forget(connection)

    def _figures(self) -> None:
        if metrics.on():
            with self._pool.reading() as connection:
                metrics.ledger(figures.read(connection))


def _tell(found: Swept) -> None:
    if found.missing:
        log.error("re-created %d missing outbox rows: %s", len(found.missing), _names(found.missing))
    if found.misplaced:
        log.error(
            "published %d rows that were put off too long (was the clock set back?): %s",
            len(found.misplaced),
            _names(found.misplaced),
        )


def _names(subjects: Sequence[UUID]) -> str:
    more = " and more" if len(subjects) > _NAMED else ""
    return ", ".join(map(str, subjects[:_NAMED])) + more
