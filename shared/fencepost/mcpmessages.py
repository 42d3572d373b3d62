"""Whether a message of an MCP server answers a call, held against what was asked. PURE.

The SDK reads a message as kindly as it can: of two keys of one name the last counts, beside a `result` an
`error` is overlooked, "7" answers 7, and what comes on the stream of a request is its answer whatever id it
bears. An outcome is proved by none of these: what two readers could read differently says nothing of a call.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost.canonical import sanitize

FIRST_ID: Final = 2**30
"""Calls are numbered from here on at random, up to twice this, so that nobody answers one he has not seen."""


@dataclass(frozen=True)
class Reply:
    """The answer to the call, as a text that is the same for equal answers; with its error if it is one."""

    text: str
    error: dict[str, Any] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Doubt:
    """Why what came proves nothing of the call, nor does anything else that comes."""

    why: str


def judged(
    raw: str | bytes, call: int | None, asked: Collection[object] = (), *, alone: bool = False
) -> Reply | Doubt | None:
    """What one message is to the call of this id (None: it has not been written); None where it is nothing.

    `asked`: the ids of the other requests. `alone`: it is the HTTP answer to the call, and an error may come
    without an id.
    """
    twice: list[str] = []

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice.append("an answer came, but one of its objects has two keys of one name")
        return found

    try:
        value = json.loads(raw.decode() if isinstance(raw, bytes) else raw, object_pairs_hook=made)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None  # between its messages a server may print what it likes
    except (ValueError, RecursionError):
        return Doubt("a message is too deep, or holds too long a number, to be read")
    if isinstance(value, list):
        return Doubt("an answer came in a batch") if any(map(_answers, value)) else None
    if not _answers(value):
        return None
    return _answer(value, call, asked, twice, alone=alone)


def _answers(value: object) -> bool:
    return isinstance(value, dict) and "id" in value and bool(value.keys() & {"result", "error"})


def _answer(
    value: dict[str, Any], call: int | None, asked: Collection[object], twice: list[str], *, alone: bool
) -> Reply | Doubt | None:
    ident = value["id"]
    ours = call is not None and type(ident) is int and ident == call
    if ident is None and "result" not in value:
        ours = alone
        if not alone:
            return None
    if not ours:
        known = "jsonrpc" not in value or any(type(one) is type(ident) and one == ident for one in asked)
        return None if known else Doubt(f"an answer bears the id {sanitize(json.dumps(ident), 80)}")
    wrong = [*twice, *_wrong(value)]
    return Doubt(wrong[0]) if wrong else Reply(json.dumps(value, sort_keys=True), value.get("error"))


def _wrong(value: dict[str, Any]) -> list[str]:
    """Why an answer is no JSON-RPC response."""
    error = value.get("error", {"code": 0, "message": ""})
    kinds = [type(error.get(name)) for name in ("code", "message")] if isinstance(error, dict) else []
    checks = {
        "it has a result and an error": "result" in value and "error" in value,
        "it is an answer and a request": "method" in value,
        "it is not of JSON-RPC 2.0": value.get("jsonrpc") != "2.0",
        "its result is no object": not isinstance(value.get("result", {}), dict),
        "its error is not one": kinds != [int, str],
    }
    return [f"an answer came, but {why}" for why, broken in checks.items() if broken]
