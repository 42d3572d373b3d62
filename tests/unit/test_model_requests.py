"""What leaves a process for a model's provider: nothing that cannot be meant, and nobody else's headers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from fencepost import App
from fencepost.models import AgentSpec, ModelSpec, Spent, Wire
from fencepost.states import StopReason
from fencepost.views import CallView, Context, TurnView
from fencepost_workers.models import AgentPlanner, Asking, NoTurn, Providers

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WIRES = list(Wire)
KEY = "sk-nobodys-business"
Answering = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Provider:
    """A provider of one answer, and the heads of the requests it got."""

    url: str = ""
    heads: list[str] = field(default_factory=list)

    def model(self, wire: Wire, name: str = "m", **said: Any) -> ModelSpec:
        via = App("asked").dependency("provider", self.url)
        return ModelSpec(name=name, wire=wire, model=name, dependency=via.spec, **said)


async def unavailable(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


@asynccontextmanager
async def provider(answer: Answering = unavailable) -> AsyncIterator[Provider]:
    told = Provider()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        told.heads.append(head)
        await answer(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    told.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield told
    finally:
        server.close()


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
