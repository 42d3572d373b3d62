"""A function that ends after its attempt was given up: what it says is filed, and settles the doubt."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from fencepost import App, Attempt, Context, Contract, Effect, NotApplied, Proposal, Turn
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.reconciler import Reconciler
from fencepost_workers.step import Step
from tests.awaiting import until
from tests.integration.step_shop import WITHIN_S, opened

SECOND = timedelta(seconds=1)


class Note(BaseModel):
    key: str


class Slow:
    """What the function does: waits for the gate, then answers."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.answer: Any = None


def slow_app(slow: Slow) -> App:
    app = App("slow")
    headers = {"Authorization": "Bearer geheim-geheim"}
    place = app.dependency("place", headers=headers, per_attempt=0.2 * SECOND, grace=SECOND, reserve=SECOND)

    @place.python(
        "note.do", effect=Effect.REVERSIBLE, intent=lambda a: (a.key,), contract=Contract(settle=SECOND)
    )
    def do(args: Note, attempt: Attempt) -> Any:
        slow.gate.wait(WITHIN_S)
        if isinstance(slow.answer, ValueError):
            raise slow.answer
        return slow.answer

    @do.compensate
    def undo(args: Note, result: Any) -> Proposal:
        return Proposal("note.do", {"key": f"undo {args.key}"})

    @app.planner("note", version=1)
    def note(context: Context) -> Turn:
        return Turn([do.propose(Note(key=context.run_id), call_id="do")])

    app.allow("svc:*", tools=["note.do"])
    return app


@pytest.mark.parametrize(
    ("answer", "applied", "state"),
    [({"id": "n-1"}, True, "SUCCEEDED"), (NotApplied("refused", "no"), False, "FAILED")],
)
def test_what_a_function_says_after_its_time_is_filed_as_evidence_and_settles_the_call(
    database: LedgerDatabase, valkey: LocalValkey, answer: Any, applied: bool, state: str
) -> None:
    slow = Slow()
    slow.answer = answer
    with opened(database, valkey, 4, slow_app(slow)) as shop:
        Step(shop.worker, Dispatcher(shop.worker)).handle(shop.planned("a"))
        assert shop.idle()
        assert shop.states() == ["UNKNOWN"]
        slow.gate.set()
        filed = "SELECT body FROM fencepost.events WHERE type = 'EvidenceFiled'"
        ((body,),) = until("evidence is filed", lambda: shop.sql(filed), WITHIN_S)
        assert body["applied"] is applied
        due = until("the reconciler is due", lambda: shop.due(Queue.RECONCILER), WITHIN_S)
        Step(shop.worker, Reconciler(shop.worker)).handle(due)
        assert shop.idle()
        assert shop.states() == [state]
        assert shop.sql("SELECT receipt FROM fencepost.calls") == [("n-1" if applied else None,)]


def test_a_credential_of_its_dependency_that_a_function_tells_is_not_kept(
    database: LedgerDatabase, valkey: LocalValkey
) -> None:
    slow = Slow()
    slow.answer = ValueError("401: geheim-geheim is not known here")
    slow.gate.set()
    with opened(database, valkey, 4, slow_app(slow)) as shop:
        Step(shop.worker, Dispatcher(shop.worker)).handle(shop.planned("a"))
        assert shop.idle()
        ((error,),) = shop.sql("SELECT error FROM fencepost.calls")
        assert "401: *** is not known here" in error


def test_a_credential_in_a_late_answer_is_not_kept(database: LedgerDatabase, valkey: LocalValkey) -> None:
    slow = Slow()
    slow.answer = {"id": "geheim-geheim"}
    with opened(database, valkey, 4, slow_app(slow)) as shop:
        Step(shop.worker, Dispatcher(shop.worker)).handle(shop.planned("a"))
        assert shop.idle()
        slow.gate.set()
        filed = "SELECT body ->> 'receipt' FROM fencepost.events WHERE type = 'EvidenceFiled'"
        assert until("evidence is filed", lambda: shop.sql(filed), WITHIN_S) == [("***",)]
        assert not any(
            b"geheim" in bytes(data) for (data,) in shop.sql("SELECT data FROM fencepost.payloads")
        )
