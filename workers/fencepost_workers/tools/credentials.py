"""Keeps a dependency's credentials out of what is stored: answers that echo them, errors that quote them.

What counts as one: the value of a header that is set as `env:NAME`, or whose name speaks of authentication;
also what follows its scheme, what Basic encodes, and each cookie; and the secrets that arguments name. Each
is found as it is and in the escapes of JSON, URLs, forms and HTML, a secret in base64 too. What does not:
values under `LEAST_CHARS` characters, and other encodings of one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Final

from fencepost.dependencies import DependencySpec
from fencepost.outcomes import Answered, Applied, Lost, Outcome, Sent
from fencepost.tools import Response
from fencepost_workers.tools.spellings import pattern, readings, spelled

HIDDEN: Final = "***"
LEAST_CHARS: Final = 6
"""A shorter value would be found by chance, and texts torn where nothing was told."""

_LEAST_PART: Final = 12
"""Characters of a part of a secret that is hidden by itself."""
_URLSAFE: Final = str.maketrans("+/", "-_")
_TELLING: Final = re.compile(
    r"auth|cookie|credential|key|passw|secret|session|signature|token", re.IGNORECASE
)


class Credentials:
    """The credentials of one dependency, replaced by `***` wherever they come back.

    `starts`: the first `LEAST_CHARS` characters of all that is looked for.
    """

    def __init__(self, values: Iterable[str], encoded: Iterable[str] = ()) -> None:
        self._encoded = frozenset(encoded)
        told = {value for value in values if len(value) >= LEAST_CHARS} | self._encoded
        self._values = tuple(sorted(told, key=lambda value: (-len(value), value)))  # the longest first
        self._sought = tuple({spelling: None for value in self._values for spelling in spelled(value)})
        self.starts = frozenset(spelling[:LEAST_CHARS] for spelling in self._sought)

    def __repr__(self) -> str:
        return f"<{len(self._values)} credentials>"

    @property
    def values(self) -> tuple[str, ...]:
        """All that is looked for."""
        return self._values

    @cached_property
    def _loosely(self) -> re.Pattern[str]:  # takes milliseconds to make, and few need it
        return re.compile("|".join(pattern(value, encoded=value in self._encoded) for value in self._values))

    @classmethod
    def of(cls, spec: DependencySpec, secrets: Sequence[str] = ()) -> Credentials:
        """Those of a dependency, read now, and these secrets. Raises UsageError where `sent_headers` does."""
        found = zip(spec.headers, spec.sent_headers(), strict=True)
        told = [(name, value) for (name, set_as), (_, value) in found if _is_told(name, set_as)]
        return _cached(tuple(told), tuple(secrets))

    def hide(self, text: str) -> str:
        """The text without credentials."""
        if not self._values or not (self.found_in((text,)) or self.found_in(readings(text))):
            return text
        return self._loosely.sub(HIDDEN, text)

    def found_in(self, readings_of_a_text: Iterable[str]) -> bool:
        """Whether one of them is in a text, of which these are the readings."""
        return any(value in reading for reading in readings_of_a_text for value in self._sought)

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
        body = self.hide(answer.body.decode("latin-1")).encode("latin-1")  # any bytes, and back
        return Response(answer.status, headers, body)

    def hide_outcome(self, outcome: Outcome) -> Outcome:
        """The outcome without credentials in result, receipt or message."""
        if isinstance(outcome, Applied):
            receipt = None if outcome.receipt is None else self.hide(outcome.receipt)
            return replace(outcome, result_json_text=self.hide(outcome.result_json_text), receipt=receipt)
        return replace(outcome, code=self.hide(outcome.code), message=self.hide(outcome.message))


@lru_cache(maxsize=64)
def _cached(headers: tuple[tuple[str, str], ...], secrets: tuple[str, ...]) -> Credentials:
    told = [part for name, value in headers for part in _parts(name, value)]
    parts = [part for value in secrets for part in (value, value.strip(), *_lines(value))]
    return Credentials([*told, *parts], {form for value in secrets for form in _encoded(value)})


def _lines(secret: str) -> Iterator[str]:
    return (line.strip() for line in secret.splitlines() if len(line.strip()) >= _LEAST_PART)


def _encoded(secret: str) -> Iterator[str]:
    """What base64 makes of a secret, wherever it begins in what is encoded."""
    data = secret.encode()
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
