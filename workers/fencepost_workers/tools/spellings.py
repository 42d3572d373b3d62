"""The ways a text may be spelled when somebody gives it back: escaped as JSON, URLs, forms or HTML do, JSON
within JSON too, or as the bytes of its UTF-8. PURE.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Final

ROUNDS: Final = 3
"""Levels of JSON within JSON that are read."""
_SHORT: Final = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r"}
_LONG: Final = {letter: char for char, letter in _SHORT.items()}
_NAMED: Final = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}
_BACKSLASH: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ENTITY: Final = re.compile(r"&(?:#|[a-z])")
_PERCENT: Final = re.compile(r"%([0-9a-fA-F]{2})")


def pattern(text: str, *, encoded: bool = False) -> str:
    """A pattern for `text` in which each character may be spelled in any of these ways.

    Of what is `encoded` already only what is no letter or digit: nobody escapes more, and patterns cost.
    """
    return "".join(char if encoded and char.isalnum() else _loose(char) for char in text)


def _loose(char: str) -> str:
    data = char.encode("utf-8", "surrogatepass")
    plain = re.escape(char) if char.isalnum() else rf"\\*{re.escape(char)}"
    ways = [plain, _units(char), "".join(f"(?i:%{byte:02x})" for byte in data)]
    if not char.isascii():
        ways.append(re.escape(data.decode("latin-1")))
    if not char.isalnum() or not char.isascii():
        ways.append(rf"&#(?:0*{ord(char)}|[xX]0*(?i:{ord(char):x}));")
    if char in _SHORT:
        ways.append(rf"\\+{_SHORT[char]}")
    if char in _NAMED:
        ways.append(f"&{_NAMED[char]};")
    if char == " ":
        ways.append(r"\+")
    return f"(?:{'|'.join(ways)})"


def _units(char: str) -> str:
    """As JSON escapes it, by its one or two UTF-16 units."""
    data = char.encode("utf-16-be", "surrogatepass")
    return "".join(rf"\\+u(?i:{data[n : n + 2].hex()})" for n in range(0, len(data), 2))


def readings(text: str) -> Iterator[str]:
    """What `text` reads as once escapes are undone: what a spelling hides is in one of them.

    Those of URLs are undone to bytes, each as the character of its number.
    """
    layer = text
    for _ in range(ROUNDS + 1):
        if "+" in layer:
            yield _unquoted(layer.replace("+", " "))
        if "%" in layer and _PERCENT.search(layer):
            yield _unquoted(layer)
        if "&" in layer and _ENTITY.search(layer):
            yield html.unescape(layer)
        if "\\" not in layer:
            return
        layer = _unescaped(layer)
        yield layer


def _unquoted(text: str) -> str:
    return _PERCENT.sub(lambda found: chr(int(found[1], 16)), text)


def _unescaped(text: str) -> str:
    undone = _BACKSLASH.sub(lambda found: chr(int(found[1], 16)) if found[1] else _of(found[2]), text)
    # Pairs of halves become the character they are of.
    return undone.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _of(letter: str) -> str:
    return _LONG.get(letter, letter)


def spelled(text: str) -> frozenset[str]:
    """What to look for in `readings`: the text, and its UTF-8 byte by byte."""
    return frozenset({text, text.encode("utf-8", "surrogatepass").decode("latin-1")})
