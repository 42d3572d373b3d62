"""Values of arguments that only count: a page, a try, a nonce, the time of day. PURE.

A value that differs from call to call counts if it is one of these, whatever stands unchanged around it:

- whole numbers, or the one number within a text, that move by the same step each time (`try 1`, `try 2`);
- times of day with their seconds;
- ids: UUIDs, numbers of ten digits or more, and words of one length, eight characters or more, in which
  letters and digits take turns. Of a planner that may know more than it is told here, as code does and a
  model does not, ids mean something: it may well look for one after the other.

They mean something, too, if the planner was told at least half of them: they stand in what it was given, in
what its tools declare, in a result, a receipt or an error (but for what that repeats of its own call), or lie
between two such that differ from them in their number alone (of three digits or more, of one length). Words
are no counters, nor are dates and full minutes, nor what differs within a long text: whoever searches by
another word, or day after day, looks for something.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

LEAST_WORD: Final = 8
LEAST_NUMBER: Final = 10
MOST_CHARS: Final = 4096
"""Of a text that is looked into."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of what a planner was told is searched, from the beginning of what is handed over."""
MOST_SEARCHED: Final = 32 * MOST_BYTES
"""Of a planner's words in what it was told, all together."""
_EACH: Final = 64 * 1024
_PLACE: Final = 1024
_DEAR: Final = 16
"""What a search, a place and a search for numbers cost beside, or times, the bytes that are gone through."""
_PIECE: Final = 64 * 1024
_TURNS: Final = 2
"""How often letters and digits take turns in a word that nobody would call a name."""
_BETWEEN: Final = 3
_MOST_DIGITS: Final = 40
_MOST_PLACES: Final = 10_000
_NONE: Final = (1, 0)
"""Between these lies nothing."""
_ALL: Final = (0, 10**_MOST_DIGITS)
_IN_NUMBER: Final = frozenset(bytes([n]) for n in range(128) if chr(n).isalnum() or chr(n) == "_")
_IN_WORD: Final = _IN_NUMBER | {b"-"}
_ESCAPE: Final = 6
_ESCAPED: Final = re.compile(rb"\\(?:[nrtbf]|u[0-9A-Fa-f]{4})\Z")
_UUID: Final = r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"
_CLOCK: Final = r"\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
_WHEN: Final = rf"(?:\d{{4}}-\d\d-\d\d(?:[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?)?|{_CLOCK})(?!\d)"
_PARTS: Final = re.compile(rf"((?<![\w-])(?:{_UUID}(?![\w-])|{_WHEN})|[A-Za-z0-9_-]+)")
_WHOLE_UUID: Final = re.compile(_UUID)
_WHOLE_WHEN: Final = re.compile(_WHEN)
_SECONDS: Final = re.compile(r"\d\d:\d\d:(?!00(?:\.0*)?(?:\D|\Z))\d\d")
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+")
_NUMBER: Final = re.compile(r"(\d+)", re.ASCII)
_DIGITS: Final = re.compile(r"\d+", re.ASCII)
_SWITCH: Final = re.compile(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])")


def counting(values: Sequence[Any], *, ids: bool = True) -> list[list[str]] | None:
    """What of these values, one per call and in order, only counts, as words of each; None if they mean
    something. Not for values that are all equal. `ids`: whether those count.
    """
    if all(type(value) in {int, float} for value in values):
        said = [repr(value) for value in values]
        long = ids and all(len(_digits(one)) >= LEAST_NUMBER for one in said)
        whole = all(type(value) is int for value in values)
        return [said] if long or (whole and _steady(values)) else None
    if all(isinstance(value, str) and len(value) <= MOST_CHARS for value in values):
        return _texts(values, ids=ids)
    return None


def _steady(numbers: Sequence[int]) -> bool:
    steps = {after - before for before, after in pairwise(numbers)}
    return len(steps) == 1 and steps != {0}


def _texts(texts: Sequence[str], *, ids: bool) -> list[list[str]] | None:
    """The parts that differ, word by word: each has to count."""
    parts = [_PARTS.split(text) for text in texts]
    if len({len(one) for one in parts}) > 1:
        return None
    found: list[list[str]] = []
    for words in zip(*parts, strict=True):
        if len(set(words)) == 1:
            continue
        if not _count(words, ids=ids):
            return None
        found.append(list(words))
    return found or None


def _count(words: Sequence[str], *, ids: bool) -> bool:
    if all(map(_WHOLE_UUID.fullmatch, words)):
        return ids
    if all(map(_WHOLE_WHEN.fullmatch, words)):
        return all(map(_SECONDS.search, words))
    if not all(map(_WORD.fullmatch, words)):
        return False
    return _one_number(words) or (ids and (_all_long(words) or _all_random(words)))


def _one_number(words: Sequence[str]) -> bool:
    if len(set(map(_shape, words))) > 1:
        return False
    numbers = zip(*map(_DIGITS.findall, words), strict=True)
    moving = [column for column in numbers if len(set(column)) > 1]
    if len(moving) != 1 or max(map(len, moving[0])) > _MOST_DIGITS:
        return False
    return _steady([int(number) for number in moving[0]])


def _shape(word: str) -> str:
    return _DIGITS.sub("#", word)


def _all_long(words: Sequence[str]) -> bool:
    return all(word.isdigit() and len(word) >= LEAST_NUMBER for word in words)


def _all_random(words: Sequence[str]) -> bool:
    """Words of one length; by chance a few of them may have no digit, or have all of them at their end."""
    mixed = sum(len(_SWITCH.findall(word)) >= _TURNS for word in words)
    return len({len(word) for word in words}) == 1 and len(words[0]) >= LEAST_WORD and 2 * mixed > len(words)


def unmoving(text: str) -> str:
    """A text without the ids, long numbers and times in it: errors that differ in those alone are one."""
    return "".join(_mark(word) if n % 2 else word for n, word in enumerate(_PARTS.split(text)))


def _mark(word: str) -> str:
    long = word.isdigit() and len(word) >= LEAST_NUMBER
    mixed = len(word) >= LEAST_WORD and len(_SWITCH.findall(word)) >= _TURNS
    when = _WHOLE_WHEN.fullmatch(word) is not None
    if _WHOLE_UUID.fullmatch(word) or long or (_SECONDS.search(word) if when else mixed):
        return "*"
    return word


def unechoed(text: str, arguments: str) -> str:
    """A text without the words of these arguments, a number of theirs also within a word of its own."""
    own = set(_WORD.findall(arguments))
    return _WORD.sub(lambda at: "*" if at[0] in own else _without(at[0], own), text)


def _without(word: str, own: set[str]) -> str:
    return "-".join("*" if part.isdigit() and part in own else part for part in word.split("-"))


def _digits(said: str) -> str:
    return "".join(_DIGITS.findall(said))


# -- what a planner was told ---------------------------------------------------------------------------------


class Heard:
    """What a planner was told, and what of it has been looked for already: windows overlap."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._text = b"\n".join(_first(texts))
        self._stands: dict[str, bool] = {}
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}
        self.searched = 0
        """How many bytes were gone through, whatever for; what takes longer counts for more."""

    def half(self, words: Sequence[str]) -> bool:
        """Whether at least half of these words are in the texts, or between two that are. Also where more
        would have to be searched than is: a wrong stop is worse than a late one.
        """
        left = {True: (len(words) + 1) // 2, False: len(words) // 2 + 1}
        for word in words:
            if word not in self._stands:
                if self.searched >= MOST_SEARCHED:
                    return True
                self._stands[word] = self._between(word) if _numbered(word) else self._has(word.encode())
            stands = self._stands[word]
            left[stands] -= 1
            if not left[stands]:
                return stands
        return True

    def _has(self, word: bytes) -> bool:
        """Whether it stands in the texts by itself."""
        self.searched += len(self._text) + _EACH
        at = self._text.find(word)
        for _ in range(_MOST_PLACES):
            if at < 0 or _alone(self._text, at, at + len(word)):
                return at >= 0
            self.searched += _PLACE
            at = self._text.find(word, at + 1)
        return False

    def _between(self, word: str) -> bool:
        """Whether its number is none less than the least, and none greater than the greatest, that stand in
        the texts where the word has its own: as long a one, and the same around it. So it is itself.
        """
        number = _digits(word)
        key = _shape(word), len(number)
        if key not in self._ends:
            self._ends[key] = self._found(word)
        least, most = self._ends[key]
        return least <= int(number) <= most

    def _found(self, word: str) -> tuple[int, int]:
        self.searched += _DEAR * (len(self._text) + _EACH)
        least, most = _NONE
        for at in _alike(word, self._text):
            self.searched += _PLACE
            if self.searched >= MOST_SEARCHED:
                return _ALL
            if _alone(self._text, *at.span()):
                number = int(at[1])
                least, most = (min(least, number), max(most, number)) if least <= most else (number, number)
        return least, most


def _numbered(word: str) -> bool:
    return _shape(word).count("#") == 1 and _BETWEEN <= len(_digits(word)) <= _MOST_DIGITS


def _first(texts: Iterable[bytes]) -> list[bytes]:
    left, found = MOST_BYTES, []
    for text in texts:
        found.append(text[:left])
        left -= len(found[-1])
        if left <= 0:
            break
    return found


def _alone(text: bytes, start: int, end: int) -> bool:
    """Whether no word goes on beside it. A line break within JSON is written as a backslash and an n."""
    beside = _IN_NUMBER if text[start:end].isdigit() and end - start >= _BETWEEN else _IN_WORD
    if text[end : end + 1] in beside:
        return False
    before = text[max(0, start - _ESCAPE) : start]
    return before[-1:] not in beside or _ESCAPED.search(before) is not None


def _alike(word: str, text: bytes) -> Iterator[re.Match[bytes]]:
    """Where a number as long as the word's stands with the same around it, and no word goes on behind it."""
    before, number, after = _NUMBER.split(word)
    beside = re.escape(before.encode()), re.escape(after.encode())
    alike = re.compile(rb"%b(\d{%d})%b(?![0-9A-Za-z_])" % (beside[0], len(number), beside[1]))
    for at in range(0, len(text), _PIECE):  # so that a thread that goes through it lets others run
        yield from alike.finditer(text, at, at + _PIECE + len(word))
