"""The one id of a tree of runs, and what a log line says beside its message.

The id is the root run's: its 32 hexadecimal digits are the trace id (W3C Trace Context) of every span, log
line and request of the tree. So it can be computed wherever the root is known, and nobody has to keep it.
The ids of spans that nobody records are computed too: the same attempt names the same parent everywhere.

What is being worked on is bound to the task or thread that does it (`bound`), and what one process is to the
process (`process`). Neither holds arguments, results or prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final
from uuid import UUID

_NOTHING: Final[Mapping[str, Any]] = {}
_bound: Final[ContextVar[Mapping[str, Any]]] = ContextVar("fencepost_correlation", default=_NOTHING)
_process: Final[dict[str, Any]] = {}

ORDER: Final = ("tenant", "root", "run", "turn", "call", "tool", "attempt", "fence", "role", "worker")
"""The fields of a line, in this order; what is not known is left out."""


def span_id(*parts: object) -> str:
    """The id of a span that nobody records: 16 hexadecimal digits, the same for the same parts; never nought,
    which W3C Trace Context reserves.
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:16]
    return digest if int(digest, 16) else "1".zfill(16)


def traceparent(root: UUID, span: str) -> str:
    """The header by which a request belongs to the tree of this root (version 00, sampled): whoever records
    traces decides by it, and a trace nobody asked to see is less harm than one that has a hole.
    """
    return f"00-{root.hex}-{span}-01"


def process(**fields: object) -> None:
    """What all lines of this process say from now on: its role, the token it claims under."""
    _process.update(fields)


def bind(**fields: object) -> None:
    """What the task that runs says from now on, to its end: for a task of its own only."""
    here = _bound.get()
    _bound.set({**here, **fields} if here else fields)


@contextmanager
def bound(**fields: object) -> Iterator[None]:
    """Inside, lines, spans and requests of this task or thread belong to this."""
    token = _bound.set({**_bound.get(), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


def root() -> UUID | None:
    """The root of the tree that is being worked on; None outside of any."""
    return _bound.get().get("root")


def current_span() -> str:
    """The id of the span that is open here, or of the one that would be."""
    here = _bound.get()
    if "span_id" in here:
        return str(here["span_id"])
    return span_id(here.get("call", here.get("run", "")), here.get("attempt", here.get("turn", "")))


def current() -> str | None:
    """The traceparent of a request made here; None outside of any tree."""
    top = root()
    return None if top is None else traceparent(top, current_span())


def said() -> dict[str, Any]:
    """The fields of a line that is written here: texts and numbers."""
    known = {**_process, **_bound.get()}
    top = known.get("root")
    told: dict[str, Any] = {} if top is None else {"trace_id": top.hex, "span_id": current_span()}
    for name in ORDER:
        if (value := known.get(name)) is not None:
            told[name] = value if isinstance(value, int) else str(value)
    return told
