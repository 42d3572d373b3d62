"""Money as an argument: a currency, integer minor units and the scale they are written in.

Never a float and never a bare number: 1200 of what, and with how many decimals, is part of the value, so that
what was hashed, shown, approved and sent is one amount. Providers count in units of their own; `Units`
converts exactly or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fencepost.canonical import MAX_INT
from fencepost.fields import refusal


@cache
def _scales() -> dict[str, int]:
    """Decimals by currency. What has no minor unit of its own (gold, a basket, a code for tests) is no amount
    anybody could pay. The table is read when money is first seen: most processes start without any.
    """
    import iso4217

    return {str(one.code): one.exponent for one in iso4217.Currency if one.exponent is not None}


class Money(BaseModel):
    """An amount of one currency in its minor units, e.g. 12.50 EUR as `EUR`, 1250, scale 2.

    The scale must be the one of ISO 4217 (the pinned table of the `iso4217` distribution). ValidationError
    for an unknown currency or another scale; as an argument, a refusal of step 3: `currency`, `money_scale`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    currency: str = Field(pattern="^[A-Z]{3}$")
    amount_minor: int = Field(ge=-MAX_INT, le=MAX_INT)
    scale: int = Field(ge=0, le=4)

    @model_validator(mode="after")
    def _scaled(self) -> Self:
        known = _scales().get(self.currency)
        if known is None:
            raise refusal("currency", f"{self.currency} is no currency of ISO 4217 with a minor unit")
        if self.scale != known:
            message = f"{self.currency} has {known} decimals, so its scale is {known}, not {self.scale}"
            raise refusal("money_scale", message)
        return self

    @classmethod
    def of(cls, currency: str, amount: Decimal) -> Self:
        """So much of a currency, exactly: `Money.of("EUR", Decimal("12.5"))`.

        ValueError where the currency has fewer decimals than the amount, and for what is no amount at all.
        """
        if not amount.is_finite():
            raise ValueError(f"{amount} is no amount of money")
        scale = _scales().get(currency, 0)  # of an unknown one the model says so
        return cls(currency=currency, amount_minor=_shifted(amount, scale, currency), scale=scale)

    @property
    def amount(self) -> Decimal:
        """In major units, with all decimals of the currency: `Decimal("12.50")`."""
        return Decimal(self.amount_minor).scaleb(-self.scale)


def _shifted(amount: Decimal, places: int, what: str) -> int:
    """`amount` with its point moved, as an integer; ValueError where that would lose a digit."""
    sign, digits, exponent = amount.as_tuple()
    assert isinstance(exponent, int)  # of a finite one
    shift = exponent + places
    if abs(shift) > 100:
        raise ValueError(f"{amount} {what} is no amount of money")
    number = int("".join(map(str, digits)) or "0")
    whole, rest = divmod(number, int(10 ** max(0, -shift)))
    if rest:
        raise ValueError(f"{amount} {what} is not exact in {places} decimals; round it before it is proposed")
    number = whole * int(10 ** max(0, shift))
    return -number if sign else number


@dataclass(frozen=True)
class Units:
    """How one provider writes amounts: by ISO 4217, but for the currencies it treats in its own way.

    `scales` are the decimals it counts in where they are not ISO's; `multiples` are what an amount in its
    units has to be divisible by; `unclear` are currencies of which its documentation can be read in two ways.
    `source` and `read` say where and when that was found. Another page of the provider may say otherwise.
    """

    provider: str
    source: str
    read: str
    scales: Mapping[str, int] = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)
    unclear: frozenset[str] = frozenset()

    def minor(self, money: Money) -> int:
        """The amount as the integer the provider takes. ValueError where it cannot say exactly this."""
        if money.currency in self.unclear:
            raise ValueError(
                f"what {self.provider} takes for {money.currency} can be read in two ways; "
                "ask it, and convert it yourself"
            )
        places = self._places(money)
        units = _shifted(money.amount, places, money.currency)
        least = self.multiples.get(money.currency, 1)
        if units % least:
            raise ValueError(
                f"{self.provider} takes {money.currency} in multiples of {least} only, not {units}; "
                "round it before it is proposed"
            )
        return units

    def decimal(self, money: Money) -> str:
        """The amount as the decimal text the provider takes, `12.50`; ValueError as `minor`."""
        return f"{Decimal(self.minor(money)).scaleb(-self._places(money)):f}"

    def money(self, currency: str, units: int) -> Money:
        """What the provider's own integer says. ValueError where that is no amount of the currency."""
        if currency in self.unclear:
            raise ValueError(f"what {self.provider} means by {currency} can be read in two ways")
        places = self.scales.get(currency, _scales().get(currency, 0))
        return Money.of(currency, Decimal(units).scaleb(-places))

    def _places(self, money: Money) -> int:
        return self.scales.get(money.currency, money.scale)


STRIPE: Final = Units(
    "Stripe",
    source="docs.stripe.com/currencies and its support page on fractional ISK",
    read="2026-11-30",
    # MGA has two decimals in ISO 4217 and none there; ISK none in ISO 4217 and two there, which must be 00.
    scales={"MGA": 0, "ISK": 2},
    multiples={"ISK": 100, "BHD": 10, "JOD": 10, "KWD": 10, "OMR": 10, "TND": 10},
    unclear=frozenset({"UGX"}),  # listed both as without decimals and as to be sent with two
)
"""Charges, payment intents and refunds."""

STRIPE_PAYOUTS: Final = Units(
    "Stripe",
    source="docs.stripe.com/currencies",
    read="2026-11-30",
    scales=STRIPE.scales,
    multiples={**STRIPE.multiples, "HUF": 100, "TWD": 100},
    unclear=STRIPE.unclear,
)
"""Manual payouts, which take whole forints and new dollars only."""

PAYPAL: Final = Units(
    "PayPal",
    source="developer.paypal.com/docs/api/reference/currency-codes",
    read="2026-11-30",
    scales={"HUF": 0, "TWD": 0},
)
"""Amounts are texts there: use `decimal`. HUF, JPY and TWD are taken without decimals only."""
