"""What a model alone can read goes back to it where it stood: thoughts, before what came of them."""

import json
import re
from typing import Any

import pytest

from fencepost.models import Wire
from fencepost.views import TurnView
from fencepost_workers.models.answers import Answer, Ending
from fencepost_workers.models.hiding import hidden
from fencepost_workers.tools.credentials import Credentials
from tests.unit.model_wires import PAY, Event, chat, chunk, fragment, heard, messages
from tests.unit.test_model_prompt import call, context, made


def test_parts_are_in_the_order_in_which_they_began() -> None:
    kinds: list[Event] = [
        {"type": "thinking", "thinking": "a", "signature": "s"},
        {"type": "text", "text": "I pay."},
        {"type": "redacted_thinking", "data": "b"},
        {"type": "tool_use", "id": "one", "name": "pay", "input": {}},
        {"type": "thinking", "thinking": "c", "signature": "s"},
        {"type": "tool_use", "id": "two", "name": "pay", "input": {}},
    ]
    begun: list[Event] = [
        {"type": "content_block_start", "index": n, "content_block": kind} for n, kind in enumerate(kinds)
    ]
    done: list[Event] = [{"type": "content_block_stop", "index": n} for n in reversed(range(len(kinds)))]
    whole = messages(stop="tool_use")
    answer = heard(Wire.MESSAGES, [whole[0], *begun, *done, *whole[1:]])
    thought, text, redacted, _, later, _ = kinds
    told = [{"opaque": thought}, {"text": text["text"]}, {"opaque": redacted}, {"call": 0}, {"opaque": later}]
    assert list(answer.parts) == [*told, {"call": 1}]
    assert heard(Wire.MESSAGES, messages([PAY], "I pay.")).parts == ()  # nothing in it is opaque


def test_parts_that_hold_a_secret_are_told_to_nobody_since_none_could_be_changed() -> None:
    secret = Credentials(("sk-secret-of-this-test",))
    for told in ("I pay.", "It is sk-secret-of-this-test."):
        thought = {"type": "thinking", "thinking": told, "signature": "s"}
        kept = Answer(Ending.CLAIMED, text="Paid.", parts=({"opaque": thought}, {"text": "Paid."}))
        assert (hidden(kept, secret).parts == kept.parts) is ("secret" not in told)


PARTS: dict[Wire, list[dict[str, Any]]] = {
    Wire.MESSAGES: [
        {"type": "thinking", "thinking": "first", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "thinking", "thinking": "last", "signature": "s"},
    ],
    Wire.RESPONSES: [{"type": "reasoning", "id": f"rs_{n}", "encrypted_content": "x"} for n in range(3)],
}


@pytest.mark.parametrize("wire", PARTS)
def test_opaque_parts_go_back_where_they_stood(wire: Wire) -> None:
    first, second, third = PARTS[wire]
    parts: tuple[dict[str, Any], ...] = (
        {"opaque": first},
        {"text": "I look."},
        {"opaque": second},
        {"call": 1},
        {"opaque": third},
    )
    kepts: list[tuple[dict[str, Any], ...]] = [
        (*parts, {"call": 0}),
        parts,  # what is not in them comes last, and each once
        (*parts, {"call": 1}, {"call": 9}, {"call": "x"}, {}, {"opaque": 7}),
    ]
    for kept in kepts:
        turns = (TurnView(1, "I look.", None, str(wire), "m", kept),)
        body = made(wire, context(call(1, 0), call(1, 1), turns=turns)).body
        said = body["messages"][1]["content"] if wire is Wire.MESSAGES else body["input"][1:-2]
        told = [one if one in PARTS[wire] else one.get("id", one.get("call_id", "text")) for one in said]
        assert told == [first, "text", second, "c00001001", third, "c00001000"]


SIGNED = {"google": {"thought_signature": "sig-a"}}
THOUGHT: list[tuple[list[Event], dict[str, Any]]] = [
    ([{"reasoning_content": "I "}, {"reasoning_content": "look."}], {"reasoning_content": "I look."}),
    ([{"reasoning_content": ""}], {"reasoning_content": ""}),
    ([{"reasoning": "I "}, {"reasoning": "look."}], {"reasoning": "I look."}),
    ([{"extra_content": SIGNED}], {"extra_content": SIGNED}),
    (  # the blocks say what the text says, each piece of them under index 0
        [
            {"reasoning": "I ", "reasoning_details": [{"type": "reasoning.text", "text": "I ", "index": 0}]},
            {"reasoning": "look.", "reasoning_details": [{"type": "reasoning.text", "text": "look."}]},
            {"reasoning_details": [{"type": "reasoning.text", "signature": "s", "text": ""}]},
            {"reasoning_details": [{"type": "reasoning.text", "text": "On.", "index": 0}]},
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "id": "r1"}]},
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "y", "id": "r2"}]},
        ],
        {
            "reasoning_details": [
                {"type": "reasoning.text", "text": "I look.", "index": 0, "signature": "s"},
                {"type": "reasoning.text", "text": "On.", "index": 0},
                {"type": "reasoning.encrypted", "data": "x", "id": "r1"},
                {"type": "reasoning.encrypted", "data": "y", "id": "r2"},
            ]
        },
    ),
]


@pytest.mark.parametrize(("deltas", "told"), THOUGHT)
def test_what_a_model_of_chat_thought_goes_back_under_the_name_it_had(
    deltas: list[Event], told: dict[str, Any]
) -> None:
    signed = {**fragment(1, "pay", "{}", "two"), "extra_content": SIGNED}
    late: Event = {"index": 0, "extra_content": {"google": {"thought_signature": "sig-b"}}}
    events = [*(chunk(**delta) for delta in deltas), *chat([PAY])[:-2], chunk(signed), chunk(late)]
    answer = heard(Wire.CHAT, [*events, chunk(stop="tool_calls")])
    assert len(answer.calls) == 2
    raw = json.loads(json.dumps([dict(part) for part in answer.parts]))
    turns = (TurnView(1, "", None, str(Wire.CHAT), "m", tuple(raw)),)
    calls = (call(1, 0), call(1, 1), call(2, 0))
    said = [m for m in made(Wire.CHAT, context(*calls, turns=turns)).body["messages"] if "tool_calls" in m]
    assert {name: said[0][name] for name in said[0] if name not in ("role", "content", "tool_calls")} == told
    signs = [one.get("extra_content") for one in said[0]["tool_calls"]]
    assert signs == [late["extra_content"], SIGNED]
    # A turn that thought nothing says so to a model that thinks.
    assert said[1].get("reasoning_content") == ("" if "reasoning_content" in told else None)
    other = (TurnView(1, "", None, str(Wire.CHAT), "another", tuple(raw)),)
    assert "sig-" not in json.dumps(made(Wire.CHAT, context(*calls, turns=other)).body)


@pytest.mark.parametrize("wire", list(Wire))
def test_call_ids_are_of_nine_letters_and_digits_and_no_two_are_alike(wire: Wire) -> None:
    places = [(1, 0), (1, 1), (1, 35), (1, 36), (36, 0), (36**2 + 5, 127), (99_999, 46_655)]
    body = json.dumps(made(wire, context(*(call(*place) for place in places))).body)
    found = re.findall(r'"(?:id|call_id)": "(.*?)"', body)
    assert len({*found}) == len(places)
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", one) for one in found)
