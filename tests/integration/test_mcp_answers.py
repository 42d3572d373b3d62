"""Servers that answer a call ambiguously, by stdio and by HTTP: none of it proves an outcome."""

import asyncio
import ssl
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from fencepost import App
from fencepost.clock import boottime
from fencepost.mcp import Stdio, Streamable
from fencepost.mcpoutcomes import classify_call, classify_question
from fencepost.outbound import Outbound
from fencepost.outcomes import Applied, Outcome, Refused, Sent, Unsure
from fencepost.tools import Absent, Tool, Unclear
from fencepost_workers.tools import mcp_http
from fencepost_workers.tools.mcp import McpEngine
from tests.integration import mcp_liar
from tests.integration.mcp_liar import Answers
from tests.integration.mcp_notes import Note, served, writing

NOW = datetime(2026, 11, 30, tzinfo=UTC)
VERIFY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # none is used; to make one takes longer than a call
WITHIN_S = 30.0
SOON_S = 20.0
BY = {"stdio": "", "json": "application/json", "events": "text/event-stream"}


def result(more: str = "", ident: str = "<id>") -> str:
    text = '"resultType":"complete","content":[],"structuredContent":{"id":"n1","ref":"r"}'
    return f'{{"jsonrpc":"2.0","id":{ident},"result":{{{text}{more}}}}}'


def error(code: str = "-32601", ident: str = "<id>", more: str = "") -> str:
    return f'{{"jsonrpc":"2.0","id":{ident},"error":{{"code":{code},"message":"no"}}{more}}}'


OTHER = result().replace("n1", "n2")
DEEP = result(f',"more":{"[" * 5000}{"]" * 5000}')
DOUBTFUL: dict[str, list[str]] = {
    "result and error": [error(more=',"result":' + result().partition('"result":')[2][:-1])],
    "error and result": [result()[:-1] + ',"error":{"code":-32601,"message":"no"}}'],
    "error beside null": [error(more=',"result":null')],
    "two results": [result()[:-1] + ',"result":{"content":[],"isError":true}}'],
    "two ids": [result()[:-1] + ',"id":<id>}'],
    "isError twice": [result(',"isError":true,"isError":false')],
    "id as text": [result(ident='"<id>"')],
    "refused, id as text": [error(ident='"<id>"')],
    "id as a fraction": [result(ident="<id>.0")],
    "id in a list": [result(ident="[<id>]")],
    "another id": [result(ident="7")],
    "refused, another id": [error(ident="7")],
    "a batch": [f"[{result()}]"],
    "a request too": [result()[:-1] + ',"method":"ping"}'],
    "no version": [result().replace('"jsonrpc":"2.0",', "")],
    "no object": ['{"jsonrpc":"2.0","id":<id>,"result":"done"}'],
    "code as text": [error('"-32601"')],
    "code as a fraction": [error("-32601.0")],
    "too deep": [DEEP],
    "too long a number": [result(f',"more":{"9" * 5000}')],
}
SEVERAL: dict[str, list[str]] = {
    "two answers": [result(), OTHER],
    "a result, then a refusal": [result(), error()],
    "a refusal, then a result": [error(), result()],
    "a good one, then an ambiguous one": [result(), result(',"isError":true,"isError":false')],
}


def tool_of(stack: ExitStack, answers: Answers, by: str, kind: str | None = None) -> Tool:
    """A tool of a server that answers so, and is said to be conforming."""
    if by == "stdio":
        program, *args = mcp_liar.command(answers)
        process = Stdio(command=program, args=args, protocol="2026-07-28", conforming=True)
        return writing(served(App("notes"), process)).tool
    url = stack.enter_context(mcp_liar.http(answers, kind or BY[by]))
    server = Streamable(protocol="2026-07-28", conforming=True)
    return writing(served(App("notes"), server, url)).tool


async def sent_by(engine: McpEngine, tool: Tool, **how: Any) -> Sent:
    spec = tool.dependency
    how |= {"deadline": NOW, "until": boottime() + WITHIN_S, "correlation": {}, "key": "k"}
    how["allowed"] = spec.outbound() if spec.base_url else Outbound()
    return await engine.call(tool, tool.stored_request(Note(ref="r"), "k"), **how)


async def called(tool: Tool) -> tuple[Outcome, McpEngine]:
    """What a call comes to."""
    engine = McpEngine(verify=VERIFY)
    sent = await sent_by(engine, tool)
    return classify_call(tool, sent, now=NOW, args=Note(ref="r")), engine


def asked(answers: Answers, by: str, kind: str | None = None) -> tuple[Outcome, McpEngine]:
    with ExitStack() as stack:
        return asyncio.run(called(tool_of(stack, answers, by, kind)))


@pytest.mark.parametrize("by", BY)
def test_no_ambiguous_answer_proves_anything(by: str) -> None:
    cases = DOUBTFUL if by == "json" else DOUBTFUL | SEVERAL

    async def all_at_once(tools: list[Tool]) -> list[tuple[Outcome, McpEngine]]:
        return await asyncio.gather(*map(called, tools))

    began = time.monotonic()
    with ExitStack() as stack:
        tools = [tool_of(stack, Answers(said), by) for said in cases.values()]
        found = dict(zip(cases, asyncio.run(all_at_once(tools)), strict=True))
    for case, (outcome, engine) in found.items():
        assert isinstance(outcome, Unsure), (case, outcome)
        assert outcome.code == "doubtful_answer", (case, outcome)
        assert engine.requests_sent["effect"] == 1, case
    assert time.monotonic() - began < SOON_S, "and nobody waits for a better one"


@pytest.mark.parametrize("by", ["stdio", "events"])
def test_an_ambiguous_answer_to_a_lookup_says_nothing(by: str) -> None:
    absent = result().replace('"id":"n1","ref":"r"', '"found":false,"note":null')
    for said, found in (([absent], Absent), ([absent, OTHER], Unclear)):
        with ExitStack() as stack:
            tool = tool_of(stack, Answers(said), by)
            sent = asyncio.run(sent_by(McpEngine(verify=VERIFY), tool, kind="lookup"))
        assert isinstance(classify_question(tool, Note(ref="r"), sent), found)


@pytest.mark.parametrize("by", BY)
def test_a_plain_answer_is_one(by: str) -> None:
    outcome, _ = asked(Answers([result()]), by)
    assert isinstance(outcome, Applied)
    assert outcome.receipt == "n1"
    outcome, _ = asked(Answers([error()]), by)
    assert isinstance(outcome, Refused)
    assert outcome.code == "rpc_-32601"


def test_what_comes_beside_an_answer_and_does_not_contradict_it_changes_nothing() -> None:
    progress = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}'
    noise = ["starting", '{"level":"info","error":null,"error":"none"}', '{"id":7,"result":{}}']
    unread = '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}'
    outcome, _ = asked(Answers([progress, *noise, unread, result(), result()]), "stdio")
    assert isinstance(outcome, Applied), outcome
    outcome, _ = asked(Answers([progress, result(), result()]), "events")
    assert isinstance(outcome, Applied), outcome


@pytest.mark.parametrize("by", ["stdio", "events"])
def test_another_answer_that_comes_after_the_first_is_still_heard(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_http, "AFTER_S", WITHIN_S)  # the stream ends, and nobody waits for that long
    outcome, _ = asked(Answers([result()], leaving=[OTHER]), by)
    assert isinstance(outcome, Unsure), outcome
    assert outcome.code == "doubtful_answer"


@pytest.mark.parametrize("said", ["<html>", error(ident="null"), '{"jsonrpc":"2.0","method":"ping"}', "[]"])
def test_a_success_of_http_that_holds_no_answer_is_none(said: str) -> None:
    outcome, _ = asked(Answers([said]), "json")
    assert isinstance(outcome, Unsure), outcome
    assert outcome.code == "doubtful_answer"


def test_an_answer_to_a_call_that_was_not_read_is_none() -> None:
    outcome, engine = asked(Answers([result()], unread=True), "stdio")
    assert isinstance(outcome, Unsure), outcome
    assert outcome.code == "doubtful_answer"
    assert engine.requests_sent["effect"] == 1


@pytest.mark.parametrize(
    "said",
    [
        '{"error":{"code":"not_found","message":"no such route"}}',
        '{"error":{"code":-32601,"message":"no"}}',
        '{"id":"req_1","error":{"code":404,"message":"no"}}',
        "<html>",
    ],
)
def test_a_gateways_404_is_no_error_of_the_server(said: str) -> None:
    """The SDK makes -32601 of it, which of a conforming server proves that nothing happened."""
    outcome, _ = asked(Answers([said], status=404), "json")
    assert isinstance(outcome, Unsure), outcome
    assert outcome.code == "http_404"
    outcome, _ = asked(Answers([error(ident="null")], status=404), "json", "text/plain")
    assert isinstance(outcome, Unsure), outcome


def test_an_error_that_the_sdk_cannot_read_is_not_what_it_makes_of_the_status() -> None:
    said = error("-32603").replace('"no"', '"\\ud800"')
    outcome, _ = asked(Answers([said], status=404), "json")
    assert isinstance(outcome, Unsure), outcome
    assert outcome.code == "rpc_-32603"


@pytest.mark.parametrize("ident", ["<id>", "null"])
def test_an_error_by_the_servers_own_status_is_its_word(ident: str) -> None:
    outcome, _ = asked(Answers([error("-32602", ident)], status=400), "json")
    assert isinstance(outcome, Refused), outcome
    assert outcome.code == "rpc_-32602"


@pytest.mark.parametrize("by", BY)
def test_what_a_result_holds_breaks_nothing(by: str) -> None:
    outcome, _ = asked(Answers([result(',"more":NaN')]), by)
    assert isinstance(outcome, Applied), "it is read, whatever it is"
    outcome, _ = asked(Answers([result(',"more":"\\ud800"')]), by)
    assert isinstance(outcome, Unsure), outcome
    assert outcome.code == "doubtful_answer"
    strange = result().replace('"structuredContent":{"id":"n1","ref":"r"}', '"structuredContent":{"id":NaN}')
    outcome, _ = asked(Answers([strange]), by)
    assert isinstance(outcome, Applied | Unsure), outcome
