"""When a run gets nowhere: the same calls with the same results, turn after turn. PURE.

A function of the run's calls as the ledger holds them, so that no restart, crash or takeover resets it. It
compares turns, not calls: of what is proposed at once none has seen the other's result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol

from fencepost.canonical import sanitize
from fencepost.contracts import Effect
from fencepost.states import CallState
from fencepost.tools import Tool, load_result

PERIODS: Final = (1, 2, 3)
"""How many turns may follow each other in a circle: A A A, A B A B, A B C A B C."""
PATIENCE: Final = 2
"""How many times as often calls may differ in one argument alone: whoever looks through a list does that."""
FAR: Final = 10
"""How many times as many turns as are compared are looked at: those in which only pollers are asked do not
count, and a run may have thousands of them.
"""
_SHOWN: Final = 60
_WHEN: Final = frozenset({"as_of", "now"})


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
    # fmt: on


@dataclass(frozen=True, slots=True)
class _Step:
    """The calls of one turn that count: each its tool, its outcome and its arguments, in order."""

    calls: tuple[tuple[str, str, str], ...]
    acted: bool
    """Whether it had an effect: whoever does the same to one thing after the other gets on."""

    @property
    def same(self) -> tuple[tuple[str, str, str], ...]:
        """Equal for turns that did and learnt the same, in whatever order."""
        return tuple(sorted(self.calls))

    @property
    def named(self) -> str:
        return " and ".join(dict.fromkeys(sanitize(tool, _SHOWN) for tool, _, _ in self.calls))


def stuck(
    calls: Sequence[Told],
    repeats: int,
    tool: Callable[[str, int], Tool | None] = lambda _name, _version: None,
) -> str | None:
    """Why the run makes no progress, in a sentence that names tool and count; None while it does.

    `calls` are its own forward ones in the order proposed. It stands still after `repeats` equal turns in a
    row, after as many rounds of a circle of two or three, and after twice as many turns (or rounds of two)
    that differ in one number or text alone while all results are equal and none is an effect. Calls of a
    declared poller do not count, nor do those of a tool version that this process does not know: another one
    does.
    """
    longest = max(repeats * PERIODS[-1], 2 * PATIENCE * repeats)
    steps = list(_latest(calls, longest, tool))
    for period in PERIODS:
        window = steps[: period * repeats]
        if len(window) == period * repeats and all(
            step.same == window[n % period].same for n, step in enumerate(window)
        ):
            return _circling(window[:period], repeats)
    for period in PERIODS[:2]:
        often = PATIENCE * repeats
        window = steps[: period * often]
        if len(window) < period * often or any(step.acted for step in window):
            continue
        varying = [_varies(window[n::period]) for n in range(period)]
        if None not in varying and any(name for found in varying for name in found or ()):
            return _counting(window[:period], often, varying)
    return None


def _circling(steps: Sequence[_Step], often: int) -> str:
    if len(steps) == 1:
        return f"{steps[0].named}: called {often} turns in a row with the same arguments and the same result"
    names = ", then ".join(step.named for step in reversed(steps))
    return f"{names}: called in a circle {often} times with the same arguments and the same results"


def _counting(steps: Sequence[_Step], often: int, varying: Sequence[list[str] | None]) -> str:
    names = ", then ".join(step.named for step in reversed(steps))
    what = sorted({sanitize(name, _SHOWN) for found in varying for name in found or () if name})
    only = " and ".join(what)
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
    return f"{call.state}:{learnt or call.receipt or call.error or ''}"


def _timeless(value: Any) -> Any:
    """What a reading says, without when it was made, which memory and searches tell as well."""
    if isinstance(value, dict):
        return {name: _timeless(one) for name, one in value.items() if name not in _WHEN}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def _varies(steps: Sequence[_Step]) -> list[str] | None:
    """Of each call of these steps, the one place in its arguments that is not always the same ("" for none).

    None where they are not the same calls with the same outcomes, or differ in more than that.
    """
    first = steps[0]
    shape = [(tool, outcome) for tool, outcome, _ in first.calls]
    if any([(tool, outcome) for tool, outcome, _ in step.calls] != shape for step in steps):
        return None
    found = []
    for place in range(len(shape)):
        scalars = [_scalars(step.calls[place][2]) for step in steps]
        if any(one.keys() != scalars[0].keys() for one in scalars):
            return None
        differing = [name for name in scalars[0] if len({one[name] for one in scalars}) > 1]
        if len(differing) > 1:
            return None
        found.append(differing[0] if differing else "")
    return found


def _scalars(arguments: str) -> Mapping[str, str]:
    """Every scalar of these arguments by its path, as text; what is no JSON is one."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {"the whole": arguments}
    found: dict[str, str] = {}
    left = [("", value)]
    while left:
        path, one = left.pop()
        if isinstance(one, dict):
            left += [(f"{path}.{name}" if path else name, item) for name, item in one.items()]
            found[f"{path}{{}}"] = str(len(one))
        elif isinstance(one, list):
            left += [(f"{path}[{n}]", item) for n, item in enumerate(one)]
            found[f"{path}[]"] = str(len(one))
        else:
            found[path or "the whole"] = json.dumps(one)
    return found
