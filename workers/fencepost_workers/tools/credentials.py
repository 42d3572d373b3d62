"""Keeps a dependency's credentials out of what is stored: answers that echo them, errors that quote them.

What counts as one: the value of a header that is set as `env:NAME`, or whose name speaks of authentication;
also what follows its scheme, what Basic encodes, and each cookie; and the secrets that arguments name. Each
is found as it is and in the escapes of JSON, URLs, forms and HTML in any order, as `tools/spellings.py` says;
a secret in base64 too, also wrapped. What does not: values under `LEAST_CHARS` characters, and other
encodings of one (hex, compression, UTF-16, base64 of an escaped secret or of base64).

Hiding never raises and takes time in proportion to the text. What cannot be searched is withheld as a whole.
"""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, TypeVar

from fencepost.dependencies import DependencySpec
from fencepost.outcomes import Answered, Applied, Lost, Outcome, Sent
from fencepost.tools import Response
from fencepost_workers.tools.spellings import Kind, Reading, Sought, readings, spelled

HIDDEN: Final = "***"
WITHHELD: Final = '"*** withheld: it could not be searched for secrets ***"'
"""Stands for a text that was not searched; JSON, since results have to be."""

LEAST_CHARS: Final = 6
"""A shorter value would be found by chance, and texts torn where nothing was told."""

_LEAST_PART: Final = 12
"""Characters of a part of a secret that is hidden by itself."""
_ESCAPE_BEGUN: Final = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_URLSAFE: Final = str.maketrans("+/", "-_")
_TELLING: Final = re.compile(
    r"auth|cookie|credential|key|passw|secret|session|signature|token", re.IGNORECASE
)


class Credentials:
    """The credentials of one dependency, replaced by `***` wherever they come back.

    `starts`: the first bytes of all that is looked for.
    """

    def __init__(self, values: Iterable[str]) -> None:
        told = {value for value in values if len(value) >= LEAST_CHARS}
        self._values = tuple(sorted(told, key=lambda value: (-len(value), value)))
        forms: defaultdict[Kind, set[bytes]] = defaultdict(set)
        for value in self._values:
            for kind, form in spelled(value):
                forms[kind].add(form)
        self._sought = {kind: Sought(told) for kind, told in forms.items()}
        self.starts = frozenset[bytes]().union(*(sought.starts for sought in self._sought.values()))

    def __repr__(self) -> str:
        return f"<{len(self._values)} credentials>"

    @property
    def values(self) -> tuple[str, ...]:
        """All that is looked for."""
        return self._values

    @classmethod
    def of(cls, spec: DependencySpec, secrets: Sequence[str] = ()) -> Credentials:
        """Those of a dependency, read now, and these secrets. Raises UsageError where `sent_headers` does."""
        found = zip(spec.headers, spec.sent_headers(), strict=True)
        told = [(name, value) for (name, set_as), (_, value) in found if _is_told(name, set_as)]
        return _cached(tuple(told), tuple(secrets))

    def hide(self, text: str) -> str:
        """The text without credentials. Never raises: `WITHHELD` where it cannot be searched."""
        return _or_withheld(lambda: as_text(self.hide_bytes(as_bytes(text))), WITHHELD)

    def hide_bytes(self, data: bytes) -> bytes:
        """The bytes of a text without credentials."""
        if not self._values:
            return data
        return without(data, [span for reading in readings(data) for span in self.spans(reading)])

    def spans(self, reading: Reading) -> list[tuple[int, int]]:
        """Where they stand in what was read, as far as this reading of it shows them."""
        sought = self._sought.get(reading.kind)
        return [] if sought is None else reading.source(sought.spans(reading.data))

    def hide_sent(self, sent: Sent) -> Sent:
        """What came of a request, without credentials in body, headers or message."""
        if isinstance(sent, Answered):
            return replace(sent, response=self._hide_answer(sent.response))
        hidden = replace(sent, message=self.hide(sent.message))
        if (
            isinstance(hidden, Lost) and hidden.begun is not None
        ):  # its end, where one may be cut, is not kept
            return replace(hidden, begun=self._hide_answer(hidden.begun))
        return hidden

    def _hide_answer(self, answer: Response) -> Response:
        headers = {name: self.hide(value) for name, value in answer.headers.items()}
        body = _or_withheld(lambda: self.hide_bytes(answer.body), WITHHELD.encode())
        return Response(answer.status, headers, body)

    def hide_outcome(self, outcome: Outcome) -> Outcome:
        """The outcome without credentials in result, receipt or message."""
        if isinstance(outcome, Applied):
            receipt = None if outcome.receipt is None else self.hide(outcome.receipt)
            return replace(outcome, result_json_text=self.hide(outcome.result_json_text), receipt=receipt)
        return replace(outcome, code=self.hide(outcome.code), message=self.hide(outcome.message))


_T = TypeVar("_T", str, bytes)


def _or_withheld(hidden: Callable[[], _T], withheld: _T) -> _T:
    try:
        return hidden()
    except Exception:  # noqa: BLE001 - what happened is told all the same, and its text is not
        return withheld


def as_bytes(text: str) -> bytes:
    """A text as it is searched: its UTF-8, also of half characters."""
    return text.encode("utf-8", "surrogatepass")


def as_text(data: bytes) -> str:
    """And back."""
    return data.decode("utf-8", "surrogatepass")


def without(data: bytes, spans: list[tuple[int, int]]) -> bytes:
    """The bytes with `***` in place of these parts, those that overlap as one.

    An escape that one of them begins or ends in goes with it: what was JSON stays JSON.
    """
    kept: list[bytes] = []
    done = 0
    for start, end in _joined(spans):
        before = data[done:start]
        kept += [before[: len(before) - _begun_escape(before)], HIDDEN.encode()]
        done = end
        if _ends_odd(data[start:end]) and data[end : end + 1] in (b"\\", b'"'):
            done += 1
    return b"".join((*kept, data[done:]))


def _joined(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    start, end = 0, 0
    for begins, ends in sorted(spans):
        if begins >= end:
            if end:
                yield start, end
            start = begins
        end = max(end, ends)
    if end:
        yield start, end


def _begun_escape(before: bytes) -> int:
    """How many bytes at its end are an escape that goes on."""
    found = _ESCAPE_BEGUN.search(before[-5:])
    if found is None:
        return 0
    size = len(found[0])
    return size if _ends_odd(before[: len(before) - size + 1]) else 0


def _ends_odd(data: bytes) -> bool:
    """Whether an odd number of backslashes is at its end."""
    return (len(data) - len(data.rstrip(b"\\"))) % 2 == 1


@lru_cache(maxsize=64)
def _cached(headers: tuple[tuple[str, str], ...], secrets: tuple[str, ...]) -> Credentials:
    told = [part for name, value in headers for part in _parts(name, value)]
    parts = [part for value in secrets for part in (value, value.strip(), *_lines(value))]
    return Credentials([*told, *parts, *(form for value in secrets for form in _encoded(value))])


def _lines(secret: str) -> Iterator[str]:
    return (line.strip() for line in secret.splitlines() if len(line.strip()) >= _LEAST_PART)


def _encoded(secret: str) -> Iterator[str]:
    """What base64 makes of a secret, wherever it begins in what is encoded."""
    data = as_bytes(secret)
    for before in range(3):  # bytes in front of it in its group of three
        whole = base64.b64encode(bytes(before) + data)
        # A character at an edge is made of a neighbour's bits too.
        inner = whole[(0, 2, 3)[before] : (before + len(data)) * 8 // 6].decode()
        if len(inner) >= _LEAST_PART:
            yield inner
            yield inner.translate(_URLSAFE)


def _is_told(name: str, set_as: str) -> bool:
    return set_as.startswith("env:") or _TELLING.search(name) is not None


def _parts(name: str, value: str) -> Iterator[str]:
    yield value
    scheme, _, rest = value.strip().partition(" ")
    if "cookie" in name.lower():
        for pair in value.split(";"):
            yield pair.partition("=")[2].strip()
    elif rest:
        yield rest.strip()
        if scheme.lower() == "basic":
            yield from _basic(rest.strip())


def _basic(encoded: str) -> Iterator[str]:
    try:
        pair = base64.b64decode(encoded, validate=True).decode()
    except ValueError:
        return
    yield pair
    yield pair.partition(":")[2]
