"""Bodies of events as the checker reads them: whatever is not what it should be says nothing."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from fencepost_ops.checker.facts import EventRow

_TOLD = 50  # names that an event tells; what follows says only how many more there are


def body_of(event: EventRow) -> dict[str, Any]:
    """The body, parsed; empty for one that is no JSON object (the chain's check names it)."""
    try:
        parsed = json.loads(event.body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def moment(text: object) -> datetime | None:
    """The instant that a body tells; None for what is none, or has no zone."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def numbers(told: object) -> dict[str, int]:
    """The whole numbers that a body tells by name."""
    named = told if isinstance(told, dict) else {}
    return {str(name): value for name, value in named.items() if isinstance(value, int)}


def identity(text: object) -> UUID | None:
    """The id that a body tells; None for what is none."""
    try:
        return UUID(str(text))
    except ValueError:
        return None


def told_names(told: dict[str, Any]) -> frozenset[str]:
    """On behalf of whom somebody acts, as a request or a word tells; of many it tells only the first."""
    names = told.get("on_behalf_of")
    return frozenset(map(str, names[:_TOLD])) if isinstance(names, list) else frozenset()


def answer(body: dict[str, Any]) -> tuple[str | None, datetime | None]:
    """What a lookup said, and when it was asked."""
    try:
        said = json.loads(body.get("lookup") or "")
    except (ValueError, TypeError):
        said = None
    return (said.get("answer"), moment(said.get("asked_at"))) if isinstance(said, dict) else (None, None)
