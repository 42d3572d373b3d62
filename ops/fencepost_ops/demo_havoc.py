"""Kills and freezes for the demo: real signals to live processes, at moments when it hurts."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from fencepost_ops.demo_plan import HELD, Act, Kill, Order
from fencepost_ops.fleet import Fleet
from fencepost_ops.trial import Reader

PATIENCE_S: Final = 1.5  # how long to wait until a process of the role has something in hand
ALIVE_WITHIN_S: Final = 15.0  # how long a killed process may take to come back
COMPANY_WITHIN_S: Final = 5.0  # how long to wait until another of the role is at work
SPARED_FOR_S: Final = 2.0  # whoever was woken gets the time to bring what it holds before it is killed
THAW_AFTER_S: Final = 12.0  # at the latest, whatever has been taken over
LOOK_EVERY_S: Final = 0.02
BAITS: Final = 4  # parts of a freeze's orders
BITES_WITHIN_S: Final = 5.0  # how long one part may take until one of its attempts is in flight

# Processes that hold something at this moment, the busiest first.
_BUSY: Final = """
SELECT w.pid FROM fencepost.outbox o JOIN fencepost.workers w ON w.token = o.worker
WHERE w.role = %s AND w.ended_at IS NULL GROUP BY w.pid ORDER BY count(*) DESC, w.pid
"""
# First attempts that are not old enough to have been answered, and who waits for it.
_IN_FLIGHT: Final = """
SELECT w.pid, c.id, c.fence, c.operation
FROM fencepost.calls c
JOIN fencepost.outbox o ON o.tenant = c.tenant AND o.subject = c.id
JOIN fencepost.workers w ON w.token = o.worker
JOIN fencepost.events e ON e.tenant = c.tenant AND e.run = c.run AND e.call = c.id
    AND e.type = 'ToolAttemptStarted' AND e.attempt = c.attempts
WHERE c.state = 'DISPATCHING' AND w.role = 'dispatcher' AND w.ended_at IS NULL AND c.attempts = 1
    AND c.arguments::json ->> 'order_id' LIKE %s
    AND fencepost.now() - e.recorded_at < interval '0.4 s'
"""
_AT_WORK: Final = "SELECT pid FROM fencepost.workers WHERE role = %s AND ended_at IS NULL"
_TAKEN_OVER: Final = """
SELECT count(*) FROM fencepost.calls c JOIN unnest(%s::uuid[], %s::bigint[]) AS f (id, fence) ON c.id = f.id
WHERE c.fence > f.fence
"""


@dataclass(slots=True)
class Frozen:
    """A stopped process and the attempts it had in flight: call by call, the fence it holds."""

    name: str
    pid: int
    fences: dict[UUID, int]
    since: float = field(default_factory=time.monotonic)


class Havoc:
    """Kills and freezes processes of a fleet; `say` is told of each. What it has frozen, `thaw` wakes.

    `enqueue` brings the orders that a freeze asks for; `arrived` says whether a service has a request of this
    key.
    """

    def __init__(
        self,
        fleet: Fleet,
        connection: Reader,
        say: Callable[[str], object],
        enqueue: Callable[[Sequence[Order]], object],
        arrived: Callable[[str], bool],
    ) -> None:
        self.killed = 0
        self.frozen = 0
        self._fleet = fleet
        self._connection = connection
        self._say = say
        self._enqueue = enqueue
        self._arrived = arrived
        self._asleep: list[Frozen] = []
        self._woken: dict[str, float] = {}

    def act(self, act: Act) -> None:
        """Do it, and return when it is done; a frozen process sleeps on until `look` finds it taken over."""
        if isinstance(act, Kill):
            self._kill(act.role)
        else:
            self._freeze(act.bait)

    def look(self) -> None:
        """Wake whoever has lost all it held to others."""
        for one in list(self._asleep):
            if self._taken_over(one) == len(one.fences) or time.monotonic() - one.since > THAW_AFTER_S:
                self._wake(one)

    def thaw(self) -> None:
        """Wake everybody, taken over or not. May be called again."""
        for one in list(self._asleep):
            self._wake(one)

    @property
    def asleep(self) -> int:
        """How many processes are frozen now."""
        return len(self._asleep)

    def _kill(self, role: str) -> None:
        self._wait_for_company(role)
        until, alive_until = time.monotonic() + PATIENCE_S, time.monotonic() + ALIVE_WITHIN_S
        while time.monotonic() < alive_until:
            pids = self._awake(role)
            busy = [n for pid in self._busy(role) for n, p in pids.items() if p == pid]
            # A relay holds nothing that could be seen; the others are given the time to take something.
            if pids and (busy or role == "relay" or time.monotonic() > until):
                name = busy[0] if busy else min(pids)
                pid = self._signal(name, signal.SIGKILL)
                if pid is not None:
                    self.killed += 1
                    self._say(f"killed {name} (pid {pid}){', which had work in hand' if busy else ''}")
                    return
            self.look()
            time.sleep(LOOK_EVERY_S)
        self._say(f"no {role} was alive to be killed")

    def _wait_for_company(self, role: str) -> None:
        """Where a role has several processes, wait a while until more than one is at work: work goes on."""
        until = time.monotonic() + COMPANY_WITHIN_S
        while self._fleet.count(role) > 1 and role != "relay" and time.monotonic() < until:
            at_work = {pid for (pid,) in self._connection.execute(_AT_WORK, [role])}
            if len(at_work & set(self._awake(role).values())) > 1:
                return
            self.look()
            time.sleep(LOOK_EVERY_S)

    def _freeze(self, bait: Sequence[Order]) -> None:
        self._wait_for_company("dispatcher")
        # A part of the orders after the other until one of them is caught in flight; then the rest.
        caught = False
        for n in range(BAITS):
            self._enqueue(bait[n::BAITS])
            caught = caught or self._caught()
        if not caught:
            self._say("no dispatcher had an attempt in flight to be frozen with")

    def _caught(self) -> bool:
        until = time.monotonic() + BITES_WITHIN_S
        while time.monotonic() < until:
            names = {pid: name for name, pid in self._awake("dispatcher").items()}
            held = self._in_flight()
            victim = next((pid for pid in sorted(held) if pid in names), None)
            if victim is not None and self._signal(names[victim], signal.SIGSTOP) is not None:
                self._asleep.append(Frozen(names[victim], victim, held[victim]))
                self.frozen += 1
                self._say(f"froze {names[victim]} (pid {victim}), attempts in flight: {len(held[victim])}")
                return True
            self.look()
            time.sleep(LOOK_EVERY_S)
        return False

    def _in_flight(self) -> dict[int, dict[UUID, int]]:
        """By process, the attempts whose request has arrived and whose answer is held back."""
        held: dict[int, dict[UUID, int]] = {}
        for pid, call, fence, key in self._connection.execute(_IN_FLIGHT, [f"{HELD}.%"]):
            if self._arrived(key):
                held.setdefault(pid, {})[call] = fence
        return held

    def _wake(self, one: Frozen) -> None:
        self._asleep.remove(one)
        self._woken[one.name] = time.monotonic()
        slept = time.monotonic() - one.since
        if self._fleet.pids().get(one.name) == one.pid and self._signal(one.name, signal.SIGCONT) is not None:
            taken = f"taken over meanwhile: {self._taken_over(one)} of {len(one.fences)} attempts"
            self._say(f"woke {one.name} after {slept:.1f} s; {taken}")

    def _taken_over(self, one: Frozen) -> int:
        held = [list(one.fences), list(one.fences.values())]
        row = self._connection.execute(_TAKEN_OVER, held).fetchone()
        return int(row[0]) if row is not None else 0

    def _awake(self, role: str) -> dict[str, int]:
        spared = {one.name for one in self._asleep}
        spared |= {name for name, at in self._woken.items() if time.monotonic() - at < SPARED_FOR_S}
        return {name: pid for name, pid in self._fleet.pids(role).items() if name not in spared}

    def _busy(self, role: str) -> list[int]:
        return [pid for (pid,) in self._connection.execute(_BUSY, [role])]

    def _signal(self, name: str, number: signal.Signals) -> int | None:
        """The pid that was signalled; None for one that is just between two lives."""
        with suppress(KeyError, ProcessLookupError):
            return self._fleet.signal(name, number)
        return None
