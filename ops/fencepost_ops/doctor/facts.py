"""What is gathered before anything is judged. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fencepost.ledger.tail import Overview
from fencepost_ops.doctor.findings import Unread


@dataclass(frozen=True, slots=True)
class Versions:
    """Of this installation; None where a package is missing. `kombu_speaks_redis`: its extra is there."""

    python: tuple[int, int]
    packages: Mapping[str, str | None]
    kombu_speaks_redis: bool


@dataclass(frozen=True, slots=True)
class Login:
    """Who this session is: its group roles of ours, and whether it may do what no role of ours may."""

    user: str
    superuser: bool
    owner: bool
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Standbys:
    """Replicas connected, and of those the ones a commit waits for; None where the login may not see it."""

    connected: int
    synchronous: int | None


@dataclass(frozen=True, slots=True)
class Table:
    """Row versions of a table, as Postgres counts them."""

    name: str
    live: int
    dead: int


@dataclass(frozen=True, slots=True)
class Dependency:
    """A dependency that is not used as usual: closed, or being tried. `age_s`: since when, `left_s`: how long
    it stays closed at least; `waiting`: calls that wait for their turn.
    """

    scope: str
    state: str
    reason: str
    age_s: float
    left_s: float
    waiting: int


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider of models that `runs` wait for: since when the first of them, and when the next is asked
    again; None for a scope: their histories do not say whom they asked. `person`: they wait for somebody to
    mend what keeps them from it, and their effects stand meanwhile.
    """

    scope: str | None
    runs: int
    age_s: float
    left_s: float
    why: str
    person: bool = False


@dataclass(frozen=True, slots=True)
class Retries:
    """What is to be seen of the one retry owner (R4): dependencies left alone, runs that wait for the
    provider of their model, calls held until a person pins what their MCP server offers, and attempts of the
    last day in which a request went out more than once.
    """

    dependencies: tuple[Dependency, ...] = ()
    hidden: int = 0
    providers: tuple[Provider, ...] | Unread = ()
    held: int = 0


@dataclass(frozen=True, slots=True)
class PostgresFacts:
    """A Postgres that answers. `clock_ahead_s` is its clock before this machine's, good to half the latency;
    `oldest_transaction_s` is None where none is open; `sessions` counts by application name.
    """

    version: int
    latency_s: float
    clock_ahead_s: float
    in_recovery: bool
    settings: Mapping[str, str]
    login: Login | Unread
    standbys: Standbys | Unread
    oldest_transaction_s: float | Unread | None
    tables: tuple[Table, ...] | Unread
    sessions: Mapping[str, int] | Unread
    revision: str | Unread | None
    movable_clock: bool | Unread
    fleet: Overview | Unread
    retries: Retries | Unread = Retries()
    pooler: bool = False
    """Whether something between answers for it."""
    drifted: tuple[str, ...] | Unread = ()
    """Collations whose order may have changed since its indexes were built."""


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """A Redis that answers. `foreign` are keys that are not Fencepost's; of `subjects` leased lately,
    `unknown` are not in this ledger (Unread where it could not be asked).
    """

    server: str
    version: str
    latency_s: float
    policy: str
    maxmemory: int
    used: int
    aof: bool
    snapshots: bool | Unread
    lengths: Mapping[str, int]
    keys: int
    foreign: tuple[str, ...] = field(default=())
    subjects: int = 0
    unknown: int | Unread = 0
    replica: bool = False
    no_lists: tuple[str, ...] = ()
    """Queues whose key is of another type."""
