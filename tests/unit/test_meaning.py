"""A request means the same as another if it asks for the same; keys, secrets and spelling do not count."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from fencepost import App, Contract, Dedupes, Effect, FirstFailure, Request
from fencepost.contracts.carriers import KeyCarrier, Place
from fencepost.decide.prints import meaning
from fencepost.mcp import Remote, Stdio, ToolCall
from fencepost.tools import Tool

KEY = "5" * 64


class Args(BaseModel):
    order: str = "o-1"


Build = Callable[[Args], Any]


def tool(build: Build, base: str = "https://pay.test/v1", version: int = 1, **more: Any) -> Tool:
    app = App("shop")
    at = app.dependency("pay", base)
    contract = Contract(repeat=Dedupes(timedelta(hours=1), first_failure=FirstFailure.UNKNOWN))

    def send(args: Args) -> Request:
        made: Request = build(args)
        return made

    at.http("pay.do", version=version, effect=Effect.IRREVERSIBLE, returns=Args, contract=contract,
            receipt="order", intent=lambda a: (a.order,), **more)(send)  # fmt: skip
    return app.registry["pay.do", version]


def means(made: Tool, key: str = KEY) -> str | None:
    return meaning(made, key, made.stored_request(Args(), key).to_text())


def usual(_args: Args) -> Request:
    return Request.post("/charges", json={"a": 1, "b": [2]})


@pytest.mark.parametrize(
    "other",
    [
        tool(lambda _a: Request.post("/charges", json={"a": 1, "b": [2]}, query={"dry_run": "true"})),
        tool(lambda _a: Request.post("/charges/2", json={"a": 1, "b": [2]}), version=2),
        tool(lambda _a: Request.put("/charges", json={"a": 1, "b": [2]})),
        tool(lambda _a: Request.post("/charges", json={"a": 1, "b": [3]})),
        tool(lambda _a: Request.post("/charges", json={"a": 1, "b": [2]}, headers={"X-Mode": "test"})),
        tool(usual, "https://sandbox.pay.test/v1"),
        tool(usual, "https://pay.test/v2"),
    ],
)
def test_whatever_is_sent_elsewhere_or_otherwise_means_something_else(other: Tool) -> None:
    assert means(other) != means(tool(usual))


def said(body: str) -> Tool:
    return tool(lambda _a: Request("POST", "/charges", body=body.encode()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 12345678901234567.89}', '{"a": 12345678901234567.01}'),
        ('{"a": 1e400}', '{"a": 1e401}'),
        ('{"a": 1}', '{"a": 1.0}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
    ],
)
def test_amounts_that_differ_at_any_digit_mean_something_else(one: str, other: str) -> None:
    assert means(said(one)) != means(said(other))


def test_numbers_of_one_value_mean_the_same() -> None:
    assert means(said('{"a": 1.50, "b": 0.1}')) == means(said('{"b": 1e-1, "a": 1.5}'))


def test_what_stands_beside_a_key_in_a_header_counts() -> None:
    def signed(mode: str) -> Tool:
        return tool(lambda _a: Request.post("/charges", headers={"X-Signed": f"mode={mode};key={KEY}"}))

    assert means(signed("live")) != means(signed("test"))


@pytest.mark.parametrize(
    "same",
    [
        tool(lambda _a: Request.post("/charges", json={"b": [2], "a": 1})),
        tool(usual, version=2),
        tool(usual, key=KeyCarrier(name="X-Request-Id")),
        tool(usual, "https://pay.test/v1/"),
    ],
)
def test_keys_and_the_order_of_names_change_nothing(same: Tool) -> None:
    assert means(same) == means(tool(usual))


def test_a_key_in_the_body_does_not_count() -> None:
    carried = tool(usual, key=KeyCarrier(Place.BODY, "ref"))
    assert means(carried, KEY) == means(carried, "6" * 64)


def test_what_stands_for_a_secret_does_not_count() -> None:
    def named(digit: str) -> Tool:
        return tool(lambda _a: Request.post("/charges", json={"to": f"fencepost-secret-{digit * 48}"}))

    assert means(named("a")) == means(named("b"))


def test_an_mcp_servers_command_and_the_pinned_definition_are_part_of_it() -> None:
    def served(*args: str, pin: str = "a" * 64) -> str | None:
        server = Stdio(command="files", args=args)
        made = tool(usual)
        spec = replace(made.dependency, mcp=server, base_url=None)
        made = replace(made, kind="mcp", dependency=spec, mcp=Remote("write", pin))
        return meaning(made, KEY, ToolCall("write", {"a": 1}).bind("stdio://files").to_text())

    assert served() == served()
    assert len({served(), served("--dry-run"), served(pin="b" * 64)}) == 3


def test_of_a_python_tool_its_version_is_all_that_is_known() -> None:
    first = replace(tool(usual), kind="python")
    assert meaning(first, KEY, None) == meaning(first, "6" * 64, None)
    assert meaning(first, KEY, None) != meaning(replace(first, version=2), KEY, None)


def test_what_is_not_built_means_nothing_yet() -> None:
    assert meaning(tool(usual), KEY, None) is None
