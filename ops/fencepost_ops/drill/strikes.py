"""What happens to a step from within: a fault strikes it, another process overtakes it, the network is slow.

Everything here runs in the thread of the step itself, deep inside the fleet's code.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from fencepost.errors import FaultInjected
from fencepost_ops.drill.baton import Execution, Killed
from fencepost_ops.drill.ledger import DrillLedger
from fencepost_ops.drill.process import Host, Network
from fencepost_ops.drill.protocol import WIRES, Fault, Protocol
from fencepost_ops.drill.redis import VirtualRedis
from fencepost_ops.drill.virtual import VirtualClock
from fencepost_workers.role import Message

INSIDE: Final = frozenset({"ledger.in_transaction", "enqueue.before_commit"})
"""Points within a transaction: who stands still there loses its session, as it does in Postgres (R8)."""
SENDING: Final = frozenset(
    {
        "dispatch.before_wire",
        "dispatch.response_lost",
        "dispatch.after_effect",
        "dispatch.after_record",
        "reconcile.after_lookup",
    }
)
"""Points that the process passes for the request it has sent last, or is about to send."""
OVERTAKEN: Final = 0.5  # how often a process is held where it may be


@dataclass(eq=False)
class Step:
    """One execution of one process, and what it is about."""

    host: Host
    execution: Execution
    messages: tuple[Message, ...] = ()
    faults: list[tuple[Fault, UUID | None]] = field(default_factory=list)
    """Those that struck it and are not written down yet, and the call whose request it was about."""
    wakes: datetime | None = None
    fences: dict[UUID, int] = field(default_factory=dict)
    """Of its subjects when it was held: once one is higher, somebody has taken over."""
    since: datetime | None = None
    """Since when it waits for that."""
    yields: bool = False


class Strikes:
    """The faults of one protocol, and its schedule."""

    def __init__(
        self, protocol: Protocol, ledger: DrillLedger, redis: VirtualRedis, clock: VirtualClock
    ) -> None:
        self.chance = None if protocol.interleave is None else random.Random(protocol.interleave)
        self.passages: Counter[str] = Counter()
        self.before: dict[str, int] | None = None
        """The passages until the first fault struck, that one included; None: none has."""
        self.steps: dict[Execution, Step] = {}
        self._armed = {(fault.at, fault.nth): fault for fault in protocol.faults}
        self._ledger = ledger
        self._redis = redis
        self._clock = clock

    def passed(self, point: str) -> None:
        """A fault point is passed: what the protocol has for it happens here."""
        step = self._here()
        if step is None:
            return
        step.host.check()
        self.passages[point] += 1
        fault = self._armed.pop((point, self.passages[point]), None)
        if fault is not None:
            self.before = self.before or dict(self.passages)
            about = step.host.about if point in SENDING else None
            step.faults.append((fault, about))
            self._strike(step, fault)
        elif point not in INSIDE:
            self._overtake(step, point)

    def checkpoint(self) -> None:
        """A transaction is about to begin."""
        step = self._here()
        if step is not None:
            step.host.check()
            self._overtake(step, "transaction")

    def wait(self, until: datetime) -> None:
        """Hold the step that calls until then: its request or its answer is under way."""
        step = self._here()
        if step is not None:
            step.wakes = until
            step.execution.hold("network")

    def _here(self) -> Step | None:
        here = Execution.here()
        if here is not None and here not in self.steps:
            raise Killed  # it is left of a history that was given up
        return self.steps[here] if here is not None else None

    def _overtake(self, step: Step, point: str) -> None:
        if self.chance is not None and self.chance.random() < OVERTAKEN:
            step.yields = True
            step.execution.hold(point)

    def _strike(self, step: Step, fault: Fault) -> None:
        if fault.do == "crash":
            step.host.dead, step.host.silent = True, fault.host
            raise Killed
        if fault.do == "error" or (fault.do == "lost" and fault.at == "dispatch.response_lost"):
            raise FaultInjected(f"fault point {fault.at}, passage {fault.nth}")
        if fault.do == "lost":
            self._lose(step, fault)
        elif fault.do == "delay" and fault.at in WIRES:
            step.host.network = Network(fault.for_s, fault.answers)
        else:
            self._stand_still(step, fault)

    def _stand_still(self, step: Step, fault: Fault) -> None:
        if fault.for_s is not None:
            step.wakes = self._clock.now + timedelta(seconds=fault.for_s)
        step.host.silent = fault.host
        step.execution.hold(fault.at)
        step.host.silent = False

    def _lose(self, step: Step, fault: Fault) -> None:
        if fault.at in WIRES:
            step.host.network = Network(None, fault.answers)
        elif fault.at == "ledger.in_transaction":
            self._ledger.sessions["worker"].losing.add(step.execution)
        else:
            for queue in self._redis.queues.values():
                queue.clear()
