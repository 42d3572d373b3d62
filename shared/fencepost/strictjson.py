"""JSON as its author reads it, for producers that hand in text. Pure.

Duplicate keys, NaN and Infinity are refused: each would be a request other than the one that was meant.
Numbers keep their value: one that a float does not hold exactly as written becomes a Decimal, which a request
takes.
"""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from fencepost.canonical import sanitize


class BadJson(ValueError):
    """What is wrong with a text, and at which offset if that is known."""

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset


def explained(error: Exception) -> BadJson:
    """Whatever the decoder raised, in one sentence."""
    if isinstance(error, BadJson):
        return error
    if isinstance(error, json.JSONDecodeError):
        message = f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} at column {error.colno}"
        return BadJson(message, error.pos)
    if isinstance(error, RecursionError):
        return BadJson("nested too deep")
    return BadJson("an integer has thousands of digits")  # the interpreter's own limit


def parse(text: str) -> Any:
    """The value of a text; `BadJson` if it is none."""
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise explained(error) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadJson(f"the key {sanitize(twice, 80)!r} appears twice in one object")
    return made


def _constant(text: str) -> Any:
    raise BadJson(f"{text} is not JSON")


def _number(text: str) -> float | Decimal:
    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise BadJson(f"the exponent of {sanitize(text, 40)} is out of all bounds") from None
    nearest = float(text)
    return nearest if Decimal(repr(nearest)) == exact else exact


DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_number, parse_constant=_constant)
