"""What the wires have in common: JSON with a model's own text in it, events, fragments. PURE."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from fencepost_ops.sandbox.provider_replies import Reply, argument_pieces, fragments

RAW: Final = "@@raw{}@@"
"""Stands in a body for the arguments of a call, which are put there as a model wrote them."""
MADE: Final = 1_767_225_600
"""When every answer was made, in Unix seconds."""


def dumped(value: Any) -> bytes:
    """A value as JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def spliced(value: Any, arguments: Sequence[str]) -> bytes:
    """A body as JSON, the calls' arguments in it as they were written."""
    text = json.dumps(value, separators=(",", ":"))
    for number, written in enumerate(arguments):
        text = text.replace(f'"{RAW.format(number)}"', written)
    return text.encode()


def named(event: str, data: Any) -> bytes:
    """An event with a name."""
    return b"event: " + event.encode() + b"\ndata: " + dumped(data) + b"\n\n"


def unnamed(data: Any) -> bytes:
    """An event without one."""
    return b"data: " + dumped(data) + b"\n\n"


def deltas(reply: Reply) -> Iterator[tuple[int, str, str]]:
    """Which call, which fragment of its arguments, and the fragment's place; by turns where interleaved."""
    each = []
    for number, call in enumerate(reply.calls):
        cut = reply.form.cut if number == len(reply.calls) - 1 else None
        pieces = fragments(call.arguments, cut)
        places = argument_pieces(pieces, cut)
        each.append([(number, piece, place) for piece, place in zip(pieces, places, strict=True)])
    if not reply.form.by_turns:
        yield from (delta for found in each for delta in found)
        return
    for turn in range(max(map(len, each), default=0)):
        yield from (found[turn] for found in each if turn < len(found))
