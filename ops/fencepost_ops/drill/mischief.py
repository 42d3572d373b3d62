"""What chance does to the threads of a race: delays, errors; lost COMMITs, messages, requests and answers."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from uuid import UUID

from fencepost.commands import Answer, Command
from fencepost.errors import FaultInjected, Unreachable
from fencepost.leases import Want
from fencepost.ledger.connect import Connection, Pool
from fencepost.outcomes import Answered, Lost, Sent
from fencepost.tools import Response
from fencepost_ops.drill.app import MANNERS
from fencepost_ops.drill.redis import VirtualRedis
from fencepost_ops.drill.services import Services, Wire
from fencepost_ops.drill.strikes import INSIDE
from fencepost_ops.drill.virtual import VirtualClock
from fencepost_relay.publisher import Item

SPEED: Final = 15.0
"""Seconds of a race in one outside."""


class Chance:
    """A seeded source of mischief for many threads; `calm` ends it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.calm = threading.Event()
        self.counts: Counter[str] = Counter()

    def number(self) -> float:
        """In [0, 1)."""
        with self._lock:
            return self._random.random()

    def happens(self, what: str, probability: float) -> bool:
        """Whether it does, this time; counted."""
        if self.calm.is_set() or self.number() >= probability:
            return False
        self.count(what)
        return True

    def count(self, what: str) -> None:
        """One more of these."""
        with self._lock:
            self.counts[what] += 1

    def passed(self, point: str) -> None:
        """A thread passes a fault point: it may be delayed, stand still for a term's length, or fail."""
        if self.happens("errors", 0.02):
            raise FaultInjected(f"fault point {point}")
        if point not in INSIDE and self.happens("zombies", 0.04):
            time.sleep((7 + 6 * self.number()) / SPEED)
        elif self.happens("delays", 0.4):
            time.sleep(0.012 * self.number() ** 2)


class RacingPool(Pool):
    """Sessions for many threads. A transaction may begin late, and its COMMIT may go unheard."""

    def __init__(self, dsn: str, size: int, chance: Chance) -> None:
        super().__init__(dsn, "fencepost races", size)
        self._chance = chance

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """See `Pool.connection`."""
        if self._chance.happens("late transactions", 0.3):
            time.sleep(0.006 * self._chance.number())
        with super().connection() as session:
            yield session
        if self._chance.happens("lost COMMITs", 0.03):
            raise Unreachable("the answer to COMMIT was lost")


class RacingRedis(VirtualRedis):
    """One that many threads may use."""

    def __init__(self, chance: Chance) -> None:
        super().__init__()
        self._chance = chance
        self._lock = threading.RLock()

    def grant(self, wants: Sequence[Want]) -> list[int | None]:
        """See `VirtualRedis`."""
        with self._lock:
            if self._chance.happens("wiped leases", 0.01):
                self._leases.clear()
            return super().grant(wants)

    def release(self, holds: Sequence[tuple[str, str]]) -> None:
        """See `VirtualRedis`."""
        with self._lock:
            super().release(holds)

    def publish(self, queue: str, items: Sequence[Item], traceparent: str | None = None) -> None:
        """See `VirtualRedis`; a message may be lost."""
        with self._lock:
            if not self._chance.happens("lost messages", 0.02):
                super().publish(queue, items, traceparent)

    def take(self, queue: str) -> list[tuple[str, UUID, int]] | None:
        """A message, any of the queue's; it may be left there for another as well."""
        with self._lock:
            waiting = self.queues[queue]
            if not waiting:
                return None
            at = int(self._chance.number() * len(waiting)) if not self._chance.calm.is_set() else 0
            message = waiting[at] if self._chance.happens("doubled messages", 0.5) else waiting.pop(at)
            return [(tenant, UUID(subject), generation) for tenant, subject, generation in message]


class RacingServices(Services):
    """Ones that many threads may use; answers may be lost, and requests too, or they arrive late."""

    def __init__(self, clock: VirtualClock, chance: Chance) -> None:
        super().__init__(MANNERS, clock)
        self._chance = chance
        self._lock = threading.RLock()

    def answer(self, wire: Wire) -> Response:
        """See `Services`."""
        with self._lock:
            return super().answer(wire)

    def land(self) -> int:
        """See `Services`."""
        with self._lock:
            return super().land()

    def deliver(self, wire: Wire, waits: float) -> Sent:
        """See `Services`."""
        if self._chance.happens("lost requests", 0.05):
            return Lost("connection_lost", "the connection was reset, and the request never arrived")
        if self._chance.happens("late requests", 0.05):
            with self._lock:
                self.send_later(wire, self._clock.now + timedelta(seconds=waits))
            time.sleep(waits / SPEED)
            return Lost("timeout", f"no answer within {waits:.3f} s")
        answer = self.answer(wire)
        if self._chance.happens("lost answers", 0.12):
            return Lost("connection_lost", "the connection was reset before the answer came")
        return Answered(answer)


def counted(
    apply: Callable[[Sequence[Command]], list[Answer]], chance: Chance
) -> Callable[[Sequence[Command]], list[Answer]]:
    """`Ledger.apply`, with its answers counted by kind."""

    def counting(commands: Sequence[Command]) -> list[Answer]:
        answers = apply(commands)
        for answer in answers:
            chance.count(f"answer {type(answer).__name__}")
        return answers

    return counting
