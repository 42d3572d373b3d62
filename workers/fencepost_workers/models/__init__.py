"""Planners as workers run them: functions and scripts `propose`; models are asked by an `AgentPlanner`."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Protocol

from fencepost.errors import UsageError
from fencepost.planners import PlannerSpec
from fencepost.tools import Context, Tool, Turn
from fencepost_workers.models.agent import AgentPlanner, Asking, ModelPlanner, ModelTurn, NoTurn
from fencepost_workers.models.hosted import Hosted
from fencepost_workers.models.providers import Providers, prepare
from fencepost_workers.models.scripted import ScriptedPlanner

__all__ = [
    "AgentPlanner",
    "Asking",
    "FunctionPlanner",
    "ModelPlanner",
    "ModelTurn",
    "NoTurn",
    "Planner",
    "Providers",
    "ScriptedPlanner",
    "model_planner_for",
    "planner_for",
    "prepare",
]


class Planner(Protocol):
    """Proposes the next turn from a context; holds no state between turns, decides nothing, owns nothing."""

    async def propose(self, context: Context) -> Turn:
        """One turn. Whatever it raises means that there is none; the caller bounds the time."""
        ...


class FunctionPlanner:
    """A planner written as a function; `def` runs in a thread of `executor`, `async def` on the loop."""

    def __init__(
        self, name: str, plan: Callable[[Context], Turn | Awaitable[Turn]], executor: Executor
    ) -> None:
        self._name = name
        self._plan = plan
        self._executor = executor

    async def propose(self, context: Context) -> Turn:
        """The function's turn; UsageError if it gives anything else."""
        try:
            called = self._plan if inspect.isroutine(self._plan) else type(self._plan).__call__
            turn: object
            if inspect.iscoroutinefunction(called):
                turn = self._plan(context)
                turn = await turn if inspect.isawaitable(turn) else turn
            else:
                turn = await asyncio.get_running_loop().run_in_executor(self._executor, self._plan, context)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # Out of a task these would end the event loop, and with it every other run of this process.
            raise RuntimeError(f"planner {self._name} raised {type(error).__name__}: {error}") from error
        if not isinstance(turn, Turn):
            raise UsageError(f"planner {self._name} gave {type(turn).__name__}, not a Turn")
        return turn


def model_planner_for(
    spec: PlannerSpec, tools: Mapping[str, Tool], providers: Providers
) -> ModelPlanner | None:
    """What asks the model of a registered agent, hosted or not, and tells it of these tools; else None."""
    if isinstance(spec.plan, Hosted):
        return spec.plan.among(tools)
    return None if spec.agent is None else AgentPlanner(spec.agent, tools, providers)


def planner_for(spec: PlannerSpec, executor: Executor) -> Planner:
    """What runs a registered function or script. ScriptError for a script that cannot be read."""
    if spec.plan is not None:
        return FunctionPlanner(spec.name, spec.plan, executor)
    if spec.script is None:
        raise UsageError(f"planner {spec.name} has neither a function nor a script")
    return ScriptedPlanner.load(spec.name, spec.script)
