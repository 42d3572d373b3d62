"""Whatever an application's code quotes as it fails, no password of the process is recorded or logged."""

from __future__ import annotations

import io
import logging
import socket
from datetime import timedelta
from typing import Any, NoReturn
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel

from fencepost import App, Attempt, Context, Contract, Effect, Lookup, NotApplied, Proposal, Request, Turn
from fencepost.authority import AuthorizationDecision, AuthorizationRequest
from fencepost.authority.decisions import Approver
from fencepost.states import Queue
from fencepost.telemetry.logs import Redacted, Text, json_lines
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.compensator import Compensator
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.reconciler import Reconciler
from fencepost_workers.step import Step
from tests.integration.step_shop import Note, Shop, opened

SECOND = timedelta(seconds=1)


class Noted(BaseModel):
    noted: str


class Telling:
    """An application's code that quotes all it knows as it fails, at one place."""

    def __init__(self, where: str, words: str) -> None:
        self.where, self.words, self.said = where, words, 0

    def at(self, where: str) -> None:
        if where == self.where:
            self.fails()

    def fails(self) -> NoReturn:
        self.said += 1
        # What is cut to 200 characters is cut within a password.
        raise RuntimeError(f"{self.words} {self.words} {self.words} {self.words}")


class Engine:
    """Allows everything, or fails."""

    version = "telling"

    def __init__(self, telling: Telling) -> None:
        self._telling = telling

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        self._telling.at("engine")
        return AuthorizationDecision(True, "whoever asks", self.version)

    def may_approve(self, request: AuthorizationRequest, approver: Approver) -> AuthorizationDecision:
        return AuthorizationDecision(False, "nobody", self.version)


def telling_app(telling: Telling, silent: socket.socket) -> App:
    app = App("telling", authority=Engine(telling))
    place = app.dependency(
        "place",
        f"http://127.0.0.1:{silent.getsockname()[1]}",
        per_attempt=SECOND,
        grace=SECOND,
        reserve=SECOND,
        attempts=2,
    )

    def intent(args: Note) -> tuple[str]:
        telling.at("intent")
        return (args.key,)

    @place.python(
        "note.do",
        effect=Effect.REVERSIBLE,
        returns=Noted,
        intent=intent,
        contract=Contract(),
    )
    def do(args: Note, attempt: Attempt) -> dict[str, str]:
        telling.at("tool")
        if telling.where == "not applied":
            telling.said += 1
            raise NotApplied("refused", telling.words)
        if telling.where == "result":
            telling.said += 1
        return {"noted": telling.words if telling.where == "result" else args.key}

    @do.compensate
    def undo(args: Note, result: Noted) -> Proposal:
        telling.at("compensation")
        return do.propose(Note(key=f"undo {args.key}"))

    @place.http(
        "note.send",
        effect=Effect.IRREVERSIBLE,
        returns=Noted,
        intent=lambda a: (a.key,),
        contract=Contract(lookup=Lookup(strong=True)),
    )
    def send(args: Note) -> Request:
        telling.at("request")
        return Request.post("/notes", json={"key": args.key})

    @send.lookup
    def find(args: Note, key: str) -> Request:
        telling.at("lookup")
        return Request.get("/notes")

    @app.planner("note", version=1)
    def note(context: Context) -> Turn:
        telling.at("planner")
        first = context.call("do")
        if first is None:
            return Turn([do.propose(Note(key=context.run_id), call_id="do")])
        if context.call("send") is None and telling.where in {"request", "lookup"}:
            return Turn([send.propose(Note(key=context.run_id), call_id="send")])
        if telling.where == "compensation":  # a required call that fails: the run stops, and is offset
            return Turn([Proposal("note.none", {}, "none")])
        return Turn(finish={"done": telling.words if telling.where == "finish" else True})

    return app


def carried_out(shop: Shop) -> None:
    """All there is to do, until nothing is due for a while."""
    roles = {
        Queue.PLANNER: Planner(shop.worker),
        Queue.DISPATCHER: Dispatcher(shop.worker),
        Queue.RECONCILER: Reconciler(shop.worker),
        Queue.COMPENSATOR: Compensator(shop.worker),
    }
    for _ in range(12):
        for queue, role in roles.items():
            if due := shop.due(queue):
                Step(shop.worker, role).handle(due)
                assert shop.idle()
        shop.ahead(4)


def stored(owner: psycopg.Connection[Any]) -> str:
    """Every row of every table, as text, and every payload."""
    tables = owner.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'fencepost'").fetchall()
    found = [
        f"{row}" for (table,) in tables for row in owner.execute(f"SELECT t::text FROM fencepost.{table} t")
    ]
    found += [bytes(row[0]).decode() for row in owner.execute("SELECT data FROM fencepost.payloads")]
    return "\n".join(found)


@pytest.mark.parametrize(
    "where",
    [
        "planner",
        "engine",
        "intent",
        "request",
        "tool",
        "not applied",
        "result",
        "lookup",
        "compensation",
    ],
)
def test_an_exception_that_quotes_the_login_is_recorded_and_logged_without_it(
    database: LedgerDatabase, valkey: LocalValkey, where: str
) -> None:
    dsn = database.dsns["worker"]
    password = str(conninfo_to_dict(dsn)["password"])
    spelled = "".join(f"%{byte:02x}" for byte in password.encode())
    telling = Telling(where, f"{dsn} or {password} or {spelled}")
    lines = io.StringIO()
    handlers = [logging.StreamHandler(lines), logging.StreamHandler(lines)]
    for handler, form in zip(handlers, (Text(), json_lines()), strict=True):
        handler.setFormatter(Redacted(form))
        logging.getLogger().addHandler(handler)
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            opened(database, valkey, 4, telling_app(telling, silent)) as shop,
        ):
            shop.enqueue("a")
            carried_out(shop)
            kept = stored(shop.owner)
    finally:
        for handler in handlers:
            logging.getLogger().removeHandler(handler)
    assert telling.said
    assert "***" in kept
    for text in (kept, lines.getvalue()):
        for one in (password, spelled, quote(password), password[:8]):
            assert one not in text
