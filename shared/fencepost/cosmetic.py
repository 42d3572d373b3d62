"""What of a call only counts: a try, a nonce. PURE.

A tool says which of its arguments do (`cosmetic=`). Where nobody has said, names tell: numbers of arguments
named as in `COUNTERS`, whatever those say that are named as in `MARKS`, and a number behind one of `COUNTED`
within a text. No other value tells anything: an id, a day or the next of forty racks may be what a planner
looks for, and a wrong stop is worse than a late one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

COUNTERS: Final = re.compile(
    r"(attempts?|tr(?:y|ies)|retr(?:y|ies)|iter(?:ations?)?|loops?|ticks?|counter)(no|nr|num|number|count)?"
)
MARKS: Final = re.compile(r"nonce|rand(om)?|cachebust(er)?")
COUNTED: Final = ("[Aa]ttempt", "[Tt]ry", "[Rr]etry")
MOST_CHARS: Final = 16_384
"""Of a call's arguments in which names are looked for; of longer ones only what is declared is left out."""
_LEAST_WORD: Final = 8
_LEAST_NUMBER: Final = 10
_TURNS: Final = 2
"""How often letters and digits take turns in a word that nobody would call a name."""
_SPELLING: Final = re.compile(r"[^a-z0-9]")
_IN_TEXT: Final = re.compile(rf"(?<![\w/.-])({'|'.join(COUNTED)})([ #:]{{0,3}})\d+\b(?![/-])", re.ASCII)
_UUID: Final = r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"
_CLOCK: Final = r"\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
_WHEN: Final = rf"(?:\d{{4}}-\d\d-\d\d(?:[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?)?|{_CLOCK})(?!\d)"
_PARTS: Final = re.compile(rf"((?<![\w-])(?:{_UUID}(?![\w-])|{_WHEN})|[A-Za-z0-9_-]+)")
_WHOLE_UUID: Final = re.compile(_UUID)
_WHOLE_WHEN: Final = re.compile(_WHEN)
_SECONDS: Final = re.compile(r"\d\d:\d\d:(?!00(?:\.0*)?(?:\D|\Z))\d\d")
_SWITCH: Final = re.compile(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])")


class Meant(NamedTuple):
    """A call's arguments without what only counts, and the values of that by where they stood."""

    arguments: str
    counts: dict[str, Any]


def meant(arguments: str, cosmetic: Sequence[str] | None = None) -> Meant:
    """What these arguments mean; `cosmetic` as their tool declares it, None where it says nothing.

    Text that is no JSON object means what it is.
    """
    if cosmetic is None and len(arguments) > MOST_CHARS:
        return Meant(arguments, {})
    counts: dict[str, Any] = {}
    try:
        value = json.loads(arguments)
        if not isinstance(value, dict):
            return Meant(arguments, {})
        if cosmetic is None:
            value = _named(value, counts)
        else:
            counts = {name: value.pop(name) for name in cosmetic if name in value}
        return Meant(json.dumps(value, sort_keys=True), counts)
    except (ValueError, RecursionError):
        return Meant(arguments, {})


def _named(value: dict[str, Any], counts: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, one in value.items():
        if _by_name(name, one):
            counts[name] = one
        else:
            kept[name] = _in_text(one, name, counts)
    return kept


def _by_name(name: str, value: Any) -> bool:
    number = (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, str) and value.isdecimal()
    )
    spelled = _SPELLING.sub("", name.lower())
    marks = isinstance(value, str | int) and MARKS.fullmatch(spelled) is not None
    return marks or (number and COUNTERS.fullmatch(spelled) is not None)


def _in_text(value: Any, at: str, counts: dict[str, Any]) -> Any:
    """The value without the numbers that count within its texts, however deep they are."""
    if isinstance(value, str):
        said = _IN_TEXT.sub(r"\1\2", value)
        if said != value:
            counts[at] = value
        return said
    if isinstance(value, list):
        return [_in_text(one, f"{at}[{n}]", counts) for n, one in enumerate(value)]
    if isinstance(value, dict):
        return {name: _in_text(one, f"{at}.{name}", counts) for name, one in value.items()}
    return value


def by_name(argument: str) -> bool:
    """Whether an argument of this name may count where its tool says nothing."""
    spelled = _SPELLING.sub("", argument.lower())
    return any(names.fullmatch(spelled) for names in (COUNTERS, MARKS))


def unmoving(text: str) -> str:
    """A text without the ids, long numbers and times in it: errors that differ in those alone are one."""
    return "".join(_mark(word) if n % 2 else word for n, word in enumerate(_PARTS.split(text)))


def _mark(word: str) -> str:
    long = word.isdigit() and len(word) >= _LEAST_NUMBER
    mixed = len(word) >= _LEAST_WORD and len(_SWITCH.findall(word)) >= _TURNS
    when = _WHOLE_WHEN.fullmatch(word) is not None
    if _WHOLE_UUID.fullmatch(word) or long or (_SECONDS.search(word) if when else mixed):
        return "*"
    return word
