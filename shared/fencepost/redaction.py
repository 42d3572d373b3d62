"""The one redaction: no text that is recorded, logged or answered shows what this process logs in with.

Its own are the passwords of the addresses it is given, the secrets of its environment, and the keys it has
read. Each is found as it is, percent-encoded in any part, in either case, and in the escapes of
JSON, Python and HTML; what attempts and models were sent is found in more spellings, by the workers'
`tools/credentials.py`, which knows these too. Not hidden: a value under `LEAST_CHARS` characters outside of
an address, and what is data rather than text: arguments and inputs of runs, which hashes cover.
"""

from __future__ import annotations

import html
import json
import os
import re
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

HIDDEN: Final = "***"
LEAST_CHARS: Final = 6
"""A shorter value would be found by chance, and texts torn where nothing was told."""

_KEYWORD: Final = re.compile(r"\b(?:ssl)?password\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S+))", re.IGNORECASE)
TEXTS: Final = frozenset(
    {"message", "detail", "why", "reason", "error", "code", "request_error", "unread", "note", "summary"}
)
"""What of an event's body is text for people, however deep: errors, and why something was done."""


class _Own:
    """The values, and every form in which one is looked for."""

    def __init__(self) -> None:
        self.values: tuple[str, ...] = ()
        self.forms: tuple[str, ...] = ()
        self.escaped: re.Pattern[str] | None = None
        self._lock = threading.Lock()

    def add(self, *values: str) -> None:
        with self._lock:
            new = {one for one in values if one}.difference(self.values)
            if new:
                self.values = tuple(sorted({*self.values, *new}))
                forms = {form for value in self.values for form in _forms(value)}
                self.forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))
                longest = sorted(self.values, key=len, reverse=True)
                self.escaped = re.compile("|".join(map(_percent, longest)))


_OWN: Final = _Own()


def own(*values: str) -> None:
    """From now on these are credentials of this process."""
    _OWN.add(*(value for value in values if len(value) >= LEAST_CHARS))


def own_address(text: str) -> None:
    """So are the passwords of this DSN or URL; but for one that is the login's name, and so no secret.

    A short one is hidden where it stands as in an address, and left alone elsewhere.
    """
    for password in _passwords(text):
        if len(password) >= LEAST_CHARS:
            _OWN.add(password)
        else:
            _OWN.add(f":{password}@", f"password={password}", f"password='{password}'")


def own_environment(dsn: str) -> None:
    """So is the password that libpq takes from the environment, but for one that is the login's name."""
    password = os.environ.get("PGPASSWORD", "")
    user = os.environ.get("PGUSER", "")
    if password not in {"", user} and f"//{password}@" not in dsn and f"user={password}" not in dsn:
        own(password)


def own_values() -> tuple[str, ...]:
    """All of them, for whoever looks for them in more spellings."""
    return _OWN.values


def hidden(text: str) -> str:
    """The text with `***` in place of each."""
    for form in _OWN.forms:
        if form in text:
            text = text.replace(form, HIDDEN)
    if "%" in text and _OWN.escaped is not None:
        text = _OWN.escaped.sub(HIDDEN, text)
    return text


def hidden_body(body: dict[str, Any]) -> dict[str, Any]:
    """An event's body with its texts for people hidden, but for words of a closed set, such as why a run
    stops; the very body where nothing is found in any.
    """
    without = _walked(body, told=False) if _OWN.forms else body
    return body if without == body else without


def _walked(value: Any, *, told: bool) -> Any:
    if isinstance(value, str):
        return hidden(value) if told and not isinstance(value, Enum) else value
    if isinstance(value, dict):
        return {name: _walked(one, told=told or name in TEXTS) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_walked(one, told=told) for one in value]
    return value


def _passwords(text: str) -> Iterator[str]:
    for quoted, bare in _KEYWORD.findall(text):
        yield re.sub(r"\\(.)", r"\1", quoted) or bare
    if "://" not in text:
        return
    rest = text.partition("://")[2]
    for part in (re.split(r"[/?#]", rest, maxsplit=1)[0], rest):  # one may stand there that nobody quoted
        user, _, password = part.rpartition("@")[0].partition(":")
        if password and unquote(password) != unquote(user):
            yield from (password, unquote(password))
    try:
        query = parse_qsl(urlsplit(text).query)
    except ValueError:
        return
    yield from (value for name, value in query if name in {"password", "sslpassword"})


def _forms(value: str) -> Iterator[str]:
    yield value
    for ascii_only in (True, False):
        yield json.dumps(value, ensure_ascii=ascii_only)[1:-1]
    yield repr(value)[1:-1]
    yield html.escape(value)


def _percent(value: str) -> str:
    """A pattern of the value with any of its characters percent-encoded."""
    return "".join(
        f"(?:{re.escape(one)}|{'[+]|' if one == ' ' else ''}"
        f"(?i:{''.join(f'%{byte:02x}' for byte in one.encode('utf-8', 'surrogatepass'))}))"
        for one in value
    )
