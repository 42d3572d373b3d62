"""Allowances, as a table: whom they concern, which counter a call takes from, and when it takes nothing."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fencepost.allowances import (
    Allowance,
    Refusal,
    Share,
    Used,
    concerns,
    counted,
    counting_anew,
    kept,
    read,
    refused,
    shares,
    spelled,
    taken,
    told,
)
from fencepost.authority import AuthorizationRequest
from fencepost.canonical import MAX_INT
from fencepost.contracts import Effect
from fencepost.errors import UsageError
from fencepost.money import Money
from fencepost.states import CALL_ENDS, CallState

AT = datetime(2026, 11, 30, 10, 0, 59, 999999, UTC)
EUR = Money(currency="EUR", amount_minor=1250, scale=2)
ASKED = AuthorizationRequest(
    tenant="shop",
    principal="svc:pay",
    tool="wallet.debit",
    tool_version=1,
    effect=Effect.IRREVERSIBLE,
    arguments={},
    arguments_hash="",
    operation=None,
    run="",
    call="",
    attempt=1,
    phase="claim",
    at=AT,
    amount=EUR,
    resource=("account", "a-1"),
)


def rule(**said: Any) -> Allowance:
    return Allowance(**{"id": "few", "count": 3, **said})


def one(allowance: Allowance, asked: AuthorizationRequest = ASKED) -> Share:
    found = shares([allowance], asked)
    assert isinstance(found, tuple), found
    return found[0]


@pytest.mark.parametrize(
    ("said", "asked", "expected"),
    [
        ({}, {}, True),
        ({"tenant": "shop"}, {}, True),
        ({"tenant": "other"}, {}, False),
        ({"tool": "wallet.*"}, {}, True),
        ({"tool": "wallet"}, {}, False),
        ({"principal": "svc:*"}, {}, True),
        ({"principal": "ann"}, {}, False),
        ({"principal": "ann"}, {"on_behalf_of": ("ann",)}, True),
        ({"principal": "role:clerk"}, {}, False),
        ({"principal": "role:clerk"}, {"roles": ("clerk",)}, True),
        ({"principal": "role:clerk"}, {"principal": "role:clerk"}, False),
        ({"resource": "account"}, {}, True),
        ({"resource": "acc*"}, {}, True),
        ({"resource": "card"}, {}, False),
        ({"resource": "account"}, {"resource": None}, False),
        ({}, {"resource": None}, True),
    ],
)
def test_an_allowance_concerns_what_fits_all_its_patterns(
    said: dict[str, Any], asked: dict[str, Any], expected: bool
) -> None:
    assert concerns(rule(**said), replace(ASKED, **asked)) is expected


OTHERS: dict[str, dict[str, Any]] = {
    "tenant": {"tenant": "other"},
    "principal": {"principal": "svc:other"},
    "tool": {"tool": "wallet.refund"},
    "resource": {"resource": ("account", "a-2")},
}


@pytest.mark.parametrize("part", ["principal", "tool", "resource"])
def test_each_has_a_counter_of_its_own_where_the_allowance_says_so(part: str) -> None:
    other = replace(ASKED, **OTHERS[part])
    shared, own = rule(), rule(per=(part,))
    assert one(shared).key == one(shared, other).key
    assert one(own).key != one(own, other).key
    assert one(own).key == one(own).key


def test_tenants_never_share_a_counter() -> None:
    assert one(rule()).key != one(rule(), replace(ASKED, tenant="other")).key


def test_a_resource_is_its_type_and_its_id_and_not_a_text_made_of_both() -> None:
    own = rule(per=("resource",))
    first, second = (replace(ASKED, resource=pair) for pair in (("a:b", "c"), ("a", "b:c")))
    assert one(own, first).key != one(own, second).key


def test_windows_are_fixed_and_follow_one_another_without_gap_or_overlap() -> None:
    minute = rule(window=timedelta(minutes=1))
    before, after = one(minute), one(minute, replace(ASKED, at=AT + timedelta(microseconds=1)))
    assert (before.since, before.until) == ("2026-11-30T10:00:00.000000Z", "2026-11-30T10:01:00.000000Z")
    assert after.since == before.until
    assert after.key != before.key
    assert one(minute, replace(ASKED, at=AT - timedelta(seconds=59))).key == before.key
    day = one(rule(window=timedelta(days=1)))
    assert (day.since, day.until) == ("2026-11-30T00:00:00.000000Z", "2026-12-01T00:00:00.000000Z")
    ever = one(rule())
    assert (ever.since, ever.until) == (None, None)
    assert one(rule(), replace(ASKED, at=AT + timedelta(days=4000))).key == ever.key


def test_another_window_or_currency_is_another_counter_and_another_limit_is_not() -> None:
    spend = rule(spend=EUR)
    dollars = Money(currency="USD", amount_minor=1, scale=2)
    keys = [
        one(spend).key,
        one(rule(spend=EUR, window=timedelta(hours=1))).key,
        one(rule(spend=EUR, window=timedelta(hours=2))).key,
        one(rule(spend=dollars), replace(ASKED, amount=dollars)).key,
        one(rule(id="other", spend=EUR)).key,
    ]
    assert len(set(keys)) == len(keys)
    more = Money(currency="EUR", amount_minor=9999, scale=2)
    assert one(rule(spend=more, count=7)).key == keys[0]


@pytest.mark.parametrize(
    ("said", "asked", "code"),
    [
        ({"spend": EUR}, {"amount": None}, "allowance_no_amount"),
        (
            {"spend": EUR},
            {"amount": Money(currency="USD", amount_minor=1, scale=2)},
            "allowance_currency",
        ),
        (
            {"spend": EUR},
            {"amount": Money(currency="EUR", amount_minor=-1, scale=2)},
            "allowance_negative",
        ),
        ({"per": ("resource",)}, {"resource": None}, "allowance_no_resource"),
    ],
)
def test_what_cannot_be_told_is_refused_and_says_why(
    said: dict[str, Any], asked: dict[str, Any], code: str
) -> None:
    found = shares([rule(id="first"), rule(**said)], replace(ASKED, **asked))
    assert isinstance(found, Refusal)
    assert (found.code, found.allowance) == (code, "few")
    assert found.reason.startswith("allowance few: ")


def test_a_count_alone_asks_no_amount_and_takes_none() -> None:
    assert one(rule(), replace(ASKED, amount=None)).minor == 0
    assert one(rule()).minor == 0
    assert one(rule(spend=EUR)).minor == 1250


def test_an_allowance_that_is_held_already_is_not_taken_again() -> None:
    both = [rule(), rule(id="more")]
    found = shares(both, ASKED, frozenset({"few"}))
    assert isinstance(found, tuple)
    assert [share.allowance for share in found] == ["more"]


LIMIT = Money(currency="EUR", amount_minor=5000, scale=2)


@pytest.mark.parametrize(
    ("used", "fits"),
    [
        (Used(0, 0), True),
        (Used(2, 3750), True),
        (Used(3, 0), False),
        (Used(2, 3751), False),
        (Used(99, 99999), False),
        (Used(0, MAX_INT), False),
        (Used(0, 2**62), False),
    ],
)
def test_a_share_fits_or_the_limit_is_exceeded(used: Used, fits: bool) -> None:
    found = refused(one(rule(spend=LIMIT)), used)
    assert (found is None) is fits
    assert found is None or found.code == "allowance_exceeded"


def test_a_refusal_says_what_is_used_and_when_the_window_ends() -> None:
    minute = timedelta(minutes=1)
    found = refused(one(rule(window=minute)), Used(3, 0))
    assert found is not None
    assert found.reason == (
        "allowance few is used up: 3 of 3 calls; its window ends at 2026-11-30T10:01:00.000000Z"
    )
    found = refused(one(Allowance(id="cash", spend=LIMIT)), Used(9, 4000))
    assert found is not None
    assert found.reason == (
        "allowance cash has no room for 12.50 EUR: 40.00 EUR of 50.00 EUR are spent; "
        "it has no window that ends"
    )


def test_nothing_fits_into_a_limit_of_nothing_but_nothing_itself() -> None:
    free = replace(ASKED, amount=Money(currency="EUR", amount_minor=0, scale=2))
    none = Allowance(id="none", spend=Money(currency="EUR", amount_minor=0, scale=2))
    assert refused(one(none, free), Used()) is None
    assert refused(one(none), Used()) is not None
    assert refused(one(Allowance(id="off", count=0)), Used()) is not None


def test_amounts_are_spelled_with_the_decimals_of_their_currency() -> None:
    assert [spelled(n, "EUR") for n in (0, 5, 1250, -7)] == ["0.00 EUR", "0.05 EUR", "12.50 EUR", "-0.07 EUR"]
    assert spelled(12, "JPY") == "12 JPY"


def test_what_a_call_holds_is_read_back_from_its_row() -> None:
    share = one(rule(per=("principal", "resource"), window=timedelta(hours=1), spend=EUR))
    assert taken(kept(told([share]))) == (share,)
    assert taken(None) == ()
    assert share.subject == {"tenant": "shop", "principal": "svc:pay", "resource": "account:a-1"}


@pytest.mark.parametrize("state", list(CallState))
def test_a_share_counts_until_it_is_known_that_nothing_happened(state: CallState) -> None:
    text = kept(told([one(rule())]))
    given_back = {CallState.FAILED, CallState.REJECTED, CallState.CANCELLED}
    assert bool(counted(text, state)) is (state not in given_back)
    assert counted(None, state) == ()
    assert given_back < CALL_ENDS


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "limits nothing"),
        ({"id": "a b", "count": 1}, "id"),
        ({"count": -1}, "count"),
        ({"count": True}, "count"),
        ({"count": "3"}, "count"),
        ({"count": 1, "window": "2 days"}, "span"),
        ({"count": 1, "window": 60}, "window"),
        ({"count": 1, "window": timedelta(milliseconds=1500)}, "whole seconds"),
        ({"count": 1, "window": timedelta(0)}, "whole seconds"),
        ({"count": 1, "window": timedelta(days=4000)}, "3650 days"),
        ({"count": 1, "per": ["user"]}, "per"),
        ({"count": 1, "per": ["tool", "tool"]}, "once"),
        ({"count": 1, "tools": "*"}, "tools"),
        ({"count": 1, "tool": ""}, "tool"),
        ({"spend": {"currency": "EUR", "amount_minor": -1, "scale": 2}}, "negative"),
        ({"spend": {"currency": "EUR", "amount_minor": 1, "scale": 0}}, "scale"),
        ({"spend": {"currency": "XXX", "amount_minor": 1, "scale": 2}}, "XXX"),
        ({"spend": {"currency": "EUR", "amount_minor": 1.5, "scale": 2}}, "amount_minor"),
        ({"spend": 100}, "spend"),
    ],
)
def test_a_wrong_declaration_is_refused_in_one_sentence(said: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        read([{"id": "few", **said}])
    assert "\n" not in str(caught.value)
    assert "cannot be used" in str(caught.value)


def test_a_bundle_declares_what_an_application_does() -> None:
    spend = {"currency": "EUR", "amount_minor": 1250, "scale": 2}
    written = {"id": "few", "tool": "wallet.*", "per": ["principal"], "window": "1h30m", "spend": spend}
    expected = Allowance(
        id="few", tool="wallet.*", per=("principal",), window=timedelta(minutes=90), spend=EUR
    )
    assert read([written]) == read([expected]) == (expected,)
    with pytest.raises(UsageError, match="declared twice"):
        read([written, written])
    with pytest.raises(UsageError, match="number 1"):
        read([{"count": 1}])


def test_what_counts_anew_is_said_and_what_goes_on_is_not() -> None:
    old = Allowance(id="few", count=1, spend=Money(currency="EUR", amount_minor=1, scale=2), per=("tool",))
    euros = Money(currency="EUR", amount_minor=9, scale=2)
    dollars = Money(currency="USD", amount_minor=1, scale=2)
    for change, says in (
        ({"count": 2, "spend": euros, "tool": "wallet.*"}, None),
        ({"per": ("tool", "tenant")}, None),
        ({"per": ("principal",)}, "another per:"),
        ({"window": timedelta(days=1), "spend": dollars}, "another window and currency:"),
        ({"spend": None}, "another currency:"),
        ({"id": "other", "per": ()}, None),
    ):
        found = counting_anew([old], [old.model_copy(update=change)])
        assert len(found) == (says is not None), change
        assert says is None or says in found[0]
