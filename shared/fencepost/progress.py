"""When a run gets nowhere: the same calls with the same results, turn after turn. PURE.

A function of the run's calls as the ledger holds them, so that no restart, crash or takeover resets it. It
compares turns, not calls: of what is proposed at once none has seen the other's result. What only counts in
their arguments (`cosmetic`) is left out, but for calls that have had an effect. A wrong stop is worse than a
late one: what cannot be told from work goes on until a budget ends it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Final, Protocol

from fencepost.canonical import sanitize
from fencepost.contracts import Effect
from fencepost.cosmetic import Meant, meant, unmoving
from fencepost.states import CallState
from fencepost.tools import Tool, load_result

LONGEST: Final = 8
"""How many turns may follow each other in a circle, at most: A A A, A B A B, A B C D A B C D."""
PATIENCE: Final = 2
"""How many times as often calls may differ in what counts by its name alone, which its tool has not said."""
FAR: Final = 3
"""How many times as many turns as are compared are looked at: those in which only pollers are asked do not
count, and a run may have thousands of them.
"""
MOST_READ: Final = 4 * 1024 * 1024
"""Characters of the arguments of turns that are looked into; more are compared as they are."""
_SHOWN: Final = 60
_WHEN: Final = frozenset({"as_of", "now"})
_WITHOUT: Final = frozenset({CallState.FAILED, CallState.REJECTED, CallState.CANCELLED})
"""How a call ends of which it is known that it had no effect."""
_CODE: Final = re.compile(r"[a-z][a-z0-9_]*(?=: )", re.ASCII)


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
class _Asked:
    """A call that counts, and its tool, where there is one."""

    told: Told
    known: Tool | None

    @property
    def arguments(self) -> str:
        return self.told.arguments

    @property
    def cosmetic(self) -> tuple[str, ...] | None:
        return None if self.known is None else self.known.cosmetic

    @property
    def acted(self) -> bool:
        """Whether it may have had an effect: whoever does the same to one thing after the other gets on."""
        acts = self.known is not None and self.known.effect is not Effect.READ
        return acts and self.told.state not in _WITHOUT

    @property
    def asked(self) -> tuple[str, str]:
        return self.told.tool, self.told.state

    @cached_property
    def came(self) -> tuple[str, str]:
        return self.told.tool, _outcome(self.told, self.known)

    @cached_property
    def declared(self) -> Meant:
        """What it asked, without what its tool declares to count for nothing."""
        if self.acted or not self.cosmetic:
            return Meant(self.arguments, {})
        return meant(self.arguments, self.cosmetic)

    @cached_property
    def guessed(self) -> Meant:
        """What it asked, without what counts by its name where its tool says nothing."""
        return self.declared if self.cosmetic is not None else meant(self.arguments)


@dataclass(frozen=True)
class _Step:
    """The calls of one turn that count, in whatever order."""

    calls: tuple[_Asked, ...]

    @cached_property
    def shape(self) -> list[tuple[str, str]]:
        """Its calls and how they ended."""
        return sorted(call.asked for call in self.calls)

    @cached_property
    def came(self) -> list[tuple[str, str]]:
        """Its calls and what came of them, whatever they asked."""
        return sorted(call.came for call in self.calls)

    @cached_property
    def acted(self) -> bool:
        return any(call.acted for call in self.calls)

    @cached_property
    def size(self) -> int:
        return sum(len(call.arguments) for call in self.calls)

    @cached_property
    def equal(self) -> list[tuple[str, str, str]]:
        return sorted((*call.came, call.arguments) for call in self.calls)

    @cached_property
    def same(self) -> list[tuple[str, str, str]]:
        """Equal for turns that did and learnt the same."""
        return sorted((*call.came, call.declared.arguments) for call in self.calls)

    @cached_property
    def alike(self) -> list[tuple[str, str, str]]:
        """Equal for turns that did and learnt the same, but for what counts by its name."""
        return sorted((*call.came, call.guessed.arguments) for call in self.calls)

    @property
    def named(self) -> str:
        return " and ".join(dict.fromkeys(sanitize(call.told.tool, _SHOWN) for call in self.calls))


def stuck(
    calls: Sequence[Told],
    repeats: int,
    tool: Callable[[str, int], Tool | None] = lambda _name, _version: None,
) -> str | None:
    """Why the run makes no progress, in a sentence that names tool and count; None while it does.

    `calls` are its own forward ones in the order proposed. The run stands still

    - after `repeats` equal turns in a row, or rounds of a circle of `LONGEST` turns at most: the same calls
      with the same arguments, but for those that their tools declare cosmetic, and the same results, errors
      compared by their code;
    - after `PATIENCE` times as many that are equal but for arguments that count by their names, and of which
      none had an effect.

    Calls of a declared poller are left out, and so are those of a tool version that this process does not
    know: another one does.
    """
    steps = list(_latest(calls, LONGEST * PATIENCE * repeats, tool))
    for often, guess in ((repeats, False), (PATIENCE * repeats, True)):
        for period in range(1, LONGEST + 1):
            window = steps[: period * often]
            if guess and any(step.acted for step in window):  # whoever gets on may count as he does
                continue
            if all(_again(steps, period, often, kind) for kind in _kinds(window, guess)):
                return _circling(window, period, often)
    return None


def _kinds(window: Sequence[_Step], guess: bool) -> Iterator[Callable[[_Step], object]]:
    """What has to be equal for these turns to be so, what is told soonest first."""
    yield lambda step: step.shape
    yield lambda step: step.came
    if sum(step.size for step in window) > MOST_READ:
        yield lambda step: step.equal
    elif guess:
        yield lambda step: step.alike
    else:
        yield lambda step: step.same


def _again(steps: Sequence[_Step], period: int, often: int, kind: Callable[[_Step], object]) -> bool:
    """Whether the first of these are so many equal rounds; no further is looked than they are equal."""
    longest = period * often
    return len(steps) >= longest and all(
        kind(steps[n]) == kind(steps[n - period]) for n in range(period, longest)
    )


def _circling(window: Sequence[_Step], period: int, often: int) -> str:
    names = ", then ".join(step.named for step in reversed(window[:period]))
    only = sorted(_moved(window, period, often))
    if only:
        beside = " and ".join(sanitize(path, _SHOWN) for path in only)
        return f"{names}: called {often} times in a row with the same result while only {beside} changed"
    if period > 1:
        return f"{names}: called in a circle {often} times with the same arguments and the same results"
    return f"{names}: called {often} turns in a row with the same arguments and the same result"


def _moved(window: Sequence[_Step], period: int, often: int) -> set[str]:
    """The arguments that differed all the same, from round to round."""
    found: dict[tuple[int, str, str], list[list[str]]] = {}
    for n, step in enumerate(window):
        said: dict[tuple[int, str, str], list[str]] = {}
        for call in step.calls:
            for path, value in call.guessed.counts.items():
                said.setdefault((n % period, call.told.tool, path), []).append(repr(value))
        for place, values in said.items():
            found.setdefault(place, []).append(sorted(values))
    return {
        path
        for (_, _, path), rounds in found.items()
        if len(rounds) < often or any(values != rounds[0] for values in rounds)
    }


def _latest(calls: Sequence[Told], most: int, tool: Callable[[str, int], Tool | None]) -> Iterator[_Step]:
    """The last steps, the latest first: turns without a call that counts are none."""
    if not calls:
        return
    oldest, found = calls[-1].turn - FAR * most, 0
    for turn, group in groupby(reversed(calls), key=lambda call: call.turn):
        if turn <= oldest or found == most:
            return
        counted = [call for call in group if not _exempt(call, tool)]
        if counted:
            found += 1
            yield _Step(tuple(_Asked(call, tool(call.tool, call.tool_version)) for call in counted))


def _exempt(call: Told, tool: Callable[[str, int], Tool | None]) -> bool:
    if call.tool_version == 0:  # a proposal of a tool there is not
        return False
    known = tool(call.tool, call.tool_version)
    return known is None or known.poller


def _outcome(call: Told, known: Tool | None) -> str:
    learnt = call.digest
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
