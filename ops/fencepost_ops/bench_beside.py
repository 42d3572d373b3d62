"""Runs enqueued by name on a running fleet, and how those fared that a fault beside them does not concern."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from threading import Event, Thread
from typing import Any, Final

import psycopg

from fencepost_ops.fleet import Fleet

SLOWEST_S: Final = 2.0
LOOK_S: Final = 0.1
_EVERY_S: Final = 0.1  # between two runs beside
_ENDED: Final = """
SELECT count(*) FROM fencepost.runs WHERE run_key LIKE %s || '-%%' AND status IN ('COMPLETED', 'STOPPED')
"""
_TOOK: Final = """
SELECT extract(epoch FROM e.recorded_at - r.created_at)::float8 FROM fencepost.runs r
JOIN fencepost.events e ON e.run = r.id AND e.tenant = r.tenant AND e.type = 'RunCompleted'
WHERE r.run_key LIKE %s || '-%%' ORDER BY 1
"""


@dataclass(frozen=True)
class Beside:
    """Runs from enqueueing to their end: `before`, while the same load met no fault, and meanwhile."""

    before: int
    before_p50_s: float
    before_p99_s: float
    meanwhile: int
    p50_s: float
    p99_s: float
    left: int
    """How many did not end."""

    @property
    def problems(self) -> list[str]:
        """Why they did not fare as well as without a fault, one sentence each; empty if they did."""
        found = []
        if self.left:
            found.append(f"{self.left} of the runs beside it did not end")
        slowest = max(SLOWEST_S, 2 * self.before_p99_s)
        if self.p99_s > slowest:
            found.append(f"a run beside it took {self.p99_s:.1f} s; at most {slowest:.1f} s are due")
        return found

    def lines(self, whose: str) -> list[tuple[str, str]]:
        """Two lines of a table."""
        before = f"{self.before}: p50 {self.before_p50_s:.3f} s, p99 {self.before_p99_s:.3f} s"
        meanwhile = f"{self.meanwhile}: p50 {self.p50_s:.3f} s, p99 {self.p99_s:.3f} s"
        return [(f"{whose}, before", before), (f"{whose}, meanwhile", meanwhile)]


class Load:
    """What a bench enqueues, under run keys NAME-1, NAME-2 and so on.

    `enqueue` is a statement with `first`, `last`, `name` and `what`, the last being for it to read.
    """

    def __init__(self, fleet: Fleet, enqueue: str) -> None:
        self.fleet = fleet
        self._enqueue = enqueue
        self._owner = fleet.connect("owner")

    def enqueue(self, name: str, what: str, count: int) -> None:
        """So many runs at once."""
        with psycopg.connect(self.fleet.database.dsns["producer"], autocommit=True) as producer:
            self._send(producer, name, what, 1, count)

    def _send(self, producer: psycopg.Connection[Any], name: str, what: str, first: int, last: int) -> None:
        producer.execute(self._enqueue, {"first": first, "last": last, "name": name, "what": what})

    def left(self, name: str, count: int) -> int:
        """How many of so many runs have not ended."""
        return count - int(self.row(_ENDED, name)[0])

    def await_ended(self, name: str, count: int, within_s: float) -> int:
        """How many are left after so long at most."""
        until = time.monotonic() + within_s
        while (left := self.left(name, count)) and time.monotonic() < until:
            time.sleep(LOOK_S)
        return left

    def row(self, statement: str, *values: Any) -> Any:
        """The one row of a statement."""
        row = self._owner.execute(statement, values or None).fetchone()
        assert row is not None
        return row

    def now(self) -> datetime:
        """By the ledger's clock."""
        at: datetime = self.row("SELECT fencepost.now()")[0]
        return at

    @contextmanager
    def one_by_one(self, name: str, what: str) -> Iterator[list[int]]:
        """Runs one after another for as long as this lasts; how many there were."""
        stop, sent = Event(), [0]

        def send() -> None:
            with psycopg.connect(self.fleet.database.dsns["producer"], autocommit=True) as producer:
                while not stop.wait(_EVERY_S):
                    sent[0] += 1
                    self._send(producer, name, what, sent[0], sent[0])

        thread = Thread(target=send)
        thread.start()
        try:
            yield sent
        finally:
            stop.set()
            thread.join()

    def fared(self, before: str, meanwhile: str, left: int) -> Beside:
        """How the runs of these two names did."""
        well, hit = self._took(before), self._took(meanwhile)
        return Beside(
            before=len(well),
            before_p50_s=_share(well, 0.5),
            before_p99_s=_share(well, 0.99),
            meanwhile=len(hit),
            p50_s=_share(hit, 0.5),
            p99_s=_share(hit, 0.99),
            left=left,
        )

    def _took(self, name: str) -> list[float]:
        return [seconds for (seconds,) in self._owner.execute(_TOOK, [name])]

    def close(self) -> None:
        """End its session."""
        self._owner.close()


def _share(values: Sequence[float], part: float) -> float:
    """The value below which this part of the sorted values lies."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("inf")
