"""Answers that name nothing are no success and find nothing, whichever kind of tool they answer."""

import asyncio
import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel

from fencepost import App, Contract, Effect, Lookup, Request
from fencepost.mcp import Streamable
from fencepost.mcpoutcomes import answer_of, classify_call
from fencepost.outcomes import Answered, Applied, Unsure, classify, classify_lookup
from fencepost.tools import Absent, Attempt, Found, Response, Tool, Unclear
from fencepost_workers.tools.http import _decoded
from fencepost_workers.tools.python import run_python

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NOTHING = [
    *("[]", "null", "{}", "", " ", '{"found":false}', '{"data":[]}', '{"ok":false}', '{"error":{}}'),
    *('{"done":false}', '{"id":null}', '{"id":""}', '"declined"', '[{"status":201},{"status":422}]'),
]


class Order(BaseModel):
    n: int = 1


class Receipt(BaseModel):
    id: str


class Maybe(BaseModel):
    id: str | None = None


class Nullable(BaseModel):
    id: str | None


class Flag(BaseModel):
    done: bool


class Listed(BaseModel):
    data: list[Receipt]


class Within(BaseModel):
    inner: Maybe
    rest: Annotated[dict[str, Any], Field(alias="error")]


class Whatever(BaseModel):
    said: Any


class Either(BaseModel):
    done: Literal["done", False]


Bare = RootModel[dict[str, Any]]

UNTELLING: list[Any] = [None, Maybe, Nullable, Flag, Listed, Within, Whatever, Either, Bare]


class Telling(BaseModel):
    id: int | str
    done: Literal[True]
    maybe: str | None


def shop() -> App:
    app = App("shop")
    app.allow("*", ["pay.now"])
    return app


def paying(app: App, returns: Any = None, **said: Any) -> Tool:
    said = {"contract": Contract(lookup=Lookup(strong=True)), "intent": lambda a: (a.n,), **said}
    pay = app.dependency("pay", "https://pay.test")

    def now(args: Order) -> Request:
        return Request.post("/payments", json={"n": args.n})

    made: Any = pay.http("pay.now", effect=Effect.IRREVERSIBLE, returns=returns, **said)(now)
    made.lookup(lambda _args, key: Request.get(f"/payments/{key}"))
    return app.registry["pay.now", 1]


def writing(returns: Any) -> Tool:
    server = shop().dependency("m", "https://m.test", mcp=Streamable())
    said: Any = {"arguments": Order, "effect": Effect.IRREVERSIBLE, "intent": lambda a: (a.n,)}
    return server.mcp("pay.now", returns=returns, **said).tool


def response(status: int, body: str) -> Answered:
    return Answered(Response(status, {}, body.encode()))


def told(body: str) -> Answered:
    try:
        said = {"content": [], "structuredContent": json.loads(body)}
    except ValueError:
        said = {"content": [{"type": "text", "text": body}]}
    return Answered(answer_of(result=said))


@pytest.mark.parametrize("body", NOTHING)
@pytest.mark.parametrize("returns", [*UNTELLING, Receipt, Telling])
def test_what_names_nothing_is_neither_a_success_nor_found(returns: Any, body: str) -> None:
    tool = paying(shop(), returns)
    for status in (200, 201, 202, 204, 207):
        assert isinstance(classify(tool, response(status, body), now=NOW), Unsure)
    assert isinstance(classify_lookup(tool, Order(), response(200, body)), Unclear)
    assert isinstance(classify_call(writing(returns), told(body), now=NOW), Unsure)


@pytest.mark.parametrize("returns", UNTELLING)
def test_a_tool_that_cannot_tell_is_refused_with_what_to_add(returns: Any) -> None:
    app = shop()
    paying(app, returns)
    problems = " ".join(app.check())
    assert "cannot tell a success from an answer that says nothing" in problems
    assert "or succeeded=lambda answer: answer.status == 201" in problems


def test_a_lookup_without_a_declared_answer_is_refused() -> None:
    app = shop()
    paying(app, None, succeeded=lambda answer: answer.status == 201)
    (problem,) = app.check()
    assert "its lookup cannot tell what it found: no result is declared" in problem


def test_what_a_tool_declares_is_believed() -> None:
    app = shop()
    tool = paying(app, Receipt)
    assert app.check() == []
    assert classify(tool, response(201, '{"id":"p-1"}'), now=NOW) == Applied('{"id": "p-1"}', "p-1")
    assert classify_lookup(tool, Order(), response(200, '{"id":"p-1"}')) == Found("p-1", Receipt(id="p-1"))
    for status in (404, 410):
        assert classify_lookup(tool, Order(), response(status, "")) == Absent()
    for status in (202, 207):
        assert isinstance(classify(tool, response(status, '{"id":"p-1"}'), now=NOW), Unsure)
    assert paying(shop(), Telling).recognises is None


def test_a_python_tool_that_returns_an_empty_receipt_has_named_no_effect() -> None:
    app = shop()

    @app.python("pay.now", effect=Effect.IRREVERSIBLE, returns=Receipt, intent=lambda a: (a.n,))
    def now(args: Order, attempt: Attempt) -> Any:
        return {"id": "" if args.n else "p-1"}

    attempt = Attempt("r", "c", 1, "k", NOW, lambda: 30)
    with ThreadPoolExecutor(1) as pool:
        assert isinstance(asyncio.run(run_python(now.tool, Order(), attempt, pool)), Unsure)
        done = asyncio.run(run_python(now.tool, Order(n=0), attempt, pool))
    assert done == Applied('{"id": "p-1"}', "p-1")


NAMED = '{"id":"Zürich-1"}'
BODIES = {
    "a mark": ("application/json", NAMED.encode("utf-8-sig")),
    "latin-1 by its header": ("application/json; charset=ISO-8859-1", NAMED.encode("latin-1")),
    "utf-16": ('text/json; charset="utf-16"', NAMED.encode("utf-16")),
    "utf-8": ("application/json", NAMED.encode()),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("kind", "body"), BODIES.values(), ids=BODIES)
def test_an_answer_is_read_by_its_own_headers(kind: str, body: bytes, packed: bool) -> None:
    heads = {"content-type": kind} | ({"content-encoding": "gzip"} if packed else {})
    came = _decoded(Response(201, heads, gzip.compress(body) if packed else body), 1000).in_utf8()
    assert came.body == NAMED.encode()
    assert came.text == NAMED
    for returns in (Receipt, None):
        tool = replace(paying(shop(), returns), succeeded=lambda answer: answer.status == 201)
        found = classify(tool, Answered(came), now=NOW)
        assert isinstance(found, Applied)
        assert found.receipt == "Zürich-1"


def test_bytes_that_are_no_text_name_no_receipt() -> None:
    broken = Answered(Response(201, {"content-type": "application/json"}, b'{"id":"Z\xfcrich-1"}'))
    assert isinstance(classify(paying(shop(), Receipt), broken, now=NOW), Unsure)
    free = replace(paying(shop()), succeeded=lambda answer: answer.status == 201)
    found = classify(free, broken, now=NOW)
    assert isinstance(found, Applied)
    assert found.receipt is None
