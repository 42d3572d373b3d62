"""How long it took until somebody else went on with what a struck process held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from fencepost_ops.trial import Reader

_HELD: Final = """
SELECT o.run, CASE WHEN o.kind = 'call' THEN o.subject END, o.fence
FROM fencepost.outbox o JOIN fencepost.workers w ON w.token = o.worker
WHERE w.pid = %s AND w.ended_at IS NULL
"""
# The first claim above the held fence, unless the holder itself recorded something after it was struck.
_TAKEN: Final = """
SELECT min(e.recorded_at) FILTER (WHERE e.type = 'LeaseAcquired' AND e.fence > %(fence)s),
       count(*) FILTER (WHERE e.fence = %(fence)s AND e.type <> 'EvidenceFiled')
FROM fencepost.events e
WHERE e.run = %(run)s AND e.call IS NOT DISTINCT FROM %(call)s AND e.recorded_at > %(at)s
"""
CALM_S: Final = 5.0
"""Strikes so near to an outage of a server are not counted: they would measure the outage."""


@dataclass(frozen=True, slots=True)
class Struck:
    """What a process held when it was struck: run, call (None: the run itself) and fence of each."""

    how: str
    at: datetime
    held: tuple[tuple[UUID, UUID | None, int], ...]
    until: datetime | None = None  # when it was woken


@dataclass(slots=True)
class Takeovers:
    """Collects strikes and outages; `seconds` says, by kind of strike, how long takeovers took."""

    reader: Reader
    struck: list[Struck] = field(default_factory=list)
    outages: list[datetime] = field(default_factory=list)

    def held(self, pid: int) -> tuple[tuple[UUID, UUID | None, int], ...]:
        """What the process of this pid holds now."""
        return tuple(self.reader.execute(_HELD, [pid]).fetchall())

    def seconds(self) -> dict[str, list[float]]:
        """Seconds from each strike to the next claim of what was held."""
        found: dict[str, list[float]] = {}
        for one in self.struck:
            if any(abs((outage - one.at).total_seconds()) < CALM_S for outage in self.outages):
                continue
            found.setdefault(one.how, []).extend(self._of(one))
        return found

    def _of(self, one: Struck) -> list[float]:
        waited = []
        for run, call, fence in one.held:
            values: Any = {"run": run, "call": call, "fence": fence, "at": one.at}
            row = self.reader.execute(_TAKEN, values).fetchone()
            taken, recorded = row if row is not None else (None, 0)
            # Whoever was woken first did not need to be taken over.
            if taken is not None and not recorded and (one.until is None or taken < one.until):
                waited.append((taken - one.at).total_seconds())
        return waited


def now() -> datetime:
    """This machine's time, which is the ledger's too: its clock is not movable here."""
    return datetime.now(UTC)


def told(seconds: Sequence[float]) -> str:
    """The median and the most, with how many there were."""
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    return f"p50 {ordered[len(ordered) // 2]:.1f} s, max {ordered[-1]:.1f} s, of {len(ordered)}"


def merged(every: Sequence[dict[str, list[float]]]) -> dict[str, list[float]]:
    """The seconds of several trials together."""
    names = dict.fromkeys(name for one in every for name in one)
    return {name: [s for one in every for s in one.get(name, [])] for name in names}
