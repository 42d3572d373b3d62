"""What an audit says of one intent and its effects: every row of the table."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fencepost import App, BookedEffect, UsageError
from fencepost_ops.audit.books import reader_of, scope_of
from fencepost_ops.audit.compare import DIFFERENCES, SAYINGS, Difference, Intent, Kind, judge, orphan, same

AT = datetime(2026, 1, 2, tzinfo=UTC)
K = Kind
INTENT = Intent(
    tenant="shop",
    call="c-1",
    run="r-1",
    run_key="o-1",
    tool="wallet.debit",
    label="debit",
    state="SUCCEEDED",
    key="k-1",
    receipt="d-1",
    first_at=AT,
    arguments={"order": "o-1", "minor": 100},
    sent={"account": "ann", "amount": {"currency": "EUR", "amount_minor": 100, "scale": 2}},
    digest="aa",
    version=7,
)
EFFECT = BookedEffect("d-1", AT, key="k-1")


def said(intent: Intent, *effects: BookedEffect) -> list[Kind]:
    return [finding.kind for finding in judge(intent, effects)]


TABLE = [
    ("SUCCEEDED", 0, [K.MISSING]),
    ("SUCCEEDED", 1, [K.MATCHED]),
    ("SUCCEEDED", 2, [K.DUPLICATE]),
    ("FAILED", 0, [K.NO_EFFECT]),
    ("FAILED", 1, [K.DENIED_FOUND]),
    ("FAILED", 2, [K.DUPLICATE, K.DENIED_FOUND]),
    ("REJECTED", 1, [K.DENIED_FOUND]),
    ("CANCELLED", 1, [K.DENIED_FOUND]),
    ("INTENT_RECORDED", 0, [K.NO_EFFECT]),
    ("INTENT_RECORDED", 1, [K.DENIED_FOUND]),
    ("UNKNOWN", 0, [K.IN_DOUBT]),
    ("UNKNOWN", 1, [K.IN_DOUBT_FOUND]),
    ("UNKNOWN", 2, [K.DUPLICATE, K.IN_DOUBT_FOUND]),
    ("NEEDS_REPAIR", 0, [K.IN_DOUBT]),
    ("NEEDS_REPAIR", 1, [K.IN_DOUBT_FOUND]),
    ("DISPATCHING", 1, [K.IN_DOUBT_FOUND]),
    ("ACCEPTED_UNKNOWN", 0, [K.IN_DOUBT]),
    ("ACCEPTED_UNKNOWN", 1, [K.IN_DOUBT_FOUND]),
]


@pytest.mark.parametrize(("state", "effects", "kinds"), TABLE)
def test_both_sides_are_held_against_each_other(state: str, effects: int, kinds: list[Kind]) -> None:
    intent = replace(INTENT, state=state, receipt=INTENT.receipt if state == "SUCCEEDED" else None)
    booked = [EFFECT, replace(EFFECT, at=AT.replace(hour=1))][:effects]
    assert said(intent, *booked) == kinds


def test_of_two_effects_only_one_can_have_the_receipt_and_one_has_to() -> None:
    second, third = replace(EFFECT, receipt="d-2"), replace(EFFECT, receipt="d-3")
    assert said(INTENT, EFFECT, second) == [K.DUPLICATE]
    assert said(INTENT, second, third) == [K.DUPLICATE, K.DIFFERENT, K.DIFFERENT]


MOVING = [
    ("SUCCEEDED", 0, [K.MOVING]),
    ("SUCCEEDED", 1, [K.MATCHED]),
    ("SUCCEEDED", 2, [K.DUPLICATE]),
    ("NEEDS_REPAIR", 0, [K.MOVING]),
    ("NEEDS_REPAIR", 1, [K.IN_DOUBT_FOUND]),
    ("DISPATCHING", 0, [K.MOVING]),
    ("DISPATCHING", 1, [K.MOVING]),
    ("FAILED", 1, [K.MOVING]),
    ("UNKNOWN", 2, [K.DUPLICATE, K.IN_DOUBT_FOUND]),
]


@pytest.mark.parametrize(("state", "effects", "kinds"), MOVING)
def test_what_moves_while_it_is_read_is_not_taken_for_a_difference(
    state: str, effects: int, kinds: list[Kind]
) -> None:
    assert said(replace(INTENT, state=state, moving=True), *[EFFECT] * effects) == kinds


@pytest.mark.parametrize("effects", [0, 1, 3])
def test_what_may_be_repeated_freely_may_be_there_any_number_of_times(effects: int) -> None:
    booked = [replace(EFFECT, receipt=f"v-{n}") for n in range(effects)]
    assert said(replace(INTENT, set_semantics=True), *booked) == [K.MATCHED]


DIFFERING: list[tuple[dict[str, Any], list[Difference]]] = [
    ({}, []),
    ({"receipt": "d-2"}, [Difference("receipt", "d-1", "d-2")]),
    ({"receipt": None, "key": "k-1"}, []),
    ({"key": "k-2"}, [Difference("key", "k-1", "k-2")]),
    ({"key": None}, []),
    ({"arguments": {"account": "ann"}}, []),
    ({"arguments": {"account": "bob"}}, [Difference("account", "ann", "bob")]),
    ({"arguments": {"minor": 100}}, []),  # not in the body, but in the arguments
    ({"arguments": {"minor": 101}}, [Difference("minor", 100, 101)]),
    ({"arguments": {"colour": "red"}}, [Difference("colour", None, "red")]),
    (
        {"arguments": {"amount": {"scale": 2, "currency": "EUR", "amount_minor": 900}}},
        [
            Difference(
                "amount",
                {"currency": "EUR", "amount_minor": 100, "scale": 2},
                {"scale": 2, "currency": "EUR", "amount_minor": 900},
            )
        ],
    ),
    ({"digest": "aa"}, []),
    ({"digest": "bb"}, [Difference("body", "aa", "bb")]),
    ({"digest": "bb", "arguments": {"account": "bob"}}, [Difference("account", "ann", "bob")]),
]


@pytest.mark.parametrize(("changes", "found"), DIFFERING)
def test_what_happened_is_held_against_what_was_asked(
    changes: dict[str, Any], found: list[Difference]
) -> None:
    findings = list(judge(INTENT, [replace(EFFECT, **changes)]))
    assert [finding.kind for finding in findings] == [K.DIFFERENT if found else K.MATCHED]
    assert list(findings[0].differences) == found


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (True, True, True),
        (False, 0, False),
        ("1", 1, False),
        ({"a": 1, "b": [1, 2]}, {"b": [1.0, 2], "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([1, 2], [2, 1], False),
        (None, None, True),
        (None, 0, False),
    ],
)
def test_values_are_compared_as_json(one: Any, other: Any, equal: bool) -> None:
    assert same(one, other) is equal
    assert same(other, one) is equal


def test_every_kind_says_what_it_means_and_an_orphan_is_a_difference() -> None:
    assert set(SAYINGS) == set(Kind)
    assert orphan(EFFECT).kind in DIFFERENCES
    assert {Kind.MATCHED, Kind.MOVING, Kind.IN_DOUBT, Kind.NO_EFFECT} == set(Kind) - DIFFERENCES


def test_a_booked_effect_names_something_and_a_time_with_a_zone() -> None:
    with pytest.raises(UsageError, match="its key, its receipt or its reference"):
        BookedEffect(None, AT)
    with pytest.raises(UsageError, match="time with a zone"):
        BookedEffect("d-1", AT.replace(tzinfo=None))


def test_an_application_says_how_the_book_of_a_dependency_is_read() -> None:
    app = App("shop")
    wallet, other = app.dependency("wallet"), app.dependency("wallet", account="eu")

    @wallet.book
    def read(since: datetime, until: datetime) -> list[BookedEffect]:
        return [EFFECT, replace(EFFECT, at=until)]

    assert list(reader_of("wallet/default", app, None, None)(AT, AT.replace(hour=1))) == [EFFECT]
    with pytest.raises(UsageError, match="two books"):
        wallet.book(read)
    with pytest.raises(UsageError, match=r"declare @dependency\.book"):
        reader_of(other.spec.scope, app, None, None)
    with pytest.raises(UsageError, match="several accounts: name one of wallet/default, wallet/eu"):
        scope_of("wallet", app)
    assert scope_of("wallet/eu", app) == "wallet/eu"
    assert scope_of("wallet", None) == "wallet/default"
    with pytest.raises(UsageError, match="no dependency mail; known: wallet/default, wallet/eu"):
        scope_of("mail", app)
    with pytest.raises(UsageError, match="no book of carrier"):
        reader_of("carrier/default", app, "http://localhost:1", None)
