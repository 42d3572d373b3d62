"""What a lookup said: read by its own parse or the tool's, compared, and unclear where nothing is sure."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.outcomes import Answered, Lost, NotSent, classify_lookup
from fencepost.tools import Absent, Found, Response, Tool, Unclear
from tests.typing.user_code import Debit, DebitReceipt, debit

PLAIN = dataclasses.replace(debit.tool, parse=None, lookup_parse=None)
RAW = dataclasses.replace(PLAIN, returns=None, succeeded=lambda _response: True)
ARGS = Debit(order_id="o-1", amount=5)


def test_a_lookup_is_read_by_its_own_parse() -> None:
    def ask(status: int, body: str) -> Found | Absent | Unclear:
        return classify_lookup(debit.tool, ARGS, Answered(Response(status, {}, body.encode())))

    assert ask(200, '{"debits": [{"id": "d-1", "amount": 5}]}') == Found(
        "d-1", DebitReceipt(id="d-1", amount=5)
    )
    assert ask(200, '{"debits": [{"id": "d-1", "amount": 6}]}') == Found(
        "d-1", DebitReceipt(id="d-1", amount=6), same_arguments=False
    )
    assert ask(200, '{"debits": []}') == Absent()
    assert ask(404, "") == Unclear("http 404")
    assert isinstance(ask(200, "?"), Unclear)


def test_a_lookup_without_a_parse_reads_the_tools_own_answer() -> None:
    def ask(status: int, body: str, tool: Tool = PLAIN) -> Found | Absent | Unclear:
        return classify_lookup(tool, ARGS, Answered(Response(status, {}, body.encode())))

    assert ask(200, '{"id": "d-1"}') == Found("d-1", DebitReceipt(id="d-1"))
    assert ask(200, '{"id": "d-1"}', RAW) == Found("d-1", {"id": "d-1"})
    assert ask(404, "") == ask(410, "") == Absent()
    for status in (201, 204, 207, 301, 400, 403, 429, 500, 503):
        assert ask(status, '{"id": "d-1"}') == Unclear(f"http_{status}")
    assert ask(200, '{"data": []}') == Unclear("ValidationError of DebitReceipt: id: Field required")


def test_what_a_lookup_found_is_judged_as_the_tool_judges_its_successes() -> None:
    def ask(body: str, succeeded: Callable[[Response], bool]) -> Found | Absent | Unclear:
        tool = dataclasses.replace(RAW, succeeded=succeeded)
        return classify_lookup(tool, ARGS, Answered(Response(200, {}, body.encode())))

    def paid(response: Response) -> bool:
        return bool(response.json()["state"] == "paid")

    assert isinstance(ask('{"id": "d-1", "state": "paid"}', paid), Found)
    assert isinstance(ask('{"id": "d-1", "state": "failed"}', paid), Unclear)
    assert isinstance(ask('{"id": "d-1"}', paid), Unclear)
    created = ask('{"id": "d-1"}', lambda response: response.status == 201)
    assert isinstance(created, Found), "the request was answered 201, its lookup is answered 200"


def test_a_refusal_found_by_a_lookup_is_unclear() -> None:
    tool = dataclasses.replace(debit.tool, lookup_parse=None)
    body = b'{"state": "declined", "reason": "no funds"}'
    assert classify_lookup(tool, ARGS, Answered(Response(200, {}, body))) == Unclear(
        "found, but refused: declined: no funds"
    )


@pytest.mark.parametrize("sent", [NotSent("connect_failed", "x"), Lost("timeout", "x")])
def test_a_lookup_without_an_answer_is_unclear(sent: NotSent | Lost) -> None:
    assert classify_lookup(debit.tool, ARGS, sent) == Unclear(f"{sent.code}: x")


@pytest.mark.parametrize("answer", [None, True, "found", {"id": 1}])
def test_a_lookup_parse_that_gives_anything_else_is_unclear(answer: Any) -> None:
    tool = dataclasses.replace(debit.tool, lookup_parse=lambda _response, _args: answer)
    assert isinstance(classify_lookup(tool, ARGS, Answered(Response(200))), Unclear)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (Found("d-1", {"amount": 5}), True),
        (Found("d-1", {"amount": 6}), False),
        (Found("d-1", {"amount": 5}, same_arguments=False), False),
        (Found("d-1"), True),
        (Found("d-1", same_arguments=False), False),
    ],
)
def test_what_a_lookup_parse_found_is_compared_as_well(found: Found, wanted: bool) -> None:
    tool = dataclasses.replace(
        debit.tool,
        lookup_parse=lambda _response, _args: found,
        same=lambda args, result: bool(result["amount"] == args.amount),
    )
    answer = classify_lookup(tool, ARGS, Answered(Response(200)))
    assert answer == dataclasses.replace(found, same_arguments=wanted)
    odd = dataclasses.replace(tool, lookup_parse=lambda _response, _args: Found("d-1", {}))
    assert classify_lookup(odd, ARGS, Answered(Response(200))) == Unclear("KeyError: 'amount'")
