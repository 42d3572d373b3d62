"""Planners that ask again and again: for one thing after the other they get on, for the same they end."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from fencepost import App, Attempt, Context, Effect, Proposal, Turn
from fencepost.progress import stuck
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers import planner
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.step import Step
from tests.integration.step_shop import Shop, opened

MOST = 10
ENQUEUE = "SELECT run FROM fencepost.enqueue_run('t', %s, 'finds', 1, 'svc:x', %s, interval '10 min')"


class Sku(BaseModel):
    sku: str
    attempt: int = 0
    hint: str = ""


def finding() -> App:
    app = App("finding")
    stock = app.dependency("stock")

    @stock.python("stock.find", effect=Effect.READ)
    async def find(args: Sku, attempt: Attempt) -> dict[str, bool]:
        return {"found": False}

    @stock.python("stock.guess", effect=Effect.READ, cosmetic=("hint",))
    async def guess(args: Sku, attempt: Attempt) -> dict[str, bool]:
        return {"found": False}

    @app.planner("finds", version=1)
    def plan(context: Context) -> Turn:
        n = len(context.calls)
        if n > MOST:
            return Turn(finish="none is there")
        asks = {
            "list": Proposal("stock.find", {"sku": f"AB-{n}"}),
            "tries": Proposal("stock.find", {"sku": "AB-1", "attempt": n}),
            "hints": Proposal("stock.guess", {"sku": "AB-1", "hint": f"{n}"}),
            "hints of a list": Proposal("stock.guess", {"sku": f"AB-{n}", "attempt": n, "hint": f"{n}"}),
        }
        return Turn(proposals=[asks[context.input["asks"]]])

    app.allow("svc:*", tools=["stock.*"])
    return app


@pytest.fixture
def shop(database: LedgerDatabase) -> Iterator[Shop]:
    with LocalValkey.start() as valkey, opened(database, valkey, slots=4, app=finding()) as shop:
        yield shop


def go(shop: Shop) -> None:
    steps = {Queue.PLANNER: Step(shop.worker, Planner(shop.worker))}
    steps[Queue.DISPATCHER] = Step(shop.worker, Dispatcher(shop.worker))
    while shop.sql("SELECT 1 FROM fencepost.outbox"):
        for queue, step in steps.items():
            step.handle(shop.due(queue))
            assert shop.idle()


@pytest.fixture
def asked_by(monkeypatch: pytest.MonkeyPatch) -> set[threading.Thread]:
    """The threads in which it was looked whether a run gets on."""
    threads: set[threading.Thread] = set()

    def watched(*args: Any, **options: Any) -> str | None:
        threads.add(threading.current_thread())
        return stuck(*args, **options)

    monkeypatch.setattr(planner, "stuck", watched)
    return threads


def test_what_only_counts_is_no_progress(shop: Shop, asked_by: set[threading.Thread]) -> None:
    with psycopg.connect(shop.database.dsns["producer"]) as connection:
        for asks in ("list", "tries", "hints", "hints of a list"):
            connection.execute(ENQUEUE, [asks, json.dumps({"asks": asks})])
    go(shop)
    ends = shop.sql("SELECT run_key, calls, status, stop_reason, stop_detail FROM fencepost.runs ORDER BY 1")
    same = "in a row with the same result while only"
    assert ends == [
        ("hints", 5, "STOPPED", "no_progress", f"stock.guess: called 5 times {same} hint changed"),
        ("hints of a list", MOST + 1, "COMPLETED", None, None),
        ("list", MOST + 1, "COMPLETED", None, None),
        ("tries", 10, "STOPPED", "no_progress", f"stock.find: called 10 times {same} attempt changed"),
    ]
    assert {thread.name.partition("_")[0] for thread in asked_by} == {"tool"}, "never on the loop"
