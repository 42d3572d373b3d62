"""An option that nobody knows is refused where it is declared: misspelt, it would be silently off."""

from collections.abc import Callable
from typing import Any

import pytest

from fencepost import App, Effect
from fencepost.errors import UsageError
from fencepost.mcp import Streamable
from fencepost.misspelt import refuse_unknown
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
