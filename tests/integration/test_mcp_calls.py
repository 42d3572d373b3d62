"""Calls of real MCP servers, with the official SDK on both sides; what happened the server's book says."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fencepost import App
from fencepost.clock import boottime
from fencepost.mcp import CHANGED, KEY_META, Remote, Stdio, Streamable, definition_digest, held_pin
from fencepost.mcpoutcomes import classify_call
from fencepost.outbound import Outbound
from fencepost.outcomes import Applied, Outcome, Refused, Sent, Unsure
from fencepost.secrets import PLACEHOLDER
from fencepost.tools import StoredRequest, Tool
from fencepost_workers.tools.mcp import McpEngine
from tests.awaiting import until
from tests.integration.mcp_notes import Note, Notes, served, writing

NOW = datetime(2026, 11, 30, tzinfo=UTC)
KEY = "c" * 64
WITHIN_S = 60.0
SHORT_S = 1.0


class Served:
    """A server by HTTP, and the tool at it."""

    def __init__(self, notes: Notes, url: str) -> None:
        self.notes = notes
        self.url = url

    def tool(self, server: Streamable | None = None, **said: Any) -> Tool:
        return writing(served(App("notes"), server or Streamable(), self.url), **said).tool


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    notes = Notes(tmp_path_factory.mktemp("notes"))
    with notes.http() as url:
        yield Served(notes, url)


async def sent_by(engine: McpEngine, tool: Tool, seconds: float, stored: StoredRequest | None = None) -> Sent:
    spec = tool.dependency
    return await engine.call(
        tool,
        stored or tool.stored_request(Note(ref="r"), KEY),
        allowed=spec.outbound() if spec.base_url else Outbound(),
        key=KEY,
        deadline=NOW,
        until=boottime() + seconds,
        correlation={"run": "R", "call": "C", "attempt": "1", "fence": "7", "traceparent": "00-ab-cd-01"},
    )


def call(tool: Tool, seconds: float = WITHIN_S) -> tuple[Outcome, McpEngine]:
    engine = McpEngine()
    sent = asyncio.run(sent_by(engine, tool, seconds))
    return classify_call(tool, sent, now=NOW, args=Note(ref="r")), engine


def test_a_call_is_made_once_with_our_key_and_the_trace(remote: Served) -> None:
    remote.notes.faults()
    before = len(remote.notes.calls())
    outcome, engine = call(remote.tool())
    assert isinstance(outcome, Applied)
    assert outcome.receipt
    assert outcome.receipt.startswith("note_")
    assert not outcome.strange
    (made,) = remote.notes.calls()[before:]
    assert made["arguments"] == {"ref": "r", "text": "hello"}
    assert made["meta"][KEY_META] == KEY
    assert made["meta"]["traceparent"] == "00-ab-cd-01"
    assert made["meta"]["dev.fencepost/call"] == "C"
    assert engine.requests_sent["effect"] == 1
    assert engine.requests_sent["handshake"] == 2  # server/discover and tools/list


@pytest.mark.parametrize("protocol", ["legacy", "2026-07-28"])
def test_older_servers_and_a_version_agreed_on_beforehand_are_spoken_to(
    remote: Served, protocol: Any
) -> None:
    remote.notes.faults()
    before = len(remote.notes.calls())
    outcome, _ = call(remote.tool(Streamable(protocol=protocol)))
    assert isinstance(outcome, Applied)
    assert len(remote.notes.calls()) == before + 1


CONFORMING = Streamable(conforming=True)
UNSURE: list[tuple[dict[str, Any], str, int, int]] = [  # faults, code, calls and effects in the book
    ({"write_note": {"do": "error:-32603"}}, "rpc_-32603", 1, 0),
    ({"write_note": {"do": "raise_before"}}, "tool_error", 1, 0),
    ({"write_note": {"do": "raise_after"}}, "tool_error", 1, 1),
    ({"write_note": {"do": "ask"}}, "input_required", 1, 0),
    ({"write_note": {"do": "huge"}}, "oversize", 1, 1),
    ({"gateway": {"status": 404}}, "http_404", 0, 0),
    ({"gateway": {"status": 503, "headers": {"Retry-After": "3"}}}, "http_503", 0, 0),
    ({"gateway": {"status": 307, "headers": {"Location": "/mcp"}}}, "http_307", 0, 0),
    ({"gateway": {"status": 200, "headers": {"Content-Encoding": "gzip"}}}, "unreadable_answer", 0, 0),
]


@pytest.mark.parametrize(("faults", "code", "calls", "effects"), UNSURE, ids=[row[1] for row in UNSURE])
def test_what_proves_nothing_is_unknown_and_is_asked_for_once(
    remote: Served, faults: dict[str, Any], code: str, calls: int, effects: int
) -> None:
    remote.notes.faults(**faults)
    book = remote.notes.book
    before = len(remote.notes.calls()), len(remote.notes.effects()), len(book.lines("gateway"))
    outcome, engine = call(remote.tool(CONFORMING))
    assert isinstance(outcome, Unsure)
    assert outcome.code == code
    after = len(remote.notes.calls()), len(remote.notes.effects()), len(book.lines("gateway"))
    assert after == (before[0] + calls, before[1] + effects, before[2] + 1 - calls)
    assert engine.requests_sent["effect"] == 1


@pytest.mark.parametrize("code", [-32602, -32601, -32020])
def test_a_refusal_before_the_tool_is_believed_of_a_conforming_server_and_not_repeated(
    remote: Served, code: int
) -> None:
    remote.notes.faults(write_note={"do": f"error:{code}"})
    before = len(remote.notes.calls())
    outcome, _ = call(remote.tool(CONFORMING))
    assert isinstance(outcome, Refused)
    assert outcome.code == f"rpc_{code}"
    assert isinstance(call(remote.tool())[0], Unsure)
    assert len(remote.notes.calls()) == before + 2


def test_a_slow_tool_is_unknown_when_the_time_is_over(remote: Served) -> None:
    remote.notes.faults(write_note={"do": "slow_after:60"})
    before = len(remote.notes.effects())
    outcome, engine = call(remote.tool(), SHORT_S)
    for factor in (4, 16):  # on a busy machine it may not get as far as the call
        if not engine.requests_sent["effect"]:
            assert isinstance(outcome, Refused)
            outcome, engine = call(remote.tool(), factor * SHORT_S)
    assert isinstance(outcome, Unsure)
    assert outcome.code == "timeout"
    assert len(remote.notes.effects()) == before + 1


def listed(remote: Served, name: str = "write_note") -> dict[str, Any]:
    found = asyncio.run(McpEngine().listing(remote.tool().dependency, within_s=WITHIN_S))
    assert isinstance(found, list)
    return next(one for one in found if one["name"] == name)


def test_a_definition_that_is_not_the_pinned_one_holds_the_call(remote: Served) -> None:
    remote.notes.faults()
    pin = definition_digest(listed(remote))
    pinned = remote.tool(definition=pin)
    assert isinstance(call(pinned)[0], Applied)
    before = len(remote.notes.calls())
    for change in (
        {"describe": {"description": "Writes a note, and mails it to everybody."}},
        {"describe": {"annotations": {"destructiveHint": True}}},
        {"hide": ["write_note"]},
    ):
        remote.notes.faults(**change)
        outcome, engine = call(pinned)
        assert isinstance(outcome, Refused)
        assert (outcome.code, held_pin(outcome.message)) == (CHANGED, pin)
        assert engine.requests_sent["effect"] == 0
    remote.notes.faults(hide=["write_note"])
    unpinned, _ = call(remote.tool())
    assert isinstance(unpinned, Refused)
    assert (unpinned.code, unpinned.retryable) == ("unknown_tool", False)
    assert len(remote.notes.calls()) == before


def test_a_result_that_breaks_the_pinned_schema_proves_nothing(remote: Served) -> None:
    remote.notes.faults()
    pin = definition_digest(listed(remote))
    remote.notes.faults(write_note={"do": "wrong"})
    before = len(remote.notes.effects())
    plain = remote.tool(definition=pin)
    by_schema = replace(plain, returns=None, succeeded=lambda answer: bool(answer.value))
    outcome, _ = call(by_schema)  # held against the server's own schema alone
    assert isinstance(outcome, Unsure)
    outcome, _ = call(plain)
    assert isinstance(outcome, Unsure)
    assert len(remote.notes.effects()) == before + 2


def test_an_address_that_may_not_be_reached_is_not(remote: Served) -> None:
    remote.notes.faults()
    before = len(remote.notes.book.lines())

    async def inside(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    port = remote.url.rpartition(":")[2].partition("/")[0]
    app = App("notes")
    tool = writing(served(app, Streamable(), f"http://notes.example.com:{port}/mcp")).tool
    engine = McpEngine(resolver=inside)
    sent = asyncio.run(sent_by(engine, tool, WITHIN_S))
    outcome = classify_call(tool, sent, now=NOW)
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.retryable) == ("outbound_refused", False)
    assert len(remote.notes.book.lines()) == before


def test_a_server_by_http_that_dies_after_the_effect_leaves_it_unknown(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    notes.faults(write_note={"do": "die_after"})
    with notes.http("--json") as url:
        tool = writing(served(App("notes"), Streamable(), url)).tool
        outcome, _ = call(tool)
        assert isinstance(outcome, Unsure)
        assert outcome.code == "connection_lost"
        assert len(notes.effects()) == 1
        refused, engine = call(tool)
    assert isinstance(refused, Refused)
    assert (refused.code, refused.retryable) == ("connect_failed", True)
    assert engine.requests_sent["effect"] == 0


# -- by stdio ------------------------------------------------------------------------------------------------


def local(notes: Notes, **said: Any) -> Tool:
    return writing(served(App("notes"), notes.stdio(**said))).tool


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123 - a zombie of init's is gone
        return file.read().rpartition(")")[2].split()[0] == "Z"


def test_a_process_is_started_for_a_call_and_its_whole_group_ends_with_it(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    notes.faults(write_note={"do": "child"})
    outcome, engine = call(local(notes))
    assert isinstance(outcome, Applied)
    (made,) = notes.calls()
    (child,) = notes.book.lines("child")
    assert gone(made["pid"])
    until("what the server had started is gone", lambda: gone(child["child"]), WITHIN_S)
    assert engine.requests_sent["effect"] == 1


@pytest.mark.parametrize(("do", "effects"), [("die_before", 0), ("die_after", 1)])
def test_a_process_that_is_killed_leaves_the_outcome_unknown(tmp_path: Path, do: str, effects: int) -> None:
    notes = Notes(tmp_path)
    notes.faults(write_note={"do": do})
    outcome, _ = call(local(notes))
    assert isinstance(outcome, Unsure)
    assert outcome.code == "connection_lost"
    assert (len(notes.calls()), len(notes.effects())) == (1, effects)


def test_a_process_that_is_too_slow_is_ended_with_the_attempt(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    notes.faults(write_note={"do": "slow:600"})
    engine, tool = McpEngine(), local(notes)

    async def until_called() -> Sent:
        sending = asyncio.ensure_future(sent_by(engine, tool, 600))
        async with asyncio.timeout(WITHIN_S):
            while not notes.calls():  # noqa: ASYNC110 - another process writes it down
                await asyncio.sleep(0.02)
        sending.cancel()  # as a drain does
        try:
            return await sending
        except asyncio.CancelledError:
            return await sent_by(engine, local(notes), 0)

    asyncio.run(until_called())
    (made,) = notes.calls()
    assert gone(made["pid"])
    assert not notes.effects()


def test_a_process_that_cannot_be_started_has_done_nothing(tmp_path: Path) -> None:
    app = App("notes")
    missing = writing(served(app, Stdio(command=str(tmp_path / "none")))).tool
    outcome, _ = call(missing)
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.retryable) == ("connect_failed", True)
    ends = writing(served(App("notes"), Stdio(command="sh", args=("-c", "echo sorry >&2")))).tool
    outcome, engine = call(ends)
    assert isinstance(outcome, Refused)
    assert "sorry" in outcome.message
    assert engine.requests_sent["effect"] == 0
    silent = writing(served(App("notes"), Stdio(command="sleep", args=("600",)))).tool
    outcome, _ = call(silent, SHORT_S)
    assert isinstance(outcome, Refused)
    assert outcome.code == "connect_timeout"


def test_placeholders_are_filled_in_as_json(remote: Served) -> None:
    remote.notes.faults()
    body = b'{"arguments":{"ref":"r","text":"fencepost-secret-' + b"a" * 48 + b'"},"name":"write_note"}'
    stored = StoredRequest("tools/call", remote.url, (("Content-Type", "application/json"),), body)
    assert PLACEHOLDER.search(stored.body.decode())
    wired = replace(stored, body=PLACEHOLDER.sub('a \\"secret\\"', body.decode()).encode())
    asyncio.run(sent_by(McpEngine(), remote.tool(), WITHIN_S, wired))
    assert remote.notes.calls()[-1]["arguments"]["text"] == 'a "secret"'


def test_what_is_remote_is_what_the_tool_says() -> None:
    assert writing(served(App("notes"), Stdio(command="x"))).tool.mcp == Remote("write_note")
