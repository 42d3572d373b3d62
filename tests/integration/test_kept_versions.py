"""A run keeps the versions of the tools it began with; runs that begin later take the newest."""

import pytest
from pydantic import BaseModel

from fencepost import App, Attempt, Context, Contract, Effect, Natural, Turn
from fencepost.planners import pins
from fencepost.states import Queue
from fencepost.tools import Proposal, Tool
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.step import Step
from tests.integration.step_shop import Shop, opened


class Note(BaseModel):
    key: str


def register(app: App, version: int) -> Tool:
    home = app._dependencies.get("place/default") or app.dependency("place")

    @home.python("note.do", version=version, effect=Effect.READ, contract=Contract(repeat=Natural()))
    async def do(args: Note, attempt: Attempt) -> dict[str, int]:
        return {"version": version}

    return app.registry["note.do", version]


@pytest.mark.parametrize(
    ("used", "kept"),
    [
        ([], {}),
        ([("note.do", 1)], {"note.do": 1}),
        ([("note.do", 2), ("note.do", 1)], {}),
        ([("note.do", 7), ("note.do", 1)], {"note.do": 1}),
        ([("rejected", 0)], {}),
    ],
)
def test_what_is_kept(used: list[tuple[str, int]], kept: dict[str, int]) -> None:
    app = App("notes")
    register(app, 1)
    register(app, 2)
    assert pins(app.registry, used) == kept


def twice(context: Context) -> Turn:
    if len(context.calls) < 2:
        return Turn([Proposal("note.do", {"key": f"{context.run_id}-{context.turn}"})])
    return Turn(finish=[call.result["version"] for call in context.calls])


def go(shop: Shop, turns: int) -> None:
    for _ in range(turns):
        Step(shop.worker, Planner(shop.worker)).handle(shop.due(Queue.PLANNER))
        assert shop.idle()
        Step(shop.worker, Dispatcher(shop.worker)).handle(shop.due(Queue.DISPATCHER))
        assert shop.idle()


def test_a_run_goes_on_with_the_version_it_began_with(database: LedgerDatabase) -> None:
    app = App("notes")
    register(app, 1)
    app.planner("note", version=1)(twice)
    app.allow("svc:*", tools=["note.do"])
    with LocalValkey.start() as valkey, opened(database, valkey, slots=4, app=app) as shop:
        shop.enqueue("before")
        go(shop, 1)
        register(app, 2)
        shop.enqueue("after")
        go(shop, 3)
        found = dict(shop.sql("SELECT run_key, preview FROM fencepost.runs"))
    assert found == {"before": "[1, 1]", "after": "[2, 2]"}
