"""Random histories: a seed and a number give a protocol, and every invariant must hold in what comes of it.

What chance decides: how many runs, of which shapes, contracts, budgets and deadlines, and whether they mean
the same intent; how many processes; which overtakes which; up to five faults of every kind at any point; what
befalls Redis, its messages and the ledger's clock; who cancels; whether people answer what waits for them.
Every third is one in which nothing may be left to people.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from fencepost.testing import POINTS
from fencepost_ops.drill.app import CONTRACTS
from fencepost_ops.drill.jobs import Runs, Told
from fencepost_ops.drill.protocol import Asked, Event, Expect, Fault, Fleet, Limits, Protocol
from fencepost_ops.drill.sweep import HOPELESS, SHAPES, actions

T = TypeVar("T")

_OFTEN: Final = frozenset({"ledger.in_transaction", "relay.after_take", "relay.after_publish"})
_PAUSES_S: Final = (0.5, 2.0, 4.5, 6.0, 8.0, 15.0, 40.0, 90.0)
_DEADLINES_S: Final = (4.0, 8.0, 15.0, 30.0, 120.0, 120.0, 600.0)
_ENOUGH_S: Final = 1200.0  # for five faults of at most ninety seconds, and what follows them
_PATIENT_EVERY: Final = 3
_JUMPS_S: Final = (-600.0, -60.0, -5.0, -0.5, 0.5, 5.0, 60.0, 600.0)
TIMELESS: Final = frozenset({"dedupes", "neither"})
"""Contracts under which nothing is concluded from a time that has passed: with all others an absence is
believed, or a setting repeated, too early when the ledger's clock is set ahead. That it is not is a condition
of what is promised of them (`clock_set_ahead_of_lag` shows what comes of it), and no history breaks it.
"""
_MISCHIEF: Final = ("wipe_redis", "double_messages", "lose_messages", "turn_messages", "sweep")
_SLOWEST: Final = 5


def explored(seed: int, number: int) -> Protocol:
    """The history of this number under this seed. The same two give the same protocol."""
    chance = random.Random(f"fencepost {seed} {number}")
    runs = _runs(chance)
    drawn = Protocol(
        name=f"explore-{seed}-{number}",
        seed=chance.randrange(1_000_000),
        runs=runs,
        fleet=_fleet(chance),
        limits=_limits(chance),
        faults=_faults(chance),
        events=_events(chance, runs),
        interleave=chance.randrange(1_000_000) if chance.random() < 0.7 else None,
        persons=chance.random() < 0.4,
    )
    return _patient(drawn) if number % _PATIENT_EVERY == 0 else drawn


def _patient(drawn: Protocol) -> Protocol:
    """The same, but that the fleet may ask or repeat, and has the time for it: then nobody may wait for a
    person. In all others somebody may have to, and nothing is said of it: of a run that is cancelled only
    what the downstream deduplicates is repeated.
    """

    def given(run: Asked) -> Asked:
        hopeful = run.input | ({"contract": "lookup"} if run.input["contract"] in HOPELESS else {})
        return run.model_copy(update={"input": hopeful, "deadline_s": _ENOUGH_S, "attempts": None})

    return drawn.model_copy(
        update={
            "runs": [given(run) for run in drawn.runs],
            "events": [event for event in drawn.events if event.do not in ("jump_clock", "cancel")],
            "limits": Limits(attempts=20, reconcile_for_s=_ENOUGH_S, takeovers=50),
            "persons": False,
            "expect": Expect(waiting=0),
        }
    )


def _some(chance: random.Random, probability: float, of: Callable[[], T]) -> T | None:
    return of() if chance.random() < probability else None


def _runs(chance: random.Random) -> list[Asked]:
    shared = [chance.choice(sorted(CONTRACTS)) for _ in range(2)]
    runs: list[Asked] = []
    for number in range(chance.choice((1, 1, 2, 2, 3, 4))):
        if runs and chance.random() < 0.08:  # the same request once more, as a producer may
            runs.append(runs[0].model_copy(update={"at_s": _moment(chance), "run_key": "run-1"}))
            continue
        given: dict[str, Any] = {"contract": chance.choice(sorted(CONTRACTS))}
        if chance.random() < 0.5:  # an intent that other runs may have as well
            which = chance.randrange(2)
            given = {"contract": shared[which], "reference": f"shared-{which}"}
        runs.append(
            Asked(
                planner=chance.choice(SHAPES),
                input=given,
                run_key=f"run-{number + 1}",
                tenant="other" if chance.random() < 0.1 else "drill",
                deadline_s=chance.choice(_DEADLINES_S),
                at_s=_moment(chance) if chance.random() < 0.6 else 0.0,
                on_stop="leave" if chance.random() < 0.2 else "compensate",
                turns=_some(chance, 0.1, lambda: chance.randrange(4)),
                calls=_some(chance, 0.1, lambda: chance.randrange(3)),
                attempts=_some(chance, 0.15, lambda: chance.randrange(4)),
            )
        )
    return runs


def _moment(chance: random.Random) -> float:
    return round(chance.choice((0.02, 1.0, 10.0, 30.0)) * chance.random(), 3)


def _fleet(chance: random.Random) -> Fleet:
    def count() -> int:
        return chance.choice((1, 2, 2, 3))

    return Fleet(
        relay=chance.choice((1, 1, 2)),
        planner=count(),
        dispatcher=count(),
        reconciler=count(),
        compensator=count(),
    )


def _limits(chance: random.Random) -> Limits:
    if chance.random() < 0.6:
        return Limits()
    return Limits(
        attempts=_some(chance, 0.4, lambda: chance.randint(1, 5)),
        per_attempt_s=_some(chance, 0.3, lambda: chance.choice((1.0, 3.0, 10.0))),
        grace_s=_some(chance, 0.2, lambda: chance.choice((0.0, 0.5, 3.0))),
        reserve_s=_some(chance, 0.2, lambda: chance.choice((0.0, 1.0, 5.0))),
        reconcile_for_s=_some(chance, 0.3, lambda: chance.choice((5.0, 20.0, 300.0))),
        takeovers=_some(chance, 0.3, lambda: chance.randint(1, 6)),
    )


def _faults(chance: random.Random) -> list[Fault]:
    found: dict[tuple[str, int], Fault] = {}
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4, 5))):
        point = chance.choice(sorted(POINTS))
        nth = min(int(chance.expovariate(0.25 if point in _OFTEN else 0.7)) + 1, 20)
        fault = chance.choice(actions(point)).at(point, nth)
        if fault.for_s is not None:
            fault = fault.model_copy(update={"for_s": chance.choice(_PAUSES_S)})
        found[point, nth] = fault
    return list(found.values())


def _events(chance: random.Random, runs: Sequence[Asked]) -> list[Event]:
    ahead = all(run.input["contract"] in TIMELESS for run in runs)
    jumps = [jump for jump in _JUMPS_S if jump < 0 or ahead]
    found: list[Event] = []
    for _ in range(chance.choice((0, 0, 1, 1, 2, 3))):
        at_s, kind = _moment(chance), chance.random()
        if kind < 0.15:
            found.append(Event(at_s=at_s, do="cancel", run=chance.randrange(len(runs))))
        elif kind < 0.35:
            found.append(Event(at_s=at_s, do="jump_clock", seconds=chance.choice(jumps)))
        elif kind < 0.5:
            back_s = round(at_s + chance.choice((0.05, 3.0, 20.0)), 3)
            found += [Event(at_s=at_s, do="redis_away"), Event(at_s=back_s, do="redis_back")]
        else:
            found.append(Event.model_validate({"at_s": at_s, "do": chance.choice(_MISCHIEF)}))
    return found


@dataclass
class Explored:
    """What came of an exploration."""

    seed: int
    histories: int = 0
    took_s: float = 0.0
    runs: int = 0
    attempts: int = 0
    effects: int = 0
    waiting: int = 0
    interleaved: int = 0
    struck: int = 0
    missed: int = 0
    """Faults whose passage was never reached: they prove nothing."""
    points: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    failures: list[Told] = field(default_factory=list)
    slowest: list[Told] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def keep(self, told: Told) -> None:
        """Count one."""
        protocol = told.protocol
        self.histories += 1
        self.runs += len(protocol.runs)
        self.attempts += told.attempts
        self.effects += told.effects
        self.waiting += told.waiting
        self.interleaved += protocol.interleave is not None
        self.missed += told.missed
        self.struck += len(protocol.faults) - told.missed
        self.points.update(told.passages)
        self.events.update(event.do for event in protocol.events)
        self.noted.update(told.noted)
        if not told.ok:
            self.failures.append(told)
        self.slowest = sorted([*self.slowest, told], key=lambda one: -one.took_s)[:_SLOWEST]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        counted = ("seed", "histories", "runs", "attempts", "effects", "waiting", "interleaved")
        return {
            "ok": self.ok,
            **{name: getattr(self, name) for name in counted},
            "faults_struck": self.struck,
            "faults_never_reached": self.missed,
            "took_s": round(self.took_s, 1),
            "passages": dict(sorted(self.points.items())),
            "events": dict(sorted(self.events.items())),
            "not_asserted": dict(sorted(self.noted.items())),
            "failures": [
                {"name": one.protocol.name, "kinds": list(one.kinds), "problems": list(one.problems)}
                for one in sorted(self.failures, key=lambda one: one.number)
            ],
            "slowest": [
                {"name": one.protocol.name, "took_s": round(one.took_s, 3), "steps": one.steps}
                for one in self.slowest
            ],
        }


class Exploration:
    """So many random histories of one seed, from a number on: `events()` runs them."""

    def __init__(self, runs: Runs, seed: int, numbers: Sequence[int]) -> None:
        self._runs = runs
        self._numbers = numbers
        self.planned = len(numbers)
        self.result = Explored(seed)

    def events(self) -> Iterator[Told]:
        """Run them, and give each as it ends."""
        began = time.monotonic()
        seed = self.result.seed
        for told in self._runs.run((number, explored(seed, number)) for number in self._numbers):
            self.result.keep(told)
            yield told
        self.result.took_s = time.monotonic() - began
