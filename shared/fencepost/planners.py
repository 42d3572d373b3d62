"""Planners as registered: functions of the context, scripts, or models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fencepost.models import AgentSpec
from fencepost.tools import Context, Turn

Script = str | Path | Sequence[Mapping[str, Any]] | Callable[[Context], Any]
"""Turns as data: a JSON or JSON-Lines file, a list, or a function of the context."""


@dataclass(frozen=True)
class PlannerSpec:
    """A planner as registered: a function of the context, a script, or a model; `verify` judges a
    claimed end.
    """

    name: str
    version: int
    plan: Callable[[Context], Turn | Awaitable[Turn]] | None = None
    script: Script | None = None
    verify: Callable[[Context], bool | str] | None = None
    agent: AgentSpec | None = None
