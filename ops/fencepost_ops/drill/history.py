"""One history: a protocol's runs on a simulated fleet, its faults, its events, to the end, and the verdict.

One step at a time: a producer asks, the relay passes, a worker takes a message, whoever was held goes on.
When there is nothing to do, time moves to when there is. With a schedule of its own (`interleave`) a process
may be overtaken at every fault point and before every transaction; without one each step runs to its end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from fencepost.app import App
from fencepost.errors import FaultInjected, FencepostError, Unreachable
from fencepost.settings import Settings
from fencepost.states import Queue
from fencepost_ops.drill.baton import Execution, Killed
from fencepost_ops.drill.ledger import DrillLedger
from fencepost_ops.drill.outcome import Left, Struck
from fencepost_ops.drill.people import Office, Producer
from fencepost_ops.drill.process import Host, Worker, World
from fencepost_ops.drill.protocol import Asked, Event, Fault, Protocol
from fencepost_ops.drill.redis import VirtualRedis
from fencepost_ops.drill.services import Services
from fencepost_ops.drill.virtual import START, VirtualClock
from fencepost_relay.relay import Relay
from fencepost_workers.pulse_program import END, MAKE_DUE, REGISTER
from fencepost_workers.role import Message
from fencepost_workers.sweep import sweep

STEPS: Final = 3000  # a history that takes more has no end
HORIZON_S: Final = 7200.0
TICK: Final = timedelta(milliseconds=1)  # what a step takes
THOROUGH: Final = timedelta(seconds=1.1)  # a relay finds what lies below its floor once a second
INSIDE: Final = frozenset({"ledger.in_transaction", "enqueue.before_commit"})
"""Points within a transaction: who stands still there loses its session, as it does in Postgres (R8)."""
OVERTAKEN: Final = 0.5  # how often a process is held where it may be

_MOVE: Final = """
WITH moved AS (UPDATE fencepost.clock SET at = %(at)s RETURNING at + ahead AS now)
UPDATE fencepost.workers SET last_seen = moved.now FROM moved
WHERE token = ANY (%(living)s) AND ended_at IS NULL
"""
_NEXT: Final = """
SELECT min(o.publish_at) FILTER (WHERE o.publish_at > c.at + c.ahead) - c.ahead,
       count(*) FILTER (WHERE o.publish_at <= c.at + c.ahead)
FROM fencepost.clock c JOIN fencepost.outbox o ON o.dead_at IS NULL AND o.publish_at < '9000-01-01'
GROUP BY c.ahead
"""
_FENCE: Final = """
SELECT coalesce((SELECT fence FROM fencepost.calls WHERE id = %(id)s),
                (SELECT fence FROM fencepost.runs WHERE id = %(id)s), 0)
"""
_LEFT: Final = """
SELECT c.id::text, c.label, c.state, c.doubt, r.id::text, r.status,
       (SELECT e.type || ' (event ' || e.seq || ')' FROM fencepost.events e
        WHERE e.run = r.id AND (e.call = c.id OR c.id IS NULL AND e.call IS NULL)
        ORDER BY e.seq DESC LIMIT 1),
       o.queue, o.due_at
FROM fencepost.runs r
LEFT JOIN fencepost.calls c ON c.id = %(id)s
LEFT JOIN fencepost.outbox o ON o.subject = coalesce(c.id, r.id)
WHERE r.id = coalesce(c.run, %(id)s)
"""


@dataclass(eq=False)
class Step:
    """One execution of one process, and what it is about."""

    host: Host
    execution: Execution
    messages: tuple[Message, ...] = ()
    fault: Fault | None = None
    wakes: datetime | None = None
    fences: dict[UUID, int] = field(default_factory=dict)
    yields: bool = False


@dataclass(eq=False)
class RelayHost(Host):
    """A relay's process."""

    relay: Relay

    def __init__(self, number: int, relay: Relay) -> None:
        super().__init__("relay", number)
        self.relay = relay


class History:
    """Runs one protocol on an emptied ledger. Used once: `run`, then the attributes say what came of it."""

    def __init__(
        self, ledger: DrillLedger, protocol: Protocol, app: App, services: Services, clock: VirtualClock
    ) -> None:
        self.ledger = ledger
        self.protocol = protocol
        self.clock = clock
        self.services = services
        self.redis = VirtualRedis()
        self.struck: list[Struck] = []
        self.names: dict[str, str] = {}
        self.passages: Counter[str] = Counter()
        self.steps = 0
        self.settled = False
        self.settings = _settings(protocol)
        self._world = World(
            app, self.settings, clock, self.redis, services, ledger.sessions["worker"], self._wait
        )
        self._armed = {(fault.at, fault.nth): fault for fault in protocol.faults}
        self._chance = None if protocol.interleave is None else random.Random(protocol.interleave)
        self._held: list[Step] = []
        self._of: dict[Execution, Step] = {}
        self._hosts: list[Host] = []
        self._spawned = 0
        self._due: list[tuple[float, int, Asked | Event]] = []
        self._looked: datetime | None = None
        self._published: list[str] = []
        self._producer = Producer(ledger.sessions["producer"])
        self.office = Office(ledger, services)

    # -- the whole ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """To the end. Raises what a bug of the fleet raises; never what a fault does."""
        wanted: list[Asked | Event] = [*self.protocol.runs, *self.protocol.events]
        self._due = sorted(((one.at_s, n, one) for n, one in enumerate(wanted)), key=lambda due: due[:2])
        for role in Queue:
            for _ in range(getattr(self.protocol.fleet, str(role))):
                self._spawn(role)
        for _ in range(self.protocol.fleet.relay):
            self._relay()
        self.ledger.checkpoint = self._checkpoint
        try:
            while self.steps < STEPS and self.clock.seconds < HORIZON_S:
                if not self._once():
                    self.settled = True
                    break
        finally:
            self._close()

    def _once(self) -> bool:
        if self._chance is not None:
            return self._any() or self._advance()
        return self._happen() or self._wake() or self._deliver() or self._publish() or self._advance()

    def _any(self) -> bool:
        """Something that is possible now, as the schedule's chance has it."""
        assert self._chance is not None
        ways = [self._happen, self._wake, self._deliver, self._publish]
        self._chance.shuffle(ways)
        return any(way() for way in ways)

    def _close(self) -> None:
        for step in list(self._held):
            step.host.dead = True
            step.execution.end()
        self.ledger.checkpoint = None
        for host in self._hosts:
            if isinstance(host, RelayHost):
                host.relay.close()

    # -- what is possible now -----------------------------------------------------------------------------

    def _happen(self) -> bool:
        if self.services.land():
            return True
        if not self._due or self._due[0][0] > self.clock.seconds:
            return False
        _, _, what = self._due.pop(0)
        if isinstance(what, Asked):
            self._ask(what)
        else:
            self._event(what)
        return True

    def _ask(self, asked: Asked) -> None:
        number = self.protocol.runs.index(asked)
        host = Host("producer", number + 1)
        self._start(host, lambda: self._producer.ask(asked, number))

    def _event(self, event: Event) -> None:
        self._tick()
        queues = self.redis.queues.values()
        if event.do == "wipe_redis":
            self.redis.wipe()
        elif event.do in ("redis_away", "redis_back"):
            self.redis.away = event.do == "redis_away"
        elif event.do == "jump_clock":
            self.ledger.jump(event.seconds or 0.0)
        elif event.do == "double_messages":
            for queue in queues:
                queue += [list(message) for message in queue]
        elif event.do == "lose_messages":
            for queue in queues:
                queue.clear()
        elif event.do == "turn_messages":
            for queue in queues:
                queue.reverse()
        elif event.do == "cancel":
            self.office.cancel(event.run or 0)
        elif event.do == "sweep":
            worker = next((h for h in self._hosts if isinstance(h, Worker) and self._idle(h)), None)
            if worker is not None:
                self._start(worker, lambda: sweep(worker.pool, worker.ledger, self._republish))
        else:
            self.office.straight(event.statement or "")

    def _wake(self) -> bool:
        """Let one that is held go on, whose time has come or whose work somebody else has taken over."""
        ready = [step for step in self._held if self._ready(step)]
        if not ready:
            return False
        self._go_on(ready[0] if self._chance is None else self._chance.choice(ready))
        return True

    def _ready(self, step: Step) -> bool:
        if step.yields:
            return True
        if step.wakes is not None:
            return step.wakes <= self.clock.now
        return any(self._fence(subject) > fence for subject, fence in step.fences.items())

    def _fence(self, subject: UUID) -> int:
        row = self.ledger.owner.execute(_FENCE, {"id": subject}).fetchone()
        return int(row[0]) if row else 0

    def _deliver(self) -> bool:
        order = list(self.redis.queues)
        if self._chance is not None:
            self._chance.shuffle(order)
        if self.redis.away:
            return False
        for name in order:
            queue = self.redis.queues[name]
            idle = [
                h for h in self._hosts if isinstance(h, Worker) and str(h.queue) == name and self._idle(h)
            ]
            if not queue or not idle:
                continue
            at = 0 if self._chance is None else self._chance.randrange(len(queue))
            host = idle[0] if self._chance is None else self._chance.choice(idle)
            messages = tuple((tenant, UUID(subject), gen) for tenant, subject, gen in queue.pop(at))
            self._start(host, _taking(host, messages), messages)
            return True
        return False

    def _publish(self) -> bool:
        """A pass of a relay, unless one has passed at this very time and found nothing."""
        if self._looked == self.clock.now:
            return False
        relays = [h for h in self._hosts if isinstance(h, RelayHost) and self._idle(h)]
        if not relays:
            return False
        host = relays[0] if self._chance is None else self._chance.choice(relays)
        before = {name: len(queue) for name, queue in self.redis.queues.items()}
        self._tick()
        self._start(host, lambda: _passing(host), tick=False)
        moved = before != {name: len(queue) for name, queue in self.redis.queues.items()}
        self._looked = None if moved else self.clock.now
        return True

    def _idle(self, host: Host) -> bool:
        return not host.dead and all(step.host is not host for step in self._held)

    # -- time ---------------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Move to when the next thing can happen; False: nothing ever will."""
        later = [at for at in self._times() if at > self.clock.now]
        if not later:
            return self._overdue() or (self.protocol.persons and self.office.settle(self.pass_time))
        target = min(later)
        if any(host.silent for host in self._hosts):  # relays judge by looks that are near to each other
            target = min(target, self.clock.now + timedelta(seconds=self.settings.worker_ttl_s / 4))
        self._move(target)
        return True

    def _times(self) -> list[datetime]:
        times = [START + timedelta(seconds=at) for at, _, _ in self._due[:1]]
        times += [step.wakes for step in self._held if step.wakes is not None]
        if (lands := self.services.lands_next) is not None:
            times.append(lands)
        if not self.redis.away and any(isinstance(h, RelayHost) and self._idle(h) for h in self._hosts):
            row = self.ledger.owner.execute(_NEXT).fetchone()
            after, overdue = row or (None, 0)
            if after is not None:
                times.append(max(after, self.clock.now + TICK))
            if overdue and not any(self.redis.queues.values()):
                times.append(self.clock.now + THOROUGH)
        return times

    def _overdue(self) -> bool:
        """Nothing else can happen: whoever waits for a takeover that never comes wakes up."""
        waiting = [step for step in self._held if step.wakes is None]
        if waiting:
            self._go_on(waiting[0])
        return bool(waiting)

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass, in which nobody does anything."""
        self._move(self.clock.now + timedelta(seconds=seconds))

    def _tick(self) -> None:
        self._move(self.clock.now + TICK)

    def _move(self, to: datetime) -> None:
        self.clock.passed = to - START
        living = [host.token for host in self._hosts if not (host.dead or host.silent)]
        self.ledger.owner.execute(_MOVE, {"at": to, "living": living})

    # -- executions ---------------------------------------------------------------------------------------

    def _start(
        self, host: Host, work: Callable[[], object], messages: Sequence[Message] = (), *, tick: bool = True
    ) -> None:
        if tick:
            self._tick()
        step = Step(host, Execution(host.name, work), tuple(messages))
        self._of[step.execution] = step
        self._go_on(step)

    def _go_on(self, step: Step) -> None:
        if step in self._held:
            self._held.remove(step)
            self._tick()
        step.yields, step.wakes, step.fences = False, None, {}
        self.steps += 1
        step.execution.go_on()
        if step.execution.ended:
            self._ended(step)
        else:
            self._hold(step)

    def _hold(self, step: Step) -> None:
        self._held.append(step)
        if step.fault is None:
            return
        fault, step.fault = step.fault, None
        if fault.at in INSIDE:
            self.ledger.break_session(step.execution)
        if step.wakes is None:
            step.fences = {subject: self._fence(subject) for _, subject, _ in step.messages}
        self._strike(step, fault)

    def _ended(self, step: Step) -> None:
        error, fault, step.fault = step.execution.error, step.fault, None
        if error is not None and not isinstance(error, FaultInjected | Unreachable | FencepostError):
            raise error
        if step.host.dead:
            self._bury(step.host)
        if fault is not None:
            self._strike(step, fault)
        del self._of[step.execution]
        if step.host.role == "producer" and (step.host.dead or error is not None):
            number = int(step.host.name.rpartition("/")[2]) - 1  # it asks again, as producers may
            self._ask(self.protocol.runs[number])

    def _strike(self, step: Step, fault: Fault) -> None:
        subject = step.messages[0][1] if step.messages else None
        self.struck.append(Struck(fault, self.clock.seconds, step.host.name, self._left(subject)))

    def _left(self, subject: UUID | None) -> Left:
        if subject is None:
            return Left()
        row = self.ledger.owner.execute(_LEFT, {"id": subject}).fetchone()
        if row is None:
            return Left()
        left, due = Left(*row[:8]), row[8]
        return left if due is None or due.year > 9000 else replace(left, due_s=(due - START).total_seconds())

    def _bury(self, host: Host) -> None:
        """What a dead process leaves to others: its pulse hands its rows back, unless the host died."""
        if host not in self._hosts:
            return
        if isinstance(host, Worker):
            if not host.silent:
                for statement in (END, MAKE_DUE):
                    self.ledger.owner.execute(statement, {"token": host.token})
                self._hosts.remove(host)
            self._spawn(host.queue)
        elif isinstance(host, RelayHost):
            host.relay.close()
            self._hosts.remove(host)
            self._relay()

    def _spawn(self, queue: Queue) -> None:
        self._spawned += 1
        host = Worker(queue, self._spawned, self._world, self.protocol.limits.takeovers or 5)
        self._known(host)
        row = {"token": host.token, "role": host.role, "host": host.name, "pid": self._spawned}
        self.ledger.owner.execute(REGISTER, row)

    def _relay(self) -> None:
        self._spawned += 1
        relay = Relay(
            self.ledger.database.dsns["relay"],
            self.redis,
            republish=self._republish,
            worker_ttl=timedelta(seconds=self.settings.worker_ttl_s),
        )
        self._known(RelayHost(self._spawned, relay))

    def _known(self, host: Host) -> None:
        self._hosts.append(host)
        self.names[host.token] = host.name

    @property
    def _republish(self) -> timedelta:
        return timedelta(seconds=self.settings.republish_s)

    # -- called by the threads of executions --------------------------------------------------------------

    def passed(self, point: str) -> None:
        """A fault point is passed: what the protocol has for it happens here."""
        here = Execution.here()
        step = self._of.get(here) if here is not None else None
        if here is None or step is None:
            return
        step.host.check()
        self.passages[point] += 1
        fault = self._armed.pop((point, self.passages[point]), None)
        if fault is not None:
            self._struck_here(here, step, fault)
        elif point not in INSIDE:
            self._overtake(here, step, point)

    def _struck_here(self, here: Execution, step: Step, fault: Fault) -> None:
        step.fault = fault
        if fault.do == "crash":
            step.host.dead, step.host.silent = True, fault.host
            raise Killed
        if fault.do == "error" or (fault.do == "lost" and fault.at == "dispatch.response_lost"):
            raise FaultInjected(f"fault point {fault.at}, passage {fault.nth}")
        if fault.do == "lost":
            self._lose(here, step, fault)
            return
        if fault.do == "delay" and fault.at == "dispatch.before_wire":
            step.host.network = ("delay", fault.for_s)
            return
        if fault.for_s is not None:
            step.wakes = self.clock.now + timedelta(seconds=fault.for_s)
        step.host.silent = fault.host
        here.hold(fault.at)
        step.host.silent = False

    def _lose(self, here: Execution, step: Step, fault: Fault) -> None:
        if fault.at == "dispatch.before_wire":
            step.host.network = ("lost", None)
        elif fault.at == "ledger.in_transaction":
            self.ledger.sessions["worker"].losing.add(here)
        else:
            for queue in self.redis.queues.values():
                queue.clear()

    def _checkpoint(self) -> None:
        here = Execution.here()
        step = self._of.get(here) if here is not None else None
        if here is not None and step is not None:
            step.host.check()
            self._overtake(here, step, "transaction")

    def _overtake(self, here: Execution, step: Step, point: str) -> None:
        if self._chance is not None and self._chance.random() < OVERTAKEN:
            step.yields = True
            here.hold(point)

    def _wait(self, until: datetime) -> None:
        """Hold the step that calls until then: its request or its answer is under way."""
        here = Execution.here()
        if here is not None:
            self._of[here].wakes = until
            here.hold("network")


def _taking(host: Host, messages: Sequence[Message]) -> Callable[[], object]:
    assert isinstance(host, Worker)
    return lambda: host.work(messages)


def _passing(host: RelayHost) -> Any:
    return host.relay.run_once()


def _settings(protocol: Protocol) -> Settings:
    return Settings(
        dsn="postgresql://drill",
        redis_url="redis://drill",
        app="drill:app",
        republish_s=15,
        worker_ttl_s=10,
        planner_cap_s=10,
        planner_grace_s=2,
        takeover_limit=protocol.limits.takeovers or 5,
    )
