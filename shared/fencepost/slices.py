"""What a run's children may use and have used: slices of its own budget, folded from its events. PURE.

A child's budget is taken out of its parent's as the child is started, in the parent's own change, and what it
did not use comes back as it is settled. So there is no shared row and no lock between runs, and the sum over
a tree never exceeds its root's budget (I13). What a child spends beyond what it was let go with (a provider
that counts more tokens than it was told, what offsets its effects) is charged where it is known: tokens and
cost as they are, steps never above what was held for them.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from fencepost.budgets import Budget, Usage
from fencepost.canonical import encode
from fencepost.subjects import Run

SHARED: Final = ("turns", "calls", "attempts", "tokens", "cost", "children")
"""What is shared by a tree, in the names of `Budget`; the other limits hold for each run of it alone."""
MAX_OPEN: Final = 256
"""Runs that one run has open at once: what they hold is read and written whole with each start and end."""
_DEFAULT: Final = Budget()
_COUNTED: Final = ("turns", "calls", "attempts", "children")

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Below:
    """`held`: by call, what its child may still use; `used`: what children that have ended did; `join`: what
    the open turn waits for, as its event told it, `calls` those it still waits for and `got` how many
    have answered; `stop`: open calls whose runs nobody waits for and that are to stop.
    """

    held: Mapping[str, Amounts] = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    join: Mapping[str, Any] | None = None
    stop: tuple[str, ...] = ()

    def text(self) -> str | None:
        """As the ledger keeps it: canonical JSON, None where there is nothing to say."""
        said = {"held": self.held, "used": self.used, "join": self.join, "stop": list(self.stop)}
        kept = {name: value for name, value in said.items() if value}
        return encode(kept).decode() if kept else None


@lru_cache(maxsize=1024)  # each claim of a run with children asks, mostly the same few
def read(text: str | None) -> Below:
    """What a run's `below` says."""
    said: dict[str, Any] = json.loads(text) if text else {}
    return Below(said.get("held", {}), said.get("used", {}), said.get("join"), tuple(said.get("stop", ())))


@lru_cache(maxsize=1024)
def amounts(text: str | None) -> Amounts:
    """What the children of a run hold and have used, together, by the names of `SHARED`."""
    below = read(text)
    return {name: sum(one.get(name, 0) for one in (below.used, *below.held.values())) for name in SHARED}


def named(budget: Budget) -> frozenset[str]:
    """The limits that differ from their defaults: nobody can tell others that were named from those that
    were not.
    """
    return frozenset(name for name in SHARED if getattr(budget, name) != getattr(_DEFAULT, name))


def carve(
    budget: Budget,
    usage: Usage,
    below: str | None,
    wanted: Budget,
    *,
    starting: int = 1,
    whole: Container[str],
) -> Budget | str:
    """The slice a child is let go with, or why the run's budget has no room for it, in words.

    `usage` counts what the run and its children use and hold, `starting` the calls of its turn whose runs are
    still to be started, this one's among them. A limit that `wanted` leaves open is an equal share of what is
    left of the run's own, if that has one: one for each of them, and one that stays with the run. What is
    `whole` is given whole or not at all, all else is at most such a share, and
    nobody is let go with a share of nothing.
    """
    if budget.depth < 1:
        return "depth: the run's budget allows no run below it"
    if len(read(below).held) >= MAX_OPEN:
        return f"children: {MAX_OPEN} runs are open, and no more are started beside them"
    used = {name: getattr(usage, name) for name in SHARED if name != "children"}
    used["children"] = amounts(below)["children"]
    need = {"children": 1 + wanted.children}
    given: dict[str, Any] = {}
    for name in SHARED:
        may, asks = getattr(budget, name), need.get(name, getattr(wanted, name))
        if may is None:
            continue
        left = max(may - used[name], 0)
        share = left // (starting + 1)
        if asks is None or (name not in whole and asks > share):
            if left < 1:
                return f"{name}: the child may use a share, and 0 are left of {may}"
            asks = max(share, 1)
            given[name] = asks - 1 if name == "children" else asks  # the child counts as a run itself
        if asks > left or (name == "turns" and left < 1):
            return f"{name}: the child may use {asks}, and {left} are left of {may}"
    return replace(wanted, depth=min(wanted.depth, budget.depth - 1), **given)


def held_for(piece: Budget) -> dict[str, int]:
    """What a child with this budget holds of its parent's. It counts as a run itself."""
    named = {name: getattr(piece, name) for name in SHARED} | {"children": 1 + piece.children}
    return {name: value for name, value in named.items() if value is not None}


def used_by(child: Run) -> dict[str, int]:
    """What a child that has ended used, its own children's share included."""
    own = {"turns": child.requests, "calls": child.calls, "attempts": child.attempts, "children": 1}
    own |= {"tokens": child.tokens, "cost": child.cost}
    beneath = amounts(child.below)
    return {name: own[name] + beneath[name] for name in SHARED}


def hold(text: str | None, call: UUID, piece: Amounts) -> str | None:
    """`below` after a child was started with this slice."""
    below = read(text)
    return replace(below, held={**below.held, str(call): dict(piece)}).text()


def give_back(text: str | None, call: UUID, used: Amounts | None) -> str | None:
    """`below` after the call of a child has ended: what it used stays used, the rest of its slice is free
    again. `used` None: nobody knows, as where a person settled the call; all of its slice is charged.
    """
    below = read(text)
    held = below.held.get(str(call))
    if held is None:  # it starts no run, or one beside the budget: what offsets is not held back by any
        return text
    if used is None:
        used = {name: held.get(name, 0) for name in SHARED}
    spent = {name: min(used[name], held.get(name, 0)) if name in _COUNTED else used[name] for name in SHARED}
    total = {name: below.used.get(name, 0) + spent[name] for name in SHARED}
    rest = {one: piece for one, piece in below.held.items() if one != str(call)}
    return replace(below, held=rest, used=total).text()


def joining(text: str | None, join: Mapping[str, Any] | None) -> str | None:
    """`below` after a turn that waits for its children in this way; None: for all of them."""
    below = read(text)
    return replace(below, join=join).text() if below.join != join else text


def left(text: str | None, call: UUID, *, stop: bool) -> str | None:
    """`below` after a call was detached; `stop`: its run is to stop."""
    below = _without(read(text), str(call))
    return replace(below, stop=(*below.stop, str(call)) if stop else below.stop).text()


def ended(text: str | None, call: UUID, *, answered: bool) -> str | None:
    """`below` after a call has ended; `answered`: with what its join waits for."""
    below, one = read(text), str(call)
    if below.join is not None and answered and one in below.join["calls"]:
        below = replace(below, join={**below.join, "got": below.join.get("got", 0) + 1})
    after = replace(_without(below, one), stop=tuple(other for other in below.stop if other != one))
    return after.text()


def _without(below: Below, call: str) -> Below:
    if below.join is None or call not in below.join["calls"]:
        return below
    rest = [one for one in below.join["calls"] if one != call]
    return replace(below, join={**below.join, "calls": rest} if rest else None)
