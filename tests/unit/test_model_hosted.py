"""What frameworks' models answered, judged by what the provider said, not by what a framework kept of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from fencepost import App, Attempt, Effect
from fencepost.errors import UsageError
from fencepost.models import ModelSpec, Spent, Wire
from fencepost.telemetry import correlation, names
from fencepost.views import Context
from fencepost_workers.models import ModelTurn, NoTurn, Providers, model_planner_for
from fencepost_workers.models.hosted import (
    MAX_OUTPUT,
    SUPPORTED,
    Hosted,
    openai_agents_planner,
    pydantic_ai_planner,
)
from tests.integration.model_desk import Note
from tests.sdks import OpenAIChatModel, OpenAIProvider, OpenAIResponsesModel, agents, openai, pydantic_ai
from tests.unit.test_model_requests import Answering, provider
from tests.unit.test_telemetry import keeping

APP = App("hosted")
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
JSON = "content-type: application/json\r\n"


@APP.dependency("place").python("pay", effect=Effect.READ)
async def pay(args: Note, attempt: Attempt) -> None: ...


def by_openai_agents(client: openai.AsyncOpenAI) -> Hosted:
    agent = agents.Agent(name="desk", model=agents.OpenAIResponsesModel("m", client))
    return openai_agents_planner(agent, APP, tools=["pay"])


def by_pydantic_ai(client: openai.AsyncOpenAI) -> Hosted:
    model = OpenAIResponsesModel("m", provider=OpenAIProvider(openai_client=client))
    return pydantic_ai_planner(pydantic_ai.Agent(model), APP, tools=["pay"])


def by_chat(client: openai.AsyncOpenAI) -> Hosted:
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
    return pydantic_ai_planner(pydantic_ai.Agent(model), APP, tools=["pay"])


Host = Callable[["openai.AsyncOpenAI"], Hosted]


def answering(told: dict[str, Any], status: str = "200 OK", head: str = JSON) -> Answering:
    body = json.dumps(told).encode()

    async def answer(writer: asyncio.StreamWriter) -> None:
        first = f"HTTP/1.1 {status}\r\n{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(first.encode() + body)

    return answer


def heard_at(host: Host, answer: Answering) -> tuple[ModelTurn | NoTurn, list[Any]]:
    """What comes of it, and what was asked."""

    async def ask() -> tuple[ModelTurn | NoTurn, list[Any]]:
        async with (
            provider(answer) as asked,
            openai.AsyncOpenAI(api_key="none", base_url=asked.url, max_retries=0) as client,
        ):
            try:
                return await host(client)(Context("r", "t", "p", "x", 1)), asked.heads
            except NoTurn as error:
                return error, asked.heads

    return asyncio.run(ask())


def asked(host: Host, told: dict[str, Any]) -> ModelTurn:
    turn, _ = heard_at(host, answering(told))
    assert isinstance(turn, ModelTurn), turn
    return turn


def lost(host: Host, told: dict[str, Any]) -> str:
    lost, _ = heard_at(host, answering(told))
    assert isinstance(lost, NoTurn), lost
    return lost.code


def call(**more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": "pay", "arguments": '{"key":"k"}', **more}


def message(**more: Any) -> dict[str, Any]:
    said = [{"type": "output_text", "text": "Done.", "annotations": []}]
    return {"type": "message", "id": "m", "role": "assistant", "content": said, **more}


def response(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    head = {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "tools": [],
        "status": "completed",
    }
    told = {**head, "tool_choice": "auto", "parallel_tool_calls": True, "output": list(output), **more}
    return {name: value for name, value in told.items() if value is not ...}


RESPONDING = [by_openai_agents, by_pydantic_ai]
HOSTS = [*RESPONDING, by_chat]


@pytest.mark.parametrize("host", RESPONDING)
def test_a_whole_response_is_a_turn(host: Host) -> None:
    whole = response(call(status="completed", caller={"type": "direct"}), call(call_id="c"))
    turn = asked(host, whole)
    assert [(p.tool, p.arguments) for p in turn.proposals] == [("pay", '{"key":"k"}')] * 2
    used = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    turn = asked(host, response(message(status="completed"), usage=used | details))
    assert (turn.finish, turn.spent) == ("Done.", Spent(5, 0))


@pytest.mark.parametrize("host", RESPONDING)
@pytest.mark.parametrize("status", ["cancelled", "in_progress", "queued", "brand_new", None, ...])
def test_a_response_that_does_not_say_that_it_is_done_is_no_turn(host: Host, status: Any) -> None:
    for item in (call(status="completed"), message(status="completed")):
        assert lost(host, response(item, status=status)) == "malformed_turn"


PARTS = [call(status="in_progress"), call(status="incomplete"), message(status="incomplete")]


@pytest.mark.parametrize("host", RESPONDING)
def test_a_part_that_is_not_done_or_is_not_the_models_own_leaves_no_turn(
    host: Host,
) -> None:
    for part in PARTS:
        assert lost(host, response(part)) == "malformed_turn"
    assert lost(host, response(call(caller={"type": "program", "caller_id": "p"}))) == "hosted_tool"


def test_a_completed_response_with_an_error_is_no_turn() -> None:
    error = {"code": "server_error", "message": "x"}
    assert lost(by_openai_agents, response(call(), error=error)) == "malformed_turn"


def completion(reason: Any, *, calls: int = 0) -> dict[str, Any]:
    one = {"id": "same", "type": "function", "function": {"name": "pay", "arguments": '{"key":"k"}'}}
    said: dict[str, Any] = {"role": "assistant", "content": None if calls else "Done."}
    said |= {"tool_calls": [one] * calls} if calls else {}
    choice = {"index": 0, "finish_reason": reason, "message": said}
    choices = [{name: value for name, value in choice.items() if value is not ...}]
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}


def test_a_completion_without_a_reason_to_end_is_no_turn() -> None:
    assert asked(by_chat, completion("stop")).finish == "Done."
    assert len(asked(by_chat, completion("tool_calls", calls=2)).proposals) == 2
    for reason in (None, ..., ""):
        assert lost(by_chat, completion(reason)) == "malformed_turn", reason
        assert lost(by_chat, completion(reason, calls=1)) == "malformed_turn", reason
    assert lost(by_chat, completion("brand_new")) == "unknown_stop"
    two = completion("stop")
    two["choices"].append(two["choices"][0] | {"index": 1})
    assert lost(by_chat, two) == "malformed_turn"


@pytest.mark.parametrize("host", RESPONDING)
def test_each_request_is_a_span_and_belongs_to_its_run(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    run = uuid4()
    used = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    details = {"input_tokens_details": {"cached_tokens": 1}, "output_tokens_details": {"reasoning_tokens": 0}}
    with keeping(monkeypatch) as memory, correlation.bound(root=run, run=run, turn=1):
        asked(host, response(message(status="completed"), usage=used | details))
        lost(host, response(message(status="completed"), status="cancelled"))
    whole, broken = memory.get_finished_spans()
    assert {one.name for one in (whole, broken)} == {"chat m"}
    told = dict(whole.attributes or {})
    assert (told[names.OPERATION], told[names.PROVIDER], told[names.REQUEST_MODEL]) == ("chat", "openai", "m")
    assert (told[names.INPUT_TOKENS], told[names.OUTPUT_TOKENS], told[names.RESPONSE_ID]) == (3, 2, "r")
    assert (told[names.OUTCOME], dict(broken.attributes or {})[names.OUTCOME]) == (
        "claimed",
        "malformed_turn",
    )
    assert "Done." not in str(told)


@pytest.mark.parametrize("host", HOSTS)
def test_no_answer_may_be_longer_than_what_is_held_for_it(host: Host) -> None:
    told = completion("stop") if host is by_chat else response(message(status="completed"))
    bodies: list[dict[str, Any]] = []

    async def keep(request: httpx2.Request) -> None:
        bodies.append(json.loads(await request.aread()))

    async def ask() -> None:
        async with (
            provider(answering(told)) as heard,
            openai.AsyncOpenAI(api_key="none", base_url=heard.url, max_retries=0) as client,
        ):
            client._client.event_hooks["request"].append(keep)
            await host(client)(Context("r", "t", "p", "x", 1))

    asyncio.run(ask())
    (body,) = bodies
    assert [value for name, value in body.items() if name.startswith("max_")] == [MAX_OUTPUT]
    assert body.get("store") in (False, None)


def test_an_agents_instructions_are_known_before_it_is_asked() -> None:
    client, told = openai.AsyncOpenAI(api_key="none", max_retries=0), "Settle o-17, o-23 and o-31."
    model = agents.OpenAIResponsesModel("m", client)
    hosted = openai_agents_planner(agents.Agent(name="d", instructions=told, model=model), APP, tools=["pay"])
    other = OpenAIResponsesModel("m", provider=OpenAIProvider(openai_client=client))
    noted = pydantic_ai_planner(pydantic_ai.Agent(other, instructions=told), APP, tools=["pay"])
    assert [one.asks.instructions for one in (hosted, noted)] == [told, told]


def test_an_agent_whose_instructions_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given = OpenAIProvider(openai_client=openai.AsyncOpenAI(api_key="none", max_retries=0))
    for name, kept in (("renamed", None), ("_instructions", ["Pay."])):
        agent: Any = pydantic_ai.Agent(OpenAIResponsesModel("m", provider=given), instructions="Pay.")
        del agent._instructions
        setattr(agent, name, kept)
        with pytest.raises(UsageError, match="cannot be read") as found:
            pydantic_ai_planner(agent, APP, tools=["pay"])
        assert str(found.value).endswith(f"; install {SUPPORTED}")
    extra, version = SUPPORTED.split(">=")
    assert f'"{extra}[openai]>={version}"' in PROJECT.read_text(), "as its extra has it"


def test_an_agent_asks_the_model_that_it_is_declared_with_and_no_longer_than_it_says() -> None:
    app = App("declared")
    said: Any = {"wire": Wire.RESPONSES, "model": "m", "max_output": 900}
    model = app.model("gpt", via=app.dependency("openai", "http://127.0.0.1:1"), **said)
    with pytest.raises(UsageError, match="the agent asks other, and model=gpt is m"):
        agents_planner("other", app, model)
    assert [agents_planner("m", app, model, most).asks.models[0].max_output for most in (None, 9, 9999)] == [
        900,
        9,
        900,
    ]
    assert app.providers == (model.dependency,)
    app.planner("desk")(agents_planner("m", app, None, 7))
    (hosted,) = set(app.providers) - {model.dependency}
    asks = app.agent_of("desk", 1)
    assert asks is not None
    assert (hosted.scope, asks.models[0].worst(100, date(2026, 1, 1)).tokens) == (
        "hosted:openai/default",
        107,
    )


def test_a_run_keeps_the_versions_of_tools_that_it_began_with_and_a_misspelt_tool_is_found() -> None:
    app = App("kept")
    place = app.dependency("place")

    @place.python("pay", version=1, effect=Effect.READ, describe="The first.")
    async def first(args: Note, attempt: Attempt) -> None: ...

    @place.python("pay", version=2, effect=Effect.READ, describe="The second.")
    async def second(args: Note, attempt: Attempt) -> None: ...

    app.allow("svc:*", tools=["pay"])
    hosted = agents_planner("m", app, None)
    app.planner("desk")(hosted)
    spec = app.find_planner("desk")
    kept = model_planner_for(spec, {"pay": app.tool("pay", 1)}, Providers())
    assert isinstance(kept, Hosted)
    assert [tool.description for tool in kept.declared.tools] == ["The first."]
    assert [tool.description for tool in hosted.declared.tools] == ["The second."]
    assert app.check() == []
    app.planner("other")(openai_agents_planner(hosted._agent, app, tools=["pai"]))
    assert app.check() == ["agent other version 1: tools=['pai'] fits no tool of this app"]


def agents_planner(name: str, app: App, model: ModelSpec | None, most: int | None = None) -> Hosted:
    client = openai.AsyncOpenAI(api_key="none", base_url="http://127.0.0.1:1", max_retries=0)
    settings = agents.ModelSettings(max_tokens=most)
    agent = agents.Agent(
        name="desk", model=agents.OpenAIResponsesModel(name, client), model_settings=settings
    )
    return openai_agents_planner(agent, app, tools=["*"], model=model)
