"""A worker told to end while its planners think gives their runs back: no turn and no failure is used."""

import asyncio
import threading

import pytest

from fencepost import App, Context, Turn
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.planner import Planner
from fencepost_workers.step import Step
from tests.awaiting import until
from tests.integration.step_shop import opened

LIMIT_S = 20


def thinking_app(asked: threading.Semaphore) -> App:
    app = App("thinking")

    @app.planner("note", version=1)
    async def think(context: Context) -> Turn:
        asked.release()
        await asyncio.Event().wait()
        return Turn(finish={})

    return app


def test_what_is_being_planned_is_given_back_when_a_worker_ends(
    database: LedgerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Semaphore(0)
    with (
        LocalValkey.start() as valkey,
        opened(database, valkey, slots=4, app=thinking_app(asked)) as shop,
    ):
        (run,) = shop.enqueue("thinks")
        assert Step(shop.worker, Planner(shop.worker)).handle(shop.due(Queue.PLANNER)) == 1
        assert asked.acquire(timeout=LIMIT_S)
        shop.worker.stop(0)
        monkeypatch.setattr(shop.worker, "stop", lambda _: None)  # once is enough
        (found,) = shop.sql(
            "SELECT status, owner, failures, requests, ready_at <= fencepost.now() FROM fencepost.runs"
            " WHERE id = %s",
            run,
        )
        assert found == ("PLANNING", None, 0, 0, True)
        (lost,) = shop.sql(
            "SELECT body FROM fencepost.events WHERE run = %s AND type = 'ModelOutcomeUnknown'", run
        )
        assert lost[0]["code"] == "drained"
        until("the run is due", lambda: bool(shop.due(Queue.PLANNER)), LIMIT_S)
        ((takeovers, worker),) = shop.sql("SELECT takeovers, worker FROM fencepost.outbox")
        assert (takeovers, worker) == (0, None)
