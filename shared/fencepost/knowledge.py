"""Which versions of planners and tools a process can run, as it stamps them for everybody to see. PURE.

A step that nobody alive can take stays where it is, uncounted, until a process that knows its version takes
it or its run's deadline passes: what every living process of a queue has stamped says which steps those are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from fencepost.events import SCHEMA_VERSION


def knows(planners: Iterable[tuple[str, int]], tools: Iterable[tuple[str, int]]) -> str:
    """What a process stamps: a JSON list of `planner:NAME@VERSION`, `tool:NAME@VERSION` and, of the events
    it reads, `history@VERSION`.
    """
    known = [planner(*one) for one in planners] + [tool(*one) for one in tools]
    known += [f"history@{version}" for version in range(1, SCHEMA_VERSION + 1)]
    return json.dumps(sorted(known))


def planner(name: str, version: int) -> str:
    """How a planner's version is named there."""
    return f"planner:{name}@{version}"


def tool(name: str, version: int) -> str:
    """How a tool's version is named there."""
    return f"tool:{name}@{version}"
