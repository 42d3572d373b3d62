"""What chaos does, from its seed: which orders come when, who is struck how and when, and by what weather.

Pure: the same seed, runs, seconds and faults give the same plan. What the machine makes of it is another
matter. Each fault has chances of its own: leaving one out changes nothing about the others.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fencepost_ops.demo_plan import Kill, Order, make_plan
from fencepost_ops.sandbox.faults import Kind

SCALE: Final = {"relay": 2, "planner": 2, "dispatcher": 3, "reconciler": 2, "compensator": 2}
ACTIONS: Final = ("crash", "pause", "error")
WIRES: Final = ("redis", "ledger", "services")
PRODUCER: Final = "producer"
"""Who enqueues: chaos itself, in whose process only errors can be armed."""

TIMES_IN_600_S: Final[Mapping[str, int]] = {
    "kill": 220,
    "freeze": 60,
    "host-death": 15,
    "fault-point": 60,
    "redis-flush": 6,
    "redis-restart": 6,
    "postgres-restart": 6,
    "services": 6,
    "partition": 15,
    "slow": 15,
    "drop-response": 15,
    "clock": 6,
    "authority": 12,
}
"""Every fault there is, and how often it comes in ten minutes; in less time less often, but once at least."""
FAULTS: Final = tuple(TIMES_IN_600_S)
SERVER_FAULTS: Final = frozenset({"redis-flush", "redis-restart", "postgres-restart", "services"})
WIRE_FAULTS: Final = frozenset({"partition", "slow", "drop-response"})
OWN_ONLY: Final = WIRE_FAULTS | {"fault-point", "services", "clock", "authority"}
"""Faults for which a fleet has to be started by chaos: with wires, points, services, a clock to move, and an
authority that is chaos's own.

`services` are killed, and fail while they run, each request as the demo's orders say. Hosts' clocks are never
moved: `clock` moves the ledger's, the only one that counts.
"""

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
        "reconcile.before_lookup",
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

_ORDERS_UNTIL: Final = 0.95  # of the seconds
_FREEZE_S: Final = (0.5, 6.0)  # an attempt and its grace are two seconds
_HOST_FREEZE_S: Final = (5.0, 9.0)  # a TTL is three
_HOST_FREEZE_EVERY: Final = 6  # freezes
_PARTITION_S: Final = (1.0, 5.0)
_SLOW_S: Final = (2.0, 6.0)
_LATENCY_S: Final = (0.02, 0.25)  # each way; the services' requests have a second
_DROP_S: Final = (0.5, 2.0)
_AHEAD_S: Final = (3.0, 20.0)  # what falls due meanwhile is as late once the clock is set back
_AHEAD_FOR_S: Final = (1.0, 6.0)
_SHUT_S: Final = (0.2, 1.0)  # in which all that is to be sent is denied


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
class Loss:
    """A server loses all, or dies and comes back: Redis wiped or killed, Postgres or the services killed."""

    fault: str


@dataclass(frozen=True, slots=True)
class Foul:
    """Weather on a wire for a while.

    `fault` is `partition` (`silent`: connections hang and nobody is told; else they are cut, and new ones
    refused), `slow` (each piece travels `latency_s`) or `drop-response` (requests arrive, answers do not).
    """

    fault: str
    wire: str
    for_s: float
    silent: bool = False
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Jump:
    """The ledger's clock jumps ahead, and is set back to the machine's after `for_s`."""

    ahead_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class Shut:
    """A principal is disabled, or else a tool version withdrawn, and let in again after `for_s`."""

    principal: bool
    for_s: float


Strike = Kill | Doze | HostDeath | Arm | Loss | Foul | Jump | Shut

_KINDS: Final[Mapping[type, str]] = {
    Kill: "kill",
    Doze: "freeze",
    HostDeath: "host-death",
    Arm: "fault-point",
    Jump: "clock",
    Shut: "authority",
}


def fault_of(strike: Strike) -> str:
    """The fault that a strike is one of."""
    return strike.fault if isinstance(strike, Loss | Foul) else _KINDS[type(strike)]


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """Everything chaos does, and when, in seconds from its beginning; orders and strikes each in order."""

    seed: int
    seconds: float
    faults: tuple[str, ...]
    arrivals: tuple[tuple[float, Order], ...]
    strikes: tuple[tuple[float, Strike], ...]
    service_faults: tuple[Mapping[str, Any], ...]
    poor: str
    scarce: tuple[str, int]

    @property
    def orders(self) -> list[Order]:
        """All orders."""
        return [order for _, order in self.arrivals]

    @property
    def counts(self) -> dict[str, int]:
        """How many strikes of each fault."""
        found = Counter(fault_of(strike) for _, strike in self.strikes)
        return {fault: found[fault] for fault in self.faults}

    @property
    def furthest_s(self) -> float:
        """How far the ledger's clock is ahead at most."""
        return max((one.ahead_s for _, one in self.strikes if isinstance(one, Jump)), default=0.0)


def make_chaos(seed: int, runs: int, seconds: float, faults: Iterable[str] = FAULTS) -> ChaosPlan:
    """The plan of a seed: the demo's orders, spread over the seconds, and strikes in proportion to them.

    Raises ValueError for a fault there is not.
    """
    wanted = set(faults)
    if unknown := wanted - set(FAULTS):
        raise ValueError(f"there is no fault {', '.join(sorted(unknown))}")
    chance = random.Random(seed)
    base = make_plan(seed, runs)
    orders = base.orders
    chance.shuffle(orders)
    times = sorted(chance.uniform(0.0, seconds * _ORDERS_UNTIL) for _ in orders)
    listed = tuple(fault for fault in FAULTS if fault in wanted)
    strikes = [
        (at, strike)
        for fault in listed
        for at, strike in _spread(fault, times_in(fault, seconds), seed, seconds)
    ]
    return ChaosPlan(
        seed=seed,
        seconds=seconds,
        faults=listed,
        arrivals=tuple(zip(times, orders, strict=True)),
        strikes=tuple(sorted(strikes, key=lambda one: one[0])),
        service_faults=tuple(rule for rule in base.faults if "services" in wanted and not _breach(rule)),
        poor=base.poor,
        scarce=base.scarce,
    )


def for_found(plan: ChaosPlan) -> ChaosPlan:
    """The plan for a fleet that is not ours to end: the same, but only workers freeze, without their pulses.

    Should chaos itself be killed, nobody is left to wake who sleeps. A worker's pulse then kills it, and
    `fencepost up` starts it again; of a relay, or of a pulse that sleeps too, nobody would know.
    """
    workers = itertools.cycle(role for role in SCALE if role != "relay")
    return replace(plan, strikes=tuple((at, _waking(one, workers)) for at, one in plan.strikes))


def _waking(one: Strike, workers: Iterator[str]) -> Strike:
    if not isinstance(one, Doze):
        return one
    return replace(one, host=False, role=next(workers) if one.role == "relay" else one.role)


def _breach(rule: Mapping[str, Any]) -> bool:
    """Whether a service that fails so breaks what its contract promises: then two effects are its fault."""
    return rule["kind"] in (Kind.FORGET_KEYS, Kind.IGNORE_KEYS)


def times_in(fault: str, seconds: float) -> int:
    """How often a fault comes in so many seconds."""
    return max(1, math.ceil(TIMES_IN_600_S[fault] * seconds / 600))


def _spread(fault: str, count: int, seed: int, seconds: float) -> Iterator[tuple[float, Strike]]:
    """So many strikes of a fault, each somewhere in its own equal part of the seconds."""
    chance = random.Random(f"{seed} {fault}")
    part = seconds / count
    for number, strike in enumerate(_strikes(fault, count, chance)):
        yield chance.uniform(number, number + 1) * part, strike


def _strikes(fault: str, count: int, chance: random.Random) -> Sequence[Strike]:
    workers = [role for role in SCALE if role != "relay"]
    if fault == "kill":
        return [Kill(role) for role in _fair(chance, list(SCALE), count)]
    if fault == "freeze":
        return _freezes(chance, workers, count)
    if fault == "host-death":
        return [HostDeath(role) for role in _fair(chance, workers, count)]
    if fault == "fault-point":
        return _arms(chance, count)
    if fault in SERVER_FAULTS:
        return [Loss(fault)] * count
    if fault == "clock":
        return [
            Jump(round(chance.uniform(*_AHEAD_S), 1), chance.uniform(*_AHEAD_FOR_S)) for _ in range(count)
        ]
    if fault == "authority":
        return [Shut(number % 2 == 0, chance.uniform(*_SHUT_S)) for number in range(count)]
    return [_foul(fault, wire, chance) for wire in _fair(chance, list(WIRES), count)]


def _fair(chance: random.Random, choices: list[str], count: int) -> list[str]:
    """So many of the choices, each as often as every other; in every round another order."""
    found: list[str] = []
    while len(found) < count:
        found += chance.sample(choices, len(choices))
    return found[:count]


def _freezes(chance: random.Random, workers: list[str], count: int) -> list[Strike]:
    """Freezes of every role; every sixth is of a worker with its pulse."""
    hosts = iter(_fair(chance, workers, count))
    found: list[Strike] = []
    for number, role in enumerate(_fair(chance, list(SCALE), count)):
        if number % _HOST_FREEZE_EVERY == _HOST_FREEZE_EVERY - 1:
            found.append(Doze(next(hosts), host=True, for_s=chance.uniform(*_HOST_FREEZE_S)))
        else:
            found.append(Doze(role, host=False, for_s=chance.uniform(*_FREEZE_S)))
    return found


def _arms(chance: random.Random, count: int) -> list[Strike]:
    """Fault points of every role in turn; those of a role come again only when all have come."""
    left: dict[str, list[str]] = {role: [] for role in POINTS_OF}
    found: list[Strike] = []
    for role in _fair(chance, list(POINTS_OF), count):
        if not left[role]:
            actions = ("error",) if role == PRODUCER else ACTIONS
            left[role] = [f"{point}={action}" for point in POINTS_OF[role] for action in actions]
            chance.shuffle(left[role])
        found.append(Arm(role, left[role].pop()))
    return found


def _foul(fault: str, wire: str, chance: random.Random) -> Foul:
    if fault == "partition":
        return Foul(fault, wire, chance.uniform(*_PARTITION_S), silent=chance.random() < 0.5)
    if fault == "slow":
        return Foul(fault, wire, chance.uniform(*_SLOW_S), latency_s=chance.uniform(*_LATENCY_S))
    return Foul(fault, wire, chance.uniform(*_DROP_S))
