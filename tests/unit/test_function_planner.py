"""A planner that tries to end its process gives no turn, and nothing else."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from fencepost.models import AgentSpec
from fencepost.planners import PlannerSpec
from fencepost.tools import Context, Turn
from fencepost_workers.models import planner_for

CONTEXT = Context(run_id="r", tenant="t", principal="p", input={}, turn=1)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("awaits", [False, True])
def test_an_exit_is_an_error_of_this_planner_alone(kind: type[BaseException], awaits: bool) -> None:
    def plan(_context: Context) -> Turn:
        raise kind(1)

    async def plan_later(_context: Context) -> Turn:
        raise kind(1)

    async def ask() -> None:
        with ThreadPoolExecutor(1) as executor:
            planner = planner_for(PlannerSpec("p", 1, plan=plan_later if awaits else plan), executor)
            # In a task of its own, as a worker asks: out of one an exit would end the loop.
            with pytest.raises(RuntimeError, match=kind.__name__):
                await asyncio.wait_for(planner.propose(CONTEXT), 5)

    asyncio.run(ask())


def test_a_function_with_an_attribute_of_its_own_called_asks_is_no_model() -> None:
    def plan(_context: Context) -> Turn:
        return Turn(finish="done")

    plan.asks = "politely"  # type: ignore[attr-defined]
    assert PlannerSpec("p", 1, plan=plan).asked is None
    plan.asks = AgentSpec(models=(), instructions="")  # type: ignore[attr-defined]
    assert PlannerSpec("p", 1, plan=plan).asked is plan.asks  # type: ignore[attr-defined]
