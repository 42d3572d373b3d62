"""What a provider's own error comes to, told as a status or in the middle of a stream. PURE.

Codes are those of outcomes (`http_429`, `http_503`), so that the breaker of the model's dependency reads
them; an error within a stream is told as the status that it would have had.
Sources: the API reference of Anthropic, Errors; the error codes of the openai and anthropic SDKs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from fencepost_workers.models.answers import Ending, plain, word

_IN_STREAM: Final = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "timeout_error": 504,
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "context_length_exceeded": 400,
}
_SET_UP: Final = {name: number for name, number in _IN_STREAM.items() if 401 <= number <= 404} | {
    "invalid_api_key": 401,
    "model_not_found": 404,
}
_SAY_NOTHING: Final = frozenset({"", "None", "400", "error", "invalid_request_error"})
"""Codes and types that leave it to the text what is wrong. A gateway may write None as a word."""
_KEY: Final = r"(api key (not valid|not found|expired)|invalid api key( provided)?)(\.|:|\Z)"
_PHRASES: Final = {
    re.compile(r"your credit balance is too low to access the [\w ]{0,40}\bapi\b", re.IGNORECASE): 402,
    re.compile(_KEY, re.IGNORECASE): 401,
}
"""How a provider's text begins that has no code for it: further on may stand what a model or a user said."""
_THROWN: Final = re.compile(r"\A((Error code: \d{3}|[\w.]{1,80}(Error|Exception))( -|:)? ){1,6}")
"""What a gateway puts before a provider's text: the exceptions it came through."""
_BODY: Final = re.compile(
    r"""(b['"])?\[?_\{_(["']type["']:_["']error["'],_)?["']error["']:_\{[^{}\[\]]*?"""
    r"""["']message["']:_(?P<mark>["'])(?P<said>(\\.|(?!(?P=mark)).)*)""".replace("_", r"(?:\s|\\n)*"),
    re.DOTALL,
)
"""An error's whole body in the place of the text, as JSON or as Python shows it."""
_QUOTED: Final = re.compile(r"(?<!\w)(['\"`]).*\1", re.DOTALL)
_TOO_LONG: Final = re.compile(
    r"prompt is too long|maximum context length|exceeds? the context window|context window|too many tokens",
    re.IGNORECASE,
)
_FILTERED: Final = re.compile(r"content_filter|content_policy|content_management|_policy(_violation)?\Z")
_UNBILLED: Final = frozenset({*range(300, 500), 503, 529}) - {408}
_PERHAPS_READ: Final = frozenset({Ending.CONTENT_FILTER, Ending.CONTEXT_EXCEEDED})


def failed(status: int | None, body: object, message: str) -> tuple[Ending, str, str]:
    """The ending, the code and what was said (uncut) of an error with this status, or (None) in a stream."""
    body = body[0] if isinstance(body, list) and len(body) == 1 else body
    inner = plain(plain(body).get("error")) or plain(body)
    names = [word(inner.get("code")), word(inner.get("type"))]
    said = word(inner.get("message")) or message
    own = _own(said)
    found = next((_IN_STREAM[name] for name in names if name in _IN_STREAM), None)
    found = found or (400 if any(map(_FILTERED.search, names)) else 500)
    number = found if status is None or status < 300 else status
    if number == 400:  # some providers say so of what is no fault of the request
        number = _set_up(names, own if inner.get("param") in (None, "", "None") else "")
    why = f"{next(filter(None, names), 'error')}: {said}"
    return _kind(number, names, own), f"http_{number}", why


def _own(said: str) -> str:
    """A provider's own words, out of what a gateway tells of them."""
    rest = _THROWN.sub("", said)
    body = _BODY.match(rest)
    return body["said"] if body is not None else rest


def _set_up(names: list[str], said: str) -> int:
    """The status of what was told as a 400: a key, an account or a model that is not there has its own.

    It decides for all runs, so the text is asked only where code and type say nothing.
    """
    if not _SAY_NOTHING.issuperset(names):
        return next((_SET_UP[name] for name in names if name in _SET_UP), 400)
    return next((number for phrase, number in _PHRASES.items() if phrase.match(said)), 400)


def _kind(number: int, names: list[str], said: str) -> Ending:
    if number in {400, 413}:
        if number == 413 or "context_length_exceeded" in names or _TOO_LONG.search(_QUOTED.sub("", said)):
            return Ending.CONTEXT_EXCEEDED
        if any(map(_FILTERED.search, names)):
            return Ending.CONTENT_FILTER
    return Ending.FAILED


def unbilled(status: int, ending: Ending) -> bool:
    """Whether an answer of this status, and this ending, surely cost nothing: no model saw what was turned
    away or sent on.

    Azure charges what its filter has read, and may charge what was too long or took too long (408). Other 5xx
    may stand for an answer that was made and got lost on its way.
    """
    return status in _UNBILLED and ending not in _PERHAPS_READ


def stream_error(event: Mapping[str, Any]) -> tuple[Ending, str, str]:
    """As `failed`, of an event that tells of an error."""
    return failed(None, event, "the provider told of an error")
