"""What a child run inherits, as its stored request tells it: who is above it, which tools it may use. PURE.

`above`: the runs it descends from, the root first. `within`: one list of names and patterns per level, all of
which must name a tool: authority only ever narrows on the way down. `reads`: it changes nothing outside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from uuid import UUID

from fencepost.authority import matches
from fencepost.contracts import Effect
from fencepost.tools import Tool

_NOTHING: Mapping[str, Any] = {}
_REMEMBERED = 4096
"""Characters of a request up to which what it says is remembered: a cache holds a thousand of them."""


def _inherited(request: str) -> Mapping[str, Any]:
    if '"above"' not in request:  # an input may be a mebibyte
        return _NOTHING
    return _remembered(request) if len(request) <= _REMEMBERED else _read(request)


@lru_cache(maxsize=1024)  # each proposal asks, and mostly of the same few runs
def _remembered(request: str) -> Mapping[str, Any]:
    return _read(request)


def _read(request: str) -> Mapping[str, Any]:
    said = json.loads(request)
    return {name: said[name] for name in ("above", "within", "reads") if name in said}


def above(request: str) -> frozenset[UUID]:
    """The runs this one descends from."""
    return frozenset(UUID(run) for run in _inherited(request).get("above", ()))


def outside(request: str, tool: Tool) -> str | None:
    """Why a run may not use this tool by what it was handed; None where it may, as far as that goes."""
    said = _inherited(request)
    for patterns in said.get("within", ()):
        if not any(matches(pattern, tool.name) for pattern in patterns):
            return f"this run was handed {', '.join(patterns)}, not {tool.name}"
    if said.get("reads") and tool.effect is not Effect.READ:
        return f"this run was started to read, and {tool.name} is {tool.effect.value.upper()}"
    return None
