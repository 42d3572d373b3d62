import codecs
import dataclasses
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel

from fencepost.canonical import marked
from fencepost.contracts import Contract, Dedupes, Effect, FirstFailure
from fencepost.errors import NotApplied
from fencepost.outcomes import (
    Answered,
    Applied,
    Lost,
    NotSent,
    Outcome,
    Refused,
    Unsure,
    classify,
    classify_lookup,
)
from fencepost.output import KEPT_OF_CUT, MAX_OUTPUT_BYTES, Output
from fencepost.tools import Absent, Found, Response, Tool, Unclear
from tests.typing.user_code import Debit, DebitReceipt, debit, level

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
REPLAYED = {"idempotent-replayed": "true"}
PLAIN = dataclasses.replace(debit.tool, parse=None, lookup_parse=None)
RAW = dataclasses.replace(PLAIN, returns=None, succeeded=lambda _response: True)
ARGS = Debit(order_id="o-1", amount=5)


def outcome(
    tool: Tool, status: int, body: bytes | str = b"", headers: dict[str, str] | None = None
) -> Outcome:
    data = body.encode() if isinstance(body, str) else body
    return classify(tool, Answered(Response(status, headers or {}, data)), now=NOW)


# The wire


def test_a_request_that_never_left_is_refused_and_may_be_tried_again() -> None:
    found = classify(debit.tool, NotSent("connect_failed", "refused"), now=NOW)
    assert found == Refused("connect_failed", "refused", retryable=True)


@pytest.mark.parametrize("code", ["timeout", "oversize", "connection_lost"])
def test_a_lost_answer_proves_nothing(code: str) -> None:
    assert classify(debit.tool, Lost(code, "gone\0"), now=NOW) == Unsure(code, "gone\\u0000")


# Statuses


def test_a_listed_status_is_a_refusal_before_the_tool_sees_it() -> None:
    def never(_response: Response) -> None:
        raise AssertionError

    tool = dataclasses.replace(debit.tool, parse=never)
    assert outcome(tool, 422, "no") == Refused("http_422", "no", retryable=False)
    assert outcome(tool, 503, "no") == Refused("http_503", "no", retryable=True)


def test_a_429_says_when_to_come_back() -> None:
    found = outcome(debit.tool, 429, "", {"retry-after": "7"})
    assert found == Refused("http_429", "", retryable=True, retry_after=timedelta(seconds=7))


@pytest.mark.parametrize(
    "status", [100, 101, 301, 302, 304, 307, 400, 401, 403, 404, 408, 410, 500, 502, 504, 599]
)
def test_a_status_the_contract_does_not_list_proves_nothing(status: int) -> None:
    assert outcome(debit.tool, status, "?") == Unsure(f"http_{status}", "?")


def test_a_contract_that_lists_nothing_refuses_nothing() -> None:
    bare = dataclasses.replace(debit.tool, contract=Contract())
    for status in (400, 402, 409, 422, 429, 503):
        assert isinstance(outcome(bare, status), Unsure)


def test_the_first_still_running_is_never_a_failure() -> None:
    assert outcome(debit.tool, 409, "busy") == Unsure("in_progress", "busy")


# Stored first answers


def test_a_marked_replay_speaks_for_the_key() -> None:
    found = outcome(debit.tool, 402, "no", REPLAYED)
    assert found == Refused("http_402", "no", retryable=False, final_answer_stored=True)
    assert outcome(debit.tool, 503, "", {"idempotent-replayed": "True "}) == Refused(
        "http_503", "", retryable=False, final_answer_stored=True
    )


def test_without_the_marker_a_refusal_speaks_for_its_attempt_only() -> None:
    for headers in ({}, {"idempotent-replayed": "false"}, {"idempotent-replayed": ""}):
        found = outcome(debit.tool, 402, "", headers)
        assert isinstance(found, Refused)
        assert not found.final_answer_stored


@pytest.mark.parametrize(
    "repeat",
    [
        Dedupes(first_failure=FirstFailure.RELEASED, replay_marker=("idempotent-replayed", "true")),
        Dedupes(first_failure=FirstFailure.UNKNOWN, replay_marker=("idempotent-replayed", "true")),
        Dedupes(first_failure=FirstFailure.REPLAYED),
    ],
)
def test_a_marker_counts_only_where_first_failures_are_stored(repeat: Dedupes) -> None:
    tool = dataclasses.replace(debit.tool, contract=Contract(repeat=repeat, not_applied=frozenset({402})))
    found = outcome(tool, 402, "", REPLAYED)
    assert isinstance(found, Refused)
    assert not found.final_answer_stored


def test_a_replayed_500_is_named_and_still_no_proof() -> None:
    assert outcome(debit.tool, 500, "", REPLAYED) == Unsure("replayed_500", "")


def test_a_replayed_500_goes_to_a_person_where_nothing_can_be_asked() -> None:
    blind = dataclasses.replace(debit.tool, lookup=None, lookup_parse=None)
    assert outcome(blind, 500, "", REPLAYED) == Unsure("replayed_500", "", repair=True)
    assert outcome(blind, 500) == Unsure("http_500", ""), "a failure of its own may pass"


def test_a_refusal_in_a_replayed_body_speaks_for_the_key() -> None:
    found = outcome(debit.tool, 200, '{"state": "declined", "reason": "no funds"}', REPLAYED)
    assert found == Refused("declined", "no funds", retryable=False, final_answer_stored=True)


# Answers for another request

OTHER = Unsure("other_request", "the downstream answered this key for another request", repair=True)


def equal(args: Debit, result: Any) -> bool:
    return bool((result["amount"] if isinstance(result, dict) else result.amount) == args.amount)


@pytest.mark.parametrize("tool", [debit.tool, RAW], ids=["with a parse", "as it is"])
def test_an_answer_is_compared_with_what_was_sent(tool: Tool) -> None:
    comparing = dataclasses.replace(tool, same=equal)

    def told(amount: int, args: Any = ARGS) -> Outcome:
        body = json.dumps({"id": "d-1", "amount": amount, "state": "done"}).encode()
        return classify(comparing, Answered(Response(200, {}, body)), now=NOW, args=args)

    assert isinstance(told(5), Applied)
    assert told(6) == OTHER
    assert isinstance(told(6, args=None), Applied), "nobody said what was sent"


def test_an_answer_that_cannot_be_compared_proves_nothing() -> None:
    comparing = dataclasses.replace(RAW, same=equal)
    body = Answered(Response(200, {}, b'{"id": "d-1"}'))
    assert classify(comparing, body, now=NOW, args=ARGS) == Unsure(
        "incomparable_answer", "KeyError: 'amount'"
    )


def test_a_lookup_that_finds_another_request_says_so() -> None:
    comparing = dataclasses.replace(RAW, same=equal)

    def ask(amount: str) -> Found | Absent | Unclear:
        body = f'{{"id": "d-1"{amount}}}'.encode()
        return classify_lookup(comparing, ARGS, Answered(Response(200, {}, body)))

    assert ask(', "amount": 5') == Found("d-1", {"id": "d-1", "amount": 5})
    assert ask(', "amount": 6') == Found("d-1", {"id": "d-1", "amount": 6}, same_arguments=False)
    assert isinstance(ask(""), Unclear)


# Successes


def test_a_success_carries_its_result_and_receipt() -> None:
    assert outcome(debit.tool, 201, '{"id": "d-1", "amount": 5}') == Applied(
        '{"id": "d-1", "amount": 5}', "d-1"
    )


def test_a_refusal_may_be_returned_or_raised_by_parse() -> None:
    def raising(_response: Response) -> None:
        raise NotApplied("closed", "come back", retryable=True, retry_after=timedelta(days=9))

    expected = Refused("closed", "come back", retryable=True, retry_after=timedelta(hours=1))
    assert outcome(dataclasses.replace(debit.tool, parse=raising), 200) == expected
    assert outcome(debit.tool, 200, '{"state": "declined"}') == Refused("declined", "", retryable=False)


@pytest.mark.parametrize("body", ["", "{", "[]", "{}", '{"id": 5}', "null", "<html>", "[" * 100_000])
def test_an_unreadable_success_proves_nothing(body: str) -> None:
    for tool in (debit.tool, PLAIN):
        found = outcome(tool, 200, body)
        assert isinstance(found, Unsure)
        assert found.code == "unreadable_answer"


def test_a_parsed_value_has_to_fit_the_result_model() -> None:
    as_dict = dataclasses.replace(debit.tool, parse=lambda response: response.json())
    assert outcome(as_dict, 200, '{"id": "d-1", "more": 1}') == Applied('{"id": "d-1", "amount": 0}', "d-1")
    assert isinstance(outcome(as_dict, 200, '{"more": 1}'), Unsure)


def test_without_a_model_the_text_of_a_success_is_kept() -> None:
    odd = '{"id": "d-1", "id": "d-2", "n": NaN, "z": "\\u0000", "big": 1e999}'
    assert outcome(RAW, 200, odd) == Applied(odd, "d-2")
    assert outcome(RAW, 204) == Applied("null", None)
    assert outcome(RAW, 200, b"\xff\x00") == Applied('"\\ufffd\\u0000"', None)
    assert outcome(RAW, 200, "done") == Applied('"done"', None)
    assert outcome(RAW, 200, "[" * 100_000) == Applied(json.dumps("[" * 100_000), None)


def test_accepted_is_no_success_unless_the_tool_says_so() -> None:
    assert outcome(PLAIN, 202, '{"id": "d-1"}') == Unsure(
        "accepted", "202 is no status of `applied`; a parse function can know better"
    )
    assert isinstance(outcome(debit.tool, 202, '{"id": "d-1"}'), Applied)


def test_a_result_that_is_too_long_keeps_its_start() -> None:
    found = outcome(RAW, 200, '"' + "x" * MAX_OUTPUT_BYTES + '"')
    assert isinstance(found, Applied)
    kept = json.loads(found.result_json_text)
    assert (kept["truncated"], kept["bytes"]) == (True, MAX_OUTPUT_BYTES + 2)
    assert kept["start"].startswith('"xxx')
    assert KEPT_OF_CUT - 10 < len(found.result_json_text) < KEPT_OF_CUT + 100
    small = dataclasses.replace(RAW, output=Output(max_bytes=2000))
    cut = outcome(small, 200, '"' + "x" * 2000 + '"')
    assert isinstance(cut, Applied)
    assert json.loads(cut.result_json_text)["bytes"] == 2002


BEGUN = Response(200, {}, b"x" * 2000)


@pytest.mark.parametrize(
    ("changes", "begun", "becomes"),
    [
        ({}, BEGUN, "applied"),
        ({"effect": Effect.READ}, BEGUN, "applied"),
        ({"returns": DebitReceipt}, BEGUN, "oversize"),
        ({"parse": lambda response: response.text}, BEGUN, "oversize"),
        ({"same": lambda args, result: True}, BEGUN, "oversize"),
        ({}, dataclasses.replace(BEGUN, status=202), "accepted"),
        ({}, dataclasses.replace(BEGUN, status=500), "http_500"),
        ({}, dataclasses.replace(BEGUN, status=402), "http_402"),
    ],
)
def test_an_answer_longer_than_is_read_proves_what_its_status_proves(
    changes: dict[str, Any], begun: Response, becomes: str
) -> None:
    contract = Contract(not_applied=frozenset({402}))
    tool = dataclasses.replace(RAW, contract=contract, **changes)
    found = classify(tool, Lost("oversize", "too long", 1, begun), now=NOW, args=object())
    if becomes == "applied":
        assert isinstance(found, Applied)
        assert json.loads(found.result_json_text) == {"truncated": True, "bytes": None, "start": "x" * 2000}
        return
    assert not isinstance(found, Applied)
    assert found.code == becomes
    assert isinstance(found, Refused) == (becomes == "http_402")


def test_a_read_whose_answer_is_too_long_is_not_tried_again() -> None:
    tool = dataclasses.replace(RAW, effect=Effect.READ, returns=DebitReceipt)
    found = classify(tool, Lost("oversize", "too long", 1, BEGUN), now=NOW)
    assert isinstance(found, Refused)
    assert (found.code, found.retryable) == ("oversize", False)


def test_the_receipt_is_where_the_tool_says() -> None:
    def receipts(receipt: Any) -> list[str | None]:
        found = [
            outcome(dataclasses.replace(tool, receipt=receipt), 200, '{"id": "d-1", "amount": 5}')
            for tool in (PLAIN, RAW)
        ]
        return [one.receipt for one in found if isinstance(one, Applied)]

    assert receipts("id") == ["d-1", "d-1"]
    assert receipts("amount") == ["5", "5"]
    assert receipts("missing") == [None, None]
    assert receipts(lambda _result: "r\0") == ["r\\u0000"] * 2
    assert receipts(lambda _result: None) == [None, None]
    assert receipts(lambda result: result["nowhere"]) == [None, None]


# Answers that say nothing


class Vague(BaseModel):
    id: str | None = None
    ok: bool = True


class Flag(BaseModel):
    ok: bool


class Numbered(BaseModel):
    id: float


NOTHING = [
    "",
    "null",
    "[]",
    "{}",
    '{"found": false}',
    '{"data": []}',
    '{"ok": false, "error": "no"}',
    '{"success": false}',
    '{"error": {"code": 7}}',
    '{"id": null}',
    '{"id": false}',
    '{"id": ""}',
    '{"id": []}',
    '"ok"',
    "<html>signed out</html>",
]
UNDERSTANDS = {
    "nothing": {"returns": None},
    "a vague model": {"returns": Vague},
    "a flag": {"returns": Flag},
    "a list": {"returns": RootModel[list[str]]},
    "succeeded": {"returns": None, "succeeded": lambda response: bool(response.json()["id"])},
}


@pytest.mark.parametrize("declared", UNDERSTANDS.values(), ids=UNDERSTANDS)
@pytest.mark.parametrize("body", NOTHING)
def test_a_success_in_which_nothing_is_named_is_unknown(declared: dict[str, Any], body: str) -> None:
    assert isinstance(outcome(dataclasses.replace(PLAIN, **declared), 200, body), Unsure)


@pytest.mark.parametrize("declared", UNDERSTANDS.values(), ids=UNDERSTANDS)
@pytest.mark.parametrize("body", NOTHING)
def test_a_lookup_in_which_nothing_is_named_has_found_nothing(declared: dict[str, Any], body: str) -> None:
    tool = dataclasses.replace(PLAIN, **declared)
    found = classify_lookup(tool, ARGS, Answered(Response(200, {}, body.encode())))
    assert isinstance(found, Unclear)


@pytest.mark.parametrize("named", ["0", "0.0", "NaN", '" "', '"\\u200b"'])
def test_a_receipt_that_names_nothing_is_none(named: str) -> None:
    answer = f'{{"id": {named}}}'
    returns = Numbered if named[0] != '"' else DebitReceipt
    tool = dataclasses.replace(PLAIN, returns=returns)
    assert isinstance(outcome(tool, 200, answer), Unsure)
    found = classify_lookup(tool, ARGS, Answered(Response(200, {}, answer.encode())))
    assert isinstance(found, Unclear)


@pytest.mark.parametrize("status", [202, 203, 206, 207, 226])
def test_a_status_that_the_contract_does_not_list_is_no_success(status: int) -> None:
    assert isinstance(outcome(PLAIN, status, '{"id": "d-1"}'), Unsure)
    listed = dataclasses.replace(PLAIN, contract=Contract(applied=frozenset({status})))
    assert isinstance(outcome(listed, status, '{"id": "d-1"}'), Applied)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, codecs.BOM_UTF8 + '{"id": "é"}'.encode()),
        ({}, codecs.BOM_UTF16_LE + '{"id": "é"}'.encode("utf-16-le")),
        ({"content-type": "application/json; charset=ISO-8859-1"}, '{"id": "é"}'.encode("latin-1")),
        ({"content-type": 'application/json;charset="utf-8"'}, '{"id": "é"}'.encode()),
        ({"content-type": "application/json; charset=nobody-knows"}, '{"id": "é"}'.encode()),
    ],
)
def test_an_answer_is_read_as_it_says_that_it_is_written(headers: dict[str, str], body: bytes) -> None:
    for tool in (PLAIN, RAW):
        found = outcome(tool, 200, body, headers)
        assert isinstance(found, Applied)
        assert found.receipt == "é"


# Reads


def test_a_read_is_never_in_doubt() -> None:
    tool = level.tool
    for sent in (Lost("timeout", "x"), Answered(Response(500)), Answered(Response(200, {}, b"?"))):
        found = classify(tool, sent, now=NOW)
        assert isinstance(found, Refused)
        assert found.retryable
    assert tool.effect is Effect.READ
    assert outcome(tool, 200, '{"sku": "x", "free": 3}') == Applied('{"sku": "x", "free": 3}', None)


# Lookups


def test_a_receipt_found_by_a_lookup_can_be_stored() -> None:
    tool = dataclasses.replace(debit.tool, lookup_parse=lambda _response, _args: Found("d\0"))
    assert classify_lookup(tool, ARGS, Answered(Response(200))) == Found("d\\u0000")


# Totality


sendings = (
    st.builds(NotSent, st.text(max_size=5), st.text(max_size=5))
    | st.builds(Lost, st.text(max_size=5), st.text(max_size=5))
    | st.builds(
        Response,
        st.integers(100, 599),
        st.dictionaries(st.sampled_from(["retry-after", "idempotent-replayed", "x"]), st.text(max_size=5)),
        st.binary(max_size=30) | st.sampled_from([b"{}", b"[]", b'{"id":"\\ud800"}', b'{"id":NaN}', b"null"]),
    ).map(Answered)
)


@given(st.sampled_from([debit.tool, PLAIN, RAW, level.tool]), sendings)
def test_every_sending_has_exactly_one_storable_outcome(tool: Tool, sent: Any) -> None:
    found = classify(tool, sent, now=NOW)
    assert isinstance(found, Applied | Refused | Unsure)
    for value in dataclasses.astuple(found):
        if isinstance(value, str):
            value.encode()
            assert "\0" not in value
    if isinstance(sent, Lost) and tool.effect is not Effect.READ:
        assert isinstance(found, Unsure)
    if isinstance(found, Applied):
        assert isinstance(sent, Answered)
        assert 200 <= sent.response.status < 300
        json.loads(found.result_json_text)


@given(sendings)
def test_every_lookup_has_exactly_one_answer(sent: Any) -> None:
    for tool in (debit.tool, PLAIN, RAW):
        found = classify_lookup(tool, ARGS, sent)
        assert isinstance(found, Found | Absent | Unclear)
        assert isinstance(sent, Answered) or isinstance(found, Unclear)


# Halves of characters

HALVES = [r"\ud83d", r"\uDE00", r"\ude00\ud83d", r"\\\ud800", r"\uD83D\\uDE00", r"\ud800\ud83d\ude00"]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("field", ["id", "note"])
def test_an_answer_with_half_a_character_is_read_and_what_is_stored_of_it_is_marked(
    half: str, field: str
) -> None:
    class Made(BaseModel):
        id: str

    said = {"id": "r-1", "note": "x", field: "@"}
    body = json.dumps(said).replace("@", half)
    for tool in (dataclasses.replace(PLAIN, returns=Made, receipt="id"), RAW):
        found = outcome(tool, 200, body)
        assert isinstance(found, Applied), found
        kept = json.loads(found.result_json_text)
        kept["id"].encode()  # can be stored
        if field == "note":
            assert kept["id"] == "r-1"
        else:
            assert "\\ud" in kept["id"]


def test_whole_characters_and_texts_that_look_like_halves_stay_as_they_are() -> None:
    for text in (r'"\ud83d\ude00"', r'"\\ud83d"', r'"\\\\ud83d"', r'"é \u00e9"', '"\U0001f600"'):
        assert marked(text) == text
    assert marked(r'"\ud83d\\ude00"') == r'"\\ud83d\\ude00"'
    assert json.loads(marked('{"\\ud800": 1}')) == {"\\ud800": 1}
