"""Whose call is it, and who made it: two calls stay two or are none, and nobody but the model proposes."""

import pytest

from fencepost.models import Wire
from fencepost.proposals import Validated
from fencepost_workers.models.answers import Ending
from tests.unit.model_wires import (
    ASK,
    PAY,
    WIRES,
    Event,
    chunk,
    fragment,
    halves,
    heard,
    judged,
    messages,
    responses,
    wanted,
    whole,
)

# -- whose call is it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("label", ["", "same"])
def test_two_calls_under_one_id_or_none_are_two_calls(wire: Wire, label: str) -> None:
    calls = [("pay", PAY[1], label), ("pay", '{"amount_minor": 7, "to": "acct_1"}', label)]
    assert wanted(heard(wire, whole(wire, calls))) == calls


PARTS = halves(PAY[1]), halves(ASK[1])
TWICE = halves('{"amount_minor": 7, "to": "acct_1"}')
NUMBERED: list[tuple[str, list[Event]]] = [
    (
        "index 0 for both, one after the other",
        [
            fragment(0, "pay", PARTS[0][0], "one"),
            fragment(0, None, PARTS[0][1], None),
            fragment(0, "ask", PARTS[1][0], "two"),
            fragment(0, None, PARTS[1][1], None),
        ],
    ),
    (
        "no index at all",
        [
            fragment(None, "pay", PARTS[0][0], "one"),
            fragment(None, None, PARTS[0][1], None),
            fragment(None, "ask", PARTS[1][0], "two"),
            fragment(None, None, PARTS[1][1], None),
        ],
    ),
    (
        "interleaved by index, ids only at the first",
        [
            fragment(0, "pay", PARTS[0][0], "one"),
            fragment(1, "ask", PARTS[1][0], "two"),
            fragment(0, None, PARTS[0][1], None),
            fragment(1, None, PARTS[1][1], None),
        ],
    ),
    (
        "interleaved by id, no index",
        [
            fragment(None, "pay", PARTS[0][0], "one"),
            fragment(None, "ask", PARTS[1][0], "two"),
            fragment(None, None, PARTS[0][1], "one"),
            fragment(None, None, PARTS[1][1], "two"),
        ],
    ),
    (
        "interleaved by id, index 0 for both",
        [
            fragment(0, "pay", PARTS[0][0], "one"),
            fragment(0, "ask", PARTS[1][0], "two"),
            fragment(0, None, PARTS[0][1], "one"),
            fragment(0, None, PARTS[1][1], "two"),
        ],
    ),
    (
        "ids that come late",
        [
            fragment(0, "pay", "", None),
            fragment(0, None, PARTS[0][0], "one"),
            fragment(0, None, PARTS[0][1], None),
            fragment(1, "ask", PARTS[1][0], None),
            fragment(1, None, PARTS[1][1], "two"),
        ],
    ),
    (
        "id and name again with each fragment",
        [
            fragment(0, "pay", PARTS[0][0], "one"),
            fragment(0, "pay", PARTS[0][1], "one"),
            fragment(1, "ask", PARTS[1][0], "two"),
            fragment(1, "ask", PARTS[1][1], "two"),
        ],
    ),
]


@pytest.mark.parametrize(("how", "fragments"), NUMBERED)
def test_servers_number_calls_as_they_like_and_they_stay_two(how: str, fragments: list[Event]) -> None:
    events = [*map(chunk, fragments), chunk(stop="tool_calls")]
    assert wanted(heard(Wire.CHAT, events)) == [PAY, ASK], how
    together = [chunk(*fragments), chunk(stop="tool_calls")]
    assert wanted(heard(Wire.CHAT, together)) == [PAY, ASK], how


AMBIGUOUS: list[tuple[str, list[Event]]] = [
    (
        "interleaved under index 0, ids only at the first",
        [
            fragment(0, "pay", PARTS[0][0], "one"),
            fragment(0, "ask", PARTS[1][0], "two"),
            fragment(0, None, PARTS[0][1], None),
            fragment(0, None, PARTS[1][1], None),
        ],
    ),
    (
        "two of one tool under index 0 and one id",
        [fragment(0, "pay", PAY[1], "same"), fragment(0, "pay", "".join(TWICE), "same")],
    ),
    (
        "two of one tool under index 0 without ids",
        [fragment(0, "pay", PAY[1], None), fragment(0, "pay", "".join(TWICE), None)],
    ),
    ("two of one tool, nothing to tell them by", [fragment(None, "pay", PAY[1], None)] * 2),
    ("a call without a name", [fragment(0, None, PAY[1], "one")]),
    ("a name in pieces", [fragment(0, "pa", "", "one"), fragment(0, "y", PAY[1], None)]),
]


@pytest.mark.parametrize(("how", "fragments"), AMBIGUOUS)
def test_what_could_be_of_two_calls_is_of_none(how: str, fragments: list[Event]) -> None:
    answer = heard(Wire.CHAT, [*map(chunk, fragments), chunk(stop="tool_calls")])
    assert not [call for call in answer.calls if isinstance(judged(call), Validated)], how
    sure = len({(one.get("index"), one.get("id")) for one in fragments}) == 1 and "name" not in how
    assert (answer.ending is Ending.PROPOSED) is sure, how


UNREAD: list[Event] = [
    {
        "choices": [
            {"index": 0, "delXa": {"tool_calls": [fragment(0, None, "", None)]}, "finish_reason": None}
        ]
    },
    chunk({"index": 0, "functXon": {"arguments": ", 1"}}),
    chunk({"index": 0, "function": {"argumXnts": ", 1"}}),
]


@pytest.mark.parametrize("part", UNREAD)
def test_a_part_of_which_nothing_is_understood_leaves_no_turn(part: Event) -> None:
    """Without it the call would go out without what that said, and might be whole all the same."""
    call = chunk(fragment(0, "pay", PAY[1], "one"))
    assert heard(Wire.CHAT, [call, part, chunk(stop="tool_calls")]).ending is Ending.MALFORMED
    nothing = chunk({"index": 0, "function": {"arguments": None}})
    assert heard(Wire.CHAT, [call, nothing, chunk(stop="tool_calls")]).ending is Ending.PROPOSED


def test_blocks_that_take_the_same_place_one_after_the_other_are_two_and_at_once_none() -> None:
    events = messages([PAY, ASK])
    for event in events:
        if "index" in event:
            event["index"] = 0
    assert wanted(heard(Wire.MESSAGES, events)) == [PAY, ASK]
    at_once = [event for event in events if event["type"] != "content_block_stop"]
    assert heard(Wire.MESSAGES, at_once).ending is Ending.MALFORMED
    items = responses([PAY, ASK])
    for event in items:
        if "output_index" in event:
            event["output_index"] = 0
    assert wanted(heard(Wire.RESPONSES, items)) == [PAY, ASK]


# -- who acted -----------------------------------------------------------------------------------------------

HOSTED = ["mcp_call", "code_interpreter_call", "local_shell_call", "web_search_call", "custom_tool_call", ""]


@pytest.mark.parametrize("kind", HOSTED)
def test_what_a_provider_did_itself_is_no_turn_however_the_answer_ends(kind: str) -> None:
    added = {"type": "response.output_item.added", "output_index": 9, "item": {"type": kind}}
    for events in (responses([PAY]), responses([PAY])[:-1], responses(text="Done.")):
        assert heard(Wire.RESPONSES, [added, *events]).ending is Ending.HOSTED
    told = responses([PAY])
    told[-1]["response"]["output"].append({"type": kind})
    assert heard(Wire.RESPONSES, told).ending is Ending.HOSTED


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use", "web_search_tool_result", "brand_new"])
def test_blocks_of_the_providers_own_are_no_turn(kind: str) -> None:
    events = messages([PAY])
    block = {"type": "content_block_start", "index": 9, "content_block": {"type": kind}}
    events[1:1] = [block, {"type": "content_block_stop", "index": 9}]
    assert heard(Wire.MESSAGES, events).ending is Ending.HOSTED


FOREIGN: list[Event] = [
    {"caller": {"type": "program", "caller_id": "p"}},
    {"caller": {"type": "code_execution_20250825", "tool_id": "s"}},
    {"namespace": "payments"},
    {"async": True},
    {"toolset_name": "bank"},
]


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_call_by_anybody_but_the_model_is_no_turn(foreign: Event) -> None:
    events = messages([PAY])
    events[1]["content_block"] |= foreign
    if not {"namespace", "async"} & set(foreign):
        assert heard(Wire.MESSAGES, events).ending is Ending.HOSTED
    items = responses([PAY])
    items[1]["item"] |= foreign
    if "toolset_name" not in foreign:
        assert heard(Wire.RESPONSES, items).ending is Ending.HOSTED
    direct = responses([PAY])
    direct[1]["item"]["caller"] = {"type": "direct"}
    assert wanted(heard(Wire.RESPONSES, direct)) == [PAY]
