"""What a provider's own error comes to, told as a status or in the middle of a stream. PURE.

Codes are those of outcomes (`http_429`, `http_503`), so that the breaker of the model's dependency reads
them; an error within a stream is told as the status that it would have had.
Sources: the API reference of Anthropic, Errors; the error codes of the openai and anthropic SDKs.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
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
_GATEWAY: Final = re.compile(
    r"\A(litellm\.\w{1,60}Error: (?:(?:litellm\.)?\w{1,60}Error: ){0,5})?"
    r"(\w{1,60}Exception(?: \w{1,60}Error)? - )?(?:Error code: \d{3} - )?(.*)",
    re.DOTALL,
)
"""What a gateway puts before what it was told: as litellm does, and the SDKs."""
_THROWN: Final = {
    "ContentPolicyViolationError": "content_policy_violation",
    "ContextWindowExceededError": "context_length_exceeded",
}
"""The names of litellm for what its providers have codes for."""
_BEHIND: Final = "Received Model Group="
"""Where what litellm puts behind a body begins."""
_INNER_CHARS: Final = 16 * 1024
"""Of a body within a text; a longer one is taken for a text."""
_GATEWAYS: Final = 3
"""How many may stand one behind another."""
_QUOTED: Final = re.compile(r"(?<!\w)(['\"`]).*\1", re.DOTALL)
_TOO_LONG: Final = re.compile(
    r"prompt is too long|maximum context length|exceeds? the context window|context window|too many tokens",
    re.IGNORECASE,
)
_FILTERED: Final = re.compile(r"content_filter|content_policy|content_management|_policy(_violation)?\Z")
_UNBILLED: Final = frozenset({*range(300, 500), 503, 529}) - {408, 424, 499}
_PERHAPS_READ: Final = frozenset({Ending.CONTENT_FILTER, Ending.CONTEXT_EXCEEDED})


def failed(status: int | None, body: object, message: str) -> tuple[Ending, str, str]:
    """The ending, the code and what was said (uncut) of an error with this status, or (None) in a stream.

    `message` is an SDK's own text, with all of the body in it: it is told, and closes nothing.
    """
    errors, own = _unwrapped(_error(body) or plain(body))
    names = [word(one.get(name)) for one in errors for name in ("code", "type")]
    said = word(errors[0].get("message")) or message
    filtered = any(map(_FILTERED.search, names)) or any(map(_flagged, errors))
    found = next((_IN_STREAM[name] for name in names if name in _IN_STREAM), 400 if filtered else 500)
    number = found if status is None or status < 300 else status
    if number == 400:  # some providers say so of what is no fault of the request
        points = any(one.get("param") not in (None, "", "None") for one in errors)
        number = _set_up(names, "" if points else own)
    why = f"{next(filter(None, names), 'error')}: {said}"
    return _kind(number, names, own or said, filtered=filtered), f"http_{number}", why


def _error(body: object) -> Mapping[str, Any]:
    body = body[0] if isinstance(body, list) and len(body) == 1 else body
    return plain(plain(body).get("error"))


def _unwrapped(error: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], str]:
    """An error and those that gateways tell of in its text, and the innermost one's own words."""
    errors, said = [error], word(error.get("message"))
    for _ in range(_GATEWAYS):
        ((thrown, by, rest),) = _GATEWAY.findall(said)
        errors += [{"code": code} for name, code in _THROWN.items() if name in thrown]
        inner = _inner(rest)
        if not inner:
            return errors, rest if thrown and by else said
        errors.append(inner)
        said = word(inner.get("message"))
    return errors, said


def _inner(text: str) -> Mapping[str, Any]:
    """The error in a text that is nothing but a body, as JSON or as Python shows it; empty: it is none.

    Read as a whole: what a provider repeats of a request stands in a text of the body, wherever it is.
    """
    text = text.partition(_BEHIND)[0].rstrip(". \n")
    if text.startswith(("{", "[", "b'", 'b"')) and len(text) <= _INNER_CHARS:
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return _error(_value(text))
    return {}


def _value(text: str) -> object:
    with suppress(ValueError):
        return json.loads(text)
    value = ast.literal_eval(text)
    return json.loads(value) if isinstance(value, bytes) else value


def _flagged(error: Mapping[str, Any]) -> bool:
    """Whether it says what of the request was moderated, as OpenRouter does."""
    metadata = plain(error.get("metadata"))
    return bool(metadata.get("reasons") or metadata.get("flagged_input"))


def _set_up(names: list[str], said: str) -> int:
    """The status of what was told as a 400: a key, an account or a model that is not there has its own.

    It decides for all runs, so the text is asked only where code and type say nothing.
    """
    if not _SAY_NOTHING.issuperset(names):
        return next((_SET_UP[name] for name in names if name in _SET_UP), 400)
    return next((number for phrase, number in _PHRASES.items() if phrase.match(said)), 400)


def _kind(number: int, names: list[str], said: str, *, filtered: bool) -> Ending:
    if not 400 <= number < 500:
        return Ending.FAILED
    if number == 413 or "context_length_exceeded" in names:
        return Ending.CONTEXT_EXCEEDED
    if filtered:
        return Ending.CONTENT_FILTER
    long = number == 400 and _TOO_LONG.search(_QUOTED.sub("", said))
    return Ending.CONTEXT_EXCEEDED if long else Ending.FAILED


def unbilled(status: int, ending: Ending) -> bool:
    """Whether an answer of this status, and this ending, surely cost nothing: no model saw what was turned
    away or sent on.

    Azure charges what its filter has read, and may charge what was too long (413 too), took too long (408),
    failed in the model (424) or was given up (499). Other 5xx may stand for an answer that was made and got
    lost on its way.
    """
    return status in _UNBILLED and ending not in _PERHAPS_READ


def stream_error(event: Mapping[str, Any]) -> tuple[Ending, str, str]:
    """As `failed`, of an event that tells of an error."""
    return failed(None, event, "the provider told of an error")
