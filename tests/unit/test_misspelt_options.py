"""An option that nobody knows is refused where it is declared: misspelt, it would be silently off."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from fencepost import App, Budget, Contract, Dedupes, Effect, Lookup, Request, Turn
from fencepost.contracts import Natural
from fencepost.contracts.carriers import KeyCarrier
from fencepost.errors import UsageError
from fencepost.joins import Join
from fencepost.loading import load_app
from fencepost.mcp import Streamable
from fencepost.misspelt import refuse_unknown
from fencepost.models import Wire
from tests.unit.test_app import Args

READ: Any = {"effect": Effect.READ}


def declared() -> tuple[App, Any]:
    app = App("shop")
    return app, app.dependency("web", "http://web.test", mcp=Streamable())


MAKERS: dict[str, Callable[..., Any]] = {
    "app.python": lambda **bad: App("shop").python("t", **READ, **bad),
    "dep.python": lambda **bad: declared()[1].python("t", **READ, **bad),
    "dep.http": lambda **bad: declared()[1].http("t", **READ, **bad),
    "dep.mcp": lambda **bad: declared()[1].mcp("t", arguments=Args, **READ, **bad),
    "app.child": lambda **bad: App("shop").child("t", planner="p", arguments=Args, **READ, **bad),
    "app.memory": lambda **bad: App("shop").memory("t", **bad),
    "app.retrieval": lambda **bad: App("shop").retrieval("t", search=lambda _args, _attempt: [], **bad),
    "app.dependency": lambda **bad: App("shop").dependency("t", **bad),
    "app.model": lambda **bad: App("shop").model("t", via=declared()[1], **bad),
    "app.agent": lambda **bad: App("shop").agent("t", model=(), instructions="", **bad),
    "app.allowance": lambda **bad: App("shop").allowance("t", **bad),
}


@pytest.mark.parametrize(
    ("where", "option", "complaint"),
    [
        ("app.python", "egres", r"tool t has no option egres; did you mean egress\? \(it takes acts_on, "),
        ("dep.python", "untrustd", "did you mean untrusted"),
        ("dep.http", "untrustd", "did you mean untrusted"),
        ("dep.http", "retruns", "did you mean returns"),
        ("dep.mcp", "secret", "did you mean secrets"),
        ("app.child", "budgt", "child t has no option budgt; did you mean budget"),
        ("app.memory", "max_byte", "memory t has no option max_byte; did you mean max_bytes"),
        ("app.retrieval", "max_aeg", "retrieval t has no option max_aeg; did you mean max_age"),
        ("app.dependency", "capabilty", "dependency t has no option capabilty; did you mean capability"),
        ("app.model", "price", "model t has no option price; did you mean prices"),
        ("app.agent", "tool", "agent t has no option tool; did you mean tools"),
        ("app.allowance", "cuont", "allowance t has no option cuont; did you mean count"),
        (
            "dep.mcp",
            "defintion",
            r"did you mean definition\? \(it takes .*definition, .*errors_apply_nothing, ",
        ),
        ("dep.mcp", "remotes", r"did you mean remote\?"),
        ("app.agent", "verson", r"did you mean version\? \(it takes .*instructions, .*model, "),
        ("app.child", "argument", r"did you mean arguments\? \(it takes .*planner, planner_version, "),
        ("app.child", "per_attempt", r"has no option per_attempt \(it takes .*deadline, "),
        ("app.python", "dependncy", r"did you mean dependency\?"),
        ("dep.python", "dependncy", r"has no option dependncy \(it takes "),
        ("app.dependency", "heders", r"did you mean headers\? \(it takes .*base_url, "),
        ("app.model", "vai", r"did you mean via\?"),
        ("app.retrieval", "serach", r"did you mean search\?"),
        *((where, "zzz", r"t has no option zzz \(it takes ") for where in MAKERS),
        ("app.python", "per_attempt", "has no option per_attempt; it belongs to app.dependency"),
        ("dep.http", "capability", "it belongs to app.dependency"),
        ("dep.http", "remote", "it belongs to an MCP server's tool"),
        ("dep.http", "dependency", "it belongs to app.python"),
        ("app.dependency", "egress", "it belongs to its tools"),
    ],
)
def test_an_option_that_nobody_knows_is_refused(where: str, option: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        MAKERS[where](**{option: None})


def test_known_options_are_nobodys_complaint() -> None:
    refuse_unknown("tool t", ["egress"], ["egress", "secrets"])


class Mail(BaseModel):
    to: str


def _tool(**said: Any) -> Any:
    web = App("shop").dependency("web", "http://web.test")
    return web.http("t", **{"effect": Effect.READ} | said)(_send)


def _send(args: Mail) -> Request:
    return Request.get("/x")


untyped: Any = SimpleNamespace(
    App=App,
    Budget=Budget,
    Contract=Contract,
    Dedupes=Dedupes,
    Join=Join,
    KeyCarrier=KeyCarrier,
    Lookup=Lookup,
    Natural=Natural,
)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (
            lambda: untyped.Contract(settle=10),
            "settle= takes a timedelta, e.g. timedelta(seconds=10); got 10",
        ),
        (lambda: untyped.Contract(repeat=Dedupes), "repeat= takes a Dedupes"),
        (
            lambda: untyped.Contract(not_applied=[402]),
            "not_applied= takes a frozenset, e.g. frozenset({400, 402})",
        ),
        (lambda: untyped.Contract(not_applied=frozenset({"402"})), "not_applied= takes a frozenset"),
        (lambda: untyped.Dedupes(24), "window= takes a timedelta"),
        (lambda: untyped.Dedupes(first_failure="released"), "first_failure= takes FirstFailure.REPLAYED or"),
        (lambda: untyped.Natural("order"), "resource= takes a function"),
        (lambda: untyped.Lookup(strong="yes"), "strong= takes True or False; got 'yes'"),
        (lambda: untyped.KeyCarrier("header"), "place= takes Place.HEADER or"),
        (
            lambda: untyped.App("a").dependency("w", per_attempt=5),
            "dependency w: per_attempt= takes a timedelta",
        ),
        (lambda: untyped.App("a").dependency("w", attempts=True), "attempts= takes a whole number; got True"),
        (lambda: untyped.App("a").dependency("w", rate="2"), "rate= takes a number; got '2'"),
        (lambda: untyped.App("a").dependency("w", headers={"X": 5}), "headers= takes a tuple"),
        (lambda: _tool(effect="read"), "tool t: effect= takes Effect.READ or"),
        (lambda: _tool(version="1"), "version= takes a whole number; got '1'"),
        (lambda: _tool(returns=dict), "returns= takes BaseModel or a subclass of it"),
        (lambda: _tool(intent=("a",)), "intent= takes a function"),
        (lambda: _tool(contract=Dedupes()), "contract= takes a Contract"),
        (lambda: _tool(cosmetic="to"), "cosmetic= takes a tuple, e.g. ('to',); got 'to'"),
        (lambda: _tool(examples=Mail(to="a")), "examples= takes a list"),
        (
            lambda: untyped.App("a").child("c", planner="p", arguments=Mail, **READ, deadline=60),
            "deadline= takes",
        ),
        (lambda: untyped.App("a").child("c", planner="p", arguments=5, **READ), "arguments= takes BaseModel"),
        (
            lambda: untyped.App("a").model("m", via="w", wire=Wire.CHAT, model="x"),
            "model m: via= takes a Dependency",
        ),
        (lambda: untyped.App("a").agent("g", model=5, instructions=""), "agent g: model= takes a ModelSpec"),
        (lambda: untyped.App("a").python("p", **READ, dependency="w"), "dependency= takes a Dependency"),
        (lambda: untyped.App("a").planner("p", "1")(lambda _: Turn()), "version= takes a whole number"),
        (lambda: untyped.App("a").allow("svc:*", ["t"], within=5), "within= takes a timedelta"),
        (lambda: untyped.App("a").memory("n", wait=5), "memory n: wait= takes a timedelta"),
        (lambda: untyped.App("a").retrieval("n", search=5), "search= takes a function"),
        (lambda: untyped.App("a").secrets(5), "resolver= takes a function"),
        (lambda: untyped.App(5), "app: name= takes text; got 5"),
        (lambda: untyped.Join(by=5), "by= takes a timedelta"),
        (lambda: untyped.Budget(wall_clock=5), "wall_clock is a timedelta, e.g. timedelta(minutes=5), not 5"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_name_and_line(declare: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as told:
        declare()
    assert "(test_misspelt_options.py:" in str(told.value) or "wall_clock" in said


def test_a_value_that_may_be_a_credential_is_not_shown() -> None:
    with pytest.raises(UsageError) as told:
        App("a").dependency("w", headers={"Authorization": ["Bearer secret"]})  # type: ignore[dict-item]
    assert "Bearer" not in str(told.value)


def test_the_line_of_a_wrong_declaration_is_told_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    head = "from datetime import timedelta\nfrom fencepost import *\napp = App('a')\n"
    (tmp_path / "typed_x.py").write_text(f"{head}Contract(settle=10)\n")
    (tmp_path / "valued_x.py").write_text(f"{head}Contract(settle=timedelta(-1))\n")
    with pytest.raises(UsageError, match=r"settle= takes .*; got 10 \(typed_x\.py:4\)$"):
        load_app("typed_x:app")
    with pytest.raises(UsageError, match=r"settle must not be negative, .* \(valued_x\.py:4\)$"):
        load_app("valued_x:app")
