"""What a hosted agent's client sends and hears: once, where it can be read, and nothing else counts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from fencepost import App
from fencepost.breaker import set_up_wrong
from fencepost.errors import UsageError
from fencepost.models import ModelSpec, Spent, Wire
from fencepost.states import StopReason
from fencepost.views import Context
from fencepost_workers.models import ModelTurn, NoTurn
from fencepost_workers.models.hosted import Hosted, pydantic_ai_planner
from fencepost_workers.models.overheard import Line, Refused, listen, overhearing
from fencepost_workers.models.transcript import Transcript
from tests.sdks import (
    AgentInfo,
    AnthropicModel,
    AnthropicProvider,
    FunctionModel,
    anthropic,
    openai,
    pydantic_ai,
)
from tests.unit.test_model_hosted import (
    APP,
    HOSTS,
    JSON,
    Host,
    answering,
    by_chat,
    by_pydantic_ai,
    completion,
    heard_at,
    message,
    response,
)
from tests.unit.test_model_requests import KEY, provider

WITHIN = httpx2.Timeout(60)


def test_what_nobody_heard_asked_for_is_no_answer_and_is_charged_as_held() -> None:
    def answer(messages: Any, info: AgentInfo) -> pydantic_ai.ModelResponse:
        said = {"finish_reason": "stop"}
        return pydantic_ai.ModelResponse([pydantic_ai.TextPart("Done.")], provider_details=said)

    model: Any = FunctionModel(answer)
    model.client = openai.AsyncOpenAI(api_key="none", max_retries=0)
    plan = pydantic_ai_planner(pydantic_ai.Agent(model), APP, tools=["pay"])
    with pytest.raises(NoTurn, match="no request was heard") as found:
        asyncio.run(plan(Context("r", "t", "p", "x", 1)))
    assert (found.value.code, found.value.spent) == ("unheard", None)


@pytest.mark.parametrize("host", HOSTS)
def test_nothing_is_asked_where_nobody_could_read_the_answer(host: Host) -> None:
    class Elsewhere(openai.AsyncOpenAI):
        """A client that asks at an address of its own."""

        async def _prepare_options(self, options: Any) -> Any:
            return options.model_copy(update={"url": "/models/m:predict"})

    def elsewhere(client: openai.AsyncOpenAI) -> Hosted:
        return host(Elsewhere(api_key="none", base_url=client.base_url, max_retries=0))

    lost, asked = heard_at(elsewhere, answering(completion("stop")))
    assert isinstance(lost, NoTurn), lost
    assert (lost.code, lost.spent, asked) == ("not_started", Spent(), [])
    assert "/models/m:predict answers: ask an address that ends with /responses, " in lost.message


@pytest.mark.parametrize("host", HOSTS)
def test_an_answer_that_is_not_said_to_be_json_is_no_turn(host: Host) -> None:
    told = completion("stop") if host is by_chat else response(message(status="completed"))
    for kind in ("text/plain", "text/event-stream"):
        lost, _ = heard_at(host, answering(told, head=f"content-type: {kind}\r\n"))
        assert isinstance(lost, NoTurn), lost
        assert (lost.code, lost.spent) == ("unreadable_answer", None)
        assert f"'{kind}': ask where application/json is answered" in lost.message


def test_a_client_whose_answers_nobody_could_read_is_refused_where_it_is_declared() -> None:
    said: Any = {"region": "r", "project_id": "p", "access_token": "none", "max_retries": 0}
    vertex = AnthropicProvider(anthropic_client=anthropic.AsyncAnthropicVertex(**said))
    with pytest.raises(
        UsageError, match="count or read what the agent's client, AsyncAnthropicVertex, hears"
    ):
        pydantic_ai_planner(pydantic_ai.Agent(AnthropicModel("m", provider=vertex)), APP, tools=["pay"])


@pytest.mark.parametrize("host", [by_pydantic_ai, by_chat])
def test_what_a_provider_filtered_is_told_as_that_where_a_framework_makes_an_answer_of_it(host: Host) -> None:
    def azure(client: openai.AsyncOpenAI) -> Hosted:
        said: Any = {"api_key": "none", "api_version": "v", "base_url": client.base_url, "max_retries": 0}
        return host(openai.AsyncAzureOpenAI(**said))

    filtered = {"error": {"code": "content_filter", "message": "no"}}
    lost, _ = heard_at(azure, answering(filtered, "400 Bad Request"))
    assert isinstance(lost, NoTurn), lost
    assert (lost.code, lost.stop, lost.spent) == ("content_filter", StopReason.REFUSED, None)


LONG = {"error": {"code": "context_length_exceeded", "message": "no"}}
TURNED_AWAY = [
    ("400 Bad Request", LONG, "context_exceeded", None),
    (
        "403 Forbidden",
        {"error": {"message": "no", "metadata": {"reasons": ["hate"]}}},
        "content_filter",
        None,
    ),
    ("408 Request Timeout", {}, "http_408", None),
    ("499 Client Closed Request", {}, "http_499", None),
    ("400 Bad Request", {}, "http_400", Spent()),
    ("429 Too Many Requests", {}, "http_429", Spent()),
]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(("status", "told", "code", "spent"), TURNED_AWAY)
def test_what_may_have_been_read_before_it_was_turned_away_is_charged_as_held(
    host: Host, status: str, told: dict[str, Any], code: str, spent: Spent | None
) -> None:
    lost, asked = heard_at(host, answering(told, status))
    assert isinstance(lost, NoTurn), lost
    assert (lost.code, lost.spent, len(asked)) == (code, spent, 1)


def test_an_error_in_a_list_of_one_is_read_where_a_framework_makes_an_answer_of_it() -> None:
    """As Gemini tells it."""
    no_key: Any = [{"error": {"code": 400, "message": "API key not valid."}}]

    async def turned_away(line: Line) -> None:
        async with (
            provider(answering(no_key, "400 Bad Request")) as asked,
            openai.AsyncOpenAI(api_key="none", base_url=asked.url, max_retries=0) as client,
        ):
            listen(client)
            with overhearing(line), pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])

    asyncio.run(turned_away(line := Line(9999, WITHIN)))
    assert line.judged(str).answer.code == "http_401"


def test_a_request_that_was_to_be_made_again_failed_as_the_first_did() -> None:
    request = httpx2.Request("POST", "http://127.0.0.1:1")
    first = openai.BadRequestError("stale", response=httpx2.Response(400, request=request), body=None)
    try:
        try:
            raise first
        except openai.BadRequestError:
            raise Refused("once in a turn")  # noqa: B904 - as where a framework asks again
    except Refused as error:
        again = openai.APIConnectionError(request=request)
        again.__cause__ = error
    heard = Line(99, WITHIN, requests=2).broken(again, datetime(2026, 1, 1, tzinfo=UTC), str)
    assert (heard.answer.code, heard.free) == ("http_400", True)
    unknown = Line(99, WITHIN, requests=1).broken(ValueError("x"), datetime(2026, 1, 1, tzinfo=UTC), str)
    assert (unknown.answer.code, unknown.free) == ("planner_error", False)


@pytest.mark.parametrize("host", HOSTS)
def test_a_redirect_is_an_answer_and_a_deployment_that_is_set_up_wrong(host: Host) -> None:
    """The SDK's client would follow it, with a second request."""
    moved = answering({}, "307 Temporary Redirect", JSON + "location: /elsewhere\r\n")
    lost, asked = heard_at(host, moved)
    assert isinstance(lost, NoTurn), lost
    assert (lost.code, lost.spent, set_up_wrong(lost.code), len(asked)) == ("http_307", Spent(), True, 1)


@pytest.mark.parametrize("host", HOSTS)
def test_a_request_longer_than_what_is_held_for_it_does_not_go_out(host: Host) -> None:
    """What a framework adds by itself, here instructions that nobody knows before they are made."""

    async def ask() -> None:
        async with (
            provider(answering(response(message(status="completed")))) as heard,
            openai.AsyncOpenAI(api_key="none", base_url=heard.url, max_retries=0) as client,
        ):
            hosted = host(client)
            if hosted.framework == "pydantic-ai":
                hosted._agent.instructions(lambda _context: "x" * 200_000)
            else:
                hosted._agent.instructions = lambda _context, _agent: "x" * 200_000
            with pytest.raises(NoTurn, match="are held for") as found:
                await hosted(Context("r", "t", "p", "x", 1))
            assert (found.value.code, found.value.spent) == ("context_exceeded", Spent())
            assert heard.heads == []

    asyncio.run(ask())


class Telling(Hosted):
    """One whose framework asks once, and would end with what it was made with."""

    framework = provider = "telling"

    def _instructions(self) -> str:
        return ""

    async def _asked(self, told: Transcript) -> Any:
        await self._client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        return self._agent


def test_what_is_recorded_of_an_answer_has_no_key_of_its_client_in_it() -> None:
    async def turn(finish: Any, said: dict[str, Any]) -> ModelTurn:
        given = {"X-Auth": "Bearer another-secret"}
        model = ModelSpec(name="m", wire=Wire.CHAT, model="m", dependency=App("a").dependency("d").spec)
        async with (
            provider(answering(said)) as heard,
            openai.AsyncOpenAI(
                api_key=KEY, base_url=heard.url, max_retries=0, default_headers=given
            ) as client,
        ):
            return await Telling(finish, APP, ["*"], 9000, model, client)(Context("r", "t", "p", "x", 1))

    said = completion("stop")
    said["choices"][0]["message"]["content"] = f"It is {KEY}."
    told = asyncio.run(turn({"key": [KEY, "another-secret"]}, said))
    assert told.finish == {"key": ["***", "***"]}
    assert KEY not in str(told)
    assert asyncio.run(turn({"n": 1}, said)).finish == {"n": 1}
    called = completion("tool_calls", calls=1)
    called["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = f'{{"key":"{KEY}"}}'
    proposed = asyncio.run(turn(None, called))
    assert len(proposed.proposals) == 1
    assert KEY not in str(proposed)
