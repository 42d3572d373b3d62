"""Planners that look through a list of things that are not there: told of it they get on, else they count."""

import json
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from pydantic import BaseModel

from fencepost import App, Attempt, Context, Effect, Proposal, Turn
from fencepost.ledger import signals
from fencepost.ledger.connect import connect
from fencepost.progress import stuck
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers import planner
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.step import Step
from tests.integration.step_shop import Shop, opened

SKUS = [f"AB-{n}" for n in range(1040, 1050)]
IDS = [str(uuid4()) for _ in SKUS]
"""Which its planner has from elsewhere."""
ENQUEUE = "SELECT run FROM fencepost.enqueue_run('t', %s, 'finds', 1, 'svc:x', %s, interval '10 min')"


class Sku(BaseModel):
    sku: str


def finding() -> App:
    app = App("finding")
    stock = app.dependency("stock")

    @stock.python("stock.find", effect=Effect.READ)
    async def find(args: Sku, attempt: Attempt) -> dict[str, bool]:
        return {"found": False}

    @app.planner("finds", version=1)
    def plan(context: Context) -> Turn:
        if len(context.calls) == len(SKUS):
            return Turn(finish="none is there")
        of = IDS if context.input.get("ids") else SKUS
        return Turn(proposals=[Proposal("stock.find", {"sku": of[len(context.calls)]})])

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


def test_a_list_that_a_run_was_given_is_no_counter(shop: Shop, asked_by: set[threading.Thread]) -> None:
    asked = {"input": {"skus": SKUS}, "signal": {}, "nothing": {}, "ids": {"ids": True}}
    runs: dict[str, UUID] = {}
    with psycopg.connect(shop.database.dsns["producer"]) as connection:
        for key, input_ in asked.items():
            row = connection.execute(ENQUEUE, [key, json.dumps(input_)]).fetchone()
            assert row is not None
            runs[key] = row[0]
    with connect(shop.database.dsns["api"], "api") as connection:
        to = ("t", runs["signal"])
        signals.send(connection, *to, key="k", name="list", body=SKUS, sender="svc:x")
    go(shop)
    found = dict(shop.sql("SELECT run_key, status FROM fencepost.runs"))
    assert found == {"input": "COMPLETED", "signal": "COMPLETED", "ids": "COMPLETED", "nothing": "STOPPED"}
    assert {thread.name.partition("_")[0] for thread in asked_by} == {"tool"}, "never on the loop"
    (why,) = shop.sql("SELECT stop_reason, stop_detail FROM fencepost.runs WHERE run_key = 'nothing'")
    assert why == (
        "no_progress",
        "stock.find: called 10 times in a row with the same result while only sku changed",
    )
