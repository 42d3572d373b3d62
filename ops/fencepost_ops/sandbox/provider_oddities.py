"""Fields of an answer as other servers send them: absent, empty, of another type, spelled otherwise. PURE.

A field is a path, `choices[].delta.tool_calls[].id`, and means each place where an event has a value there;
with `?` behind it, each place where it has null, or nothing: what a server may fill with emptiness.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from fencepost_ops.sandbox.provider_replies import Piece
from fencepost_ops.sandbox.provider_sse import dumped

_DATA: Final = b"data: {"


class Oddity(StrEnum):
    """What becomes of a field."""

    MISSING = "missing"
    NULL = "null"
    BLANK = "blank"
    SPACE = "space"
    LIST = "list"
    OBJECT = "object"
    HOLLOW = "hollow"  # an object with nothing in it but null and blanks
    TEXT_NULL = "text null"
    NUMBER = "number"
    WORD = "word"
    TRUE = "true"
    AS_TEXT = "as text"  # a number, or any value, as the text of it
    AS_VALUE = "as value"  # a text as the value that it spells
    AS_FLOAT = "as float"
    SPACED = "spaced"  # blanks around a text
    UPPER = "upper"
    TWICE = "twice"  # each event that has it comes twice


NOTHING_SAID: Final = (
    Oddity.MISSING,
    Oddity.NULL,
    Oddity.BLANK,
    Oddity.SPACE,
    Oddity.LIST,
    Oddity.OBJECT,
    Oddity.HOLLOW,
)
OTHER: Final = (Oddity.TEXT_NULL, Oddity.NUMBER, Oddity.WORD, Oddity.TRUE)
SPELLED: Final = (Oddity.AS_TEXT, Oddity.AS_VALUE, Oddity.AS_FLOAT, Oddity.SPACED, Oddity.UPPER)
_CONSTANT: Final[Mapping[Oddity, Any]] = {
    Oddity.NULL: None,
    Oddity.BLANK: "",
    Oddity.SPACE: " ",
    Oddity.LIST: [],
    Oddity.OBJECT: {},
    Oddity.HOLLOW: {"code": None, "type": "", "of": []},
    Oddity.TEXT_NULL: "null",
    Oddity.NUMBER: 7,
    Oddity.WORD: "brand new",
    Oddity.TRUE: True,
}


def fields_of(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every field in which one of these events has a value."""
    return sorted({path for event in events for path in _paths(event, "")})


def _paths(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            path = f"{at}.{name}" if at else name
            if one is not None:
                yield path
            yield from _paths(one, path)
    if isinstance(value, list):
        for one in value:
            yield from _paths(one, f"{at}[]")


def odd(events: Sequence[Mapping[str, Any]], field: str, oddity: Oddity) -> list[dict[str, Any]]:
    """The events with the field so; as they were where it cannot be so."""
    found: list[dict[str, Any]] = []
    for event in events:
        made = copy.deepcopy(dict(event))
        had = _spoil(made, field.removesuffix("?").split("."), oddity, absent=field.endswith("?"))
        found += [made, copy.deepcopy(made)] if had and oddity is Oddity.TWICE else [made]
    return found


def odd_pieces(pieces: Sequence[Piece], field: str, oddity: str) -> list[Piece]:
    """The same of a stream as it is sent."""
    found: list[Piece] = []
    for piece in pieces:
        head, mark, data = piece.data.partition(_DATA)
        if not mark:
            found.append(piece)
            continue
        events = odd([json.loads(b"{" + data)], field, Oddity(oddity))
        found += [replace(piece, data=head + b"data: " + dumped(event) + b"\n\n") for event in events]
    return found


def _spoil(value: Any, path: Sequence[str], oddity: Oddity, *, absent: bool) -> bool:
    """Whether the value had the field."""
    name, rest = path[0].removesuffix("[]"), path[1:]
    if not isinstance(value, dict):
        return False
    if rest or path[0].endswith("[]"):
        inner = value.get(name)
        each = inner if isinstance(inner, list) else [inner]
        return sum(_spoil(one, rest, oddity, absent=absent) for one in each) > 0
    if (value.get(name) is None) is not absent:
        return False
    if oddity is Oddity.MISSING:
        value.pop(name, None)
    else:
        value[name] = _made(value.get(name), oddity)
    return True


def _made(value: Any, oddity: Oddity) -> Any:
    if oddity in _CONSTANT:
        return copy.deepcopy(_CONSTANT[oddity])
    number = isinstance(value, int) and not isinstance(value, bool)
    match oddity:
        case Oddity.AS_TEXT if number:
            return str(value)
        case Oddity.AS_FLOAT if number:
            return float(value)
        case Oddity.AS_VALUE if isinstance(value, str):
            with suppress(ValueError):
                return json.loads(value)
        case Oddity.SPACED if isinstance(value, str):
            return f" {value}\n" if value.strip() else value
        case Oddity.UPPER if isinstance(value, str):
            return value.upper()
    return value
