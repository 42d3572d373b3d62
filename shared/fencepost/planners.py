"""Planners as registered: functions of the context, scripts, or models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from fencepost.errors import UsageError
from fencepost.models import AgentSpec
from fencepost.tools import Context, Tool, Turn

Script = str | Path | Sequence[Mapping[str, Any]] | Callable[[Context], Any]
"""Turns as data: a JSON or JSON-Lines file, a list, or a function of the context."""

FUNCTION_TIMEOUT: Final = timedelta(seconds=30)
"""Of a function or a script that declares none."""


@dataclass(frozen=True)
class PlannerSpec:
    """A planner as registered: a function of the context, a script, or a model; `verify` judges a
    claimed end. `timeout` bounds one answer; None: as its model declares, and `FUNCTION_TIMEOUT` without one.
    """

    name: str
    version: int
    plan: Callable[[Context], Turn | Awaitable[Turn]] | None = None
    script: Script | None = None
    verify: Callable[[Context], bool | str] | None = None
    agent: AgentSpec | None = None
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise UsageError(f"planner {self.name}: timeout lies above 0, not {self.timeout}")

    @property
    def cap(self) -> timedelta | None:
        """How long one answer may take, whatever its model declares; None: as that does."""
        return self.timeout or (None if self.asked is not None else FUNCTION_TIMEOUT)

    @property
    def longest(self) -> timedelta:
        """The longest that any of its answers may take."""
        if self.asked is None or self.timeout is not None:
            return self.timeout or FUNCTION_TIMEOUT
        return max(model.timeout for model in self.asked.models)

    @property
    def asked(self) -> AgentSpec | None:
        """The model that is asked for its turns, if one is: also one that its function hosts (`asks`)."""
        asks = getattr(self.plan, "asks", None)
        return asks if isinstance(asks, AgentSpec) else self.agent


def pins(registry: Mapping[tuple[str, int], Tool], used: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The versions of tools that a run keeps: of each the one its first call had, oldest first in `used`.

    Only where that is not the newest and still is registered: a run goes on with what it began by, for as
    long as there are workers that know it, and what it is told of its tools does not change under it.
    """
    kept: dict[str, int] = {}
    for name, version in used:
        if name not in kept and (name, version) in registry:
            kept[name] = version
    newest = dict(sorted(registry)) if kept else {}
    return {name: version for name, version in kept.items() if version != newest[name]}
