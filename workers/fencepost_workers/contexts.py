"""What planners are told of their runs' calls, read from the ledger for every turn, but each call only once.

A turn costs what has changed since the last one, however long the run has grown. A change of a call always
raises its version, and a run's changes are committed in the order of their versions: what a process has read
up to one version stays true until a higher one is read. Nothing is kept but rows; views are made anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from uuid import UUID

from fencepost.ledger.reads import ContextCall, Subject
from fencepost.ledger.turns import ContextTurn
from fencepost.outcomes import doubtful, fits
from fencepost.output import Output, shown, told_error, told_receipt, withheld
from fencepost.states import CallState
from fencepost.subjects import Run
from fencepost.tools import CallView, Tool, load_result
from fencepost.views import TurnView

KEPT_FROM = 16
"""Calls from which on a run's are kept: a short history is read as fast as it is remembered."""
MOST_BYTES = 32 * 1024 * 1024
_CALL_BYTES = 500  # of a kept call beside its arguments and its result


@dataclass(frozen=True, slots=True)
class Known:
    """The calls of one run as last read, in order, and the version up to which they are known.

    `size` is about how many bytes they take. Of a run whose planner is a model also its turns, up to number
    `heard` of its history, and `lost`: the code of the answer that was lost since the last of them.
    """

    calls: tuple[ContextCall, ...] = ()
    version: int = 0
    size: int = 0
    turns: tuple[TurnView, ...] = ()
    heard: int = 0
    lost: str | None = None

    def grown(self, read: Sequence[ContextCall]) -> Known:
        """With what has been read above `version`, in order."""
        if not read:
            return self
        version = max(self.version, *(call.version for call in read))
        if not self.calls or _place(self.calls[-1]) < _place(read[0]):  # all of them are new
            size = self.size + _size(read)
            return replace(self, calls=(*self.calls, *read), version=version, size=size)
        calls = {call.id: call for call in (*self.calls, *read)}
        ordered = tuple(sorted(calls.values(), key=_place))
        size = self.size - _size(self.calls) + _size(ordered)
        return replace(self, calls=ordered, version=version, size=size)

    def told(self, read: Sequence[ContextTurn]) -> Known:
        """With what has been read of its turns above `heard`, in order."""
        if not read:
            return self
        answers = [one for one in read if one.code is None]
        size = self.size + sum(_CALL_BYTES + len(one.data or b"") for one in answers)
        turns = (*self.turns, *map(turn_view, answers))
        return replace(self, turns=turns, heard=read[-1].seq, lost=read[-1].code, size=size)


def _place(call: ContextCall) -> tuple[int, int, UUID]:
    return call.turn, call.ordinal, call.id


def _size(calls: Iterable[ContextCall]) -> int:
    return sum(_CALL_BYTES + len(call.arguments) + len(call.result or b"") for call in calls)


_NOTHING = Known()


class Contexts:
    """The calls of long runs this process has read, the least recently asked for dropped beyond a limit."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[Subject, Known] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()

    def known(self, run: Run) -> Known:
        """What needs not be read again."""
        with self._lock:
            return self._kept.get((run.tenant, run.id), _NOTHING)

    def keep(self, run: Run, known: Known) -> None:
        """Remember what has been read; never less than is remembered already."""
        if len(known.calls) + len(known.turns) < KEPT_FROM:
            return
        key = run.tenant, run.id
        with self._lock:
            before = self._kept.pop(key, _NOTHING)
            newest = max(before, known, key=lambda one: (one.version, one.heard))
            self._kept[key] = newest
            self._total += newest.size - before.size
            while self._total > self._most:
                self._total -= self._kept.popitem(last=False)[1].size


_OURS = frozenset({CallState.REJECTED, CallState.CANCELLED})
"""Ends of calls that were never sent: what is said of them is ours."""
_NOTHING_SHOWN = Output(promote=())


class _View(CallView):
    """A view whose JSON is parsed when it is first looked at: most planners look at their last few calls."""

    def __init__(self, call: ContextCall, tool: Tool | None) -> None:
        output = tool.output if tool is not None else _NOTHING_SHOWN
        self.__dict__.update(
            call_id=call.label,
            tool=call.tool,
            state=call.state,
            error=told_error(call.error, output, ours=call.state in _OURS),
            receipt=told_receipt(call.receipt, output, tool.receipt if tool is not None else None),
            turn=call.turn,
            ordinal=call.ordinal,
            detached=call.detached,
            _call=call,
            _tool=tool,
            _output=output if tool is not None else None,
        )

    @cached_property
    def arguments(self) -> Any:
        """As stored."""
        return load_result(self.__dict__["_call"].arguments)

    @cached_property
    def untrusted(self) -> bool:
        """Whether nobody vouches for it: its tool does not, or it is not what its tool declares."""
        tool, data = self.__dict__["_tool"], self.__dict__["_call"].result
        if tool is None or tool.taints or data is None:
            return tool is None or tool.taints
        if tool.kind == "run" and tool.untrusted is None:
            return True  # another planner's words, whatever it has read
        text = bytes(data).decode("utf-8", "surrogatepass")
        return doubtful(tool, text) or not fits(tool, None, text)

    @cached_property
    def result(self) -> Any:
        """What the tool's declaration lets a planner see of what is stored; None where there is nothing."""
        data, output = self.__dict__["_call"].result, self.__dict__["_output"]
        if data is None:
            return None
        return withheld(bytes(data)) if output is None else shown(bytes(data), output)


def views(calls: Iterable[ContextCall], known: Callable[[str, int], Tool | None]) -> tuple[CallView, ...]:
    """One view per call, of their own: what a planner does to one is seen by no other turn.

    Of a tool that this process does not know nobody says what a planner may see: its result is withheld.
    """
    return tuple(_View(call, known(call.tool, call.tool_version)) for call in calls)


def turn_view(one: ContextTurn) -> TurnView:
    """What is kept of a turn, read. Total: what cannot be read says nothing."""
    kept = _object(bytes(one.data or b"").decode("utf-8", "surrogatepass"))
    raw = _object(kept.get("raw"))
    text, wire, model = (raw.get(name) for name in ("text", "wire", "model"))
    return TurnView(
        one.turn or 0,
        text if isinstance(text, str) else "",
        one.objection,
        wire if isinstance(wire, str) else "",
        model if isinstance(model, str) else "",
        _parts(raw),
    )


def _parts(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    parts = raw.get("parts")
    if parts is None and isinstance(opaque := raw.get("opaque"), list):  # kept before their places were
        parts = [{"opaque": part} for part in opaque]
    return tuple(part for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()


def _object(text: object) -> Mapping[str, Any]:
    value = load_result(text) if isinstance(text, str) else None
    return value if isinstance(value, dict) else {}
