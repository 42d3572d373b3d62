"""What went over a user's wire in one history: each request, what answered it, and which effects it made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlsplit

from fencepost.canonical import sanitize
from fencepost.errors import UsageError
from fencepost.tools import Response
from fencepost_ops.drill.users.entries import Entry

BODY_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Received:
    """One request as a service of a test receives it; `headers` by lower-case name."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """Without host and query."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters; of several of one name the last."""
        return dict(parse_qsl(urlsplit(self.target).query))

    @property
    def key(self) -> str | None:
        """Its `Idempotency-Key`."""
        return self.headers.get("idempotency-key")

    def json(self) -> Any:
        """The body as JSON; ValueError if it is none."""
        return json.loads(self.body)


def response_of(answer: Any) -> Response:
    """What a service answered: a `Response`, or (status, value), or (status, value, headers).

    UsageError for anything else.
    """
    if isinstance(answer, Response):
        return answer
    if not isinstance(answer, tuple) or not 2 <= len(answer) <= 3 or not isinstance(answer[0], int):
        raise UsageError(
            f"service= answered {sanitize(repr(answer), 80)}; it has to answer (status, value) or a Response"
        )
    status, value, headers = (*answer, {})[:3]
    if isinstance(value, bytes | str):
        body, kind = (value if isinstance(value, bytes) else value.encode()), "text/plain; charset=utf-8"
    else:
        body, kind = (b"" if value is None else json.dumps(value).encode()), "application/json"
    told = {"content-type": kind} | {str(name).lower(): str(one) for name, one in dict(headers).items()}
    return Response(status, told, body)


@dataclass
class Exchange:
    """One request, or one call of a Python tool's wire. Times in seconds of the history."""

    at_s: float
    kind: Literal["effect", "lookup", "call"]
    what: str
    key: str | None
    body: str
    call: str | None = None
    attempt: int | None = None
    landed_s: float | None = None
    """When it arrived; None: it never did."""
    heard: str = "nothing"
    """What its sender heard."""
    status: int | None = None
    made: list[Entry] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "at_s": self.at_s, "kind": self.kind, "what": self.what, "key": self.key, "body": self.body,
            "call": self.call, "attempt": self.attempt, "landed_s": self.landed_s, "heard": self.heard,
            "effects": [entry.text for entry in self.made],
        }  # fmt: skip


def shown(body: bytes) -> str:
    """A body for reading, cut."""
    return sanitize(body.decode("utf-8", "replace"), BODY_CHARS)


def heard(response: Response) -> str:
    """An answer for reading."""
    return f"{response.status} {sanitize(response.text, 120)}".strip()
