"""Patches: what a planner's code has changed under runs that had begun before. PURE.

A planner asks `context.patched(name)`. A run that meets the patch with its first turn, or has met it before,
takes the new way for ever; one that began without it keeps the old one. What a run has met is recorded with
the turn that met it, so that every rebuild of its context answers alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable


def marked(known: str | None, met: Iterable[str]) -> str:
    """The patches a run has met after these: canonical JSON text, a sorted list."""
    return json.dumps(sorted({*read(known), *met}), separators=(",", ":"), ensure_ascii=True)


def read(known: str | None) -> frozenset[str]:
    """The patches a run has met."""
    return frozenset(json.loads(known)) if known is not None else frozenset()
