"""What chaos does, from its seed: which orders, who is struck how and when, which server goes away.

Pure: the same seed and number of runs give the same plan. What the machine makes of it is another matter.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fencepost_ops.demo_plan import Kill, Order, make_plan

SCALE: Final = {"relay": 2, "planner": 2, "dispatcher": 3, "reconciler": 2, "compensator": 2}
ACTIONS: Final = ("crash", "pause", "error")
SERVERS: Final = ("flush", "valkey", "postgres", "sandbox")
PRODUCER: Final = "producer"
"""Who enqueues: chaos itself, in whose process only errors can be armed."""

_DISPATCH = ("dispatch.before_wire", "dispatch.response_lost", "dispatch.after_effect")
_INSIDE = "ledger.in_transaction"
POINTS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "relay": ("relay.after_judge", "relay.after_take", "relay.after_publish"),
    "planner": ("planner.after_claim", "planner.after_model", "planner.after_record", _INSIDE),
    "dispatcher": (
        "dispatch.after_lease",
        "dispatch.after_claim",
        *_DISPATCH,
        "dispatch.after_record",
        _INSIDE,
    ),
    "reconciler": (
        "reconcile.after_lease",
        "reconcile.after_lookup",
        *_DISPATCH,
        "reconcile.after_record",
        "sweep.after_look",
        _INSIDE,
    ),
    "compensator": ("compensate.after_plan", _INSIDE),
    PRODUCER: ("enqueue.before_commit", "enqueue.after_commit"),
}
"""The fault points each kind of process passes."""

_PER_200: Final = {"kills": 2, "arms": 3, "host_deaths": 2, "host_freezes": 1}
_GAP_S: Final = (0.1, 1.2)  # between two strikes
_FREEZE_S: Final = (0.5, 6.0)  # an attempt and its grace are two seconds
_HOST_FREEZE_S: Final = (5.0, 9.0)  # a TTL is three
_ORDERS_IN: Final = 0.7  # of the strikes: the last orders come then


@dataclass(frozen=True, slots=True)
class Doze:
    """SIGSTOP a process of this role, its pulse as well if the whole host freezes; SIGCONT after `for_s`."""

    role: str
    host: bool
    for_s: float


@dataclass(frozen=True, slots=True)
class HostDeath:
    """SIGKILL a worker of this role and its pulse together: nobody is left to say so."""

    role: str


@dataclass(frozen=True, slots=True)
class Arm:
    """Arm a fault point in every process of a role; the first that passes is struck."""

    role: str
    spec: str


@dataclass(frozen=True, slots=True)
class Weather:
    """A server goes away and comes back: Redis wiped or killed, Postgres sent SIGQUIT, the sandbox killed."""

    server: str


Strike = Kill | Doze | HostDeath | Arm | Weather


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """Everything chaos does, in order: a wave of orders, a gap, a strike, and so on."""

    seed: int
    waves: tuple[tuple[Order, ...], ...]
    gaps: tuple[float, ...]
    strikes: tuple[Strike, ...]
    faults: tuple[Mapping[str, Any], ...]
    poor: str
    scarce: tuple[str, int]

    @property
    def orders(self) -> list[Order]:
        """All orders."""
        return [order for wave in self.waves for order in wave]


def make_chaos(seed: int, runs: int) -> ChaosPlan:
    """The plan of a seed: the demo's orders with all their faults, and strikes in proportion to them."""
    chance = random.Random(seed)
    base = make_plan(seed, runs)
    orders = base.orders
    chance.shuffle(orders)
    strikes = _strikes(chance, max(1, round(runs / 200)))
    with_orders = max(1, round(len(strikes) * _ORDERS_IN))
    return ChaosPlan(
        seed=seed,
        waves=tuple(tuple(orders[n::with_orders]) if n < with_orders else () for n in range(len(strikes))),
        gaps=tuple(chance.uniform(*_GAP_S) for _ in strikes),
        strikes=strikes,
        faults=base.faults,
        poor=base.poor,
        scarce=base.scarce,
    )


def _strikes(chance: random.Random, times: int) -> tuple[Strike, ...]:
    workers = [role for role in SCALE if role != "relay"]
    found: list[Strike] = []
    for role in SCALE:
        found += [Kill(role)] * (_PER_200["kills"] * times)
        found += [Doze(role, host=False, for_s=chance.uniform(*_FREEZE_S)) for _ in range(times)]
    for role in chance.sample(workers, _PER_200["host_deaths"]) * times:
        found.append(HostDeath(role))
    for role in chance.sample(workers, _PER_200["host_freezes"]) * times:
        found.append(Doze(role, host=True, for_s=chance.uniform(*_HOST_FREEZE_S)))
    for role, points in POINTS_OF.items():
        actions = ("error",) if role == PRODUCER else ACTIONS
        pairs = [f"{point}={action}" for point in points for action in actions]
        found += [Arm(role, spec) for spec in chance.sample(pairs, min(len(pairs), _PER_200["arms"] * times))]
    found += [Weather(server) for server in SERVERS] * times
    chance.shuffle(found)
    return tuple(found)


def described(strikes: Sequence[Strike]) -> dict[str, int]:
    """How many strikes of each kind."""
    kinds = {Kill: "kills", Doze: "freezes", HostDeath: "host deaths", Arm: "armed", Weather: "weather"}
    counts: dict[str, int] = {}
    for strike in strikes:
        name = kinds[type(strike)]
        if isinstance(strike, Doze) and strike.host:
            name = "host freezes"
        counts[name] = counts.get(name, 0) + 1
    return counts
