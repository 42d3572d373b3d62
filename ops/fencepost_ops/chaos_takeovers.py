"""How long it took until somebody else went on with what a struck process held.

Measured by this process's own clock, from the strike to the look that finds the work claimed again, less the
time since that claim by the ledger's clock. Only a claim just before that clock is moved is told wrongly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from fencepost_ops.trial import Reader

HELD: Final = """
SELECT r.id, CASE WHEN o.kind = 'call' THEN o.subject END, o.fence, r.seq, r.tenant
FROM fencepost.outbox o
JOIN fencepost.workers w ON w.token = o.worker
JOIN fencepost.runs r ON r.tenant = o.tenant AND r.id = o.run
WHERE w.pid = %s AND w.ended_at IS NULL
"""
# How long ago it was claimed above the held fence, whether its holder recorded something after all, and
# whether nothing is left to be claimed: the outbox row of a run or call is there until that has ended.
_SINCE: Final = """
SELECT h.place, extract(epoch FROM (SELECT fencepost.now()) - min(e.recorded_at) FILTER (
           WHERE e.type = 'LeaseAcquired' AND e.fence > h.fence))::float8,
       coalesce(bool_or(e.fence = h.fence AND e.type <> 'EvidenceFiled'), false),
       NOT EXISTS (SELECT FROM fencepost.outbox o
                   WHERE o.tenant = h.tenant AND o.subject = coalesce(h.call, h.run))
FROM unnest(%s::int[], %s::uuid[], %s::uuid[], %s::bigint[], %s::bigint[], %s::text[])
    AS h (place, run, call, fence, seq, tenant)
LEFT JOIN fencepost.events e
    ON e.tenant = h.tenant AND e.run = h.run AND e.seq > h.seq AND e.call IS NOT DISTINCT FROM h.call
GROUP BY h.place, h.tenant, h.run, h.call
"""
NEVER_S: Final = 60.0
"""What was struck so long before the end and is not claimed then counts as never claimed."""
BESIDE_S: Final = 1.0
"""For so long after an outage takeovers are still said to have been beside one."""

Held = tuple[UUID, UUID | None, int, int, str]
"""A run, one of its calls (None: the run itself), the fence held, the run's last event then, the tenant."""


@dataclass(slots=True)
class _Waiting:
    strike: int
    fault: str
    at: float
    item: Held


@dataclass(frozen=True, slots=True)
class Takeover:
    """Something was claimed again so many seconds after the strike; `calm`: beside no outage or weather."""

    fault: str
    seconds: float
    calm: bool


@dataclass(slots=True)
class Takeovers:
    """Follows what struck processes held, until it is claimed again, its holder goes on, or it has ended.

    `look` must be called again and again; `note` is told of each takeover. `ended` counts what ended without
    having been claimed.
    """

    reader: Reader
    clock: Callable[[], float] = time.monotonic
    note: Callable[[str], object] = lambda _: None
    found: list[Takeover] = field(default_factory=list)
    ended: int = 0
    _waiting: list[_Waiting] = field(default_factory=list)
    _strikes: int = 0
    _outages: list[tuple[float, float | None]] = field(default_factory=list)

    def held(self, pid: int) -> tuple[Held, ...]:
        """What the process of this pid holds now."""
        return tuple(self.reader.execute(HELD, [pid]).fetchall())

    def struck(self, fault: str, held: Sequence[Held]) -> int:
        """A process that held this has just been struck; a name for the strike."""
        self._strikes += 1
        self._waiting += [_Waiting(self._strikes, fault, self.clock(), item) for item in held]
        return self._strikes

    def woken(self, strike: int) -> None:
        """Whom it struck goes on: what was not taken over by now need not be."""
        try:
            self.look()
        finally:
            self._waiting = [one for one in self._waiting if one.strike != strike]

    def begin_outage(self, trail_s: float = 0.0) -> Callable[[], None]:
        """Weather or an outage begins now; it ends `trail_s` after the answer is called."""
        place = len(self._outages)
        self._outages.append((self.clock(), None))

        def over() -> None:
            self._outages[place] = (self._outages[place][0], self.clock() + trail_s)

        return over

    @contextmanager
    def outage(self) -> Iterator[None]:
        """An outage lasts as long as this block."""
        over = self.begin_outage()
        try:
            yield
        finally:
            over()

    def look(self) -> None:
        """Note what has been claimed again."""
        if not self._waiting:
            return
        places = list(range(len(self._waiting)))
        columns = [list(column) for column in zip(*(one.item for one in self._waiting), strict=True)]
        rows: list[Any] = self.reader.execute(_SINCE, [places, *columns]).fetchall()
        now, over = self.clock(), set()
        for place, age, recorded, ended in rows:
            one = self._waiting[place]
            taken = age is not None
            if taken and not recorded:
                claimed = min(now, max(one.at, now - age))
                took = claimed - one.at
                self.found.append(Takeover(one.fault, took, self._calm(one.at, claimed)))
                run, call, fence, _, _ = one.item
                self.note(f"claimed {took:.1f} s after a {one.fault}: run {run}, call {call}, held {fence}")
            elif ended and not recorded:
                self.ended += 1
            if taken or recorded or ended:
                over.add(place)
        self._waiting = [one for n, one in enumerate(self._waiting) if n not in over]

    @property
    def never(self) -> int:
        """How many things nobody has claimed for a minute now, although they have not ended."""
        return sum(self.clock() - one.at >= NEVER_S for one in self._waiting)

    def _calm(self, since: float, until: float) -> bool:
        """Whether no outage touched this time."""
        return not any(
            began <= until and (ended is None or ended + BESIDE_S >= since) for began, ended in self._outages
        )

    def seconds(self, *, calm: bool = False) -> dict[str, list[float]]:
        """Seconds of the takeovers by fault; `calm`: of those beside no outage."""
        found: dict[str, list[float]] = {}
        for one in self.found:
            if one.calm or not calm:
                found.setdefault(one.fault, []).append(one.seconds)
        return found


def at(part: float, seconds: Sequence[float]) -> float | None:
    """The value below which that part of them lies (0.5: the median, 1: the most); None for none."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None


def spread(seconds: Sequence[float]) -> dict[str, float | int | None]:
    """Count, median, 99th percentile and most, in seconds."""

    def rounded(part: float) -> float | None:
        found = at(part, seconds)
        return None if found is None else round(found, 3)

    return {"count": len(seconds), "p50": rounded(0.5), "p99": rounded(0.99), "max": rounded(1.0)}


def told(seconds: Sequence[float]) -> str:
    """The same in words."""
    if not seconds:
        return "none"
    p50, p99, most = (at(part, seconds) for part in (0.5, 0.99, 1.0))
    return f"p50 {p50:.1f} s, p99 {p99:.1f} s, max {most:.1f} s, of {len(seconds)}"
