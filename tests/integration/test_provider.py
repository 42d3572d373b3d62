"""The scripted provider as the official SDKs see it, and what its book says of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fencepost_ops.sandbox.process import SandboxError, SandboxProcess
from fencepost_ops.sandbox.provider_book import BOOK_FILE, ModelBook
from fencepost_ops.sandbox.provider_transcript import CHAT, MESSAGES, RESPONSES, WIRES
from tests.awaiting import until
from tests.sdks import anthropic, openai

ARGUMENTS = {"to": "acct_9", "amount_minor": 120000}
SCRIPT = {
    "turns": [
        {"text": "Let me see.", "calls": [{"name": "pay", "arguments": ARGUMENTS}]},
        {"text": "Done."},
    ],
    "usage": {"input": 100, "output": 9, "cached": 30, "written": 20, "reasoning": 4},
}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
KEY = "sk-of-this-test"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path_factory.mktemp("provider"), config={"models": {"m": SCRIPT}}) as process:
        yield process


@pytest.fixture
def provider(process: SandboxProcess) -> Iterator[SandboxProcess]:
    yield process
    process.clear_faults()
    process.post("/models/release", {})


def book(provider: SandboxProcess) -> list[dict[str, Any]]:
    return list(provider.get("/models/requests")["requests"])


@cache  # a client reads the system's certificates, which takes a tenth of a second
def client(url: str, wire: str, retries: int, timeout: float) -> Any:
    how: dict[str, Any] = {"api_key": KEY, "max_retries": retries, "timeout": timeout}
    if wire == MESSAGES:
        return anthropic.Anthropic(base_url=url, **how)
    return openai.OpenAI(base_url=f"{url}/v1", **how)


def ask(provider: SandboxProcess, wire: str, *, stream: bool, retries: int = 0, timeout: float = 5) -> Any:
    """The first turn, by the official SDK: the answer, or the list of its events."""
    sdk = client(provider.url, wire, retries, timeout)
    said = [{"role": "user", "content": "Pay."}]
    pay: dict[str, Any] = {"name": "pay"}
    if wire == RESPONSES:
        tool = {**pay, "type": "function", "parameters": SCHEMA, "strict": False}
        got = sdk.responses.create(model="m", input="Pay.", tools=[tool], stream=stream)
    elif wire == CHAT:
        tool = {"type": "function", "function": {**pay, "parameters": SCHEMA}}
        options = {"stream_options": {"include_usage": True}} if stream else {}
        got = sdk.chat.completions.create(model="m", messages=said, tools=[tool], stream=stream, **options)
    else:
        tool = {**pay, "input_schema": SCHEMA}
        got = sdk.messages.create(model="m", max_tokens=99, messages=said, tools=[tool], stream=stream)
    return list(got) if stream else got


def arguments(wire: str, events: list[Any]) -> str:
    """The arguments as their fragments make them up."""
    if wire == RESPONSES:
        return "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    if wire == CHAT:
        deltas = [e.choices[0].delta for e in events if e.choices]
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        return "".join(call.function.arguments or "" for call in calls)
    deltas = [e.delta for e in events if e.type == "content_block_delta"]
    return "".join(delta.partial_json for delta in deltas if delta.type == "input_json_delta")


def test_whole_answers_are_read_by_the_sdks(provider: SandboxProcess) -> None:
    response = ask(provider, RESPONSES, stream=False)
    call = response.output[1]
    assert (response.status, call.name, json.loads(call.arguments)) == ("completed", "pay", ARGUMENTS)
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (100, 30)
    assert response._request_id.startswith("req_")
    chat = ask(provider, CHAT, stream=False)
    made = chat.choices[0].message.tool_calls[0].function
    assert (chat.choices[0].finish_reason, json.loads(made.arguments)) == ("tool_calls", ARGUMENTS)
    assert chat.usage.completion_tokens_details.reasoning_tokens == 4
    message = ask(provider, MESSAGES, stream=False)
    assert (message.stop_reason, message.content[1].input) == ("tool_use", ARGUMENTS)
    usage = message.usage
    counted = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    assert counted == (50, 30, 20)


@pytest.mark.parametrize("wire", WIRES)
def test_streams_are_read_by_the_sdks(provider: SandboxProcess, wire: str) -> None:
    events = ask(provider, wire, stream=True)
    assert json.loads(arguments(wire, events)) == ARGUMENTS
    ends: dict[str, Callable[[], bool]] = {
        RESPONSES: lambda: events[-1].type == "response.completed",
        CHAT: lambda: events[-2].choices[0].finish_reason == "tool_calls" and events[-1].usage is not None,
        MESSAGES: lambda: events[-2].delta.stop_reason == "tool_use" and events[-1].type == "message_stop",
    }
    assert ends[wire]()


SDKS = {"openai": openai, "anthropic": anthropic, "httpx2": httpx2}
SEEN: dict[str, dict[str, str | None]] = {
    "cut_fin": {
        RESPONSES: "openai.APIConnectionError",
        CHAT: "openai.APIConnectionError",
        MESSAGES: "httpx2.RemoteProtocolError",
    },
    "cut_reset": {
        RESPONSES: "openai.APIConnectionError",
        CHAT: "openai.APIConnectionError",
        MESSAGES: "httpx2.ReadError",
    },
    "cut_clean": dict.fromkeys(WIRES),  # no error at all
    "error_event": {RESPONSES: None, CHAT: "openai.APIError", MESSAGES: "anthropic.APIStatusError"},
    "response_failed": {RESPONSES: None},
    "reset_before_headers": {
        RESPONSES: "openai.APIConnectionError",
        CHAT: "openai.APIConnectionError",
        MESSAGES: "anthropic.APIConnectionError",
    },
    "truncated": dict.fromkeys(WIRES),
}


@pytest.mark.parametrize(("kind", "wire"), [(k, w) for k, of in SEEN.items() for w in of])
def test_what_an_sdk_makes_of_a_broken_stream(provider: SandboxProcess, kind: str, wire: str) -> None:
    """So that nobody takes an SDK's silence for an answer: a clean end raises nothing on any wire."""
    provider.post("/models/faults", {"kind": kind, "after": "120", "count": 1})
    seen = SEEN[kind][wire]
    if seen is not None:
        sdk, _, error = seen.partition(".")
        with pytest.raises(getattr(SDKS[sdk], error)):
            ask(provider, wire, stream=True)
    else:
        events = ask(provider, wire, stream=True)
        assert arguments(wire, events) == '{"to": "acct_9", "amount_minor": 120'
    last = book(provider)[-1]
    assert (last["fault"], last["retries"]) == (kind, "0")


@pytest.mark.parametrize("status", [400, 401, 408, 409, 413, 429, 500, 503, 529])
@pytest.mark.parametrize("wire", [CHAT, MESSAGES])
def test_statuses_are_the_sdks_own_errors(provider: SandboxProcess, wire: str, status: int) -> None:
    steering = {"retry_after_s": 3, "retry_after_ms": 2500, "should_retry": False}
    provider.post("/models/faults", {"kind": "status", "status": status, "count": 1, **steering})
    error: Any = anthropic.APIStatusError if wire == MESSAGES else openai.APIStatusError
    with pytest.raises(error) as caught:
        ask(provider, wire, stream=True)
    headers = caught.value.response.headers
    assert caught.value.status_code == status
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("3", "2500")


def test_the_book_shows_a_hidden_retry(provider: SandboxProcess) -> None:
    before = len(book(provider))
    provider.post("/models/faults", {"kind": "status", "status": 503, "count": 2, "retry_after_ms": 1})
    ask(provider, CHAT, stream=False, retries=2)
    made = book(provider)[before:]
    assert [(one["retries"], one["nth"] - made[0]["nth"]) for one in made] == [("0", 0), ("1", 1), ("2", 2)]
    assert [one["outcome"] for one in made] == ["refused", "refused", "answered"]


def test_the_book_knows_a_request_while_it_is_held_and_who_left(provider: SandboxProcess) -> None:
    provider.post("/models/faults", {"kind": "hold", "count": 1})
    with pytest.raises(openai.APIConnectionError):
        ask(provider, CHAT, stream=True, timeout=0.2)
    left = until("a caller that left", lambda: [one for one in book(provider) if one["outcome"] == "left"])
    assert left[-1]["there"] is False
    assert left[-1]["fault"] == "hold"


def test_a_hold_ends_when_it_is_released(provider: SandboxProcess) -> None:
    provider.post("/models/faults", {"kind": "hold", "count": 1})

    async def held() -> str:
        async with openai.AsyncOpenAI(base_url=provider.url, api_key=KEY, max_retries=0) as client:
            asking = asyncio.create_task(client.responses.create(model="m", input="Wait.", stream=False))
            await asyncio.to_thread(
                until, "a held request", lambda: provider.get("/models/requests")["open"] == 1
            )
            provider.post("/models/release", {})
            return str((await asking).status)

    assert asyncio.run(held()) == "completed"


def test_a_key_is_known_by_its_digest_only(provider: SandboxProcess) -> None:
    ask(provider, MESSAGES, stream=False)
    assert book(provider)[-1]["key"] == hashlib.sha256(KEY.encode()).hexdigest()
    assert KEY not in (provider.data / BOOK_FILE).read_text()


def test_requests_that_a_provider_refuses_are_refused(provider: SandboxProcess) -> None:
    with openai.OpenAI(base_url=provider.url, api_key=KEY, max_retries=0) as client:
        lonely: list[Any] = [
            {"role": "user", "content": "Pay."},
            {"type": "function_call", "call_id": "c", "name": "pay", "arguments": "{}"},
        ]
        with pytest.raises(openai.BadRequestError, match="no result was found for the calls c"):
            client.responses.create(model="m", input=lonely)
        with pytest.raises(openai.NotFoundError, match="POST its script"):
            client.responses.create(model="other", input="Pay.")


def test_more_than_its_limits_let_in_is_turned_away(provider: SandboxProcess) -> None:
    limited = {"turns": [], "limits": {"concurrent": 3, "retry_after_s": 7}}
    provider.post("/models/script", {"models": {"few": limited}})
    provider.post("/models/faults", {"kind": "hold", "at": "headers", "model": "few"})

    async def one(client: openai.AsyncOpenAI, number: int) -> int:
        try:
            await client.responses.create(model="few", input=f"Number {number}.")
        except openai.RateLimitError as error:
            return int(error.response.headers["retry-after"])
        return 0

    async def many() -> list[int]:
        async with openai.AsyncOpenAI(base_url=provider.url, api_key=KEY, max_retries=0) as client:
            asking = [asyncio.create_task(one(client, number)) for number in range(8)]
            await asyncio.to_thread(
                until,
                "three held, five turned away",
                lambda: (
                    sum(task.done() for task in asking) == 5 and provider.get("/models/requests")["open"] == 3
                ),
            )
            provider.post("/models/release", {})
            return sorted(await asyncio.gather(*asking))

    assert asyncio.run(many()) == [0, 0, 0, 7, 7, 7, 7, 7]


def test_scripts_and_book_outlive_a_kill(tmp_path: Path) -> None:
    with SandboxProcess(tmp_path) as provider:
        provider.post("/models/script", {"models": {"m": SCRIPT}})
        provider.post("/models/faults", {"kind": "hold", "count": 1})

        async def killed() -> None:
            async with openai.AsyncOpenAI(base_url=provider.url, api_key=KEY, max_retries=0) as client:
                asking = asyncio.create_task(client.responses.create(model="m", input="Pay."))
                await asyncio.to_thread(
                    until, "a held request", lambda: provider.get("/models/requests")["open"] == 1
                )
                provider.kill()
                with pytest.raises(openai.APIConnectionError):
                    await asking

        asyncio.run(killed())
        (cut,) = ModelBook(tmp_path / BOOK_FILE).requests()
        assert (cut.wire, cut.ended) == (RESPONSES, None)
        provider.restart()
        assert ask(provider, RESPONSES, stream=False).status == "completed"
        assert [one.seq for one in ModelBook(tmp_path / BOOK_FILE).requests()] == [1, 2]


@pytest.mark.parametrize("stream", [True, False])
def test_a_model_takes_its_time(provider: SandboxProcess, stream: bool) -> None:
    slow = {"headers_s": 0.05, "first_s": 0.1, "between_s": 0.005}
    provider.post("/models/faults", {"kind": "slow", "count": 1, **slow})
    pieces = len(ask(provider, CHAT, stream=True)) if stream else 0
    if not stream:
        ask(provider, CHAT, stream=False)
    last = book(provider)[-1]
    # The role's chunk comes first and the end is no chunk: one wait of `first_s`, then one before each.
    assert last["ended"] - last["at"] >= 0.9 * (0.15 + (pieces - 1) * 0.005)


def test_faults_are_cleared_with_those_of_the_other_services(provider: SandboxProcess) -> None:
    provider.post("/models/faults", {"seed": 3, "faults": [{"kind": "nan"}, {"kind": "cut_fin", "nth": 2}]})
    assert [rule["seed"] for rule in provider.get("/models/faults")["faults"]] == [3, 3]
    provider.clear_faults()
    assert provider.get("/models/faults")["faults"] == []


def test_what_cannot_be_meant_is_refused_in_words(provider: SandboxProcess) -> None:
    with pytest.raises(SandboxError, match="a model's fault cannot have kind='no'"):
        provider.post("/models/faults", {"kind": "no"})
    with pytest.raises(SandboxError, match="the script of m"):
        provider.post("/models/script", {"models": {"m": {"tunes": []}}})
