"""The pipeline with an HTTP tool, from the ledger to a raw server and back: what is sent, asked and kept."""

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from fencepost import App, Context, Contract, Dedupes, Effect, Lookup, Proposal, Request, Turn
from fencepost.contracts import FirstFailure, Never
from fencepost.outcomes import Answered
from fencepost.states import Queue
from fencepost.tools import LookupResult, Response, Unclear
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.reconciler import Reconciler
from fencepost_workers.role import Role
from fencepost_workers.step import Step
from fencepost_workers.worker import Worker
from tests.integration.raw_server import Answer, RawServer, raw, says
from tests.integration.step_shop import WITHIN_S, Shop, opened

SECOND = timedelta(seconds=1)
CANARY = "canary-5f3b/+\"'<x>"
T = TypeVar("T")


class Pay(BaseModel):
    key: str


def paying_app(memo: str | Callable[[], str] = "") -> App:
    """One version of the tool's code; `memo` is what another deploy, or each call, words differently."""
    app = App("paying")
    bank = app.dependency(
        "bank",
        "env:BANK_URL",
        headers={"Authorization": "env:BANK_TOKEN"},
        attempts=4,
        per_attempt=5 * SECOND,
        grace=SECOND,
        reserve=SECOND,
        backoff=timedelta(milliseconds=1),
    )
    contract = Contract(
        repeat=Dedupes(window=timedelta(hours=1), first_failure=FirstFailure.RELEASED),
        lookup=Lookup(strong=True),
        settle=SECOND,
        not_applied=frozenset({402, 429}),
        retryable=frozenset({429}),
    )

    @bank.http(
        "bank.pay",
        effect=Effect.REVERSIBLE,
        succeeded=lambda answer: answer.status in {200, 201},
        intent=lambda a: (a.key,),
        contract=contract,
    )
    def pay(args: Pay) -> Request:
        said = memo() if callable(memo) else memo
        return Request.post("/payments", json={"key": args.key, **({"memo": said} if said else {})})

    @pay.lookup
    def find(args: Pay, key: str) -> Request:
        return Request.get(f"/by-key/{key}")

    @pay.lookup_parse
    def found(response: Response, args: Pay) -> LookupResult:
        return Unclear(response.text)

    @pay.compensate
    def undo(args: Pay, result: Any) -> Proposal:
        return Proposal("bank.pay", {"key": f"undo {args.key}"})

    @app.planner("note", version=1)
    def note(context: Context) -> Turn:
        if context.call("pay") is None:
            return Turn([pay.propose(Pay(key=context.run_id), call_id="pay")])
        return Turn(finish={"paid": context.calls[0].result})

    app.allow("svc:*", tools=["bank.pay"])
    return app


class Till:
    """A shop with its servers, which live on the worker's own loop."""

    def __init__(self, shop: Shop, patch: pytest.MonkeyPatch) -> None:
        self.shop = shop
        self._patch = patch

    def on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.shop.worker.loop).result(WITHIN_S)

    @contextmanager
    def server(self, *answers: Answer) -> Iterator[RawServer]:
        """A server that the dependency's address leads to from now on."""
        server = self.on_loop(RawServer(list(answers)).__aenter__())
        self._patch.setenv("BANK_URL", f"http://127.0.0.1:{server.port}")
        try:
            yield server
        finally:
            self.on_loop(server.__aexit__())

    def step(self, queue: Queue) -> None:
        roles: dict[Queue, Callable[[Worker], Role]] = {
            Queue.DISPATCHER: Dispatcher,
            Queue.PLANNER: Planner,
            Queue.RECONCILER: Reconciler,
        }
        due = self.shop.due(queue)
        assert due
        assert Step(self.shop.worker, roles[queue](self.shop.worker)).handle(due) == len(due)
        assert self.shop.idle()

    def events(self, kind: str) -> list[Any]:
        rows = self.shop.sql("SELECT body FROM fencepost.events WHERE type = %s ORDER BY run, seq", kind)
        return [json.loads(body) if isinstance(body, str) else body for (body,) in rows]

    def now(self) -> datetime:
        found: datetime = self.shop.sql("SELECT fencepost.now()")[0][0]
        return found


@pytest.fixture
def till(database: LedgerDatabase, valkey: LocalValkey, monkeypatch: pytest.MonkeyPatch) -> Iterator[Till]:
    monkeypatch.setenv("BANK_TOKEN", f"Bearer {CANARY}")
    with opened(database, valkey, 4, paying_app()) as shop:
        yield Till(shop, monkeypatch)


def test_a_date_to_come_back_at_is_held_against_the_ledgers_time(till: Till) -> None:
    till.shop.ahead(3600)  # the worker's own clock is an hour behind
    wanted = till.now() + 20 * SECOND
    header = f"Retry-After: {format_datetime(wanted, usegmt=True)}"
    with till.server(says("429 Too Many Requests", b"later", header)):
        till.shop.planned("a")
        till.step(Queue.DISPATCHER)
    (failed,) = till.events("ToolAttemptFailed")
    assert not failed["final"]
    assert abs(datetime.fromisoformat(failed["ready_at"]) - wanted) < 2 * SECOND


def test_a_lookup_at_another_address_than_the_request_went_to_proves_nothing(till: Till) -> None:
    with till.server(raw(b"")) as old:
        till.shop.planned("a")
        till.step(Queue.DISPATCHER)
        assert till.shop.states() == ["UNKNOWN"]
        with till.server(says("404 Not Found", b"absent")) as new:
            till.step(Queue.RECONCILER)
            assert new.requests == []
    (answer,) = (json.loads(e["lookup"]) for e in till.events("ToolLookupRecorded"))
    assert answer["answer"] == "unclear"
    was, asks = f"http://127.0.0.1:{old.port}", f"http://127.0.0.1:{new.port}"
    assert answer["detail"] == (
        f"the dependency's address has changed: the request went to {was}, the lookup would ask {asks}"
    )
    assert till.shop.states() == ["UNKNOWN"]


def test_a_lookup_that_the_engine_refuses_is_asked_once(till: Till) -> None:
    registry = till.shop.worker.app.registry
    pay = registry["bank.pay", 1]
    registry["bank.pay", 1] = replace(
        pay,
        lookup=lambda _args, key: Request.get(f"/payments?key={key}"),
        contract=replace(pay.contract, repeat=Never()),
    )
    with till.server(raw(b"")) as server:
        till.shop.planned("a")
        till.step(Queue.DISPATCHER)
        till.step(Queue.RECONCILER)
        assert till.shop.states() == ["NEEDS_REPAIR"]
        assert len(server.requests) == 1
    (answer,) = (json.loads(e["lookup"]) for e in till.events("ToolLookupRecorded"))
    (asked,) = till.events("RepairRequested")
    assert answer["answer"] == "not_asked"
    assert "hold no '?'" in asked["reason"]
    assert asked["reason"].endswith("mend the lookup of bank.pay, then --ask-again")


def test_a_deploy_that_words_the_request_differently_repeats_the_stored_bytes(
    database: LedgerDatabase, valkey: LocalValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost under the old code; the new code's workers find out, and send it again."""
    monkeypatch.setenv("BANK_TOKEN", f"Bearer {CANARY}")
    with (
        opened(database, valkey, 4, paying_app("first wording")) as old,
        opened(database, valkey, 4, paying_app("second wording")) as new,
    ):
        before, after = Till(old, monkeypatch), Till(new, monkeypatch)
        with before.server(raw(b""), says("404 Not Found"), says("429 Too Many Requests")) as server:
            old.planned("a")
            before.step(Queue.DISPATCHER)
            assert old.states() == ["UNKNOWN"]
            tool = new.worker.app.registry["bank.pay", 1]
            blind = replace(
                tool, lookup=None, lookup_parse=None, contract=replace(tool.contract, lookup=None)
            )
            new.worker.app.registry["bank.pay", 1] = blind
            after.step(Queue.RECONCILER)
            new.planned("b")
            after.step(Queue.DISPATCHER)
        first, repeat, fresh = server.requests
    bodies = [request.partition(b"\r\n\r\n")[2] for request in (first, repeat, fresh)]
    assert b"first wording" in bodies[0] == bodies[1]
    assert b"second wording" in bodies[2], "the new code is in use"
    keys = [line for request in (first, repeat) for line in request.split(b"\r\n") if b"dempotency" in line]
    assert keys[0] == keys[1]


def test_a_body_that_would_drift_is_sent_again_as_it_was(
    database: LedgerDatabase, valkey: LocalValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that writes time and a count into its body: a retry and a repeat send the first one's bytes."""
    monkeypatch.setenv("BANK_TOKEN", f"Bearer {CANARY}")
    numbers = itertools.count(1)
    with opened(database, valkey, 4, paying_app(lambda: f"{time.time_ns()} {next(numbers)}")) as shop:
        till = Till(shop, monkeypatch)
        tool = shop.worker.app.registry["bank.pay", 1]
        blind = replace(tool, lookup=None, lookup_parse=None, contract=replace(tool.contract, lookup=None))
        shop.worker.app.registry["bank.pay", 1] = blind
        with till.server(says("429 Too Many Requests"), raw(b""), says("200 OK", b'{"id": "p-1"}')) as server:
            shop.planned("a")
            till.step(Queue.DISPATCHER)
            shop.ahead(1)
            till.step(Queue.DISPATCHER)
            till.step(Queue.RECONCILER)
        assert shop.states() == ["SUCCEEDED"]
        bodies = {request.partition(b"\r\n\r\n")[2] for request in server.requests}
        keys = {line for r in server.requests for line in r.split(b"\r\n") if b"dempotency" in line}
    assert (len(server.requests), len(bodies), len(keys), next(numbers)) == (3, 1, 1, 2)


def test_more_requests_than_one_in_an_attempt_raise_an_alarm_and_are_recorded(
    till: Till, caplog: pytest.LogCaptureFixture
) -> None:
    async def twice(*_: Any, **__: Any) -> Answered:
        return Answered(Response(200, {}, b'{"id": "p-1"}'), 2)

    with till.server(says("200 OK")):
        till.shop.planned("a")
        till.shop.worker.engine.send = twice  # type: ignore[method-assign]
        till.step(Queue.DISPATCHER)
    (recorded,) = till.events("ToolResultRecorded")
    assert recorded["requests"] == 2
    (alarm,) = [r for r in caplog.records if "2 effect requests went on the wire" in r.getMessage()]
    assert alarm.levelno == logging.ERROR


def test_a_lookup_that_is_told_to_come_later_closes_the_dependency(till: Till) -> None:
    busy = says("503 Service Unavailable", b"", "Retry-After: 9")
    with till.server(raw(b""), busy):
        till.shop.planned("a")
        till.step(Queue.DISPATCHER)
        till.step(Queue.RECONCILER)
    found = till.shop.sql("SELECT state, reason FROM fencepost.dependencies WHERE scope = 'bank/default'")
    assert found == [("open", "http_503, Retry-After 9 s")]


def test_a_client_that_sends_again_by_itself_is_seen_on_the_wire_and_put_on_record(till: Till) -> None:
    engine = till.shop.worker.engine
    once = engine._exchange

    async def sent_again(request: Any, reach: Any, unrepeated: bool) -> Response:
        await once(request, reach, unrepeated)
        return await once(request, reach, unrepeated)

    with till.server(says("503 Service Unavailable"), says("200 OK")) as server:
        till.shop.planned("a")
        engine._exchange = sent_again  # type: ignore[method-assign]
        till.step(Queue.DISPATCHER)
        assert len(server.requests) == 2
    assert till.events("HiddenRetrySeen") == [{"requests": 2}]
    assert till.shop.states() == ["SUCCEEDED"]


def test_requests_on_the_wire_are_counted_in_every_kind_of_end(till: Till) -> None:
    with till.server(raw(b""), says("429 Too Many Requests"), says("402 Payment Required"), says("200 OK")):
        till.shop.planned(*"abcd")
        till.step(Queue.DISPATCHER)
    assert [e["requests"] for e in till.events("ToolOutcomeMarkedUnknown")] == [1]
    assert [e["requests"] for e in till.events("ToolAttemptFailed")] == [1, 1]
    assert [e["requests"] for e in till.events("ToolResultRecorded")] == [1]


def echoing(status: str, wrap: Callable[[str], str] = str) -> Answer:
    return says(status, wrap(CANARY).encode(), f"X-Echo: {CANARY}")


def test_a_credential_that_a_downstream_echoes_is_found_nowhere_in_the_ledger(till: Till) -> None:
    def whole(text: str) -> str:
        return json.dumps({"id": text, "you": f"Bearer {text}"})

    def cut(text: str) -> str:
        return "." * 490 + text  # what is kept of it ends within the credential

    answers = [echoing("402 Payment Required", cut), echoing("200 OK", whole), echoing("500 Broken", whole)]
    with till.server(*answers, echoing("200 OK", lambda text: f"'{text}' is unclear")) as server:
        till.shop.planned(*"abc")
        till.step(Queue.DISPATCHER)
        till.step(Queue.RECONCILER)
        assert len(server.requests) == 4
        assert all(CANARY.encode() in request for request in server.requests)
    till.step(Queue.PLANNER)
    assert [e["message"] for e in till.events("ToolAttemptFailed")] == ["." * 490 + "***"]
    assert [e["receipt"] for e in till.events("ToolResultRecorded")] == ["***"]
    looked_up = [json.loads(e["lookup"]) for e in till.events("ToolLookupRecorded")]
    assert [answer["detail"] for answer in looked_up] == ["'***' is unclear"]
    assert "canary" not in everything(till.shop)


def everything(shop: Shop) -> str:
    """All rows of all tables as text, kept bytes decoded."""
    tables = [name for (name,) in shop.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'fencepost'")]
    rows = [row for table in tables for row in shop.sql(f"SELECT * FROM fencepost.{table}")]
    assert len(rows) > 20
    return "\n".join(
        bytes(value).decode("latin-1") if isinstance(value, bytes | memoryview) else str(value)
        for row in rows
        for value in row
    )
