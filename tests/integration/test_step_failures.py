"""Whatever fails inside the pipeline: slots and leases come back, and neighbours go on."""

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fencepost import App, Effect, Request
from fencepost.ledger import reads
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.attempts import built
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.step import Step
from tests.integration.step_shop import Failing, Note, Shop, opened


@pytest.fixture
def shop(database: LedgerDatabase, valkey: LocalValkey) -> Iterator[Shop]:
    with opened(database, valkey, slots=4) as one:
        yield one


@pytest.mark.parametrize("error", [RuntimeError("a bug"), SystemExit(3)])
def test_an_item_that_fails_inside_the_worker_gives_its_slot_and_lease_back(
    shop: Shop, error: BaseException
) -> None:
    calls = shop.planned("a")
    assert Step(shop.worker, Failing(shop.worker, "act", error)).handle(calls) == 1
    assert shop.idle()
    shop.leases_are_free()
    assert shop.states() == ["DISPATCHING"]  # its takeover settles it
    assert Step(shop.worker, Dispatcher(shop.worker)).handle(shop.planned("b")) == 1  # the loop lives
    assert shop.idle()


def test_claims_that_were_recorded_before_their_data_could_be_read_are_settled_by_takeover(
    shop: Shop,
) -> None:
    calls = shop.planned("a", "b")
    assert Step(shop.worker, Failing(shop.worker, "gather", RuntimeError("a bug"))).handle(calls) == 0
    assert shop.idle()
    shop.leases_are_free()
    assert shop.states() == ["DISPATCHING"] * 2
    assert shop.due(Queue.RECONCILER) == []
    shop.ahead(7)
    assert len(shop.due(Queue.RECONCILER)) == 2
    assert shop.deed.begun == 0


@pytest.mark.parametrize("error", [RuntimeError("a bug"), SystemExit(3)])
def test_a_claim_that_cannot_be_built_gives_every_lease_of_its_batch_back(
    shop: Shop, error: BaseException
) -> None:
    calls = shop.planned("a", "b")
    shop.sql("UPDATE fencepost.outbox SET publish_count = 1")
    assert Step(shop.worker, Failing(shop.worker, "claim", error)).handle(calls) == 0
    counted = "SELECT failures FROM fencepost.outbox WHERE queue = 'dispatcher'"
    assert shop.sql(counted) == [(1,), (1,)], "it is the rows' failure, and set aside in the end"
    assert shop.idle()
    assert shop.leases() == []
    assert shop.states() == ["INTENT_RECORDED"] * 2
    assert Step(shop.worker, Dispatcher(shop.worker)).handle(calls) == 2


def test_a_request_function_that_ends_the_process_refuses_its_own_call(shop: Shop) -> None:
    app = App("away")
    desk = app.dependency("desk", base_url="http://127.0.0.1:9")

    @desk.http("desk.close", effect=Effect.READ)
    def shut(args: Note) -> Request:
        sys.exit(3)

    (call,) = shop.planned("a")
    with shop.worker.pool.reading() as connection:
        prepared = replace(reads.prepare(connection, [call[:2]])[call[1]], arguments='{"key":"a"}')
    assert built(Dispatcher(shop.worker), shut.tool, prepared, call) == {"request_error": "SystemExit: 3"}
