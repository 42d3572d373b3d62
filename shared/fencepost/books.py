"""A downstream's own list of effects, as an application reads it for `fencepost audit` and `check`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fencepost.errors import UsageError


@dataclass(frozen=True, slots=True)
class BookedEffect:
    """One effect that the downstream says it had, told in its own words.

    `receipt` is its reference for the effect, `at` its time (with a zone). It belongs to the call that has
    `key`, the operation key as the downstream was given it; else to the one with that receipt; else to the
    one call (of `tool`, where named) that has `reference` among its arguments, an order number, say.
    `arguments` are fields of what was sent, as the downstream kept them: each one named is compared, with the
    body of the request where it has such a field, else with the call's arguments; one that neither has
    differs. `digest`, the SHA-256 in hex of the body it was sent, compares the whole. Raises UsageError for
    an effect that names neither key, receipt nor reference, or has no time zone.
    """

    receipt: str | None
    at: datetime
    key: str | None = None
    reference: str | None = None
    tool: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    digest: str | None = None

    def __post_init__(self) -> None:
        if not (self.receipt or self.key or self.reference):
            raise UsageError("an effect in a book names its key, its receipt or its reference")
        if self.at.tzinfo is None:
            raise UsageError(f"an effect in a book needs a time with a zone, not {self.at}")


BookReader = Callable[[datetime, datetime], Iterable[BookedEffect]]
"""Every effect from the first moment to before the second, in any order; it may page as it goes."""
