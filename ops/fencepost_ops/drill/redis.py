"""What stands in for Redis in a drill: leases and queues in virtual time, wiped and doubled at will.

The fleet must survive whatever this does (R1, R6); its leases are held to the
same conformance suite as the real ones (`tests/integration/test_leases_port.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fencepost.clock import boottime
from fencepost.errors import Unreachable
from fencepost.leases import Want
from fencepost_relay.publisher import QUEUES, Item


@dataclass
class VirtualRedis:
    """Leases, their counters, and the queues. `away`: nobody reaches it."""

    queues: dict[str, list[list[Item]]] = field(default_factory=lambda: {queue: [] for queue in QUEUES})
    away: bool = False
    _leases: dict[str, tuple[str, float]] = field(default_factory=dict)
    _fences: dict[str, int] = field(default_factory=dict)

    def wipe(self) -> None:
        """Forget everything."""
        self._leases.clear()
        self._fences.clear()
        for queue in self.queues.values():
            queue.clear()

    def _reached(self) -> None:
        if self.away:
            raise Unreachable("Redis is away")

    # Leases.

    def grant(self, wants: Sequence[Want]) -> list[int | None]:
        """See `Leases.grant`."""
        self._reached()
        return [self._granted(want) for want in wants]

    def _granted(self, want: Want) -> int | None:
        holder, until = self._leases.get(want.key, ("", 0.0))
        if until > boottime() and holder not in (want.owner, want.named_owner):
            return None
        fence = max(self._fences.get(want.key, 0), want.floor) + 1
        self._fences[want.key] = fence
        self._leases[want.key] = (want.owner, boottime() + want.ttl.total_seconds())
        return fence

    def release(self, holds: Sequence[tuple[str, str]]) -> None:
        """See `Leases.release`."""
        if self.away:
            return
        for key, owner in holds:
            if self._leases.get(key, ("", 0.0))[0] == owner:
                del self._leases[key]

    # The broker.

    def lengths(self) -> dict[str, int]:
        """See `Publishes.lengths`."""
        self._reached()
        return {name: len(queue) for name, queue in self.queues.items()}

    def publish(self, queue: str, items: Sequence[Item], traceparent: str | None = None) -> None:  # noqa: ARG002
        """See `Publishes.publish`."""
        self._reached()
        self.queues[queue].append(list(items))

    def close(self) -> None:
        """See `Publishes.close`."""
