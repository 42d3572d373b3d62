"""What a demo does, from its seed: which orders, which faults of the services, who is killed or frozen when.

Pure: the same seed and number of runs give the same plan. What the machine makes of it is another matter.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fencepost_ops.sandbox.faults import Kind

TENANT: Final = "shop"
SERVICES: Final = ("wallet", "inventory", "shipping")
HELD: Final = "held"
"""The orders whose answers come late enough that their attempts are surely in flight."""
HELD_FOR_S: Final = 0.5  # within an attempt's second, so that the answer is a true one
LATE_BY_S: Final = 1.3  # beyond an attempt's second, within the two that its contract lets it land later
STOPPING: Final = ("refuse-", "poor.", "scarce.")
"""The orders of which some step fails for good, all of them or (of scarce goods) some."""
LEAST_FOR_ALL: Final = 60
"""Runs with which every fault has an order of its own; with fewer each role is killed once."""

KILLS: Final = {"relay": 2, "planner": 2, "dispatcher": 3, "reconciler": 2, "compensator": 1}
FREEZES: Final = 2

_DELAYS = frozenset({Kind.DELAY_ARRIVAL, Kind.DELAY_BEFORE, Kind.DELAY_AFTER_COMMIT})


@dataclass(frozen=True, slots=True)
class Order:
    """One order: its run key, which is also its reference in the services' books, and its input."""

    id: str
    input: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL a process of this role."""

    role: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """SIGSTOP a dispatcher with an attempt in flight, until its work has been taken over.

    `bait` are orders whose attempts take long enough to be caught at it; they come when all is ready for it.
    """

    bait: tuple[Order, ...]


Act = Kill | Freeze


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a demo does, in order: a wave of orders, then an act, and so on."""

    seed: int
    waves: tuple[tuple[Order, ...], ...]
    acts: tuple[Act, ...]
    faults: tuple[Mapping[str, Any], ...]
    kinds: frozenset[str]
    """The faults that some order meets, whatever happens."""
    poor: str
    """An account that cannot pay; its orders stop, and what was reserved is released."""
    scarce: tuple[str, int]
    """A kind of goods and how many there are: fewer than are ordered."""

    @property
    def kills(self) -> int:
        """How many processes are killed."""
        return sum(isinstance(act, Kill) for act in self.acts)

    @property
    def orders(self) -> list[Order]:
        """All orders, those of the freezes too."""
        bait = [order for act in self.acts if isinstance(act, Freeze) for order in act.bait]
        return [*(order for wave in self.waves for order in wave), *bait]


def make_plan(seed: int, runs: int) -> Plan:
    """The plan of a seed. With fewer than `LEAST_FOR_ALL` runs some faults find no order."""
    chance = random.Random(seed)
    places = {kind: chance.choice(SERVICES) for kind in Kind}
    groups = _groups(runs)
    scarce = ("scarce", max(1, groups.get("scarce", 0) // 2))
    orders = [
        _order(chance, group, number, scarce[0]) for group, size in groups.items() for number in range(size)
    ]
    chance.shuffle(orders)
    bait = [order for order in orders if order.id.startswith(f"{HELD}.")]
    acts = _acts(chance, bait, KILLS if runs >= LEAST_FOR_ALL else dict.fromkeys(KILLS, 1))
    return Plan(
        seed=seed,
        waves=_waves([order for order in orders if order not in bait], len(acts)),
        acts=acts,
        faults=tuple(_rules(places, seed)),
        kinds=frozenset(kind.value for kind in Kind if kind.value in groups or kind is Kind.REFUSE),
        poor="acc-poor",
        scarce=scarce,
    )


def _groups(runs: int) -> dict[str, int]:
    """How many orders each group has. Every fault has a group, named after it; the others are ordinary."""
    share = max(1, runs // 100)
    wanted = {HELD: max(8, runs // 12)}
    wanted |= {kind.value: share for kind in Kind if kind is not Kind.REFUSE}
    wanted |= {f"refuse-{service}": share for service in SERVICES}
    wanted |= {"poor": 2 * share, "scarce": 2 * share}
    groups, left = {}, runs
    for name, size in wanted.items():
        groups[name] = min(size, left)
        left -= groups[name]
    groups["plain"] = left
    return {name: size for name, size in groups.items() if size}


def _order(chance: random.Random, group: str, number: int, scarce: str) -> Order:
    name = f"{group}.{number:03d}"
    amount = {"currency": "EUR", "amount_minor": chance.randrange(100, 100_000), "scale": 2}
    return Order(
        name,
        {
            "order_id": name,
            "sku": scarce if group == "scarce" else chance.choice(("apple", "pear", "plum")),
            "quantity": 1,
            "account": "acc-poor" if group == "poor" else f"acc-{chance.randrange(20):02d}",
            "amount": amount,
            "address_id": f"adr-{chance.randrange(1000):03d}",
        },
    )


def _waves(orders: Sequence[Order], number: int) -> tuple[tuple[Order, ...], ...]:
    """Equal waves. Orders that cannot succeed come in the first half: offsetting them takes the longest."""
    waves: list[list[Order]] = [[] for _ in range(number)]
    stopping = [order for order in orders if order.id.startswith(STOPPING)]
    for n, order in enumerate(stopping):
        waves[n % (number // 2)].append(order)
    for order in orders:
        if not order.id.startswith(STOPPING):
            min(waves, key=len).append(order)
    return tuple(map(tuple, waves))


def _acts(chance: random.Random, bait: Sequence[Order], times: Mapping[str, int]) -> tuple[Act, ...]:
    """Kills in any order, the compensator's when something is to be offset; freezes in between."""
    first, second = (Freeze(tuple(bait[n::FREEZES])) for n in range(FREEZES))
    roles = [role for role, count in times.items() for _ in range(count) if role != "compensator"]
    kills: list[Act] = [Kill(role) for role in _apart(chance, roles)]
    third = len(kills) // 3
    early, late = kills[third : 2 * third], kills[2 * third :]
    offsetting = [Kill("compensator")] * times["compensator"]
    return (*kills[:third], first, *early, *offsetting, second, *late)


def _apart(chance: random.Random, roles: Sequence[str]) -> list[str]:
    """The roles in an order in which none follows itself: what was killed last is still coming back."""
    order = list(roles)
    while any(one == other for one, other in itertools.pairwise(order)):
        chance.shuffle(order)
    return order


def _rules(places: Mapping[Kind, str], seed: int) -> Iterator[dict[str, Any]]:
    """The faults document: what each group's first request meets."""
    for kind in Kind:
        if kind is Kind.REFUSE:
            continue
        late = {"delay_s": LATE_BY_S} if kind in _DELAYS else {}
        where = {"service": places[kind], "reference_prefix": f"{kind.value}."}
        yield {"kind": kind.value, "nth": 1, **where, **late}
    for service in SERVICES:
        yield {"kind": "refuse", "service": service, "reference_prefix": f"refuse-{service}."}
    yield {"kind": "delay_after_commit", "nth": 1, "reference_prefix": f"{HELD}.", "delay_s": HELD_FOR_S}
    # What offsets an effect meets faults as well, and so does who asks what happened.
    yield {"kind": "drop_after_commit", "nth": 1, "path": "/wallet/refunds", "probability": 0.5, "seed": seed}
    yield {"kind": "error_503", "nth": 1, "path": "/inventory/releases", "probability": 0.5, "seed": seed}
    yield {"kind": "error_503", "on": "lookup", "probability": 0.1, "seed": seed}
