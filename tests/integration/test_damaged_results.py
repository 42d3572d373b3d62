"""A stored result that is not what was recorded: no planner decides on it, and nothing is offset by it."""

from collections.abc import Iterator

import pytest

from fencepost import App, Attempt, Context, Effect, Proposal, Turn
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.compensator import Compensator
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.step import Step
from tests.integration.step_shop import SECOND, Note, Shop, opened

SEEN: list[object] = []
OFFSET: list[str] = []
FLIP = "UPDATE fencepost.payloads SET data = set_byte(data, 12, get_byte(data, 12) # 1) WHERE digest = %s"


def app() -> App:
    made = App("damaged")
    place = made.dependency("place", per_attempt=5 * SECOND, grace=SECOND, reserve=SECOND)

    @place.python("note.do", effect=Effect.REVERSIBLE, intent=lambda a: (a.key,), untrusted=False)
    def do(args: Note, attempt: Attempt) -> dict[str, str]:
        return {"id": "noted-1"}

    @do.compensate
    def undo(args: Note, result: dict[str, str]) -> Proposal:
        return Proposal("note.undo", Note(key=result["id"]))

    @place.python("note.undo", effect=Effect.IRREVERSIBLE, intent=lambda a: ("undo", a.key))
    def remove(args: Note, attempt: Attempt) -> dict[str, str]:
        OFFSET.append(args.key)
        return {"id": args.key}

    @made.planner("note", version=1)
    def note(context: Context) -> Turn:
        done = context.call("do")
        if done is None:
            return Turn([do.propose(Note(key=context.run_id), call_id="do")])
        SEEN.append(done.result)
        return Turn(finish={"done": True})

    made.allow("svc:*", tools=["note.do", "note.undo"])
    return made


@pytest.fixture
def shop(database: LedgerDatabase, valkey: LocalValkey) -> Iterator[Shop]:
    SEEN.clear()
    OFFSET.clear()
    with opened(database, valkey, slots=2, app=app()) as one:
        one.sql("ALTER TABLE fencepost.payloads DROP CONSTRAINT payloads_digest_check")
        calls = one.planned("a")
        assert Step(one.worker, Dispatcher(one.worker)).handle(calls) == 1
        assert one.idle()
        assert one.states() == ["SUCCEEDED"]
        yield one


def handle(shop: Shop, role: type[Planner | Compensator], queue: Queue) -> None:
    assert Step(shop.worker, role(shop.worker)).handle(shop.due(queue)) == 1
    assert shop.idle()


def test_no_planner_decides_on_a_result_that_nobody_recorded(shop: Shop) -> None:
    (digest,) = shop.sql("SELECT result FROM fencepost.calls")[0]
    shop.sql(FLIP, digest)
    handle(shop, Planner, Queue.PLANNER)
    assert SEEN == []
    (said,) = shop.sql(
        "SELECT body ->> 'code', body ->> 'message' FROM fencepost.events WHERE type = 'ModelOutcomeUnknown'"
    )
    assert said[0] == "damaged_result"
    assert f"the stored result {digest} of call" in said[1]
    shop.sql(FLIP, digest)  # it is restored
    shop.ahead(5)
    handle(shop, Planner, Queue.PLANNER)
    assert SEEN == [{"id": "noted-1"}]
    assert shop.sql("SELECT status FROM fencepost.runs") == [("COMPLETED",)]


def test_nothing_is_offset_by_a_result_that_nobody_recorded(shop: Shop) -> None:
    (digest,) = shop.sql("SELECT result FROM fencepost.calls")[0]
    shop.sql(FLIP, digest)
    shop.ahead(61)  # past the run's deadline, so that it stops
    Step(shop.worker, Planner(shop.worker)).handle(shop.due(Queue.PLANNER))
    handle(shop, Compensator, Queue.COMPENSATOR)
    assert shop.sql("SELECT body ->> 'code' FROM fencepost.events WHERE type = 'ProposalRejected'") == [
        ("damaged_result",)
    ]
    assert shop.due(Queue.DISPATCHER) == []
    assert OFFSET == []
