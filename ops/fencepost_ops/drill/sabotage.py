"""Defences that can be switched off, one at a time, to see that a check goes red without them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from fencepost.errors import UsageError
from fencepost_ops.drill.ledger import DrillLedger


@dataclass(frozen=True, slots=True)
class Sabotage:
    """One defence. `off` switches it off while its context is open, and on again after it."""

    name: str
    invariant: str
    about: str
    off: Callable[[DrillLedger], AbstractContextManager[None]]


SABOTAGES: Final[dict[str, Sabotage]] = {}
"""All there are, by name."""


def sabotage(name: str) -> Sabotage:
    """The one of this name. UsageError for none."""
    if name not in SABOTAGES:
        raise UsageError(f"there is no sabotage {name!r}; there are {', '.join(sorted(SABOTAGES)) or 'none'}")
    return SABOTAGES[name]
