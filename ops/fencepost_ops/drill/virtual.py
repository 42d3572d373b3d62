"""Virtual time and seeded chance: what a drill's processes take for the clock and for randomness."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Final

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""When every history begins."""
_BOOTED_S: Final = 1000.0


class VirtualClock:
    """A `fencepost.clock.Source` that stands still until it is moved; the same seed gives the same bits."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.passed = timedelta(0)
        self.ahead = timedelta(0)
        """How far the ledger's clock is ahead of everybody's, since a protocol moved it."""

    @property
    def now(self) -> datetime:
        """What the ledger's clock says, unless a protocol moved it."""
        return START + self.passed

    @property
    def seconds(self) -> float:
        """How much time has passed since the beginning."""
        return self.passed.total_seconds()

    def boottime(self) -> float:
        """See `Source`."""
        return _BOOTED_S + self.passed.total_seconds()

    def wall_ms(self) -> int:
        """See `Source`."""
        return int(self.now.timestamp() * 1000)

    def bits(self, count: int) -> int:
        """See `Source`."""
        return self._chance.getrandbits(count)

    def rand(self) -> float:
        """In [0, 1)."""
        return self._chance.random()
