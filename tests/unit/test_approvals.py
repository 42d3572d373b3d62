"""What persons were asked and have said, as a value; and how it is shown to them."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost import approvals
from fencepost.clock import rfc3339
from fencepost_ops.commands.asked import amount, exact, foreign

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
BOUND: dict[str, str | None] = {
    "operation": "k",
    "definition": "d",
    "arguments_hash": "1:a",
    "request_digest": "r",
}
ASKED: dict[str, Any] = {
    **BOUND,
    "count": 2,
    "requested_at": rfc3339(NOW),
    "expires_at": rfc3339(NOW + HOUR),
}
ANN = {"who": "ann", "login": "op_a", "approve": True, "at": rfc3339(NOW), "reason": "fine"}
BOB = {**ANN, "who": "bob", "login": "op_b", "approve": False, "roles": ["boss"], "links": ["carol>bob"]}


def made(*said: dict[str, Any]) -> approvals.Approval:
    text: str | None = approvals.opened(ASKED)
    for word in said:
        text = approvals.answered(text, word)
    found = approvals.read(text)
    assert found is not None
    return found


def test_what_was_asked_and_said_is_read_as_it_was_written() -> None:
    found = made(ANN, BOB)
    assert found.asked == ASKED
    assert [(one.who, one.approve, one.roles, one.links) for one in found.said] == [
        ("ann", True, (), ()),
        ("bob", False, ("boss",), ("carol>bob",)),
    ]
    assert (found.count, found.missing, found.requested_at) == (2, 1, NOW)
    assert approvals.read(None) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"asked":{}}', '{"asked":{},"decisions":[{}]}', "null"])
def test_anything_else_is_no_approval(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - JSON's own, or ours
        approvals.read(text)


@pytest.mark.parametrize(
    ("words", "missing"), [((), 2), ((BOB,), 2), ((ANN,), 1), ((ANN, {**ANN, "who": "carol"}), 0)]
)
def test_only_who_approves_counts(words: tuple[dict[str, Any], ...], missing: int) -> None:
    assert made(*words).missing == missing


def test_the_last_word_of_a_person_is_theirs() -> None:
    changed = {**ANN, "approve": False, "reason": "on second thoughts"}
    assert made(ANN, changed).said_by("ann") == made(changed).said[0]
    assert made(ANN).said_by("bob") is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"operation": "another"}, "the operation is not what was approved"),
        ({"definition": "another"}, "the definition of its tool is not what was approved"),
        ({"arguments_hash": "1:b"}, "its arguments are not what was approved"),
        ({"request_digest": "s"}, "the request that would be sent is not what was approved"),
        ({"request_digest": None}, "the request that would be sent is not what was approved"),
    ],
)
def test_an_approval_is_of_all_that_it_binds(change: dict[str, str | None], why: str | None) -> None:
    assert made(ANN).lapsed({**BOUND, **change}, NOW) == why


def test_it_counts_until_it_expires_and_not_at_that_instant() -> None:
    tick = timedelta(microseconds=1)
    assert made(ANN).lapsed(BOUND, NOW + HOUR - tick) is None
    assert made(ANN).lapsed(BOUND, NOW + HOUR) == f"it expired at {rfc3339(NOW + HOUR)}"


def test_text_from_outside_is_kept_in_a_form_that_can_be_stored() -> None:
    odd = {**ANN, "reason": "broke \ud83d and\x00 on"}
    kept = approvals.answered(approvals.opened(ASKED), odd)
    assert "\x00" not in kept
    assert json.loads(kept)["decisions"][0]["who"] == "ann"


# -- how it is shown -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, 10 €", "plain, 10 €"),
        ("zero\u200bwidth", "zero‹U+200B›width"),
        ("\u202egnp.exe", "‹U+202E›gnp.exe"),
        ("a\u00a0b\u2003c", "a‹U+00A0›b‹U+2003›c"),
        ("tab\tline\nend\r", "tab‹U+0009›line‹U+000A›end‹U+000D›"),
        ("\x1b[31m", "‹U+001B›[31m"),
        ("tag\U000e0041", "tag‹U+E0041›"),
        ("soft\u00adhyphen \ufeff", "soft‹U+00AD›hyphen ‹U+FEFF›"),
        ("‹U+200B›", "‹U+2039›U+200B‹U+203A›"),
        ("\ud800", "‹U+D800›"),
        ("private \ue000", "private ‹U+E000›"),
    ],
)
def test_what_nobody_would_see_is_spelled_out_and_cannot_be_forged(text: str, shown: str) -> None:
    assert exact(text) == shown


def test_letters_that_look_alike_are_named() -> None:
    assert foreign("p\u0430id", "\u0430 €") == ["U+0430 CYRILLIC SMALL LETTER A", "U+20AC EURO SIGN"]
    assert foreign("paid") == []


def test_an_amount_is_written_with_all_decimals_of_its_currency() -> None:
    assert amount({"currency": "EUR", "amount_minor": 1250, "scale": 2}) == "12.50 EUR"
    assert amount({"currency": "JPY", "amount_minor": 7, "scale": 0}) == "7 JPY"
    assert amount(None) is None
    assert amount({"currency": "nothing"}) == "{'currency': 'nothing'}"
