"""What is known of the tools: the class each one's contract puts it in, and what it promises and allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class ToolTerms:
    """What is known of a tool. Of what it does not say everything is asserted.

    `kind` is the class: `dedupes`, `lookup_only`, `neither` or `read`. `attempts` is the most attempts one
    call may make; `window` how long the downstream remembers a key; `settle` how long after its attempt's
    deadline a request may still land; `reserve` how long before its run's deadline an attempt must be over.
    `sets`: setting the same again changes nothing more. `compensable`: its effect can be offset; None: not
    known. What the ledger has recorded of an attempt's own limits wins over `attempts` and `reserve`.
    """

    kind: str
    attempts: int | None = None
    window: timedelta | None = None
    settle: timedelta | None = None
    reserve: timedelta | None = None
    sets: bool = False
    compensable: bool | None = None


Terms = Mapping[tuple[str, int], ToolTerms]
"""By name and version of the tool."""
