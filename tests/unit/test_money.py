"""Money is exact or refused; providers' own units too."""

from decimal import Decimal
from typing import Any

import iso4217
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from fencepost.money import PAYPAL, STRIPE, STRIPE_PAYOUTS, Money, Units
from tests.unit.test_fields import refused, text


class Price(BaseModel):
    price: Money


def euro(minor: Any = 1250, **more: Any) -> dict[str, Any]:
    return {"price": {"currency": "EUR", "amount_minor": minor, "scale": 2, **more}}


@pytest.mark.parametrize(
    ("arguments", "step", "code"),
    [
        (euro(scale=3), 3, "money_scale"),
        (euro(scale=0), 3, "money_scale"),
        (euro(currency="JPY"), 3, "money_scale"),
        (euro(currency="XYZ"), 3, "currency"),
        (euro(currency="XAU", scale=0), 3, "currency"),
        (euro(currency="eur"), 1, "schema"),
        (euro(currency="EURO"), 1, "schema"),
        (euro(currency="EUR\n"), 1, "schema"),
        (euro("1250"), 1, "schema"),
        (euro(True), 1, "schema"),
        (euro(None), 1, "schema"),
        (euro(12.5), 3, "float"),
        (euro(2**53), 3, "number_range"),
        (euro(scale=True), 1, "schema"),
        (euro(scale=-1), 1, "schema"),
        (euro(symbol="€"), 1, "schema"),
        ({"price": {"currency": "EUR", "amount_minor": 1250}}, 1, "schema"),
        ({"price": 1250}, 1, "schema"),
        ({"price": "12.50 EUR"}, 1, "schema"),
    ],
)
def test_what_is_no_amount_is_refused(arguments: Any, step: int, code: str) -> None:
    assert refused(Price, arguments) == (step, code)


def test_an_amount_is_kept_as_it_is() -> None:
    assert text(Price, euro()) == '{"price":{"amount_minor":1250,"currency":"EUR","scale":2}}'


def test_an_amount_is_made_of_a_decimal_exactly_or_not_at_all() -> None:
    assert Money.of("EUR", Decimal("12.5")) == Money(currency="EUR", amount_minor=1250, scale=2)
    assert Money.of("JPY", Decimal("5E+2")) == Money(currency="JPY", amount_minor=500, scale=0)
    assert Money.of("EUR", Decimal("-0.010")).amount_minor == -1
    assert str(Money.of("EUR", Decimal("12.5")).amount) == "12.50"
    for currency, wrong in (
        ("EUR", "0.001"),
        ("JPY", "0.5"),
        ("EUR", "NaN"),
        ("EUR", "1E+500"),
        ("XYZ", "1"),
    ):
        with pytest.raises(ValueError, match=r"exact|no amount|no currency"):
            Money.of(currency, Decimal(wrong))
    with pytest.raises(ValidationError, match="less than or equal"):
        Money.of("EUR", Decimal(2**53))


@pytest.mark.parametrize(
    ("units", "currency", "amount", "minor"),
    [
        (STRIPE, "EUR", "12.50", 1250),
        (STRIPE, "JPY", "500", 500),
        (STRIPE, "MGA", "500", 500),  # two decimals by ISO 4217, none here
        (STRIPE, "ISK", "5", 500),  # none by ISO 4217, two here
        (STRIPE, "KWD", "5.120", 5120),
        (STRIPE, "HUF", "10.45", 1045),
        (STRIPE_PAYOUTS, "HUF", "10", 1000),
        (STRIPE_PAYOUTS, "TWD", "800", 80000),
        (PAYPAL, "HUF", "10", 10),
        (PAYPAL, "EUR", "-12.50", -1250),
    ],
)
def test_providers_units_are_exact_both_ways(units: Units, currency: str, amount: str, minor: int) -> None:
    money = Money.of(currency, Decimal(amount))
    assert units.minor(money) == minor
    assert units.money(currency, minor) == money


@pytest.mark.parametrize(
    ("units", "currency", "amount"),
    [
        (STRIPE, "MGA", "0.20"),
        (STRIPE, "KWD", "5.124"),
        (STRIPE, "UGX", "5"),
        (STRIPE_PAYOUTS, "HUF", "10.45"),
        (STRIPE_PAYOUTS, "TWD", "8.45"),
        (PAYPAL, "HUF", "10.45"),
    ],
)
def test_what_a_provider_cannot_say_exactly_is_refused(units: Units, currency: str, amount: str) -> None:
    with pytest.raises(ValueError, match=r"exact|multiples|two ways"):
        units.minor(Money.of(currency, Decimal(amount)))


def test_what_is_unclear_is_refused_both_ways() -> None:
    with pytest.raises(ValueError, match="two ways"):
        STRIPE.money("UGX", 500)


def test_a_provider_that_takes_texts_gets_the_decimals_it_wants() -> None:
    assert PAYPAL.decimal(Money.of("EUR", Decimal("12.5"))) == "12.50"
    assert PAYPAL.decimal(Money.of("JPY", Decimal(500))) == "500"
    assert PAYPAL.decimal(Money.of("TWD", Decimal(500))) == "500"


@given(st.sampled_from([c for c in iso4217.Currency if c.exponent is not None]), st.integers(-(10**9), 10**9))
def test_a_conversion_never_changes_an_amount(currency: Any, minor: int) -> None:
    money = Money(currency=currency.code, amount_minor=minor, scale=currency.exponent)
    for units in (STRIPE, STRIPE_PAYOUTS, PAYPAL):
        try:
            there = units.minor(money)
        except ValueError:
            continue
        assert units.money(currency.code, there) == money
        assert Decimal(units.decimal(money)) == money.amount
