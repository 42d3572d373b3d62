"""Whether a call that is about to wait for a key would close a circle of runs that wait for each other. Pure.

What the ledger tells of the holders of keys (`ledger.circles`) was read before the batch was decided; waits
that began in the same batch are added to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

Key = tuple[str, str]
"""A tenant, and a key of an operation."""


@dataclass(slots=True)
class Circles:
    """`chains`: by key, the runs that its holder waits for, and by which way; `begun`: which of them have
    begun to wait for a key since.
    """

    chains: Mapping[Key, Sequence[tuple[UUID, str]]] = field(default_factory=dict)
    begun: list[tuple[UUID, Key]] = field(default_factory=list)

    def way(self, key: Key, runs: Collection[UUID]) -> str | None:
        """How the holder of a key comes to wait for one of these runs; None if it does not."""
        left, seen = [(key, "")], {key}
        while left:
            held, so_far = left.pop()
            for run, way in self.chains.get(held, ()):
                if run in runs:
                    return so_far + way
                further = {other for waits, other in self.begun if waits == run} - seen
                seen |= further
                left += [(other, f"{so_far}{way}, which waits for ") for other in sorted(further)]
        return None
