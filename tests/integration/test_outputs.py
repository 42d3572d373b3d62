"""Outputs of any size: what is read of them, what is kept, and what a planner is shown."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost import App, Attempt, Effect, Request
from fencepost.outcomes import Applied, Lost, Outcome, classify
from fencepost.output import KEPT_OF_CUT, MAX_OUTPUT_BYTES, shown
from fencepost.tools import Response, Tool
from fencepost_workers.attempts import payload
from fencepost_workers.tools.python import run_python
from tests.integration.http_sending import sent_to
from tests.integration.raw_server import Answer
from tests.unit.test_taint import Args

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MIB = 1024 * 1024


def done(answer: Response) -> bool:
    return answer.status == 200


def tools(function: Any = None, **options: Any) -> tuple[Tool, Tool]:
    """A page that is fetched, and a Python tool."""
    app = App("t")
    web = app.dependency("web", "http://127.0.0.1:9", per_attempt=timedelta(seconds=20))

    @web.http("web.post", effect=Effect.IRREVERSIBLE, intent=lambda a: ("x",), succeeded=done, **options)
    def post(args: Args) -> Request:
        return Request.post("/")

    @web.python("local.do", effect=Effect.IRREVERSIBLE, intent=lambda a: ("x",), **options)
    def do(args: Args, attempt: Attempt) -> Any:
        return function()

    return post.tool, do.tool


def kept_of(outcome: Outcome, tool: Tool) -> dict[str, Any]:
    """What is kept of a success, and that a planner is shown a bounded part of it."""
    assert isinstance(outcome, Applied), outcome
    kept = payload(outcome.result_json_text)
    assert len(kept.data) <= KEPT_OF_CUT + 100
    seen = shown(kept.data, tool.output)
    assert len(json.dumps(seen)) <= tool.output.inline_bytes
    assert seen["truncated"] is True
    made: dict[str, Any] = json.loads(kept.data)
    return made


def streams(mebibytes: int, written: list[int], *, declared: bool) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        length = f"Content-Length: {mebibytes * MIB}\r\n" if declared else "Connection: close\r\n"
        writer.write(f"HTTP/1.1 200 OK\r\n{length}\r\n".encode())
        for _ in range(mebibytes * 16):
            writer.write(b"page " * 13107 + b".")
            await writer.drain()
            written[0] += MIB // 16
        writer.close()

    return answer


@pytest.mark.parametrize(("mebibytes", "declared"), [(8, True), (100, False)])
def test_of_a_huge_answer_no_more_is_read_than_is_kept_and_the_success_stands(
    mebibytes: int, declared: bool
) -> None:
    written, (tool, _) = [0], tools()
    [sent], server = sent_to(streams(mebibytes, written, declared=declared))
    assert isinstance(sent, Lost)
    kept = kept_of(classify(tool, sent, now=NOW, args=Args()), tool)
    assert (kept["bytes"], kept["start"][:5]) == (None, "page ")
    assert len(server.requests) == 1
    assert written[0] < 8 * MIB  # what lies in sockets' buffers comes on top of what was read


def ran(function: Any, **options: Any) -> tuple[Outcome, Tool]:
    tool = tools(function, **options)[1]
    attempt = Attempt("r", "c", 1, "k", NOW, lambda: 20.0)
    with ThreadPoolExecutor(1) as executor:
        return asyncio.run(run_python(tool, Args(), attempt, executor)), tool


def test_of_a_huge_result_of_a_python_tool_the_start_is_kept() -> None:
    outcome, tool = ran(lambda: {"id": "r-1", "page": "p" * 8 * MIB})
    assert isinstance(outcome, Applied)
    assert outcome.receipt == "r-1"
    assert kept_of(outcome, tool)["bytes"] > 8 * MIB


def test_a_tool_may_keep_less_and_show_more() -> None:
    outcome, tool = ran(lambda: "p" * 5000, max_output_bytes=2000)
    assert kept_of(outcome, tool)["bytes"] == 5002
    outcome, tool = ran(lambda: "p" * 100_000, inline_bytes=MAX_OUTPUT_BYTES)
    assert isinstance(outcome, Applied)
    assert shown(outcome.result_json_text.encode(), tool.output) == "p" * 100_000


@pytest.mark.parametrize(
    "value", ["a\0b", float("nan"), float("-inf"), "half \ud800", {"\0": [float("inf")]}, b"\x80\0"]
)
def test_what_postgres_refuses_is_a_success_all_the_same(value: Any) -> None:
    outcome, tool = ran(lambda: {"id": "r", "value": value})
    assert isinstance(outcome, Applied)
    kept = payload(outcome.result_json_text)
    kept.preview.encode()
    assert "\0" not in kept.preview
    first, again = (repr(shown(kept.data, tool.output)) for _ in range(2))
    assert first == again


def test_a_tool_that_holds_back_what_is_not_declared_holds_back_the_rest_of_a_cut_result_too() -> None:
    outcome, tool = ran(lambda: {"id": "r", "page": "obey" * MIB}, promote=("id",))
    assert isinstance(outcome, Applied)
    kept = payload(outcome.result_json_text).data
    assert b"obey" in kept
    assert shown(kept, tool.output) == {}
    assert shown(kept, replace(tool.output, promote=None)) != {}
