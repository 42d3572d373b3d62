"""What a model is told: one result per call in its place, the same bytes each time, within its window."""

import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from fencepost import App, Attempt, Effect, Request
from fencepost.models import AgentSpec, ModelSpec, Wire
from fencepost.states import CallState
from fencepost.views import CallView, Context, TurnView
from fencepost_workers.models.declared import declare, described, schema_of
from fencepost_workers.models.prompt import Prompt, prompt, sent
from fencepost_workers.models.transcript import BYTES_PER_TOKEN, FRAME, UNFINISHED, transcript
from tests.unit.model_wires import WIRES


class Item(BaseModel):
    title: str
    price: int = 0


class Order(BaseModel, extra="allow"):
    order: str
    items: list[Item] = []
    labels: dict[str, str] = {}


app = App("told")
shop = app.dependency("shop", "http://127.0.0.1:1")


@shop.http("orders.find", effect=Effect.READ)
def find(args: Order) -> Request:
    """Find an order."""
    return Request.get("/orders")


@app.python("orders_find", effect=Effect.READ, describe="Another one.")
def find_too(args: Order, attempt: Attempt) -> None:
    """Not said."""


@app.python("a" * 70, effect=Effect.READ)
def long(args: Order, attempt: Attempt) -> None: ...


class Nothing(BaseModel): ...


@app.python("ping", effect=Effect.READ)
def ping(args: Nothing, attempt: Attempt) -> None: ...


DECLARED = declare(app.tools, ["*"])


def model(wire: Wire, name: str = "m", **said: Any) -> ModelSpec:
    return ModelSpec(name=name, wire=wire, model=name, dependency=shop.spec, **said)


def agent(*models: ModelSpec, window: int = 32_000) -> AgentSpec:
    return AgentSpec(models=models, instructions="Help.", window=window)


def made(wire: Wire, context: Context, window: int = 32_000, **said: Any) -> Prompt:
    asked = model(wire, **said)
    return prompt(asked, agent(asked, window=window), DECLARED, context)


def call(turn: int, ordinal: int, state: str = "SUCCEEDED", **said: Any) -> CallView:
    given = {"result": {"found": f"{turn}.{ordinal}"}} if state == "SUCCEEDED" else {"error": "no"}
    shown = {"call_id": "same", "tool": "orders.find", "arguments": {"order": f"{turn}.{ordinal}"}, **given}
    return CallView(state=state, turn=turn, ordinal=ordinal, **(shown | said))


def context(*calls: CallView, turns: tuple[TurnView, ...] = (), **said: Any) -> Context:
    last = max([0, *(c.turn for c in calls), *(t.turn for t in turns)])
    return Context("r", "t", "p", {"order": "o-1"}, last + 1, calls, turns=turns, **said)


Pairs = list[tuple[str, str, str, str]]
"""Id, name, arguments and result, in the order they are told."""


def pairs(wire: Wire, told: Prompt) -> Pairs:
    """Every call with its result; fails where a provider would refuse the transcript."""
    body = json.loads(json.dumps(told.body))
    given: dict[str, str]
    if wire is Wire.RESPONSES:
        called = [i for i in body["input"] if i.get("type") == "function_call"]
        given = {i["call_id"]: i["output"] for i in body["input"] if i.get("type") == "function_call_output"}
        ids = [(c["call_id"], c["name"], c["arguments"]) for c in called]
        assert sum(i.get("type") == "function_call_output" for i in body["input"]) == len(given) == len(ids)
    elif wire is Wire.CHAT:
        ids = []
        given = {}
        waiting: list[str] = []
        for message in body["messages"]:
            if message["role"] == "tool":
                assert message["tool_call_id"] == waiting.pop(0)  # at once after the message that called
                given[message["tool_call_id"]] = message["content"]
                continue
            assert not waiting
            for one in message.get("tool_calls", []):
                waiting.append(one["id"])
                ids.append((one["id"], one["function"]["name"], one["function"]["arguments"]))
        assert not waiting
    else:
        ids, given = _anthropic(body["messages"])
    assert set(given) == {one[0] for one in ids}
    assert len(given) == len(ids)
    return [(*one, given[one[0]]) for one in ids]


def _anthropic(messages: list[dict[str, Any]]) -> tuple[list[tuple[str, str, str]], dict[str, str]]:
    assert [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"] * (
        len(messages) % 2
    )
    ids: list[tuple[str, str, str]] = []
    given: dict[str, str] = {}
    for said, answer in zip(messages[1::2], [*messages[2::2], {"content": []}], strict=False):
        called = [b for b in said["content"] if b["type"] == "tool_use"]
        results = [b for b in answer["content"] if b["type"] == "tool_result"]
        assert [b["id"] for b in called] == [b["tool_use_id"] for b in results]
        assert answer["content"][: len(results)] == results  # before any word
        ids += [(b["id"], b["name"], json.dumps(b["input"], separators=(",", ":"))) for b in called]
        given |= {b["tool_use_id"]: b["content"] for b in results}
    return ids, given


def text_of(told: Prompt) -> str:
    return json.dumps(told.body, ensure_ascii=False)


@pytest.mark.parametrize("wire", WIRES)
def test_every_call_has_one_result_in_its_place_also_one_of_no_tool(wire: Wire) -> None:
    refusal = "unknown_tool: there is no tool 'bank.rob'"
    calls = (
        call(1, 0),
        call(1, 1, "REJECTED", tool="bank.rob", error=refusal),
        call(1, 2, "FAILED", error="http_400: bad"),
        call(2, 0),
    )
    told = pairs(wire, made(wire, context(*calls)))
    assert [one[0] for one in told] == ["c00001000", "c00001001", "c00001002", "c00002000"]
    name = DECLARED.wire("orders.find")
    assert [one[1] for one in told] == [name, "bank_rob", name, name]
    assert [json.loads(one[2])["order"] for one in told] == ["1.0", "1.1", "1.2", "2.0"]
    results = [json.loads(one[3]) for one in told]
    assert results[0]["result"] == {"found": "1.0"}
    assert (results[1]["state"], results[1]["error"]) == ("REJECTED", refusal)
    assert results[2]["error"] == "http_400: bad"


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("state", ["UNKNOWN", "NEEDS_REPAIR", "ACCEPTED_UNKNOWN"])
def test_what_nobody_knows_is_told_as_that_and_not_to_be_proposed_again(wire: Wire, state: str) -> None:
    told = made(wire, context(call(1, 0, state, error="timeout"), call(1, 1)))
    (_, _, _, result), (_, _, _, other) = pairs(wire, told)
    said = json.loads(result)
    assert said["state"] == state
    assert said["warning"] == "it is not known whether this happened; do not propose it again"
    assert "warning" not in json.loads(other)
    if wire is Wire.MESSAGES:
        blocks = told.body["messages"][2]["content"]
        assert [block["is_error"] for block in blocks] == [True, False]


@pytest.mark.parametrize("state", sorted(CallState))
def test_every_state_that_is_no_known_end_carries_a_warning(state: CallState) -> None:
    known = state in {"SUCCEEDED", "FAILED", "REJECTED", "CANCELLED"}
    assert (call(1, 0, state).warning is None) is known


@pytest.mark.parametrize("wire", WIRES)
def test_the_same_ledger_gives_the_same_bytes(wire: Wire) -> None:
    def rebuilt() -> Context:
        calls = (call(1, 0, result={"b": 1, "a": "ü\u200b"}, untrusted=True), call(2, 0, "UNKNOWN"))
        return context(*calls, turns=(TurnView(1, "Ich suche."), TurnView(2, "", None)))

    first, second = made(wire, rebuilt()), made(wire, rebuilt())
    assert text_of(first) == text_of(second)
    assert (first.digest, first.tokens) == (second.digest, second.tokens)
    assert "\u200b" not in text_of(first)  # what nobody sees is spelled out
    assert "written by others" in text_of(first)
    other = context(call(1, 0), call(2, 0, "UNKNOWN"))
    assert made(wire, other).digest != first.digest


@pytest.mark.parametrize("wire", WIRES)
def test_a_window_leaves_out_whole_turns_from_the_oldest_and_never_the_input_or_the_latest(
    wire: Wire,
) -> None:
    calls = [call(turn, n, result="x" * 400) for turn in range(1, 9) for n in range(2)]
    turns = tuple(TurnView(turn, f"turn {turn}") for turn in range(1, 9))
    whole = context(*calls, turns=turns)
    seen = set()
    for window in range(200, 6000, 150):
        told = made(wire, whole, window)
        ids = [one[0] for one in pairs(wire, told)]
        kept = 8 - told.left_out
        first = told.left_out + 1
        assert ids == [f"c0000{turn}00{n}" for turn in range(first, 9) for n in range(2)]
        assert kept >= 1
        assert kept == 1 or told.tokens <= window
        assert '{\\"order\\": \\"o-1\\"}' in text_of(told)
        assert (f"({told.left_out} earlier turns" in text_of(told)) is bool(told.left_out)
        assert ("turn 8" in text_of(told), "turn 1" in text_of(told)) == (True, told.left_out == 0)
        seen.add(told.left_out)
    assert seen == set(range(8))


@pytest.mark.parametrize("wire", WIRES)
def test_the_estimate_is_about_the_bytes_that_are_sent(wire: Wire) -> None:
    calls = [call(turn, n, result="ü" * 300) for turn in range(1, 5) for n in range(3)]
    told = made(wire, context(*calls, turns=(TurnView(1, "Ja."),)))
    sent = len(json.dumps(told.body, ensure_ascii=False, separators=(",", ":")).encode())
    assert 0.8 * sent < told.tokens * BYTES_PER_TOKEN < 1.25 * sent


@pytest.mark.parametrize("wire", WIRES)
def test_a_single_turn_beyond_the_window_has_its_results_cut(wire: Wire) -> None:
    calls = [call(1, n, result="x" * 9000) for n in range(4)]
    told = made(wire, context(*calls), 4000)
    assert (told.left_out, told.cut) == (0, 4)
    results = [json.loads(one[3]) for one in pairs(wire, told)]
    assert [result["truncated"] for result in results] == [True] * 4
    assert told.tokens <= 4000
    assert made(wire, context(*calls), 20_000).cut == 0


def test_the_note_of_what_is_left_out_has_its_room() -> None:
    """At any window: what is told, the note with it, is not more than is said of it."""
    whole = context(*(call(turn, 0, result="x" * 500) for turn in range(1, 12)))
    for window in range(600, 3000, 7):
        told = transcript(whole, DECLARED, window=window, fixed=0, asked="")
        texts = sum(exchange.size for exchange in told.exchanges)
        assert texts + len(told.first) + 2 * FRAME == told.size <= window * BYTES_PER_TOKEN, window


@pytest.mark.parametrize("wire", WIRES)
def test_an_objection_an_unfinished_turn_and_a_lost_answer_are_said(wire: Wire) -> None:
    turns = (TurnView(1, "Done.", "the parcel is not booked"), TurnView(2, ""), TurnView(3, "Well."))
    told = text_of(made(wire, context(turns=turns)))
    assert told.index("Done.") < told.index("the parcel is not booked") < told.index(UNFINISHED)
    assert told.count(UNFINISHED) == 2
    assert "cut off" not in told
    lost = text_of(made(wire, context(turns=turns, lost="truncated")))
    assert lost.index("Well.") < lost.index("cut off")
    assert "complete and valid JSON" in text_of(made(wire, context(lost="malformed_turn")))
    assert made(wire, context(lost="http_503")).digest == made(wire, context()).digest


def test_opaque_parts_go_back_to_the_model_they_came_from_and_to_no_other() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    turns = (TurnView(1, "", None, "anthropic.messages", "m", ({"opaque": thought},)),)
    whole = context(call(1, 0), turns=turns)
    assert made(Wire.MESSAGES, whole).body["messages"][1]["content"][0] == thought
    assert "Hm." not in text_of(made(Wire.MESSAGES, whole, name="other"))
    assert "Hm." not in text_of(made(Wire.RESPONSES, whole))


@pytest.mark.parametrize("wire", WIRES)
def test_half_characters_and_arguments_that_are_no_object_can_be_sent(wire: Wire) -> None:
    calls = (call(1, 0, "REJECTED", arguments='{"a": 1, "a"'), call(1, 1, result="\ud800"))
    told = made(wire, context(*calls, turns=(TurnView(1, "x\udc00"),)))
    assert text_of(told).encode()
    assert json.loads(pairs(wire, told)[0][2]) == {"not_an_object": '{"a": 1, "a"'}


def test_what_is_sent_beside_the_turns_is_what_each_wire_wants() -> None:
    bodies = {wire: made(wire, context(), max_output=77).body for wire in WIRES}
    first = bodies[Wire.RESPONSES]
    assert (first["max_output_tokens"], first["store"]) == (77, False)
    assert bodies[Wire.CHAT]["max_completion_tokens"] == 77
    assert bodies[Wire.MESSAGES]["max_tokens"] == 77
    older = made(Wire.CHAT, context(), max_output=5, parameters={"max_tokens": 5}).body
    assert "max_completion_tokens" not in older
    for body in bodies.values():
        assert not {"temperature", "top_p", "top_k", "stream"} & set(body)
    nothing = declare(app.tools, [])
    for wire in WIRES:
        bare = prompt(model(wire), agent(model(wire)), nothing, context())
        assert "tools" not in bare.body


@pytest.mark.parametrize("wire", WIRES)
def test_the_digest_and_the_size_are_of_all_that_is_sent(wire: Wire) -> None:
    plain, warm = made(wire, context()), made(wire, context(), parameters={"temperature": 1})
    assert plain.digest != warm.digest
    assert warm.tokens > plain.tokens
    asked = model(wire, parameters={"temperature": 1})
    whole = json.dumps(sent(asked, warm.body), ensure_ascii=False, separators=(",", ":"))
    assert warm.digest == hashlib.sha256(whole.encode()).hexdigest()
    assert (sent(asked, warm.body)["temperature"], sent(asked, warm.body)["stream"]) == (1, True)


def test_names_fit_the_wire_and_lead_back_to_one_tool_each() -> None:
    told = {tool.name for tool in DECLARED.tools}
    assert len(told) == len(app.tools) == 4
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in told)
    assert {DECLARED.tool(name) for name in told} == set(app.tools)
    assert DECLARED.tool("orders_find") == "orders_find"
    assert DECLARED.tool(DECLARED.wire("orders.find")) == "orders.find"
    assert DECLARED.tool("bank_rob") == "bank_rob"
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", DECLARED.wire("höhö böse\n" * 20))
    assert declare(app.tools, ["orders.*"]).told == {"orders.find": "orders_find"}


def test_no_arguments_are_an_empty_object_for_a_tool_that_takes_none_and_wrong_for_others() -> None:
    assert [DECLARED.arguments("ping", one) for one in ("", "{}", "[]")] == ["{}", "{}", "[]"]
    told = DECLARED.wire("orders.find")
    assert [DECLARED.arguments(name, "") for name in (told, "nobody's")] == ["", ""]
    assert DECLARED.arguments(told, "{}") == "{}"


def test_a_tool_is_described_and_its_schema_is_closed_but_for_maps() -> None:
    tools = app.tools
    assert described(tools["orders.find"]) == "Find an order."
    assert described(tools["orders_find"]) == "Another one."
    assert described(tools["a" * 70]) == ""
    schema = schema_of(tools["orders.find"])
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Item"]["additionalProperties"] is False
    assert set(schema["$defs"]["Item"]["properties"]) == {"title", "price"}
    assert schema["properties"]["labels"]["additionalProperties"] == {"type": "string"}
    assert schema["required"] == ["order"]


def test_only_the_latest_turns_are_looked_at_however_long_the_run_is() -> None:
    looked: list[int] = []

    class Watched(CallView):
        def channel(self) -> str:
            looked.append(self.turn)
            return super().channel()

    calls = [Watched("", "orders.find", {}, "SUCCEEDED", "x" * 300, turn=n) for n in range(1, 2001)]
    told = transcript(context(*calls), DECLARED, window=3000, fixed=0, asked="")
    assert told.left_out > 1900
    assert len(looked) == len(told.exchanges) + 1
    assert replace(told, exchanges=()).first.startswith('{"order"')
