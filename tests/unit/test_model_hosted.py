"""What frameworks' models answered, judged by what the provider said, not by what a framework kept of it."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import agents
import openai
import pydantic_ai
import pytest
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from fencepost import App, Attempt, Effect
from fencepost.tools import Turn
from fencepost.views import Context
from fencepost_workers.models import NoTurn
from fencepost_workers.models.hosted import Plan, openai_agents_planner, pydantic_ai_planner
from tests.integration.model_desk import Note
from tests.unit.test_model_requests import Answering, provider

APP = App("hosted")


@APP.dependency("place").python("pay", effect=Effect.READ)
async def pay(args: Note, attempt: Attempt) -> None: ...


def by_openai_agents(client: openai.AsyncOpenAI) -> Plan:
    agent = agents.Agent(name="desk", model=agents.OpenAIResponsesModel("m", client))
    return openai_agents_planner(agent, APP, tools=["pay"])


def by_pydantic_ai(client: openai.AsyncOpenAI) -> Plan:
    model = OpenAIResponsesModel("m", provider=OpenAIProvider(openai_client=client))
    return pydantic_ai_planner(pydantic_ai.Agent(model), APP, tools=["pay"])


def by_chat(client: openai.AsyncOpenAI) -> Plan:
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
    return pydantic_ai_planner(pydantic_ai.Agent(model), APP, tools=["pay"])


def answering(told: dict[str, Any]) -> Answering:
    body = json.dumps(told).encode()

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"connection: close\r\n\r\n" + body)

    return answer


def asked(host: Callable[[openai.AsyncOpenAI], Plan], told: dict[str, Any]) -> Turn:
    async def ask() -> Turn:
        async with (
            provider(answering(told)) as asked,
            openai.AsyncOpenAI(api_key="none", base_url=asked.url, max_retries=0) as client,
        ):
            return await host(client)(Context("r", "t", "p", "x", 1))

    return asyncio.run(ask())


def lost(host: Callable[[openai.AsyncOpenAI], Plan], told: dict[str, Any]) -> str:
    with pytest.raises(NoTurn) as found:
        asked(host, told)
    return found.value.code


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


@pytest.mark.parametrize("host", RESPONDING)
def test_a_whole_response_is_a_turn(host: Callable[[Any], Plan]) -> None:
    whole = response(call(status="completed", caller={"type": "direct"}), call(call_id="c"))
    turn = asked(host, whole)
    assert [(p.tool, p.arguments) for p in turn.proposals] == [("pay", '{"key":"k"}')] * 2
    used = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    turn = asked(host, response(message(status="completed"), usage=used | details))
    assert (turn.finish, dict(turn.usage)) == ("Done.", {"input_tokens": 3, "output_tokens": 2})


@pytest.mark.parametrize("host", RESPONDING)
@pytest.mark.parametrize("status", ["cancelled", "in_progress", "queued", "brand_new", None, ...])
def test_a_response_that_does_not_say_that_it_is_done_is_no_turn(
    host: Callable[[Any], Plan], status: Any
) -> None:
    for item in (call(status="completed"), message(status="completed")):
        assert lost(host, response(item, status=status)) == "malformed_turn"


PARTS = [call(status="in_progress"), call(status="incomplete"), message(status="incomplete")]


@pytest.mark.parametrize("host", RESPONDING)
def test_a_part_that_is_not_done_or_is_not_the_models_own_leaves_no_turn(host: Callable[[Any], Plan]) -> None:
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


@pytest.mark.parametrize("details", [None, {}])
def test_a_reason_that_only_the_framework_gives_is_none(details: Any) -> None:
    def answer(messages: Any, info: AgentInfo) -> pydantic_ai.ModelResponse:
        part = pydantic_ai.TextPart("Done.")
        return pydantic_ai.ModelResponse([part], finish_reason="stop", provider_details=details)

    model: Any = FunctionModel(answer)
    model.client = openai.AsyncOpenAI(api_key="none", max_retries=0)
    plan = pydantic_ai_planner(pydantic_ai.Agent(model), APP, tools=["pay"])
    with pytest.raises(NoTurn, match="does not say that it is done"):
        asyncio.run(plan(Context("r", "t", "p", "x", 1)))  # type: ignore[arg-type]
