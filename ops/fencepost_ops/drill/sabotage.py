"""Defences that can be switched off, one at a time, to see that a check goes red without them.

Only in the process of a drill, and only in its own database: production code knows nothing of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fencepost.errors import UsageError
from fencepost_ops.drill.sabotages.authority import AUTHORITY
from fencepost_ops.drill.sabotages.claims import CLAIMS
from fencepost_ops.drill.sabotages.decisions import DECISIONS
from fencepost_ops.drill.sabotages.doubts import DOUBTS
from fencepost_ops.drill.sabotages.families import FAMILIES
from fencepost_ops.drill.sabotages.guards import GUARDS
from fencepost_ops.drill.sabotages.processes import PROCESSES
from fencepost_ops.drill.sabotages.proposals import PROPOSALS
from fencepost_ops.drill.sabotages.refusals import REFUSALS
from fencepost_ops.drill.sabotages.runs import RUNS
from fencepost_ops.drill.sabotages.spending import SPENDING
from fencepost_ops.drill.sabotages.switch import Sabotage

__all__ = ["SABOTAGES", "Sabotage", "sabotage"]

_ALL: Final = (
    *PROPOSALS,
    *DECISIONS,
    *DOUBTS,
    *RUNS,
    *PROCESSES,
    *CLAIMS,
    *AUTHORITY,
    *SPENDING,
    *FAMILIES,
    *GUARDS,
)
SABOTAGES: Final[dict[str, Sabotage]] = {
    one.name: replace(one, refusal=REFUSALS.get(one.name)) for one in _ALL
}
"""All there are, by name."""


def sabotage(name: str) -> Sabotage:
    """The one of this name. UsageError for none."""
    if name not in SABOTAGES:
        raise UsageError(f"there is no sabotage {name!r}; there are {', '.join(sorted(SABOTAGES)) or 'none'}")
    return SABOTAGES[name]
