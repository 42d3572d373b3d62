"""How many sessions in Postgres a fleet may open, and how many its `max_connections` allows. Pure.

Pools open sessions as they need them, up to their size: the sum is what must be possible, not what is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

RELAY: Final = 1  # its one session
PULSE: Final = 1  # beside each worker
INTAKE: Final = 9  # one by whose name it is counted, and one for each message in hand
SPARE: Final = 20  # processes that start or hand back, the command line, other producers, monitoring
RESERVED: Final = 3  # what Postgres keeps for superusers, by default
LEAST: Final = 300  # what a Postgres of our own gets at least: a session nobody opens costs some kilobytes


def sessions(role: str, pool_size: int) -> int:
    """The sessions one process of a role opens at most, for longer than a moment."""
    if role == "relay":
        return RELAY
    if role == "intake":
        return INTAKE
    return pool_size + PULSE


def connections_needed(scale: Mapping[str, int], pool_size: int) -> int:
    """The sessions these processes open at most, with some to spare for everybody else.

    `scale` counts the processes of each role: relay, intake, or a queue's workers.
    """
    return SPARE + sum(count * sessions(role, pool_size) for role, count in scale.items())


def max_connections(scale: Mapping[str, int], pool_size: int) -> int:
    """What a Postgres of our own is started with, so that this fleet never meets the limit."""
    return max(LEAST, RESERVED + connections_needed(scale, pool_size))


@dataclass(frozen=True, slots=True)
class Room:
    """`needed` of `allowed` sessions; `more` worker processes fit before the sum exceeds the limit."""

    needed: int
    allowed: int
    more: int


def room(scale: Mapping[str, int], pool_size: int, *, limit: int, reserved: int) -> Room:
    """What is left under a `max_connections` of which `reserved` are kept back for others."""
    needed, allowed = connections_needed(scale, pool_size), limit - reserved
    return Room(needed, allowed, max(0, (allowed - needed) // sessions("worker", pool_size)))
