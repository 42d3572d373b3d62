"""Money as an argument: a currency, integer minor units and the scale they are written in.

Never a float and never a bare number: 1200 of what, and with how many decimals, is part of the value, so that
what was hashed, shown, approved and sent is one amount.
"""

from __future__ import annotations

from typing import Self

import iso4217
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fencepost.canonical import MAX_INT

_SCALES: dict[str, int] = {str(one.code): one.exponent or 0 for one in iso4217.Currency}


class Money(BaseModel):
    """An amount of one currency in its minor units, e.g. 12.50 EUR as `EUR`, 1250, scale 2.

    The scale must be the one of ISO 4217 (the pinned table of the `iso4217` distribution). ValidationError
    for an unknown currency or another scale.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    currency: str = Field(pattern="^[A-Z]{3}$")
    amount_minor: int = Field(ge=-MAX_INT, le=MAX_INT)
    scale: int = Field(ge=0, le=4)

    @model_validator(mode="after")
    def _scaled(self) -> Self:
        known = _SCALES.get(self.currency)
        if known is None:
            raise ValueError(f"{self.currency} is no currency of ISO 4217")
        if self.scale != known:
            raise ValueError(
                f"{self.currency} has {known} decimals, so its scale is {known}, not {self.scale}"
            )
        return self
