"""No part of a key is told: what is too long is cut after the key is taken out of it, never before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.models import Wire
from fencepost.views import Context
from fencepost_workers.models import NoTurn, Providers
from fencepost_workers.models.answers import LABEL_CHARS, STOP_CHARS, WHY_CHARS, Answer
from fencepost_workers.models.hosted import Hosted
from tests.sdks import openai
from tests.unit.model_wires import chunk, fragment
from tests.unit.test_model_requests import NOW, WIRES, Answering, by_openai_agents, by_pydantic_ai, provider

KEY = "sk-proj-0123456789abcdefghijABCDEFGHIJ0123456789"
SHOWN = KEY[:8]
"""So much of it at least would be told where a key is cut in two."""


def streaming(*events: dict[str, Any]) -> Answering:
    told = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        writer.write(told.encode())

    return answer


def refusing(message: str) -> Answering:
    body = json.dumps({"error": {"type": "t", "message": message}}).encode()

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 401 No\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"connection: close\r\n\r\n" + body)

    return answer


def heard(wire: Wire, answer: Answering, monkeypatch: pytest.MonkeyPatch) -> Answer:
    monkeypatch.setenv("MY_KEY", KEY)

    async def ask() -> Answer:
        async with provider(answer) as asked:
            providers = Providers()
            told = await providers.ask(asked.model(wire, key="env:MY_KEY"), {"model": "m"}, 20, NOW)
            await providers.aclose()
            return told.answer

    return asyncio.run(ask())


def cutting(most: int) -> list[str]:
    """Texts of which the limit leaves all of a key but for a character, half of it, and a tenth."""
    return ["y" * (most - kept) + KEY + " is wrong" for kept in (len(KEY) - 1, len(KEY) // 2, 15)]


@pytest.mark.parametrize("wire", WIRES)
def test_an_error_that_quotes_the_key_where_it_is_cut(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    for message in cutting(WHY_CHARS):
        why = heard(wire, refusing(message), monkeypatch).why
        assert SHOWN not in why
        assert len(why) <= WHY_CHARS
        error = {"type": "error", "error": {"type": "t", "message": message}, "message": message}
        assert SHOWN not in heard(wire, streaming(error), monkeypatch).why


def test_ids_and_reasons_that_hold_the_key_where_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for stop in cutting(STOP_CHARS):
        answer = heard(Wire.CHAT, streaming(chunk(content="x", stop=stop)), monkeypatch)
        assert SHOWN not in answer.stop + answer.why
        assert 0 < len(answer.stop) <= STOP_CHARS
    for label in cutting(LABEL_CHARS):
        called = chunk(fragment(0, "pay", "{}", label), stop="tool_calls") | {"id": label}
        answer = heard(Wire.CHAT, streaming(called), monkeypatch)
        assert SHOWN not in answer.calls[0].label + answer.response
        assert 0 < len(answer.calls[0].label) <= LABEL_CHARS


@pytest.mark.parametrize("host", [by_openai_agents, by_pydantic_ai])
def test_a_frameworks_error_that_holds_the_key_where_it_is_cut(host: Callable[[Any], Hosted]) -> None:
    async def ask(message: str) -> str:
        async with (
            provider(refusing(message)) as asked,
            openai.AsyncOpenAI(api_key=KEY, base_url=asked.url, max_retries=0) as client,
        ):
            with pytest.raises(NoTurn) as lost:
                await host(client)(Context("r", "t", "p", "x", 1))
            return lost.value.message

    for before in (380, 400, 900):  # in front of the cut, across it, behind it
        assert SHOWN not in asyncio.run(ask("y" * before + KEY)), before
