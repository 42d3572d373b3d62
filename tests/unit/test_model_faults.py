"""Answers that nobody can have meant: whatever of one is not understood, none of it is used."""

import asyncio
import json
from typing import Any

import pytest

from fencepost.models import Wire
from fencepost.proposals import Validated
from fencepost_workers.models import Providers
from fencepost_workers.models.answers import Answer, Ending, broken
from fencepost_workers.models.responses import Responses
from tests.unit.model_wires import ASK, PAY, Event, chunk, fragment, heard, judged, messages, whole
from tests.unit.test_model_requests import NOW, provider

# -- arguments that would be lost ----------------------------------------------------------------------------

ODD: list[Event] = [
    {"type": "input_json_patch", "partial_json": '{"amount_minor": 7}'},
    {"type": "citations_delta", "citation": {}},
    {"partial_json": '{"amount_minor": 7}'},
    {"type": "input_json_delta", "partial_json": {"amount_minor": 7}},
    {"type": "input_json_delta"},
]


@pytest.mark.parametrize("delta", ODD)
def test_a_part_of_a_call_that_is_not_understood_leaves_no_turn(delta: Event) -> None:
    events = messages([("purge", "", "one")])
    events[2]["delta"] = delta
    assert heard(Wire.MESSAGES, events).ending is Ending.MALFORMED
    events = messages([PAY])
    events.insert(3, {"type": "content_block_delta", "index": 0, "delta": delta})
    assert heard(Wire.MESSAGES, events).ending is Ending.MALFORMED


def test_a_part_of_a_text_that_is_not_understood_is_left_out() -> None:
    events = messages(text="Done.", stop="end_turn")
    events.insert(3, {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta"}})
    answer = heard(Wire.MESSAGES, events)
    assert (answer.ending, answer.text) == (Ending.CLAIMED, "Done.")


@pytest.mark.parametrize("given", [[], "", 0, False, [1], {"amount_minor": 7}, "{}"])
def test_a_call_that_begins_with_anything_but_an_empty_object_leaves_no_turn(given: Any) -> None:
    events = messages([("purge", "", "one")])
    events[1]["content_block"]["input"] = given
    assert heard(Wire.MESSAGES, events).ending is Ending.MALFORMED


def test_arguments_of_chat_that_are_no_text_are_what_they_say_or_are_refused() -> None:
    odd: Any
    whole = {"to": "acct_9"}
    for odd, more in ((whole, ""), (whole, "{}"), ([7], ""), (7, ""), (True, "")):
        events = [chunk(fragment(0, "pay", odd, "one")), chunk(fragment(0, None, more, None))]
        (call,) = heard(Wire.CHAT, [*events, chunk(stop="tool_calls")]).calls
        assert isinstance(judged(call), Validated) is (isinstance(odd, dict) and not more)


FILTERED = {
    "content_filter_results": {"hate": {"filtered": False}},
    "content_filter_offsets": {"end_offset": 9},
}
BESIDE: list[list[Any]] = [
    [],
    [{}],
    [None],
    [{"delta": []}],
    [{"index": 0, "finish_reason": None, **FILTERED}],
    [{"index": 0, "finish_reason": None, "delta": None, "logprobs": None, **FILTERED}],
]
UNKNOWN: list[Any] = [{"text": "}"}, {"message": {"content": "No."}}, {"delta": "x"}, {"delta": [7]}, 7]


@pytest.mark.parametrize("choices", BESIDE)
def test_what_is_told_about_an_answer_of_chat_spoils_nothing_of_it(choices: list[Any]) -> None:
    beside = {"id": "", "object": "", "choices": choices}
    made = {Ending.PROPOSED: whole(Wire.CHAT, [PAY]), Ending.CLAIMED: whole(Wire.CHAT, text="Done.")}
    for ending, events in made.items():
        for n in range(1, len(events) + 1):
            assert heard(Wire.CHAT, [*events[:n], beside, *events[n:]]).ending is ending


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_what_may_be_a_part_of_an_answer_of_chat_leaves_no_turn(unknown: Any) -> None:
    first, *rest = whole(Wire.CHAT, [PAY])
    assert heard(Wire.CHAT, [first, {"choices": [unknown]}, *rest]).ending is Ending.MALFORMED


# -- two voices about whose call it is -----------------------------------------------------------------------

CROSSED: list[list[Event]] = [
    [
        fragment(0, "pay", '{"amount_minor": 1', "one"),
        fragment(1, "pay", '{"amount_minor": 2', "two"),
        fragment(1, None, "00}", "one"),
        fragment(0, None, "}", "two"),
    ],
    [
        fragment(0, "pay", "{}", "one"),
        fragment(1, "pay", '{"amount_minor": 2', "two"),
        fragment(0, None, "}", "two"),
    ],
    [
        fragment(0, "pay", '{"amount_minor": 1', None),
        fragment(1, "pay", '{"amount_minor": 2', "two"),
        fragment(0, None, "}", "two"),
        fragment(1, None, "}", None),
    ],
    [  # one id for all is two calls where each begins with it; where it comes late, nobody can tell
        fragment(0, "pay", "", None),
        fragment(1, "pay", "", None),
        fragment(0, None, "{}", "same"),
        fragment(1, None, "{}", "same"),
    ],
]


@pytest.mark.parametrize("fragments", CROSSED)
def test_an_id_of_another_index_than_its_own_leaves_no_turn(fragments: list[Event]) -> None:
    answer = heard(Wire.CHAT, [*map(chunk, fragments), chunk(stop="tool_calls")])
    assert answer.ending is Ending.MALFORMED
    assert answer.calls == ()


# -- places and events that are none -------------------------------------------------------------------------

PLACES: list[Any] = [[0], {"0": 0}, "first", True, 1.5]


@pytest.mark.parametrize("odd", PLACES)
@pytest.mark.parametrize("wire", list(Wire))
def test_what_is_no_place_in_an_answer_leaves_no_turn(wire: Wire, odd: Any) -> None:
    name = {Wire.RESPONSES: "output_index", Wire.MESSAGES: "index"}.get(wire)
    events = json.loads(json.dumps(whole(wire, [ASK, PAY])))
    if name is not None:
        for event in events:
            if event.get(name) == 1:
                event[name] = odd
    else:
        events[-3]["choices"][0]["delta"] |= {"tool_calls": [fragment(odd, None, " ", None)]}
    assert heard(wire, events).ending is Ending.MALFORMED
    assert heard(wire, [{**event, "type": odd} for event in events]).calls == () or name is None


def test_a_choice_that_is_in_no_place_leaves_no_turn() -> None:
    for odd in PLACES:
        events = json.loads(json.dumps(whole(Wire.CHAT, [PAY])))
        events[0]["choices"][0]["index"] = odd
        assert heard(Wire.CHAT, events).ending is Ending.MALFORMED


DEEP = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize("wire", list(Wire))
def test_an_event_that_breaks_its_reader_is_no_turn_and_what_was_said_before_is_kept(wire: Wire) -> None:
    start = {"type": "response.created", "response": {"id": "r1"}}
    if wire is Wire.MESSAGES:
        start = {"type": "message_start", "message": {"id": "r1"}}
    first = {"id": "r1", "choices": []} if wire is Wire.CHAT else start
    events = [first, *([] if wire is Wire.CHAT else whole(wire, [PAY])[1:3])]
    lines = [f"event: {event.get('type', 'x')}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
    kind = b"event: content_block_delta\n" if wire is Wire.MESSAGES else b""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        writer.write(b"".join(lines) + kind + b"data: " + DEEP + b"\n\n")

    async def ask() -> Answer:
        async with provider(answer) as asked:
            providers = Providers()
            told = await providers.ask(asked.model(wire), {"model": "m"}, 30, NOW)
            await providers.aclose()
            return told.answer

    found = asyncio.run(ask())
    assert found.ending is Ending.MALFORMED
    assert "cannot be read" in found.why
    assert found.response == "r1"


def test_a_provider_that_acted_is_told_of_also_where_its_answer_breaks_off() -> None:
    collector = Responses()
    added = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "mcp_call"}}
    collector.take(added)
    assert broken(collector.facts, Ending.LOST, "x").ending is Ending.HOSTED
