"""Whether a tool's pure parts are pure: each is called twice, with the clock moved on in between."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from pydantic import BaseModel

from fencepost.tools import PER_PROPOSAL, StoredRequest, Tool

_LATER_S: Final = 86_461  # another day, hour, minute and second


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Where two JSON values differ, by their path."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            line
            for name in sorted({*one, *other})
            for line in differences(one.get(name), other.get(name), f"{place}.{name}".lstrip("."))
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            line
            for n, (a, b) in enumerate(zip(one, other, strict=True))
            for line in differences(a, b, f"{place}[{n}]")
        ]
    return [] if one == other else [f"{place or 'the whole'}: {_short(one)} ≠ {_short(other)}"]


def differ(one: str, other: str) -> list[str]:
    """Where two bodies differ; [] for equal ones."""
    try:
        return differences(json.loads(one), json.loads(other))
    except ValueError:
        return [] if one == other else [f"{_short(one)} ≠ {_short(other)}"]


def unlike_requests(tool: Tool, args: BaseModel, key: str) -> list[str]:
    """Where two requests for the same arguments differ; [] for a tool that sends none.

    Raises what the tool's request function raises.
    """
    if tool.request is None:
        return []
    one = tool.stored_request(args, key)
    with _later():
        other = tool.stored_request(args, key)
    return list(_unlike(one, other))


def _unlike(one: StoredRequest, other: StoredRequest) -> Iterator[str]:
    if one.digest == other.digest:
        return
    if (one.method, one.target) != (other.method, other.target):
        yield f"address: {one.method} {one.target} ≠ {other.method} {other.target}"
    headers = differences(dict(one.headers), dict(other.headers), "header")
    yield from headers
    bodies = [one.body.decode("utf-8", "replace"), other.body.decode("utf-8", "replace")]
    yield from (f"body {line}" for line in differ(*bodies))


def unlike_intents(tool: Tool, args: BaseModel) -> list[str]:
    """How two intents of the same arguments differ. Raises what the tool's intent raises."""
    if tool.intent is PER_PROPOSAL or not callable(tool.intent):
        return []
    one = list(tool.intent(args))
    with _later():
        other = list(tool.intent(args))
    return differences([str(part) for part in one], [str(part) for part in other], "part")


@contextmanager
def _later() -> Iterator[None]:
    """`time.time` says another day. What reads the clock otherwise differs by itself, if by less."""
    now = time.time_ns() + _LATER_S * 1_000_000_000
    with mock.patch("time.time", return_value=now / 1e9), mock.patch("time.time_ns", return_value=now):
        yield


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
