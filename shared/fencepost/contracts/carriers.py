"""How a downstream wants to be told our operation key: where, in which form, how long. PURE.

An operation key is 64 hex digits, a SHA-256. A shorter form is a part of it, so that the same intent has the
same key there too, always, and nothing has to be remembered for it:

- `max_length` below 64: its first `max_length` digits; at least 32, which are 128 bits.
- `uuid`: its first 32 digits, of which 6 bits give way to the version (4) and the variant: 122 bits.
"""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal
from uuid import UUID

from fencepost.misspelt import check_fields
from fencepost.wire import StoredRequest

_KEY = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LEAST: Final = 32
_UUID: Final = 36
PATH_MARK: Final = "{key}"
"""Where the key goes in the path of a request that names what it makes: `Request.put("/bucket/{key}")`."""
_MARK_SENT: Final = "%7Bkey%7D"  # the mark as a bound request holds it


class Place(StrEnum):
    """Where in a request the key travels."""

    HEADER = "header"
    BODY = "body"
    """A field of a JSON object, `a.b` for one inside another; it is added, never replaced."""
    PATH = "path"
    """The name of what is made, where the path says `{key}`."""


@dataclass(frozen=True, slots=True)
class KeyCarrier:
    """The key's place, its name there, and its form. ValueError for a form that could be no key."""

    place: Place = Place.HEADER
    name: str = "Idempotency-Key"
    max_length: int | None = None
    form: Literal["hex", "uuid"] = "hex"
    quoted: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        least = _UUID if self.form == "uuid" else _LEAST
        if self.max_length is not None and self.max_length < least:
            raise ValueError(f"a key of form {self.form} needs {least} characters, not {self.max_length}")
        if self.place is Place.HEADER and not _TOKEN.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a header")
        if self.place is Place.BODY and not all(self.name.split(".")):
            raise ValueError(f"{self.name!r} is no field, nor a path of fields")
        if self.quoted and self.place is not Place.HEADER:
            raise ValueError("only a header's key is quoted")

    def spell(self, key: str) -> str:
        """The key as the downstream knows it, for lookups and for tools that send it themselves.

        ValueError for anything but an operation key.
        """
        if not _KEY.fullmatch(key):
            raise ValueError("an operation key has 64 hex digits")
        return str(UUID(hex=key[:32], version=4)) if self.form == "uuid" else key[: self.max_length]

    def put(self, stored: StoredRequest, key: str) -> StoredRequest:
        """The request with the key in its place; equal inputs give equal bytes.

        ValueError where the place is taken, or is not there.
        """
        spelled = self.spell(key)
        match self.place:
            case Place.HEADER:
                return self._in_header(stored, f'"{spelled}"' if self.quoted else spelled)
            case Place.BODY:
                return self._in_body(stored, spelled)
            case Place.PATH:
                return self._in_path(stored, spelled)

    def to_json(self) -> dict[str, Any]:
        """The carrier as JSON, fit for hashing."""
        return {
            "place": self.place.value,
            "name": self.name,
            "max_length": self.max_length,
            "form": self.form,
            "quoted": self.quoted,
        }

    def _in_header(self, stored: StoredRequest, value: str) -> StoredRequest:
        if any(name.lower() == self.name.lower() for name, _ in stored.headers):
            raise ValueError(f"the request already has a header {self.name}, which carries the key")
        headers = (*stored.headers, (self.name, value))
        return StoredRequest(stored.method, stored.target, headers, stored.body)

    def _in_body(self, stored: StoredRequest, value: str) -> StoredRequest:
        try:
            body = json.loads(stored.body or b"{}")
        except ValueError:
            body = None
        *outer, last = self.name.split(".")
        inner = body
        for name in outer:
            inner = inner.setdefault(name, {}) if isinstance(inner, dict) else None
        if not isinstance(inner, dict):
            raise ValueError(f"the key belongs into {self.name} of the body, which is no JSON object")  # noqa: TRY004
        if last in inner:
            raise ValueError(f"the request already has {self.name} in its body, which carries the key")
        inner[last] = value
        content = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
        return StoredRequest(stored.method, stored.target, stored.headers, content)

    def _in_path(self, stored: StoredRequest, value: str) -> StoredRequest:
        path, question, query = stored.target.partition("?")
        if path.count(_MARK_SENT) != 1:
            raise ValueError(f"the request's path must say {PATH_MARK} once: the key is the name")
        target = path.replace(_MARK_SENT, value) + question + query
        return StoredRequest(stored.method, target, stored.headers, stored.body)
