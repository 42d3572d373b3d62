"""What holds a call of an MCP server's tool: our own code, and nothing that a server says."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import BaseModel

from fencepost import App, Effect
from fencepost.clock import rfc3339
from fencepost.decide import holds
from fencepost.events import EventType
from fencepost.mcp import CHANGED, Streamable, changed, held_pin
from fencepost.mcpoutcomes import answer_of, classify_call
from fencepost.moves import CALL_RULES, Fact
from fencepost.outcomes import Answered, Refused
from fencepost.tools import Response

NOW = datetime(2026, 11, 30, tzinfo=UTC)
PIN = "a" * 64


class Note(BaseModel):
    ref: str


@pytest.mark.parametrize("kind", [EventType.TOOL_ATTEMPT_FAILED, EventType.TOOL_OUTCOME_MARKED_UNKNOWN])
@pytest.mark.parametrize("code", ["rpc_-32020", "http_429", CHANGED])
def test_only_our_own_code_holds_a_call_whatever_a_server_says(kind: EventType, code: str) -> None:
    told = changed("write_note", PIN, "b" * 64)
    body = {"code": code, "message": told, "final": False, "lost": False}
    when = dict.fromkeys(("ready_at", "reconcile_until"), rfc3339(NOW))
    event: Any = SimpleNamespace(type=kind, id=None, recorded_at=NOW)
    error = CALL_RULES[kind](cast(Any, None), Fact(event, body | when))["error"]
    held = kind == EventType.TOOL_ATTEMPT_FAILED and code == CHANGED
    assert held_pin(error) == (PIN if held else None)
    assert error.startswith(f"{CHANGED}:") == held
    assert error.endswith(told), "and it is told all the same"


@pytest.mark.parametrize(
    "answer",
    [
        Answered(answer_of(error={"code": -32020, "message": changed("write_note", PIN, None)})),
        Answered(Response(429, {"retry-after": "1"}, changed("write_note", PIN, None).encode())),
    ],
)
def test_a_servers_answer_is_never_one_that_holds(answer: Answered) -> None:
    server = Streamable(conforming=True, pins={"write_note": PIN})
    notes = App("notes").dependency("notes", "https://notes.example.com/mcp", mcp=server)
    tool = notes.mcp("write_note", arguments=Note, effect=Effect.READ).tool
    assert tool.mcp is not None
    assert tool.mcp.definition == PIN
    outcome = classify_call(tool, answer, now=NOW)
    assert isinstance(outcome, Refused)
    assert outcome.retryable
    assert not holds.holds(outcome, tool)
