"""Keeps the key out of an answer, should whoever answers echo it. PURE."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from pydantic_core import to_json

from fencepost.outcomes import Hide
from fencepost_workers.models.answers import Answer, cut
from fencepost_workers.tools.credentials import Credentials

_TELLING: Final = re.compile(r"auth|cookie|key|secret|session|token", re.IGNORECASE)


def hidden(answer: Answer, credentials: Credentials) -> Answer:
    """The answer without these credentials, and cut after that."""
    if not credentials.values:
        return cut(answer)
    hide = credentials.hide
    calls = tuple(
        replace(call, name=hide(call.name), arguments=hide(call.arguments), label=hide(call.label))
        for call in answer.calls
    )
    text = hide(answer.text)
    # A part that is not as the model made it is refused, signed as it is; none is told then.
    whole = text == answer.text and all(hidden_part(part, hide) is part for part in answer.parts)
    without = replace(
        answer,
        calls=calls,
        text=text,
        why=hide(answer.why),
        stop=hide(answer.stop),
        response=hide(answer.response),
        usage=hidden_part(answer.usage, hide),
        parts=answer.parts if whole else (),
    )
    return cut(without)


def hidden_part(part: Mapping[str, Any], hide: Hide) -> Mapping[str, Any]:
    """A part without them; an empty one where it cannot be read any more."""
    text = json.dumps(part, default=str)
    without = hide(text)
    if without == text:
        return part
    with suppress(ValueError):
        found = json.loads(without)
        return found if isinstance(found, dict) else {}
    return {}


def hidden_value(value: Any, hide: Hide) -> Any:
    """Any value without them: as it is if none is in its text; else the JSON of it, or its text, without."""
    if isinstance(value, str):
        return hide(value)
    try:
        text = to_json(value, serialize_unknown=True).decode()
    except ValueError:  # it refers to itself, say: whoever records it refuses it too
        return value
    if (without := hide(text)) == text:
        return value
    try:
        return json.loads(without)
    except ValueError:
        return without


def secrets_of(client: Any) -> tuple[str, ...]:
    """What an SDK's client signs its requests with: its keys, and what headers it was given say."""
    keys = [getattr(client, name, None) for name in ("api_key", "auth_token", "admin_api_key")]
    given = getattr(client, "_custom_headers", None) or {}
    values = [value for name, value in given.items() if _TELLING.search(name)]
    found = [value for value in (*keys, *values) if isinstance(value, str)]
    return tuple(part for value in found for part in {value, value.rpartition(" ")[2]})
