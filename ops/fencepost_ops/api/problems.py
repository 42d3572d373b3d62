"""What a request is refused with: `application/problem+json` (RFC 9457), with a code for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from fencepost.canonical import reveal, sanitize
from fencepost.settings import redact

MEDIA_TYPE: Final = "application/problem+json"

CODES: Final[Mapping[str, int]] = {
    "invalid_request": 400,
    "idempotency_key_required": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "timeout": 408,
    "idempotency_in_flight": 409,
    "run_ended": 409,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "idempotency_conflict": 422,
    "too_many_attempts": 429,
    "bug": 500,
    "unavailable": 503,
    "overloaded": 503,
}
"""Every code there is, and the status it comes with."""

_LONGEST: Final = 1000


@dataclass(eq=False)
class Problem(Exception):
    """A request that is refused. `pointer` says where in its body (RFC 6901); `headers` come with it."""

    code: str
    detail: str
    pointer: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """The HTTP status of its code."""
        return CODES[self.code]

    def body(self, request_id: str) -> bytes:
        """The JSON document."""
        said: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": reveal(sanitize(redact(self.detail), _LONGEST)),
            "request_id": request_id,
        }
        if self.pointer is not None:
            said["errors"] = [{"pointer": self.pointer, "detail": said["detail"]}]
        return json.dumps(said, ensure_ascii=False).encode()


def unauthenticated(detail: str, *, presented: bool) -> Problem:
    """401 as RFC 6750 has it: with an error code only where a token was presented."""
    error = ', error="invalid_token"' if presented else ""
    return Problem(
        "unauthenticated", detail, headers={"WWW-Authenticate": f'Bearer realm="fencepost"{error}'}
    )


def forbidden(scope: str) -> Problem:
    """403 for a token that lacks a scope."""
    challenge = f'Bearer realm="fencepost", error="insufficient_scope", scope="{scope}"'
    return Problem("forbidden", f"this token lacks scope {scope}", headers={"WWW-Authenticate": challenge})


def again(code: str, detail: str, after_s: int = 1) -> Problem:
    """What may be sent again as it is, after so many seconds."""
    return Problem(code, detail, headers={"Retry-After": str(after_s)})
