"""Runs planned by models, driven step by step, and the provider that speaks for these models."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, timedelta
from typing import Any
from uuid import UUID

import psycopg
from pydantic import BaseModel

from fencepost import App, Attempt, Context, Contract, Effect, Natural
from fencepost.models import Price, Wire
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_ops.sandbox.process import SandboxProcess
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.step import Step
from tests.answering import Said
from tests.integration.step_shop import SECOND, Shop, opened

ENQUEUE = "SELECT run FROM fencepost.enqueue_run('t', %s, %s, 1, 'svc:x', %s, interval '10 min')"
KEY = "sk-this-is-nobodys-business"
NOTE = {"name": "note_do", "id": "same", "arguments": {"key": "k"}}
ROB = {"name": "bank.rob", "id": "same", "arguments": {"key": "k"}}
SCRIPT = {
    "turns": [{"text": "I note it.", "calls": [NOTE, {**ROB, "name": "bank_rob"}]}, {"text": "Noted."}],
    "usage": {"input": 100, "output": 9, "cached": 30},
}
PRICE = Price(date(2020, 1, 1), 2_000_000, 10_000_000, cache_read=1_000_000)
COST = 70 * 2 + 30 + 9 * 10  # millionths, of one answer of the script
WIRES = {"responses": Wire.RESPONSES, "chat": Wire.CHAT, "messages": Wire.MESSAGES}


class Note(BaseModel):
    key: str


def modelled(provider: SandboxProcess) -> App:
    app = App("modelled")
    place = app.dependency("place", per_attempt=5 * SECOND, grace=SECOND, reserve=SECOND)
    openai = app.dependency("openai", f"{provider.url}/v1", headers={"X-Team": "notes"})
    anthropic = app.dependency("anthropic", provider.url)

    @place.python("note.do", effect=Effect.READ, contract=Contract(repeat=Natural()))
    async def do(args: Note, attempt: Attempt) -> dict[str, str]:
        """Note something."""
        return {"noted": args.key}

    @place.python("note.burn", effect=Effect.READ)
    async def burn(args: Note, attempt: Attempt) -> None:
        """Nobody is told of it."""

    models = {}
    for name, wire in WIRES.items():
        via = anthropic if wire is Wire.MESSAGES else openai
        how: dict[str, Any] = {"wire": wire, "model": name, "key": "env:TEST_MODEL_KEY", "prices": (PRICE,)}
        models[name] = app.model(name, via=via, **how)
        app.agent(name, model=models[name], instructions="Note.", tools=["note.do"])
    both = [models["responses"], models["messages"]]
    app.agent("both", model=both, instructions="Note.", tools=["note.do"], failures_each=1)
    app.agent("judged", model=models["messages"], instructions="Note.", tools=["note.do"])

    @app.verify("judged")
    def verify(context: Context) -> bool | str:
        return bool(context.by_tool("note.do")) or "nothing is noted"

    app.allow("svc:*", tools=["note.*"])
    return app


class Desk:
    """A shop whose planners are models, and their provider."""

    def __init__(self, shop: Shop, provider: SandboxProcess | None) -> None:
        self.shop = shop
        self._provider = provider
        self.before = len(self._all()) if provider is not None else 0
        self.planner = self.another()
        self.dispatcher = Step(shop.worker, Dispatcher(shop.worker))

    def another(self, timeout: timedelta | None = None) -> Step:
        """A planner that remembers nothing; `timeout` is what it declares then, else its model does."""
        planners = self.shop.worker.app._planners
        planners.update({key: replace(spec, timeout=timeout) for key, spec in planners.items()})
        return Step(self.shop.worker, Planner(self.shop.worker))

    @property
    def provider(self) -> SandboxProcess:
        assert self._provider is not None
        return self._provider

    def _all(self) -> list[dict[str, Any]]:
        return list(self.provider.get("/models/requests")["requests"])

    def asked(self) -> list[dict[str, Any]]:
        return self._all()[self.before :]

    def enqueue(self, planner: str, key: str = "k", budget: Mapping[str, int] | None = None) -> UUID:
        given = [key, planner, json.dumps({"order": key}), json.dumps(budget or {})]
        with psycopg.connect(self.shop.database.dsns["producer"]) as connection:
            row = connection.execute(f"{ENQUEUE[:-1]}, %s)", given).fetchone()
        assert row is not None
        return UUID(str(row[0]))

    def script(self, model: str, *turns: Any, **more: Any) -> None:
        script = {**SCRIPT, **({"turns": turns} if turns else {}), **more}
        self.provider.post("/models/script", {"models": {model: script}})

    def spoil(self, kind: str, **how: Any) -> None:
        self.provider.post("/models/faults", {"kind": kind, **how})

    def go(self, most: int = 30) -> None:
        """Every step that is due, until nothing is open; what is due later is, at once."""
        for _ in range(most):
            begun = self.planner.handle(self.shop.due(Queue.PLANNER))
            begun += self.dispatcher.handle(self.shop.due(Queue.DISPATCHER))
            assert self.shop.idle()
            if not self.shop.sql("SELECT 1 FROM fencepost.outbox"):
                return
            if not begun:
                self.shop.ahead(11)
        raise AssertionError(self.shop.sql("SELECT * FROM fencepost.outbox"))

    def run(self, run: UUID, *fields: str) -> Any:
        row = self.shop.sql(f"SELECT {', '.join(fields)} FROM fencepost.runs WHERE id = %s", run)[0]
        return row[0] if len(fields) == 1 else row

    def events(self, run: UUID, kind: str) -> list[dict[str, Any]]:
        found = self.shop.sql(
            "SELECT body FROM fencepost.events WHERE run = %s AND type = %s ORDER BY seq", run, kind
        )
        return [body for (body,) in found]


@contextmanager
def seated(
    database: LedgerDatabase, valkey: LocalValkey, provider: SandboxProcess, app: App
) -> Iterator[Desk]:
    """The desk of an app; afterwards the provider holds nothing back and spoils nothing."""
    with opened(database, valkey, slots=10, app=app) as shop:
        yield Desk(shop, provider)
        provider.clear_faults()
        provider.post("/models/release", {})


def sse(*chunks: Any) -> Said:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return Said("".join([*lines, "data: [DONE]\n\n"]).encode(), headers={"Content-Type": "text/event-stream"})


def chat_turn(text: str, *calls: Mapping[str, Any], stop: str) -> Said:
    delta = {"content": text, "tool_calls": [dict(call) for call in calls]}
    return sse({"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]})
