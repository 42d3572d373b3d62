"""When a run gets nowhere: the same calls with the same results, turn after turn. PURE.

A function of the run's calls as the ledger holds them, so that no restart, crash or takeover resets it. It
compares turns, not calls: of what is proposed at once none has seen the other's result. Calls that differ in
what only counts (`counters`) are the same. A wrong stop is worse than a late one: what cannot be told from
work goes on until a budget ends it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Final, Protocol

from fencepost.canonical import sanitize
from fencepost.contracts import Effect
from fencepost.counters import Heard, counting, unechoed, unmoving
from fencepost.states import CallState
from fencepost.tools import Tool, load_result

LONGEST: Final = 8
"""How many turns may follow each other in a circle, at most: A A A, A B A B, A B C D A B C D."""
PATIENCE: Final = 2
"""How many times as often calls may differ in what only counts: whoever looks through a list does that."""
FAR: Final = 3
"""How many times as many turns as are compared are looked at: those in which only pollers are asked do not
count, and a run may have thousands of them.
"""
_MOST_ARGUMENTS: Final = 16_384
"""Characters of a call's arguments that are looked into."""
_MOST_LOOKED: Final = 16 * _MOST_ARGUMENTS
"""Of all arguments that differ within the turns that are compared."""
MOST_MOVING: Final = 64
"""Places in which calls may differ and be the same but for what only counts: each is looked for in all that
the planner was told.
"""
_MOST_ASKED: Final = 1024 * 1024
"""Of all arguments that are looked for in the errors of their own calls, the last ones first."""
_DEEPEST: Final = 32
"""Of a value within its arguments."""
_SHOWN: Final = 60
_WHEN: Final = frozenset({"as_of", "now"})
_CODE: Final = re.compile(r"[a-z][a-z0-9_]*(?=: )", re.ASCII)


_Path = tuple[str | int, ...]
"""Where a value stands: the place of its call in the turn, then names and numbers from the outside in."""


class Told(Protocol):
    """One call as its planner is told of it; `digest` names its result, where it has one."""

    # fmt: off
    @property
    def turn(self) -> int: ...  # noqa: D102 - as in `Call`
    @property
    def tool(self) -> str: ...  # noqa: D102 - as in `Call`
    @property
    def tool_version(self) -> int: ...  # noqa: D102 - as in `Call`
    @property
    def arguments(self) -> str: ...  # noqa: D102 - as in `Call`
    @property
    def state(self) -> str: ...  # noqa: D102 - as in `Call`
    @property
    def digest(self) -> str | None: ...  # noqa: D102 - as in `Call`
    @property
    def result(self) -> bytes | None: ...  # noqa: D102 - as in `Call`
    @property
    def receipt(self) -> str | None: ...  # noqa: D102 - as in `Call`
    @property
    def error(self) -> str | None: ...  # noqa: D102 - as in `Call`
    @property
    def code(self) -> str | None: ...  # noqa: D102 - of the failure that ended it, where it is told
    # fmt: on


@dataclass(frozen=True)
class _Step:
    """The calls of one turn that count: each its tool, its outcome and its arguments, in order."""

    calls: tuple[tuple[str, str, str], ...]
    acted: bool
    """Whether it had an effect: whoever does the same to one thing after the other gets on."""

    @cached_property
    def same(self) -> tuple[tuple[str, str, str], ...]:
        """Equal for turns that did and learnt the same, in whatever order."""
        return tuple(sorted(self.calls))

    @cached_property
    def shape(self) -> tuple[tuple[str, str], ...]:
        """Its calls and what came of them, whatever they asked."""
        return tuple((tool, outcome) for tool, outcome, _ in self.calls)

    @cached_property
    def _read(self) -> dict[int, Mapping[_Path, Any]]:
        return {}

    def asked(self, n: int) -> Mapping[_Path, Any]:
        """What its call at this place asked, by where in the turn it stands; read once."""
        if n not in self._read:
            self._read[n] = {(n, *path): value for path, value in _scalars(self.calls[n][2]).items()}
        return self._read[n]

    @property
    def named(self) -> str:
        return " and ".join(dict.fromkeys(sanitize(tool, _SHOWN) for tool, _, _ in self.calls))


def stuck(
    calls: Sequence[Told],
    repeats: int,
    tool: Callable[[str, int], Tool | None] = lambda _name, _version: None,
    given: Callable[[], Iterable[str]] = tuple,
    *,
    model: bool = True,
) -> str | None:
    """Why the run makes no progress, in a sentence that names tool and count; None while it does.

    `calls` are its own forward ones in the order proposed; `given` says what its planner was told beside
    what they brought, and is asked at the last moment; `model` whether it knows no more than that. The run
    stands still

    - after `repeats` equal turns in a row, or rounds of a circle of `LONGEST` turns at most: the same calls
      with the same arguments and the same results, errors compared by their code;
    - after `PATIENCE` times as many turns, or rounds, that are equal but for values that only count, in
      however many places, and of which none had an effect. What the planner was told counts for nothing.

    Calls of a declared poller are left out, and so are those of a tool version that this process does not
    know: another one does.
    """
    steps = list(_latest(calls, LONGEST * PATIENCE * repeats, tool))
    for period in range(1, LONGEST + 1):
        if _again([step.same for step in steps], period, repeats):
            return _circling(steps[:period], repeats)
    often, heard = PATIENCE * repeats, None
    for period in range(1, LONGEST + 1):
        window = steps[: period * often]
        if not _again([step.shape for step in steps], period, often) or any(step.acted for step in window):
            continue
        moving = _moving([window[n::period] for n in range(period)], ids=model)
        if moving is None:
            continue
        heard = heard or Heard(_heard(calls, given))
        if not any(heard.half(words) for columns in moving.values() for words in columns):
            return _counting(window[:period], often, moving)
    return None


def _again(kinds: Sequence[object], period: int, often: int) -> bool:
    """Whether the first of these are so many equal rounds."""
    longest = period * often
    return len(kinds) >= longest and all(kinds[n] == kinds[n - period] for n in range(period, longest))


def _heard(calls: Sequence[Told], given: Callable[[], Iterable[str]]) -> Iterator[bytes]:
    """What its planner was told, what its last calls brought before what older ones did.

    Not what an error repeats of its own call's arguments: whoever counts hears that, too.
    """
    yield from (text.encode("utf-8", "replace") for text in given())
    left = _MOST_ASKED
    for call in reversed(calls):
        if call.result is not None:
            yield call.result
        for said in filter(None, (call.error, call.receipt)):
            own = call.arguments if left > 0 else ""
            left -= len(own)
            yield unechoed(said, own).encode("utf-8", "replace")


def _circling(steps: Sequence[_Step], often: int) -> str:
    if len(steps) == 1:
        return f"{steps[0].named}: called {often} turns in a row with the same arguments and the same result"
    names = ", then ".join(step.named for step in reversed(steps))
    return f"{names}: called in a circle {often} times with the same arguments and the same results"


def _counting(steps: Sequence[_Step], often: int, moving: Iterable[_Path]) -> str:
    names = ", then ".join(step.named for step in reversed(steps))
    only = " and ".join(sorted({sanitize(_spelled(path[1:]), _SHOWN) for path in moving}))
    return f"{names}: called {often} times in a row with the same result while only {only} changed"


def _latest(calls: Sequence[Told], most: int, tool: Callable[[str, int], Tool | None]) -> Iterator[_Step]:
    """The last steps, the latest first: turns without a call that counts are none."""
    if not calls:
        return
    oldest, found = calls[-1].turn - FAR * most, 0
    for turn, group in groupby(reversed(calls), key=lambda call: call.turn):
        if turn <= oldest or found == most:
            return
        counted = [call for call in group if not _exempt(call, tool)][::-1]
        if counted:
            found += 1
            acted = any(_acted(call, tool) for call in counted)
            yield _Step(tuple((call.tool, _outcome(call, tool), call.arguments) for call in counted), acted)


def _exempt(call: Told, tool: Callable[[str, int], Tool | None]) -> bool:
    if call.tool_version == 0:  # a proposal of a tool there is not
        return False
    known = tool(call.tool, call.tool_version)
    return known is None or known.poller


def _acted(call: Told, tool: Callable[[str, int], Tool | None]) -> bool:
    known = tool(call.tool, call.tool_version)
    return call.state == CallState.SUCCEEDED and known is not None and known.effect is not Effect.READ


def _outcome(call: Told, tool: Callable[[str, int], Tool | None]) -> str:
    known, learnt = tool(call.tool, call.tool_version), call.digest
    if known is not None and known.grounds is not None and call.result is not None:
        learnt = json.dumps(_timeless(load_result(call.result.decode("utf-8", "replace"))), sort_keys=True)
    return f"{call.state}:{learnt or call.receipt or _failure(call)}"


def _failure(call: Told) -> str:
    """What a failure is known by: its code, else its words without the ids and times among them."""
    if call.code:
        return call.code
    said = call.error or ""
    code = _CODE.match(said) if call.state == CallState.REJECTED else None
    return code[0] if code is not None else unmoving(said)


def _timeless(value: Any) -> Any:
    """What a reading says, without when it was made, which memory and searches tell as well."""
    if isinstance(value, dict):
        return {name: _timeless(one) for name, one in value.items() if name not in _WHEN}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def _moving(
    places: Sequence[Sequence[_Step]], *, ids: bool
) -> Mapping[_Path, Sequence[Sequence[str]]] | None:
    """What only counts in the steps of each place of a circle, by where it stands; None where anything else
    differs, more does than is looked into, or nothing does.
    """
    found: dict[_Path, Sequence[Sequence[str]]] = {}
    looked = moving = 0
    for steps in places:
        for n, calls in enumerate(zip(*(step.calls for step in steps), strict=True)):
            texts = [arguments for _, _, arguments in calls]
            if len(set(texts)) == 1:
                continue
            looked += sum(map(len, texts))
            if looked > _MOST_LOOKED:
                return None
            for path, columns in _differing([step.asked(n) for step in steps], ids=ids):
                moving += len(columns or ())
                if columns is None or moving > MOST_MOVING:
                    return None
                found[path] = [*found.get(path, ()), *columns]
    return found or None


def _differing(
    asked: Sequence[Mapping[_Path, Any]], *, ids: bool
) -> Iterator[tuple[_Path, Sequence[Sequence[str]] | None]]:
    """Where one call's arguments differ from turn to turn, and what counts there; None for what does not."""
    if any(one.keys() != asked[0].keys() for one in asked):
        yield (), None
        return
    for path in asked[0]:
        values = [one[path] for one in asked]
        if not all(type(value) is type(values[0]) and value == values[0] for value in values):
            yield path, counting(values, ids=ids)


def _scalars(arguments: str) -> Mapping[_Path, Any]:
    """Every scalar of these arguments by its path; what is no JSON, too long or too deep is one."""
    if len(arguments) > _MOST_ARGUMENTS:
        return {(): arguments}
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {(): arguments}
    found: dict[_Path, Any] = {}
    left: list[tuple[_Path, Any]] = [((), value)]
    while left:
        path, one = left.pop()
        if isinstance(one, dict | list) and one:
            if len(path) == _DEEPEST:
                return {(): arguments}
            items = one.items() if isinstance(one, dict) else enumerate(one)
            left += [((*path, name), item) for name, item in items]
        else:
            found[path] = one
    return found


def _spelled(path: _Path) -> str:
    spelled = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path)
    return spelled.removeprefix(".") or "the whole"
