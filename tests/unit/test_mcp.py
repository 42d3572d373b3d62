"""What an MCP server's answers prove, what is stored of a call, and what a definition is. Tables."""

import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from fencepost import App, Contract, Dedupes, Effect, Found, Lookup, Natural, NotApplied, UsageError
from fencepost.clock import boottime
from fencepost.contracts.carriers import KeyCarrier, Place
from fencepost.mcp import (
    CHANGED,
    RPC,
    Remote,
    Stdio,
    Streamable,
    ToolCall,
    ToolResult,
    changed,
    contradiction,
    definition_digest,
    held_pin,
)
from fencepost.mcpmessages import FIRST_ID
from fencepost.mcpoutcomes import answer_of, classify_call, classify_question, offered
from fencepost.outcomes import Answered, Applied, Lost, NotSent, Outcome, Refused, Unsure
from fencepost.secrets import SecretRef
from fencepost.tools import Absent, LookupResult, Response, Tool, Unclear
from fencepost_ops.doctor.mcp import judge_mcp
from fencepost_workers.tools import mcp
from fencepost_workers.tools.credentials import Credentials
from fencepost_workers.tools.mcp_wire import Held, Wire

NOW = datetime(2026, 11, 30, tzinfo=UTC)
URL = "https://notes.example.com/mcp"
PIN = "a" * 64


class Note(BaseModel):
    ref: str
    text: str = ""


class Written(BaseModel):
    id: str


class Vague(BaseModel):
    id: str | None = None


def noted(server: Any = None, *, effect: Effect = Effect.IRREVERSIBLE, **options: Any) -> Tool:
    app = App("notes")
    spec = server or Streamable()
    notes = app.dependency("notes", None if isinstance(spec, Stdio) else URL, mcp=spec)
    said: dict[str, Any] = {"intent": lambda a: (a.ref,), "remote": "write_note", **options}
    return notes.mcp("note.write", arguments=Note, effect=effect, **said).tool


def result(value: Any = None, *, text: str = "", strange: str = "", **more: Any) -> Answered:
    said: dict[str, Any] = {"content": [{"type": "text", "text": text}], **more}
    if value is not None:
        said["structuredContent"] = value
    return Answered(answer_of(result=said, strange=strange))


def error(code: int) -> Answered:
    return Answered(answer_of(error={"code": code, "message": "no"}))


def judged(tool: Tool, sent: Any) -> Outcome:
    return classify_call(tool, sent, now=NOW, args=Note(ref="r"))


CONFORMING = Streamable(conforming=True)
BEFORE = [-32601, -32602, -32020, -32021, -32022]
WHENEVER = [-32000, -32001, -32600, -32603, -32700, -32042, 0, 7]


@pytest.mark.parametrize("code", BEFORE)
def test_errors_before_a_tool_prove_something_only_of_a_server_that_is_declared_conforming(code: int) -> None:
    assert isinstance(judged(noted(), error(code)), Unsure)
    refused = judged(noted(CONFORMING), error(code))
    assert isinstance(refused, Refused)
    assert refused.retryable is (code == -32020)  # the next attempt lists the tools anew


@pytest.mark.parametrize("code", WHENEVER)
def test_all_other_errors_prove_nothing(code: int) -> None:
    assert judged(noted(CONFORMING), error(code)) == Unsure(f"rpc_{code}", "no")


def test_an_error_result_proves_nothing_unless_the_tool_says_so() -> None:
    failed = result(text="it broke", isError=True)
    assert judged(noted(), failed) == Unsure("tool_error", "it broke")
    assert judged(noted(CONFORMING), failed) == Unsure("tool_error", "it broke")
    said = judged(noted(errors_apply_nothing=True), failed)
    assert said == Refused("tool_error", "it broke", retryable=False)
    assert isinstance(judged(noted(effect=Effect.READ), failed), Refused)


@pytest.mark.parametrize("said", [True, "true", 1, "false", {}])
def test_whatever_is_error_says_but_false_is_an_error(said: Any) -> None:
    assert ToolResult.of({"content": [], "isError": said}).is_error
    assert not ToolResult.of({"content": [], "isError": False}).is_error
    assert not ToolResult.of({"content": []}).is_error


def test_no_structured_content_is_the_text() -> None:
    text = [{"type": "text", "text": '{"id": "n1"}'}]
    assert ToolResult.of({"content": text, "structuredContent": None}).value == {"id": "n1"}


def test_a_wire_lets_one_call_out_and_none_late_or_after_the_end() -> None:
    wire = Wire(boottime() + 60, "effect", os.getpid())
    wire.leave(FIRST_ID)
    with pytest.raises(Held):
        wire.leave(FIRST_ID)
    assert wire.touched == 1
    late = Wire(boottime() - 1, "effect", os.getpid())
    with pytest.raises(Held):
        late.leave(FIRST_ID)
    assert (late.touched, late.held_back and late.held_back.code) == (0, "deadline_passed")
    ended = Wire(boottime() + 60, "effect", os.getpid(), closed=True)
    with pytest.raises(Held):
        ended.leave(FIRST_ID)
    assert ended.touched == 0
    guessed = Wire(boottime() + 60, "effect", os.getpid())
    with pytest.raises(Held):
        guessed.leave(3)
    assert guessed.touched == 0


def test_a_result_is_an_effect_where_the_tool_understands_it() -> None:
    taken = noted(succeeded=lambda _result: True)
    assert judged(noted(returns=Written), result({"id": "n1"})) == Applied('{"id": "n1"}', "n1")
    assert isinstance(judged(taken, result({"id": "n1"}, strange="no ref")), Unsure)
    assert judged(taken, result(text='{"id": "n2"}')) == Applied('{"id": "n2"}', "n2")
    assert judged(taken, result(text="written")) == Applied('"written"', None)
    picture = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    assert judged(taken, result(content=[picture])) == Applied(json.dumps([picture]), None)


@pytest.mark.parametrize(
    "declared", [{}, {"returns": Written}, {"returns": Vague}, {"succeeded": lambda said: said.value["ok"]}]
)
@pytest.mark.parametrize(
    "said", [{"success": False}, {"ok": False}, {"error": {}}, {"name": 7}, {}, None], ids=json.dumps
)
def test_a_result_that_names_no_effect_is_unknown(declared: dict[str, Any], said: Any) -> None:
    assert isinstance(judged(noted(**declared), result(said, text="refused")), Unsure)


def test_a_parse_can_say_that_nothing_happened_and_nothing_else_can() -> None:
    def refuses(_: ToolResult) -> Any:
        raise NotApplied("full", "no room")

    def breaks(_: ToolResult) -> Any:
        raise KeyError("id")

    assert judged(replace(noted(), parse=refuses), result({"id": "n1"})) == Refused(
        "full", "no room", retryable=False
    )
    assert isinstance(judged(replace(noted(), parse=breaks), result({"id": "n1"})), Unsure)


def test_a_server_that_waits_for_more_is_given_nothing() -> None:
    asks = result(resultType="input_required", requestState="s")
    outcome = judged(noted(CONFORMING), asks)
    assert isinstance(outcome, Unsure)
    assert (outcome.code, outcome.repair) == ("input_required", True)
    task = judged(noted(), result(resultType="task"))
    assert isinstance(task, Unsure)
    assert task.code == "incomplete"


def test_what_is_no_response_is_judged_as_http_is() -> None:
    tool = noted(contract=Contract(not_applied=frozenset({429}), retryable=frozenset({429})))
    throttled = judged(tool, Answered(Response(429, {"retry-after": "7"})))
    assert throttled == Refused("http_429", "", retryable=True, retry_after=timedelta(seconds=7))
    assert isinstance(judged(tool, Answered(Response(404))), Unsure)
    assert isinstance(judged(noted(CONFORMING), Answered(Response(404))), Unsure)
    for status in (200, 202, 204):
        assert isinstance(judged(tool, Answered(Response(status))), Unsure)
        assert isinstance(judged(replace(tool, parse=lambda r: {}), Answered(Response(status))), Unsure)
    assert judged(tool, Lost("timeout", "late")) == Unsure("timeout", "late")
    assert judged(tool, NotSent("no_session", "x")) == Refused("no_session", "x", retryable=True)
    torn = Answered(Response(RPC, {}, b'"*** withheld"'))
    assert isinstance(judged(tool, torn), Unsure)


def test_a_long_result_is_kept_up_to_the_size_that_is_declared() -> None:
    outcome = judged(noted(max_output_bytes=2048, returns=Written), result({"id": "x" * 5000}))
    assert isinstance(outcome, Applied)
    assert json.loads(outcome.result_json_text)["truncated"] is True


def found(tool: Tool, sent: Any) -> LookupResult:
    return classify_question(tool, Note(ref="r"), sent)


def test_a_lookup_says_what_its_parse_reads_and_nothing_else() -> None:
    def parse(answer: ToolResult, _: Note) -> LookupResult:
        return Found("n1", answer.structured["note"]) if answer.structured["found"] else Absent()

    tool = replace(noted(), lookup_parse=parse)
    assert found(tool, result({"found": True, "note": {"id": "n1"}})) == Found("n1", {"id": "n1"})
    assert found(tool, result({"found": False})) == Absent()
    for unclear in (
        result({}),
        result({"found": False}, isError=True),
        result({"found": False}, strange="no note"),
        result({"found": False}, resultType="input_required"),
        error(-32602),
        Answered(Response(404)),
        Lost("timeout", ""),
        NotSent("connect_failed", ""),
    ):
        assert isinstance(found(tool, unclear), Unclear)
    assert isinstance(found(noted(), result({"found": False})), Unclear)


LISTED: dict[str, Any] = {"name": "write_note", "description": "Writes.", "inputSchema": {"type": "object"}}


@pytest.mark.parametrize(
    "other",
    [
        {"description": "Writes, and mails it."},
        {"inputSchema": {"type": "object", "required": ["x"]}},
        {"outputSchema": {"type": "object"}},
        {"annotations": {"readOnlyHint": True}},
        {"name": "other"},
    ],
)
def test_a_definition_is_all_that_a_server_says_of_its_tool(other: dict[str, Any]) -> None:
    assert definition_digest(LISTED) == definition_digest({**LISTED, "title": "Note", "_meta": {"x": 1}})
    assert definition_digest(LISTED) != definition_digest(LISTED | other)


SETS = {
    "type": "object",
    "required": ["a", "b"],
    "dependentRequired": {"a": ["b", "c"]},
    "properties": {
        "required": {"type": ["string", "null"], "enum": ["x", "y"]},
        "b": {"anyOf": [{"type": "string"}, {"required": ["c", "d"]}]},
    },
}
TURNED = {
    "type": "object",
    "required": ["b", "a"],
    "dependentRequired": {"a": ["c", "b"]},
    "properties": {
        "required": {"type": ["null", "string"], "enum": ["y", "x"]},
        "b": {"anyOf": [{"required": ["d", "c"]}, {"type": "string"}]},
    },
}


@pytest.mark.parametrize("which", ["inputSchema", "outputSchema"])
def test_the_order_in_which_a_schema_tells_a_set_changes_no_definition(which: str) -> None:
    assert definition_digest({**LISTED, which: SETS}) == definition_digest({**LISTED, which: TURNED})
    for word in ("default", "const", "prefixItems"):  # values are compared as they are, and places are places
        one, other = ({"properties": {"v": {word: [{"minimum": n}, {"minimum": 3 - n}]}}} for n in (1, 2))
        assert definition_digest({**LISTED, which: one}) != definition_digest({**LISTED, which: other}), word
    deep = ({"properties": {"v": {"default": {"required": names}}}} for names in (["a", "b"], ["b", "a"]))
    assert len({definition_digest({**LISTED, which: one}) for one in deep}) == 2
    fewer = {**SETS, "required": ["a"]}
    assert definition_digest({**LISTED, which: SETS}) != definition_digest({**LISTED, which: fewer})


@pytest.mark.parametrize("second", [LISTED, {**LISTED, "description": "Another."}])
@pytest.mark.parametrize("turned", [False, True])
def test_a_tool_that_is_offered_twice_is_called_in_no_order(second: dict[str, Any], turned: bool) -> None:
    offers = [LISTED, {**LISTED, "name": "other"}, second][:: -1 if turned else 1]
    pinned = noted(definition=definition_digest(LISTED))
    why = offered(pinned, "write_note", offers, question=False, repeat=False)
    assert why is not None
    assert held_pin(why.message) == definition_digest(LISTED)
    assert "offers 2 tools of this name" in why.message
    refused = offered(noted(), "write_note", offers, question=False, repeat=False)
    assert refused is not None
    assert (refused.code, refused.retryable) == ("ambiguous_tool", False)


def test_a_changed_definition_is_told_whole_and_a_missing_one_too() -> None:
    pinned = noted(definition=PIN)
    why = offered(pinned, "write_note", [LISTED], question=False, repeat=False)
    assert why is not None
    assert why.code == CHANGED
    outcome = judged(pinned, why)
    assert isinstance(outcome, Refused)
    assert (outcome.code, held_pin(outcome.message)) == (CHANGED, PIN)
    assert held_pin(changed("x" * 128, PIN, "b" * 64)[:500]) == PIN
    gone = offered(pinned, "write_note", [], question=False, repeat=False)
    assert gone is not None
    assert gone.code == CHANGED
    missing = offered(noted(), "write_note", [], question=False, repeat=False)
    assert missing is not None
    assert (missing.code, missing.retryable) == ("unknown_tool", False)
    right = replace(pinned, mcp=Remote("write_note", definition_digest(LISTED)))
    assert offered(right, "write_note", [LISTED], question=False, repeat=False) is None
    assert offered(noted(), "write_note", [LISTED], question=False, repeat=False) is None


def test_the_tool_that_answers_a_lookup_is_held_against_the_pins_of_its_server() -> None:
    tool = noted(Streamable(pins={"find_note": PIN}), definition=definition_digest(LISTED))
    why = offered(tool, "find_note", [{**LISTED, "name": "find_note"}], question=True, repeat=False)
    assert why is not None
    assert why.code == CHANGED
    assert noted(Streamable(pins={"write_note": PIN})).mcp == Remote("write_note", PIN)


@pytest.mark.parametrize(
    ("effect", "contract", "hints", "repeat", "forbids"),
    [
        (Effect.READ, Contract(), {"readOnlyHint": False}, False, True),
        (Effect.READ, Contract(), {}, False, False),
        (Effect.READ, Contract(), {"readOnlyHint": True}, False, False),
        (Effect.IRREVERSIBLE, Contract(), {"readOnlyHint": True}, True, False),
        (Effect.REVERSIBLE, Contract(repeat=Natural()), {"idempotentHint": False}, True, True),
        (Effect.REVERSIBLE, Contract(repeat=Natural()), {"idempotentHint": False}, False, False),
        (Effect.REVERSIBLE, Contract(repeat=Natural()), {"idempotentHint": True}, True, False),
        (Effect.REVERSIBLE, Contract(repeat=Dedupes()), {"idempotentHint": False}, True, False),
    ],
)
def test_hints_may_only_forbid(
    effect: Effect, contract: Contract, hints: dict[str, Any], repeat: bool, forbids: bool
) -> None:
    assert (contradiction(effect, contract, hints, repeat=repeat) is not None) is forbids


def test_a_lookup_by_a_tool_that_is_not_read_only_by_its_own_word_is_not_asked() -> None:
    listed = {**LISTED, "name": "find_note", "annotations": {"readOnlyHint": False}}
    why = offered(noted(), "find_note", [listed], question=True, repeat=False)
    assert why is not None
    assert why.code == "hints_forbid"


def test_the_same_call_is_stored_as_the_same_bytes_with_its_key_where_the_tool_takes_it() -> None:
    tool = noted()
    stored = tool.stored_request(Note(ref="r", text="ü"), "b" * 64)
    assert stored.body == '{"arguments":{"ref":"r","text":"ü"},"name":"write_note"}'.encode()
    assert (stored.method, stored.target) == ("tools/call", URL)
    assert noted(Stdio(command="x")).stored_request(Note(ref="r")).target == "stdio://notes/default"
    carried = noted(key=KeyCarrier(Place.BODY, "arguments.request_id"))
    body = json.loads(carried.stored_request(Note(ref="r"), "b" * 64).body)
    assert body["arguments"]["request_id"] == "b" * 64
    secret = ToolCall("t", {"token": SecretRef("mailbox/anna")}).bind(URL)
    assert b"fencepost-secret-" in secret.body


def test_what_is_approved_names_the_remote_tool_and_its_pin() -> None:
    digests = {
        noted(**said).definition_digest
        for said in ({}, {"definition": PIN}, {"remote": "other"}, {"errors_apply_nothing": True})
    }
    assert len(digests) == 4


def test_a_wrong_declaration_is_one_sentence_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("notes")
    plain = app.dependency("plain", URL)
    with pytest.raises(UsageError, match="needs mcp="):
        plain.mcp("x", arguments=Note, effect=Effect.READ)
    with pytest.raises(UsageError, match="needs a base_url"):
        app.dependency("a", mcp=Streamable())
    with pytest.raises(UsageError, match="is a process"):
        app.dependency("b", URL, mcp=Stdio(command="x"))
    with pytest.raises(UsageError, match="64 hex digits"):
        Streamable(pins={"t": "abc"})
    with pytest.raises(UsageError, match="args= takes a list"):
        Stdio(command="x", args="--flag")
    with pytest.raises(UsageError, match="no name of an MCP tool"):
        Remote("a b")
    server = app.dependency("server", mcp=Stdio(command="x"))
    handle = server.mcp(
        "w",
        arguments=Note,
        effect=Effect.IRREVERSIBLE,
        intent=lambda a: (a.ref,),
        contract=Contract(lookup=Lookup(strong=True)),
        key=KeyCarrier(),
    )
    handle.lookup(lambda args, key: ToolCall("find", {"key": key}))
    told = " ".join(app.check())
    assert "no lookup_parse" in told
    assert "KeyCarrier(Place.BODY" in told
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(UsageError, match=r"pip install 'fencepost\[mcp\]'"):
        mcp.needed(app.dependencies)
    mcp.needed((plain.spec,))


def test_arguments_of_a_tool_can_be_spelled_as_its_server_wants_them() -> None:
    app = App("notes")
    tool = app.dependency("notes", URL, mcp=Streamable()).mcp("w", arguments=Note, effect=Effect.READ)

    @tool.sends
    def spelled(args: Note) -> dict[str, Any]:
        return {"reference": args.ref}

    assert tool(Note(ref="r")) == ToolCall("w", {"reference": "r"})
    assert json.loads(tool.tool.stored_request(Note(ref="r")).body)["arguments"] == {"reference": "r"}


def test_doctor_warns_of_what_is_not_pinned_and_of_what_is_missing() -> None:
    def judge(app: App, *, installed: bool = True, has: bool = True) -> list[tuple[str, str]]:
        found = judge_mcp(app, installed=installed, found=lambda _: has)
        return [(str(one.level), one.says) for one in found]

    assert judge(App("none")) == []
    app = App("notes")
    server = Stdio(command="notes-server", pins={"write_note": PIN})
    notes = app.dependency("notes", mcp=server)
    said: Any = {"arguments": Note, "effect": Effect.READ}
    notes.mcp("note.write", remote="write_note", **said)
    assert judge(app) == [("ok", "every tool of an MCP server is pinned")]
    level, why = judge(app, has=False)[0]
    assert (level, "does not have" in why) == ("warning", True)
    assert judge(app, installed=False)[0][0] == "problem"
    loose = notes.mcp("note.read", remote="read_note", **said)
    ((level, why),) = judge(app)
    assert (level, "note.read v1 is not pinned" in why) == ("warning", True)
    loose.lookup(lambda args, key: ToolCall("find_note", {"key": key}))
    assert len(judge(app)) == 1  # the server pins another tool, which may be the one that is asked
    other = app.dependency("others", mcp=Stdio(command="x"))
    asked = other.mcp("other.write", remote="w", definition=PIN, **said)
    asked.lookup(lambda args, key: ToolCall("find", {"key": key}))
    assert any("what answers the lookup of other.write is not pinned" in why for _, why in judge(app))


def test_what_a_process_is_told_is_hidden_where_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES_TOKEN", "a-token-of-notes")
    app = App("notes")
    env = {"TOKEN": "env:NOTES_TOKEN", "MODE": "plain"}
    spec = app.dependency("notes", mcp=Stdio(command="x", env=env)).spec
    assert mcp.told(spec) == ("a-token-of-notes",)
    hidden = Credentials.of(spec, mcp.told(spec)).hide_sent(result({"id": "a-token-of-notes"}))
    assert b"a-token-of-notes" not in hidden.response.body  # type: ignore[union-attr]
    assert mcp.told(app.dependency("other", URL, mcp=Streamable()).spec) == ()
