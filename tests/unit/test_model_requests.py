"""What leaves a process for a model's provider: nothing that cannot be meant, and nobody else's headers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost import App
from fencepost.models import AgentSpec, ModelSpec, Spent, Wire
from fencepost.states import StopReason
from fencepost.views import CallView, Context, TurnView
from fencepost_workers import redaction
from fencepost_workers.models import AgentPlanner, Asking, NoTurn, Providers
from fencepost_workers.models.hosted import Hosted, openai_agents_planner, pydantic_ai_planner
from fencepost_workers.models.providers import KeyUnavailable, _key
from fencepost_workers.worker import Worker
from tests.awaiting import until
from tests.sdks import OpenAIProvider, OpenAIResponsesModel, agents, openai, pydantic_ai

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WIRES = list(Wire)
KEY = "sk-nobodys-business"
Answering = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Provider:
    """A provider of one answer, and the heads and bodies of the requests it got."""

    url: str = ""
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def model(self, wire: Wire, name: str = "m", **said: Any) -> ModelSpec:
        via = App("asked").dependency("provider", self.url)
        return ModelSpec(name=name, wire=wire, model=name, dependency=via.spec, **said)


async def unavailable(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


@asynccontextmanager
async def provider(answer: Answering = unavailable) -> AsyncIterator[Provider]:
    told = Provider()
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.append(task)
        try:
            told.heads.append((await reader.readuntil(b"\r\n\r\n")).decode("latin-1"))
            if size := re.search(r"content-length: (\d+)", told.heads[-1], re.IGNORECASE):
                told.bodies.append(json.loads(await reader.readexactly(int(size[1]))))
            await answer(writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    told.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield told
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


# -- what does not fit ---------------------------------------------------------------------------------------

TOO_LONG = {
    "an input": Context("r", "t", "p", "x" * 300_000, 1),
    "what was said": Context("r", "t", "p", "x", 2, turns=(TurnView(1, "y" * 30_000),)),
    "arguments": Context(
        "r",
        "t",
        "p",
        "x",
        2,
        (CallView("c", "t", {"order": "z" * 30_000}, "SUCCEEDED", {}, turn=1, ordinal=0),),
    ),
}


@pytest.mark.parametrize("what", sorted(TOO_LONG))
@pytest.mark.parametrize("wire", WIRES)
def test_what_is_known_to_be_too_long_is_not_sent(wire: Wire, what: str) -> None:
    async def ask() -> tuple[list[str], NoTurn]:
        async with provider() as asked:
            agent = AgentSpec(models=(asked.model(wire),), instructions="Help.", window=2000)
            providers = Providers()
            with pytest.raises(NoTurn) as lost:
                await AgentPlanner(agent, {}, providers).ask(TOO_LONG[what], Asking(0, 5, NOW))
            await providers.aclose()
            return asked.heads, lost.value

    heads, lost = asyncio.run(ask())
    assert heads == []
    assert (lost.code, lost.spent, lost.stop) == ("context_exceeded", Spent(), StopReason.PLANNER_FAILED)
    assert "its window is 2000" in lost.message


def test_a_later_model_with_a_wider_window_is_asked_instead() -> None:
    async def ask() -> tuple[list[str], NoTurn]:
        async with provider() as asked:
            models = asked.model(Wire.CHAT, "small", window=500), asked.model(Wire.CHAT, "large")
            agent = AgentSpec(models=models, instructions="Help.", failures_each=1)
            planner, context = AgentPlanner(agent, {}, Providers()), Context("r", "t", "p", "x" * 9000, 1)
            with pytest.raises(NoTurn) as lost:
                await planner.ask(context, Asking(0, 5, NOW))
            assert asked.heads == []
            with pytest.raises(NoTurn, match="large"):
                await planner.ask(context, Asking(1, 5, NOW))
            return asked.heads, lost.value

    heads, lost = asyncio.run(ask())
    assert len(heads) == 1
    assert (lost.code, lost.stop) == ("context_exceeded", None)


# -- whose headers -------------------------------------------------------------------------------------------

ENVIRONMENT = {
    "ANTHROPIC_API_KEY": "theirs-1",
    "ANTHROPIC_AUTH_TOKEN": "theirs-2",
    "ANTHROPIC_CUSTOM_HEADERS": "X-Theirs: theirs-3",
    "OPENAI_ADMIN_KEY": "theirs-4",
    "OPENAI_API_KEY": "theirs-5",
    "OPENAI_CUSTOM_HEADERS": "X-Theirs: theirs-6",
    "OPENAI_ORG_ID": "theirs-7",
    "OPENAI_PROJECT_ID": "theirs-8",
    "OPENAI_WEBHOOK_SECRET": "theirs-9",
}


@pytest.mark.parametrize("key", ["", "env:MY_KEY"])
@pytest.mark.parametrize("wire", WIRES)
def test_what_the_environment_says_to_an_sdk_goes_to_nobody(
    wire: Wire, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**ENVIRONMENT, "MY_KEY": KEY}.items():
        monkeypatch.setenv(name, value)

    async def ask() -> str:
        async with provider() as asked:
            via = App("asked").dependency("provider", asked.url, headers={"X-Ours": "ours"})
            model = ModelSpec(name="m", wire=wire, model="m", dependency=via.spec, key=key)
            providers = Providers()
            await providers.ask(model, {"model": "m"}, 5, NOW)
            await providers.aclose()
            return asked.heads[0]

    head = asyncio.run(ask())
    assert "theirs" not in head.lower()
    assert "x-ours: ours" in head.lower()
    assert (KEY in head) is bool(key)


# -- keys and clients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["sk-of-two-lines\n", "sk-one\r\nX-Two: 2", "sk-größe", " sk-blank", "sk\x7f"]
)
@pytest.mark.parametrize("wire", WIRES)
def test_a_key_that_no_header_can_hold_is_named_and_not_sent(
    wire: Wire, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", key)

    async def ask() -> list[str]:
        async with provider() as asked:
            providers = Providers()
            with pytest.raises(KeyUnavailable, match="the key in MY_KEY has a character") as found:
                await providers.ask(asked.model(wire, key="env:MY_KEY"), {"model": "m"}, 5, NOW)
            assert key.strip() not in str(found.value)
            await providers.aclose()
            return asked.heads

    assert asyncio.run(ask()) == []


def test_a_client_of_an_old_key_is_closed_when_its_last_request_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask() -> None:
        let_go = asyncio.Event()

        async def hold(writer: asyncio.StreamWriter) -> None:
            await let_go.wait()
            await unavailable(writer)

        async with provider(hold) as asked:
            providers, model = Providers(), asked.model(Wire.CHAT, key="env:MY_KEY")
            monkeypatch.setenv("MY_KEY", f"{KEY}-1")
            first = asyncio.create_task(providers.ask(model, {"model": "m"}, 60, NOW))
            await _until("a request arrives", lambda: len(asked.heads) == 1)
            old = providers._clients[_key(model)].sdk
            monkeypatch.setenv("MY_KEY", f"{KEY}-2")
            second = asyncio.create_task(providers.ask(model, {"model": "m"}, 60, NOW))
            await _until("a request arrives", lambda: len(asked.heads) == 2)
            assert not old.is_closed()
            let_go.set()
            assert {(await one).answer.code for one in (first, second)} == {"http_503"}
            assert old.is_closed()
            assert not providers._clients[_key(model)].sdk.is_closed()
            monkeypatch.setenv("MY_KEY", f"{KEY}-3")
            idle = providers._clients[_key(model)].sdk
            await providers.ask(model, {"model": "m"}, 60, NOW)
            assert idle.is_closed()
            await providers.aclose()

    asyncio.run(ask())


async def _until(what: str, true: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, what, true)


# -- how an answer ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1, 60])
@pytest.mark.parametrize("wire", WIRES)
def test_an_error_in_the_stream_is_the_answer_also_where_the_stream_does_not_end(
    wire: Wire, seconds: float
) -> None:
    error = {"type": "error", "code": "rate_limit_exceeded", "message": "slow down"}
    told = error if wire is Wire.RESPONSES else {"type": "error", "error": {**error, "type": error["code"]}}

    async def fail(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        writer.write(f"event: error\ndata: {json.dumps(told)}\n\n".encode())
        await writer.drain()
        await asyncio.sleep(120)

    async def ask() -> str:
        async with provider(fail) as asked:
            providers = Providers()
            async with asyncio.timeout(30):
                heard = await providers.ask(asked.model(wire), {"model": "m"}, seconds, NOW)
            await providers.aclose()
            return heard.answer.code

    assert asyncio.run(ask()) == "http_429"


@pytest.mark.parametrize("idle", [0.4, None])
@pytest.mark.parametrize("wire", WIRES)
def test_only_silence_that_is_declared_too_long_cuts_an_answer(wire: Wire, idle: float | None) -> None:
    """Without a byte for as long as `idle`; a stream that says little, and that late, is waited for."""
    done = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    cut: asyncio.Event = asyncio.Event()

    async def talk(writer: asyncio.StreamWriter) -> None:
        writer.write(done.encode())
        for _ in range(10):  # a second in all: more than it may be silent
            await asyncio.sleep(0.1)
            writer.write(b": still here\n\n")
            await writer.drain()
        with suppress(TimeoutError):
            await asyncio.wait_for(cut.wait(), 1)

    async def ask() -> tuple[str, str, float]:
        async with provider(talk) as asked:
            providers, begun = Providers(), asyncio.get_running_loop().time()
            silent = None if idle is None else timedelta(seconds=idle)
            model = asked.model(wire, timeout=timedelta(hours=3), idle=silent)
            heard = await providers.ask(model, {"model": "m"}, 60, NOW)
            await providers.aclose()
            return heard.answer.code, heard.answer.why, asyncio.get_running_loop().time() - begun

    code, why, took = asyncio.run(ask())
    assert took > 1  # it was not cut while it talked
    if idle is None:
        assert code != "timeout"
    else:
        assert (code, why[:32]) == ("timeout", "not a byte came for 0.4 s, which")
        assert took < 1.9


@pytest.mark.parametrize("host", [pydantic_ai_planner, openai_agents_planner])
def test_the_time_of_a_frameworks_client_does_not_cut_what_its_model_may_take(
    host: Callable[..., Hosted],
) -> None:
    async def late(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.6)
        await unavailable(writer)

    async def ask() -> NoTurn:
        async with provider(late) as asked:
            client = openai.AsyncOpenAI(base_url=asked.url, api_key="x", max_retries=0, timeout=0.2)
            if host is pydantic_ai_planner:
                model = OpenAIResponsesModel("m", provider=OpenAIProvider(openai_client=client))
                planner = host(pydantic_ai.Agent(model), App("hosted"), tools=[])
            else:
                inner = agents.OpenAIResponsesModel("m", client)
                planner = host(agents.Agent(name="a", model=inner), App("hosted"), tools=[])
            with pytest.raises(NoTurn) as lost:
                await planner.ask(Context("r", "t", "p", "x", 1), Asking(0, 30, NOW))
            return lost.value

    assert asyncio.run(ask()).code == "http_503"


class Unclosable:
    """A part that cannot be closed."""

    async def aclose(self) -> None:
        raise OSError("no")


class Closable:
    closed = False

    async def aclose(self) -> None:
        self.closed = True


def test_a_part_that_cannot_be_closed_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    engine = Closable()
    parts: Any = SimpleNamespace(models=Unclosable(), engine=engine)
    asyncio.run(Worker._close_connections(parts))
    assert engine.closed
    assert "connections to providers did not close" in caplog.text


# -- agents of frameworks ------------------------------------------------------------------------------------

TOLD = json.dumps({"error": {"message": f"no such key {KEY}", "code": "invalid_api_key"}}).encode()


async def refuse(writer: asyncio.StreamWriter) -> None:
    head = f"HTTP/1.1 401 No\r\ncontent-type: application/json\r\ncontent-length: {len(TOLD)}\r\n"
    writer.write(head.encode() + b"connection: close\r\n\r\n" + TOLD)


def by_openai_agents(client: openai.AsyncOpenAI) -> Hosted:
    agent = agents.Agent(name="desk", model=agents.OpenAIResponsesModel("m", client))
    return openai_agents_planner(agent, App("hosted"), tools=["*"])


def by_pydantic_ai(client: openai.AsyncOpenAI) -> Hosted:
    model = OpenAIResponsesModel("m", provider=OpenAIProvider(openai_client=client))
    return pydantic_ai_planner(pydantic_ai.Agent(model), App("hosted"), tools=["*"])


@pytest.mark.parametrize("host", [by_openai_agents, by_pydantic_ai])
def test_a_frameworks_error_is_told_without_its_clients_key(host: Callable[[Any], Hosted]) -> None:
    async def ask() -> str:
        async with (
            provider(refuse) as asked,
            openai.AsyncOpenAI(api_key=KEY, base_url=asked.url, max_retries=0) as client,
        ):
            with pytest.raises(NoTurn) as lost:
                await host(client)(Context("r", "t", "p", "x", 1))
            assert KEY in asked.heads[0]
        assert KEY not in redaction.PROCESS.hide(f"logged {KEY}")
        assert (lost.value.code, lost.value.spent) == ("http_401", Spent())
        return lost.value.message

    message = asyncio.run(ask())
    assert KEY not in message
    assert "no such key ***" in message
