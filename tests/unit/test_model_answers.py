"""What a model's answer comes to: every ending of every wire, and no call that is not whole."""

import json
from typing import Any

import pytest

from fencepost.models import Tokens, Wire
from fencepost.proposals import Rejected
from fencepost_workers.models.answers import (
    MAX_CHARS,
    Ending,
    Facts,
    Means,
    Most,
    Piece,
    TooLong,
    Wanted,
    settle,
)
from fencepost_workers.models.chat import Chat
from fencepost_workers.models.failures import failed, unbilled
from fencepost_workers.models.messages import Messages
from fencepost_workers.models.responses import Responses
from tests.unit.model_wires import (
    ASK,
    PAY,
    WIRES,
    Event,
    chat,
    chunk,
    fragment,
    heard,
    judged,
    messages,
    responses,
    wanted,
    whole,
)


@pytest.mark.parametrize("wire", WIRES)
def test_whole_calls_are_taken_in_their_order_with_their_own_text(wire: Wire) -> None:
    answer = heard(wire, whole(wire, [PAY, ASK], "I pay."))
    assert answer.ending is Ending.PROPOSED
    assert wanted(answer) == [PAY, ASK]
    assert answer.text == "I pay."
    reasoning = 0 if wire is Wire.MESSAGES else 7
    assert answer.tokens == Tokens(10, cache_read=4, cache_write=2, output=30, reasoning=reasoning)
    assert answer.tokens.total == 46


@pytest.mark.parametrize("wire", WIRES)
def test_text_and_a_normal_stop_is_a_claim_and_nothing_said_is_none(wire: Wire) -> None:
    claimed = heard(wire, whole(wire, text="All is paid."))
    assert (claimed.ending, claimed.text) == (Ending.CLAIMED, "All is paid.")
    assert heard(wire, whole(wire)).ending is Ending.EMPTY
    assert heard(wire, whole(wire, text=" \n ")).ending is Ending.EMPTY


@pytest.mark.parametrize("wire", WIRES)
def test_no_beginning_of_an_answer_is_an_answer(wire: Wire) -> None:
    events = whole(wire, [PAY], "I pay.")
    ends = 2 if wire is Wire.CHAT else 1  # its usage comes after its end
    for length in range(len(events) - ends + 1):
        answer = heard(wire, events[:length])
        assert answer.ending is Ending.LOST, length
        assert answer.calls == ()
        assert answer.text == ""


CUT = [
    "{",
    '{"amount_minor": 120',
    '{"to": "acct',
    '{"to": "acct\\',
    '{"a": ["}", {"b": 1}',
    '["a", {"b": "}]"',
    '"',
]
ABSENT = ["", " ", "\n", "null", " null "]
WRONG = [
    '{"amount_minor": 120}}',
    '{"amount_minor": 1, "amount_minor": 2}',
    '{"amount_minor": NaN}',
    '{"amount_minor": 1} {"amount_minor": 2}',
    '{"amount_minor": 1,}',
    '["amount_minor", 120]',
    '"{}"',
    "120",
    "true",
]


@pytest.mark.parametrize("arguments", CUT)
@pytest.mark.parametrize("wire", WIRES)
def test_arguments_that_break_off_leave_no_turn_whatever_the_stop_says(wire: Wire, arguments: str) -> None:
    answer = heard(wire, whole(wire, [ASK, ("pay", arguments, "one")]))
    assert answer.ending is Ending.MALFORMED
    assert answer.calls == ()
    assert "call 2" in answer.why


@pytest.mark.parametrize("arguments", WRONG)
@pytest.mark.parametrize("wire", WIRES)
def test_whole_arguments_that_are_wrong_are_refused_alone(wire: Wire, arguments: str) -> None:
    wrong = ("pay", arguments, "one")
    answer = heard(wire, whole(wire, [ASK, wrong]))
    assert (answer.ending, wanted(answer)) == (Ending.PROPOSED, [ASK, wrong])
    assert isinstance(judged(answer.calls[1]), Rejected)


@pytest.mark.parametrize("arguments", ABSENT)
@pytest.mark.parametrize("wire", WIRES)
def test_arguments_that_are_empty_are_none(wire: Wire, arguments: str) -> None:
    none = "{}" if wire is Wire.MESSAGES and not arguments else ""  # its blocks begin with an empty object
    answer = heard(wire, whole(wire, [("list", arguments, "x"), ASK]))
    assert wanted(answer) == [("list", none, "x"), ASK]


def test_a_block_that_began_empty_and_got_no_text_has_no_arguments() -> None:
    assert wanted(heard(Wire.MESSAGES, messages([("list", "", "x")]))) == [("list", "{}", "x")]
    given = messages([("pay", "", "x")])
    given[1]["content_block"]["input"] = {"amount_minor": 120}  # parsed by others, perhaps leniently
    assert heard(Wire.MESSAGES, given).ending is Ending.MALFORMED


STOPS: list[tuple[Wire, list[Event], Ending]] = [
    (Wire.MESSAGES, messages([PAY], stop="max_tokens"), Ending.TRUNCATED),
    (Wire.MESSAGES, messages([PAY], stop="model_context_window_exceeded"), Ending.CONTEXT_EXCEEDED),
    (Wire.MESSAGES, messages([PAY], stop="refusal"), Ending.REFUSED),
    (Wire.MESSAGES, messages([PAY], stop="pause_turn"), Ending.PAUSED),
    (Wire.MESSAGES, messages([PAY], stop="length"), Ending.TRUNCATED),
    (Wire.MESSAGES, messages([PAY], stop="compaction"), Ending.UNKNOWN_STOP),
    (Wire.MESSAGES, messages([PAY], stop=None), Ending.LOST),
    (Wire.MESSAGES, messages(text="I pay."), Ending.MALFORMED),
    (Wire.CHAT, chat([PAY], stop="length"), Ending.TRUNCATED),
    (Wire.CHAT, chat([PAY], stop="content_filter"), Ending.CONTENT_FILTER),
    (Wire.CHAT, chat([PAY], stop="MAX_TOKENS"), Ending.TRUNCATED),
    (Wire.CHAT, chat([PAY], stop="brand_new"), Ending.UNKNOWN_STOP),
    (Wire.CHAT, chat([PAY], stop=""), Ending.LOST),
    (Wire.CHAT, chat([PAY], stop="null"), Ending.LOST),
    (Wire.CHAT, [*chat([PAY]), chunk(stop="length")], Ending.TRUNCATED),
    (Wire.CHAT, [*chat([PAY], stop="length"), chunk(stop="stop")], Ending.MALFORMED),
    (Wire.CHAT, chat(text="I pay."), Ending.MALFORMED),
    (Wire.CHAT, [chunk(refusal="No."), *chat(stop="stop")], Ending.REFUSED),
    (
        Wire.RESPONSES,
        responses([PAY], status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        Ending.TRUNCATED,
    ),
    (
        Wire.RESPONSES,
        responses([PAY], status="incomplete", incomplete_details={"reason": "content_filter"}),
        Ending.CONTENT_FILTER,
    ),
    (
        Wire.RESPONSES,
        responses([PAY], status="incomplete", incomplete_details={"reason": "steered"}),
        Ending.UNKNOWN_STOP,
    ),
    (Wire.RESPONSES, responses([PAY], status="incomplete"), Ending.UNKNOWN_STOP),
    (
        Wire.RESPONSES,
        responses([PAY], status="failed", error={"code": "server_error", "message": "sorry"}),
        Ending.FAILED,
    ),
    (Wire.RESPONSES, [{"type": "response.refusal.delta"}, *responses([PAY])], Ending.REFUSED),
]


@pytest.mark.parametrize(("wire", "events", "ending"), STOPS)
def test_every_stop_reason_has_one_meaning_and_only_one_has_calls(
    wire: Wire, events: list[Event], ending: Ending
) -> None:
    answer = heard(wire, events)
    assert answer.ending is ending
    assert answer.calls == ()
    assert answer.text == ""


WHOLE = ["stop", "STOP", "eos", "tool_use", "function_call", "tool_calls", "end_turn", " Stop "]


@pytest.mark.parametrize("stop", WHOLE)
@pytest.mark.parametrize("made", [chat, messages])
def test_a_whole_answers_stop_reason_has_many_spellings(made: Any, stop: str) -> None:
    wire = Wire.CHAT if made is chat else Wire.MESSAGES
    assert wanted(heard(wire, made([PAY, ASK], stop=stop))) == [PAY, ASK]
    again = made([PAY, ASK], stop=stop)
    again.insert(-1, again[-2])
    assert heard(wire, again).calls == heard(wire, made([PAY, ASK], stop=stop)).calls


def test_a_completed_response_has_to_hold_the_very_calls_that_were_streamed() -> None:
    events = responses([PAY, ASK])
    events[-1]["response"]["output"].pop()
    assert heard(Wire.RESPONSES, events).ending is Ending.MALFORMED
    events = responses([PAY])
    events[-1]["response"]["output"].append(events[-1]["response"]["output"][0])
    assert heard(Wire.RESPONSES, events).ending is Ending.MALFORMED
    for kind in ("response.function_call_arguments.done", "response.output_item.done"):
        events = responses([PAY])
        one = next(event for event in events if event["type"] == kind)
        one.get("item", one)["arguments"] = '{"amount_minor": 12}'
        assert heard(Wire.RESPONSES, events).ending is Ending.MALFORMED
    unfinished = [event for event in responses([PAY]) if event["type"] != "response.output_item.done"]
    assert heard(Wire.RESPONSES, unfinished).ending is Ending.MALFORMED


def test_a_block_without_its_end_and_what_comes_after_the_end_leave_no_turn() -> None:
    events = messages([PAY, ASK])
    stops = [n for n, event in enumerate(events) if event["type"] == "content_block_stop"]
    assert heard(Wire.MESSAGES, events[: stops[0]] + events[stops[0] + 1 :]).ending is Ending.MALFORMED
    late = {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta"}}
    for extra in (late, {"type": "message_start", "message": {}}, {"type": "message_stop"}):
        assert heard(Wire.MESSAGES, [*messages([PAY, ASK]), extra]).ending is Ending.MALFORMED
    again = [*messages([PAY], stop="max_tokens")[:-1], *messages([PAY])[-2:]]
    assert heard(Wire.MESSAGES, again).ending is Ending.MALFORMED
    assert heard(Wire.MESSAGES, messages([PAY])[1:]).ending is Ending.MALFORMED
    goes_on = [*chat([PAY]), chunk(fragment(0, None, " ", None))]
    assert heard(Wire.CHAT, goes_on).ending is Ending.MALFORMED


def test_a_call_that_no_collector_saw_end_is_not_taken_whatever_the_stop_says() -> None:
    begun = Facts(ended=True, stop="tool_use", means=Means.CALLS, calls=[Piece("pay", "one", "{}")])
    assert settle(begun).ending is Ending.MALFORMED
    begun.calls[0].whole = True
    assert settle(begun).ending is Ending.PROPOSED


# -- the rest ------------------------------------------------------------------------------------------------

USAGES: list[tuple[Event, Tokens | None]] = [
    ({"prompt_tokens": 5, "completion_tokens": 3}, Tokens(5, output=3)),
    ({"prompt_tokens": 5}, None),
    ({"prompt_tokens": 5, "completion_tokens": -1}, None),
    ({"prompt_tokens": 5.5, "completion_tokens": 1.0}, Tokens(6, output=1)),
    ({"prompt_tokens": "5", "completion_tokens": 1}, Tokens(5, output=1)),
    ({"prompt_tokens": True, "completion_tokens": 1}, None),
    ({"prompt_tokens": float("inf"), "completion_tokens": 1}, None),
    ({"prompt_tokens": 2**31, "completion_tokens": 1}, None),
    ({"total_tokens": 9}, Tokens(output=9)),
    ({"total_tokens": 9, "prompt_tokens": 5}, Tokens(5, output=4)),
    ({"total_tokens": 9, "completion_tokens": 5, "prompt_tokens": None}, Tokens(4, output=5)),
    (  # the cache stands beside the input
        {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 6}},
        Tokens(5, cache_read=6, output=1),
    ),
    (
        {
            "prompt_tokens": 5,
            "completion_tokens": 1,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 6},
        },
        Tokens(5, cache_read=6, output=1),
    ),
    (  # so does what was thought beside what was said
        {"prompt_tokens": 5, "completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 2}},
        Tokens(5, output=3, reasoning=2),
    ),
    (
        {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 10,
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        Tokens(5, output=5, reasoning=2),
    ),
    ({"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": "none"}, Tokens(5, output=1)),
    (
        {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": -1}},
        Tokens(5, output=1),
    ),
]


@pytest.mark.parametrize(("usage", "tokens"), USAGES)
def test_what_can_be_read_of_a_usage_is_charged(usage: Event, tokens: Tokens | None) -> None:
    answer = heard(Wire.CHAT, [*chat([PAY])[:-1], {"id": "c1", "choices": [], "usage": usage}])
    assert answer.ending is Ending.PROPOSED
    assert answer.tokens == tokens
    assert answer.usage == {name: value for name, value in usage.items() if value is not None}


def test_a_wire_that_counts_on_keeps_what_a_later_event_leaves_out() -> None:
    events = messages([PAY])
    events[-2]["usage"] = {"output_tokens": 31, "input_tokens": None, "cache_read_input_tokens": 9}
    assert heard(Wire.MESSAGES, events).tokens == Tokens(10, cache_read=9, cache_write=2, output=31)
    unsaid = messages([PAY], used=None)
    unsaid[0]["message"]["usage"]["output_tokens"] = 1  # as it began
    assert heard(Wire.MESSAGES, unsaid).tokens is None


def test_errors_within_a_stream_get_the_code_their_status_would_have() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    answer = heard(Wire.MESSAGES, [*messages([PAY])[:-1], error])
    assert (answer.ending, answer.code) == (Ending.FAILED, "http_529")
    answer = heard(Wire.RESPONSES, [{"type": "error", "code": "rate_limit_exceeded", "message": "slowly"}])
    assert (answer.ending, answer.code) == (Ending.FAILED, "http_429")
    full = {"type": "error", "code": "context_length_exceeded", "message": "x"}
    assert heard(Wire.RESPONSES, [full]).ending is Ending.CONTEXT_EXCEEDED
    told = responses(status="failed", error={"code": "invalid_prompt", "message": "prompt is too long"})
    assert heard(Wire.RESPONSES, told).ending is Ending.CONTEXT_EXCEEDED


STATUSES: list[tuple[int | None, Any, Ending, str]] = [
    (429, {"error": {"type": "rate_limit_error", "message": "slowly"}}, Ending.FAILED, "http_429"),
    (503, "<html>", Ending.FAILED, "http_503"),
    (500, None, Ending.FAILED, "http_500"),
    (529, {"error": {"type": "overloaded_error"}}, Ending.FAILED, "http_529"),
    (401, {"error": {"code": "invalid_api_key"}}, Ending.FAILED, "http_401"),
    (400, {"error": {"message": "bad temperature"}}, Ending.FAILED, "http_400"),
    (400, {"error": {"code": "context_length_exceeded"}}, Ending.CONTEXT_EXCEEDED, "http_400"),
    (400, {"error": {"message": "prompt is too long: 9 > 8"}}, Ending.CONTEXT_EXCEEDED, "http_400"),
    (413, {"error": {"type": "request_too_large"}}, Ending.CONTEXT_EXCEEDED, "http_413"),
    (400, {"error": {"code": "content_filter"}}, Ending.CONTENT_FILTER, "http_400"),
    (307, "", Ending.FAILED, "http_307"),
    (None, {"code": "bio_policy", "message": "no"}, Ending.CONTENT_FILTER, "http_400"),
    (200, {"type": "error", "error": {"type": "api_error"}}, Ending.FAILED, "http_500"),
    (None, {"code": "brand_new"}, Ending.FAILED, "http_500"),
    (None, ["?"], Ending.FAILED, "http_500"),
]


@pytest.mark.parametrize(("status", "body", "ending", "code"), STATUSES)
def test_a_providers_error_has_the_code_the_breaker_reads(
    status: int | None, body: Any, ending: Ending, code: str
) -> None:
    assert failed(status, body, "said")[:2] == (ending, code)


@pytest.mark.parametrize("ending", Ending)
def test_only_what_was_turned_away_unread_surely_cost_nothing(ending: Ending) -> None:
    free = {status for status in range(200, 600) if unbilled(status, ending)}
    perhaps_read = {Ending.CONTENT_FILTER, Ending.CONTEXT_EXCEEDED}
    assert free == (set() if ending in perhaps_read else {*range(300, 500), 503, 529} - {408, 424, 499})


def test_parts_that_only_the_model_can_read_are_kept_as_they_came() -> None:
    thought = {"type": "thinking", "thinking": "", "signature": ""}
    start = {"type": "content_block_start", "index": 0, "content_block": thought}
    deltas = [{"type": "thinking_delta", "thinking": "Hm."}, {"type": "signature_delta", "signature": "s1"}]
    more = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    events = [one | ({"index": 1} if "index" in one else {}) for one in messages([PAY])]
    events[1:1] = [start, *more, {"type": "content_block_stop", "index": 0}]
    answer = heard(Wire.MESSAGES, events)
    assert answer.parts == (
        {"opaque": {"type": "thinking", "thinking": "Hm.", "signature": "s1"}},
        {"call": 0},
    )
    assert wanted(answer) == [PAY]
    item = {"type": "reasoning", "id": "rs_1", "encrypted_content": "x", "summary": []}
    at: Event = {"output_index": 0}
    reasoned = [
        {"type": "response.output_item.added", **at, "item": {"type": "reasoning"}},
        {"type": "response.output_item.done", **at, "item": item},
        *(one | ({"output_index": 1} if "output_index" in one else {}) for one in responses([PAY])),
    ]
    assert heard(Wire.RESPONSES, reasoned).parts == ({"opaque": item}, {"call": 0})


def test_an_answer_longer_than_any_may_be_is_not_collected() -> None:
    long = json.dumps({"text": "x" * 50})
    for wire in WIRES:
        for most in (Most(chars=50), Most(events=3)):
            with pytest.raises(TooLong):
                heard(wire, whole(wire, [("say", long, "one")]), most)
        assert heard(wire, whole(wire, [("say", long, "one")]), Most.of(1)).ending is Ending.PROPOSED
    assert Most.of(10).chars < Most.of(100).chars < Most.of(10**9).chars == MAX_CHARS
    assert Most.of(10).events < Most.of(100).events


def deltas(wire: Wire, count: int) -> list[Event]:
    """One call whose arguments come in so many pieces."""
    if wire is Wire.CHAT:
        first, *more, stop, usage = chat([PAY])
        return [first, *[chunk(fragment(0, None, "    ", None))] * count, *more, stop, usage]
    events = whole(wire, [PAY])
    at = next(n for n, event in enumerate(events) if event["type"].endswith("delta"))
    name = "delta" if wire is Wire.RESPONSES else "partial_json"
    blank = json.loads(json.dumps(events[at]))
    (blank if wire is Wire.RESPONSES else blank["delta"])[name] = "    "
    told = json.loads(json.dumps([*events[: at + 1], *[blank] * count, *events[at + 1 :]]))
    return told if isinstance(told, list) else []


@pytest.mark.parametrize("wire", WIRES)
def test_taking_a_piece_makes_no_text_of_those_before(wire: Wire) -> None:
    """Or an answer of many pieces would hold up all the others: their texts would be copied with each."""
    made: dict[Wire, type[Responses | Chat | Messages]] = {
        Wire.RESPONSES: Responses,
        Wire.CHAT: Chat,
        Wire.MESSAGES: Messages,
    }
    collector = made[wire]()
    pieces: set[int] = set()
    for event in deltas(wire, 50):
        collector.take(event)
        pieces |= {len(piece._arguments._parts) for piece in collector.facts.calls}
    assert max(pieces) > 50
    text = collector.facts.calls[0].arguments
    assert text.count(" ") >= 200
    assert collector.facts.calls[0]._arguments._parts == [text]


def test_thoughts_and_words_in_pieces_are_put_together() -> None:
    thought = {"type": "thinking", "thinking": "So", "signature": ""}
    said: list[Event] = [
        {"type": "message_start", "message": {"id": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": thought},
        *[{"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "."}}]
        * 3,
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
        {"type": "content_block_stop", "index": 0},
        *messages(text="Done.", stop="end_turn")[1:],
    ]
    for event in said[-6:]:
        if "index" in event:
            event["index"] = 1
    answer = heard(Wire.MESSAGES, said)
    assert answer.text == "Done."
    thought = {"type": "thinking", "thinking": "So...", "signature": "s"}
    assert answer.parts == ({"opaque": thought}, {"text": "Done."})


NONSENSE: list[Event] = [
    {},
    {"type": None},
    {"type": "content_block_delta", "index": None, "delta": 7},
    {"type": "content_block_stop"},
    {"type": "response.output_item.done", "item": "x"},
    {"type": "response.completed", "response": None},
    {"choices": [None, 3, {"delta": {"tool_calls": [None, "x"]}}]},
    {"choices": "x", "usage": "y", "error": None},
]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("event", NONSENSE)
def test_no_event_breaks_the_judging(wire: Wire, event: Event) -> None:
    assert heard(wire, [event]).calls == ()
    assert heard(wire, [event, *whole(wire, [PAY])]).calls in {(), (Wanted(*PAY),)}
