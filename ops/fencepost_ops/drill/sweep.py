"""Every fault, at every passage of every fault point, for every class of contract; then pairs of faults.

What is swept, exactly:

- *single faults*: each point × each thing that can befall it (`actions`) × each of its passages in the
  history without faults, for each class of contract and each shape of run;
- *pairs*: of each point the first passage × crash or pause, and then, in the history that follows, the first
  passage of each point that comes after it × crash or pause. As the second fault is sought in what follows
  the first, both orders of any two points are swept, and so are points that only a recovery passes. In the
  shape `one`; and in `stop` whatever takes part in the compensation: first faults from its plan on, and its
  plan as the second. Two points of which neither knows of contracts (`CONTRACT_FREE`) are paired for one
  class only;
- *questions*: where the first fault of a pair leads to a lookup, everything that can befall its first one.

Left out, as `--explore` has it by chance: other pairs with another action or a later passage, pairs in the
shapes `two` and `both`, and three faults or more. A delay where no request leaves is a pause of that length.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost.testing import POINTS
from fencepost_ops.drill.app import CONTRACTS
from fencepost_ops.drill.jobs import Runs, Told
from fencepost_ops.drill.protocol import LOSES, WIRES, Asked, Event, Expect, Fault, Protocol

SHAPES: Final = ("one", "two", "both", "stop")
PLAN: Final = "compensate.after_plan"
CONTRACT_FREE: Final = frozenset(
    point for point in POINTS if point.partition(".")[0] in ("enqueue", "relay", "planner", "sweep")
)
"""Points that are passed where nobody looks at a contract."""
SWEEP_AT_S: Final = 3.0
"""When each history is swept for lost outbox rows: in the midst of a recovery, or after a quiet end."""
WIRE, LOOKUP = WIRES
SHORT_S: Final = 2.0  # less than an attempt's time
LATE_S: Final = 40.0  # beyond an attempt's time and the contract's settle: 5 s and 2 s
HOPELESS: Final = frozenset({"neither"})
"""Contracts under which nobody but a person can find out: under all others nothing may wait for one."""
_SLOWEST: Final = 5


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that can happen at a point; `for_s`, `host` and `answers` as in a `Fault`."""

    name: str
    do: str
    for_s: float | None = None
    host: bool = False
    answers: int | None = None

    def at(self, point: str, nth: int) -> Fault:
        """The fault at the nth passage of a point."""
        given = {"for_s": self.for_s, "host": self.host, "answers": self.answers}
        return Fault.model_validate({"at": point, "do": self.do, "nth": nth} | given)


CRASH: Final = Action("crash", "crash")
PAUSE: Final = Action("pause", "pause")
EVERYWHERE: Final = (
    CRASH,
    Action("crash of the host", "crash", host=True),
    PAUSE,
    Action("pause of 2 s", "pause", SHORT_S),
    Action("pause of 40 s", "pause", LATE_S),
    Action("error", "error"),
)
_ON_THE_WIRE: Final = (
    Action("delay of 2 s", "delay", SHORT_S),
    Action("delay of 40 s", "delay", LATE_S),
    *(Action(f"lost, answered {page}", "lost", answers=page) for page in (200, 502, 504)),
    Action("delay of 2 s, answered 504", "delay", SHORT_S, answers=504),
)
"""Late within an attempt's time and beyond it; a maintenance page or a gateway's error in its place."""


def actions(point: str) -> tuple[Action, ...]:
    """All that can happen at a point."""
    lost = (Action("lost", "lost"),) if point in LOSES else ()
    return (*EVERYWHERE, *lost, *(_ON_THE_WIRE if point in WIRES else ()))


@dataclass(frozen=True, slots=True)
class Base:
    """A history without faults: a class of contract and a shape of run."""

    contract: str
    shape: str

    def protocol(self, *faults: Fault) -> Protocol:
        """Its protocol, with these faults."""
        struck = ".".join(f"{_short(fault)}-{fault.at}-{fault.nth}" for fault in faults).replace("_", "-")
        name = f"{self.contract}.{self.shape}.{struck or 'no-fault'}"[:100]
        return Protocol(
            name=name,
            runs=[Asked(planner=self.shape, input={"contract": self.contract})],
            events=[Event(at_s=SWEEP_AT_S, do="sweep")],
            faults=list(faults),
            expect=Expect() if self.contract in HOPELESS else Expect(waiting=0),
        )


BASES: Final = tuple(Base(contract, shape) for contract in CONTRACTS for shape in SHAPES)


def singles(passages: Mapping[str, int]) -> list[tuple[Action, Fault]]:
    """Every single fault in a history that passes the points so often without one."""
    return [
        (action, action.at(point, nth))
        for point in sorted(passages)
        for nth in range(1, passages[point] + 1)
        for action in actions(point)
    ]


def firsts(base: Base, passages: Mapping[str, int]) -> set[tuple[str, int]]:
    """Where the first fault of a pair strikes: points and passages."""
    if base.shape not in ("one", "stop"):
        return set()
    found = {(point, 1) for point, often in passages.items() if often}
    return found | ({(p, n) for p, n in passages.items() if n > 1} if base.shape == "stop" else set())


def seconds(base: Base, told: Told) -> list[Fault]:
    """The second faults to strike in a history whose first fault is known: see the module."""
    (first,) = told.protocol.faults
    later = sorted(point for point, often in told.passages.items() if often > told.before.get(point, 0))
    if base.shape == "stop" and not told.before.get(PLAN):
        later = [PLAN] if PLAN in later and first.nth == 1 else []
    if base.contract != BASES[0].contract and first.at in CONTRACT_FREE:
        later = [point for point in later if point not in CONTRACT_FREE]
    return [
        action.at(point, told.before.get(point, 0) + 1)
        for point in later
        for action in ((CRASH, PAUSE) if point != LOOKUP else actions(LOOKUP))
    ]


@dataclass
class Swept:
    """What came of a sweep. `left_out` is how many histories a budget has kept from being run."""

    bases: int = 0
    singles: int = 0
    pairs: int = 0
    never: int = 0
    """Histories of which a fault never struck: they prove nothing, and are not counted as proof."""
    left_out: int = 0
    took_s: float = 0.0
    points: Counter[str] = field(default_factory=Counter)
    by_action: Counter[str] = field(default_factory=Counter)
    pairs_of: set[tuple[str, str]] = field(default_factory=set)
    contracts: set[str] = field(default_factory=set)
    shapes: set[str] = field(default_factory=set)
    noted: Counter[str] = field(default_factory=Counter)
    failures: list[Told] = field(default_factory=list)
    slowest: list[Told] = field(default_factory=list)

    @property
    def histories(self) -> int:
        """How many were run."""
        return self.bases + self.singles + self.pairs

    @property
    def ok(self) -> bool:
        """Whether nothing failed, and every fault that was to strike did."""
        return not self.failures and not self.never

    def keep(self, base: Base, told: Told) -> None:
        """Count one."""
        faults = told.protocol.faults
        self.bases, self.singles, self.pairs = (
            kept + (len(faults) == n) for n, kept in enumerate((self.bases, self.singles, self.pairs))
        )
        self.never += bool(told.missed)
        self.contracts.add(base.contract)
        self.shapes.add(base.shape)
        self.noted.update(told.noted)
        if not told.missed:
            for fault in faults:
                self.points[fault.at] += 1
                self.by_action[_named(fault)] += 1
            if len(faults) > 1:
                self.pairs_of.add((faults[0].at, faults[1].at))
        if not told.ok:
            self.failures.append(told)
        self.slowest = sorted([*self.slowest, told], key=lambda one: -one.took_s)[:_SLOWEST]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "ok": self.ok,
            "histories": self.histories,
            "without_faults": self.bases,
            "single_faults": self.singles,
            "pairs_of_faults": self.pairs,
            "pairs_of_points": len(self.pairs_of),
            "never_struck": self.never,
            "left_out": self.left_out,
            "took_s": round(self.took_s, 1),
            "contracts": sorted(self.contracts),
            "shapes": sorted(self.shapes),
            "faults_by_point": dict(sorted(self.points.items())),
            "faults_by_action": dict(sorted(self.by_action.items())),
            "points_never_struck": sorted(POINTS - self.points.keys()),
            "not_asserted": dict(sorted(self.noted.items())),
            "failures": [failure_json(told) for told in self.failures],
            "slowest": [
                {"name": one.protocol.name, "took_s": round(one.took_s, 3), "steps": one.steps}
                for one in self.slowest
            ],
        }


def failure_json(told: Told) -> dict[str, Any]:
    """A failed history as JSON values, its protocol included."""
    return {
        "name": told.protocol.name,
        "kinds": list(told.kinds),
        "problems": list(told.problems),
        "protocol": told.protocol.model_dump(mode="json", exclude_defaults=True),
    }


def _named(fault: Fault) -> str:
    if fault.host:
        return f"{fault.do} of the host"
    lasts = f"{fault.do} of {fault.for_s:g} s" if fault.for_s else fault.do
    return lasts if fault.answers is None else f"{lasts}, answered {fault.answers}"


def _short(fault: Fault) -> str:
    """As `_named`, for the name of a file: two faults that differ have two."""
    more = (
        "host" if fault.host else "",
        f"{fault.for_s:g}s" if fault.for_s else "",
        str(fault.answers or ""),
    )
    return "-".join((fault.do, *filter(None, more)))


class Sweep:
    """One sweep: `events()` runs it and gives each history as it ends; `result` says what came of it.

    `budget`: at most so many histories with faults, chosen so that every action at every point comes first
    (crashes and pauses at its first passage), and then evenly, and a third of them pairs; the rest is counted
    as left out, but for pairs whose first fault was left out. Without a budget all are run.
    """

    def __init__(
        self,
        runs: Runs,
        *,
        budget: int | None = None,
        seed: int = 0,
        bases: Sequence[Base] = BASES,
    ) -> None:
        self._runs = runs
        self._budget = budget
        self._chance = random.Random(seed)
        self._bases = bases
        self._of: list[Base] = []
        self.planned = len(bases)
        self.result = Swept()

    def events(self) -> Iterator[Told]:
        """Run it all."""
        began = time.monotonic()
        share = self._budget and self._budget - self._budget // 3
        found = []
        for told in self._run([(base, base.protocol()) for base in self._bases]):
            found.append(told)
            yield told
        quiet = {self._of[told.number]: told.passages for told in found}
        openings: list[Told] = []
        for told in self._run(self._chosen(_all_singles(self._bases, quiet), share)):
            base, (fault,) = self._of[told.number], told.protocol.faults
            if _named(fault) in ("crash", "pause") and (fault.at, fault.nth) in firsts(base, quiet[base]):
                openings.append(told)
            yield told
        openings.sort(key=lambda told: told.number)
        yield from self._run(self._chosen(self._all_pairs(openings), self._budget and self._budget // 3))
        self.result.took_s = time.monotonic() - began

    def _all_pairs(self, openings: Iterable[Told]) -> list[tuple[Base, Protocol]]:
        return [
            (base, base.protocol(*told.protocol.faults, second))
            for told in openings
            for base in [self._of[told.number]]
            for second in seconds(base, told)
        ]

    def _chosen(
        self, histories: list[tuple[Base, Protocol]], budget: int | None
    ) -> list[tuple[Base, Protocol]]:
        if budget is None or len(histories) <= budget:
            return histories
        self.result.left_out += len(histories) - budget
        groups: dict[tuple[tuple[str, str], ...], list[tuple[Base, Protocol]]] = defaultdict(list)
        for base, protocol in histories:
            groups[tuple((fault.at, _named(fault)) for fault in protocol.faults)].append((base, protocol))
        for named, group in groups.items():
            self._chance.shuffle(group)
            if len(named) == 1 and named[0][1] in ("crash", "pause"):  # what pairs are made of goes first
                group.sort(key=lambda one: one[1].faults[0].nth > 1)
        order = list(groups)
        self._chance.shuffle(order)
        turns = max(len(group) for group in groups.values())
        return [groups[key][n] for n in range(turns) for key in order if n < len(groups[key])][:budget]

    def _run(self, histories: list[tuple[Base, Protocol]]) -> Iterator[Told]:
        start = len(self._of)
        self._of += [base for base, _ in histories]
        self.planned = max(self.planned, len(self._of))
        for told in self._runs.run((start + n, protocol) for n, (_, protocol) in enumerate(histories)):
            self.result.keep(self._of[told.number], told)
            yield told


def _all_singles(
    bases: Sequence[Base], quiet: Mapping[Base, Mapping[str, int]]
) -> list[tuple[Base, Protocol]]:
    return [(base, base.protocol(fault)) for base in bases for _, fault in singles(quiet[base])]
