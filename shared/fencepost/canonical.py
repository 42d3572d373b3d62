"""One text, and so one hash, for every JSON value: RFC 8785 over a strict subset of JSON.

Refused, because two readers could take them for different things: duplicate keys, floats (anything written
with a point or an exponent), NaN and infinities, integers beyond 2**53 - 1, lone surrogates, NUL. Text is
compared code point by code point and never normalised. Money is a currency, integer minor units and a scale;
instants are RFC 3339 in UTC. `HASH_VERSION` stands in front of each arguments hash and rises with every
change of these rules.
"""

import hashlib
import json
import re
from collections.abc import Callable
from math import isfinite
from typing import Any, Final, TypeAlias, cast

import rfc8785

from fencepost.errors import UsageError
from fencepost.jsontext import encoder
from fencepost.redaction import hidden

JSON: TypeAlias = "bool | int | str | list[JSON] | tuple[JSON, ...] | dict[str, JSON] | None"

HASH_VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 32
"""Levels of lists and objects in a text that comes from outside."""
ENCODE_DEPTH: Final = 64
"""Levels in a value of our own, which may wrap one from outside."""
MAX_INT: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""


class CanonicalError(UsageError):
    """The value is not canonical JSON.

    `code` is one of: syntax, encoding, too_large, too_deep, duplicate_key, float, not_finite, number_range,
    surrogate, nul, key_type, type. `path` says where, as `$.items[2].price`; `$` is the whole value.
    """

    def __init__(self, code: str, path: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.path = path
        self.message = message

    def __reduce__(self) -> tuple[type["CanonicalError"], tuple[str, str, str]]:
        return type(self), (self.code, self.path, self.message)


class _Refused:
    """Stands in a parsed value for what must not be there, so that `admit` can say where it was."""

    __slots__ = ("code", "message")

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Refused:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return _Refused("duplicate_key", f"the key {_shown(twice)} appears twice in one object")


def _float(text: str) -> _Refused:
    return _Refused("float", f"{text[:40]} is not an integer; write amounts as integer minor units")


def _constant(text: str) -> _Refused:
    return _Refused("not_finite", f"{text} is not JSON")


# A string (also one that never ends, or the scan would start anew at each of its quotes), or a bracket.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
_NOT_TEXT = re.compile(r"[\x00\ud800-\udfff]")
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
_encode_sorted = encoder(sort_keys=True)


def parse(text: str | bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> JSON:
    """The JSON value that `text` spells, if it has exactly one. Bytes must be UTF-8 without a mark.

    Raises CanonicalError. Size and depth are checked before anything is built.
    """
    text = _bounded(text, max_bytes)
    if _nesting(text, max_depth) > max_depth:
        raise _too_deep("$", max_depth)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise CanonicalError("syntax", "$", f"not JSON: {error.msg} at {where}") from None
    except ValueError:  # the interpreter's own limit on the digits of one integer
        raise CanonicalError("number_range", "$", "an integer has thousands of digits") from None
    return admit(value, max_depth=max_depth)


def _bounded(text: str | bytes, max_bytes: int) -> str:
    _sized(len(text), max_bytes)  # before a copy is made
    if isinstance(text, str):
        _sized(len(text.encode(errors="surrogatepass")), max_bytes)
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise CanonicalError("encoding", "$", f"not UTF-8 at byte {error.start}") from None


def _sized(size: int, limit: int) -> None:
    if size > limit:
        raise CanonicalError("too_large", "$", f"{size} bytes; at most {limit} are accepted")


def _too_deep(path: str, limit: int) -> CanonicalError:
    return CanonicalError("too_deep", path, f"nested deeper than {limit} levels")


def _nesting(text: str, enough: int) -> int:
    """How deep `text` nests; stops counting beyond `enough`."""
    if text.count("[") + text.count("{") <= enough:
        return 0
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        if match[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > enough:
                break
        elif match[0] in "]}":
            depth -= 1
    return deepest


def admit(value: object, *, max_depth: int = ENCODE_DEPTH) -> JSON:
    """`value` itself, if it is made of None, bool, int, str, list, tuple and dict[str], by the rules above.

    Raises CanonicalError, naming the first place that breaks one. Subclasses are refused, but for those of
    str: a text enumeration stands for its text.
    """
    _admit(value, "$", max_depth)
    return cast("JSON", value)


def _admit(value: object, path: str, depth: int) -> None:
    kind = type(value)
    if value is None or kind is bool:
        return
    if kind is int:
        if not -MAX_INT <= cast("int", value) <= MAX_INT:
            raise CanonicalError("number_range", path, "an integer beyond 2**53 - 1 is not exact in JSON")
    elif isinstance(value, str):
        _admit_text(value, path)
    elif kind is list or kind is tuple or kind is dict:
        if depth <= 0:
            raise CanonicalError("too_deep", path, "nested too deep")
        _admit_items(cast("Any", value), path, depth - 1)
    elif isinstance(value, _Refused):
        raise CanonicalError(value.code, path, value.message)
    elif isinstance(value, float):
        code = "float" if isfinite(value) else "not_finite"
        raise CanonicalError(code, path, "a float has no exact text; write amounts as integer minor units")
    else:
        raise CanonicalError("type", path, f"{kind.__qualname__} is not JSON")


def _admit_items(value: list[Any] | tuple[Any, ...] | dict[Any, Any], path: str, depth: int) -> None:
    if not isinstance(value, dict):
        for index, item in enumerate(value):
            _admit(item, f"{path}[{index}]", depth)
        return
    for key, item in value.items():
        if not isinstance(key, str):
            raise CanonicalError("key_type", path, f"a key is {type(key).__qualname__}; keys are text")
        where = f"{path}.{sanitize(key, 80)}"
        _admit_text(key, where)
        _admit(item, where, depth)


def _admit_text(text: str, path: str) -> None:
    if bad := _NOT_TEXT.search(text):
        if bad[0] == "\0":
            raise CanonicalError("nul", path, "NUL cannot be stored as text")
        raise CanonicalError("surrogate", path, f"\\u{ord(bad[0]):04x} is half a character")


def _plain(value: object, depth: int) -> bool:
    """Whether Python's own encoder writes `value` as RFC 8785 does, but for what is wrong within strings.

    It does for exact types, integers in range and ASCII keys: only for keys with characters beyond U+FFFF do
    the orders of code points and of UTF-16 units differ.
    """
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is int:
        return -MAX_INT <= value <= MAX_INT  # type: ignore[operator]
    if depth <= 0:
        return False
    depth -= 1
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str or not key.isascii():
                return False
            if item is not None and type(item) is not str and not _plain(item, depth):
                return False
        return True
    if kind is list or kind is tuple:
        return all(_plain(item, depth) for item in value)  # type: ignore[attr-defined]
    return False


def encode(value: object) -> bytes:
    """The RFC 8785 text of an admitted value, in UTF-8. Raises CanonicalError for any other value.

    Equal JSON values give equal bytes, whatever the order of keys; a tuple is a list.
    """
    if _plain(value, ENCODE_DEPTH):
        text = _encode_sorted(value)
        if "\\u0000" not in text:
            try:
                return text.encode()
            except UnicodeEncodeError:  # a lone surrogate; `admit` says where
                pass
    admit(value)
    return rfc8785.dumps(cast("Any", value))


def digest(domain: str, value: object) -> str:
    """SHA-256 over `domain`, a NUL and `encode(value)`, in hex: equal values of two domains never collide.

    Raises CanonicalError, also for a domain that holds a NUL.
    """
    if "\0" in domain:
        raise CanonicalError("nul", "$", "a domain cannot hold a NUL")
    return hashlib.sha256(domain.encode() + b"\0" + encode(value)).hexdigest()


def arguments_hash(value: object) -> str:
    """The hash of a call's arguments, led by the version of the rules it was made under: `1:<hex>`."""
    return f"{HASH_VERSION}:{digest('fencepost.arguments.v1', value)}"


# Controls but tab and line ends, directional overrides, surrogates; backslashes that would read as escapes.
_HIDDEN = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
# A run of backslashes is tried from its beginning only: from each of them, a long one would take forever.
_SHOWN = re.compile(rf"(?<!\\)(\\++)(?=[u{_HIDDEN}])|[{_HIDDEN}]")
_CUT_ESCAPE = re.compile(r"(?<!\\)\\++(?:u[0-9a-f]{0,3})?\Z")


def sanitize(text: object, limit: int, *, data: bool = False) -> str:
    r"""`text` as at most `limit` characters that can be stored and shown anywhere; never raises.

    NUL, other controls but tab and line ends, directional overrides and lone surrogates become visible, NUL
    as `\u0000`; backslashes in front of those or of a `u` are doubled, so that an uncut text reads back.
    What this process has to hide is hidden before it is cut, and a cut text ends in "…". Anything but text is
    shown by `str`, undecodable bytes as surrogates. Of `data`, by which something is found again (a label, a
    receipt), nothing is hidden: it would be another.
    """
    if limit <= 0:
        return ""
    raw = _as_text(text) if data else hidden(_as_text(text))
    safe = _SHOWN.sub(_visible, raw[: limit + 1])
    if len(safe) <= limit:
        return safe
    return _CUT_ESCAPE.sub("", safe[: limit - 1]) + "…"


_ESCAPED: Final = re.compile(r"\\(?:(u[dD][89abAB]..)(\\u[dD][c-fC-F]..)?|(u[dD][c-fC-F]..)|.)", re.DOTALL)


def marked(text: str) -> str:
    r"""A JSON text in which each half of a character (a lone surrogate, as `\ud800`) stands as visible text,
    as `sanitize` shows it: so all the rest of it can be read and stored. Of other texts nothing changes.
    """
    return _ESCAPED.sub(_halves, text) if "\\ud" in text or "\\uD" in text else text


def _halves(match: re.Match[str]) -> str:
    high, low, alone = match.groups()
    half = alone or (high if low is None else None)
    return match[0] if half is None else f"\\\\{half.lower()}"


def marked_value(value: Any) -> Any:
    """A value as `json.loads` gives it, with its halves of characters as `marked` has them."""
    if isinstance(value, str):
        return value if value.isascii() else _HALF.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
    if isinstance(value, dict):
        return {marked_value(name): marked_value(one) for name, one in value.items()}
    return [marked_value(one) for one in value] if isinstance(value, list) else value


_HALF: Final = re.compile("[\ud800-\udfff]")


# What is stored as it is and yet seen by nobody: those, joiners and fillers of no width, marks of direction,
# separators that break lines, variation selectors, tags.
_UNSEEN = re.compile(
    f"[{_HIDDEN}\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def reveal(text: str) -> str:
    r"""`text` for people and models to read: what nobody would see in it is spelled out, as `\u200b`.

    Only for reading: of what is stored and compared no character changes.
    """
    return revealed(text, _spelled)


def revealed(text: str, spelled: Callable[[str], str]) -> str:
    """`text` with each character that nobody would see spelled in a way of the caller's."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub(lambda match: spelled(match[0]), text)


def _spelled(letter: str) -> str:
    code = ord(letter)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _visible(match: re.Match[str]) -> str:
    found = match[0]
    return found * 2 if match[1] else f"\\u{ord(found):04x}"


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        if isinstance(value, bytes | bytearray):
            return bytes(value).decode(errors="surrogateescape")
        return str(value)
    except Exception:  # noqa: BLE001 - the text of an error must not become the next error
        return f"<{type(value).__qualname__} without a text>"


def _shown(key: str) -> str:
    return f"'{sanitize(key, 80)}'"
