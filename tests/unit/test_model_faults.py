"""Answers that nobody can have meant: whatever of one is not understood, none of it is used."""

from typing import Any

import pytest

from fencepost.models import Wire
from fencepost_workers.models.answers import Ending
from tests.unit.model_wires import PAY, Event, chunk, fragment, heard, messages

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


def test_arguments_of_chat_that_are_no_text_leave_no_turn() -> None:
    odd: Any = {"amount_minor": 7}
    events = [chunk(fragment(0, "pay", odd, "one")), chunk(fragment(0, None, "{}", None))]
    assert heard(Wire.CHAT, [*events, chunk(stop="tool_calls")]).ending is Ending.MALFORMED


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
