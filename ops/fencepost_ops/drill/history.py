"""One history: a protocol's runs on a simulated fleet, its faults, its events, to the end, and the verdict.

One step at a time: a producer asks, the relay passes, a worker takes a message, whoever was held goes on.
When there is nothing to do, time moves to when there is. With a schedule of its own (`interleave`) a process
may be overtaken at every fault point and before every transaction; without one each step runs to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final
from uuid import UUID

from fencepost.app import App
from fencepost.errors import FaultInjected, FencepostError, UsageError
from fencepost.settings import Settings
from fencepost.states import Queue
from fencepost_ops.drill.baton import Execution, Killed
from fencepost_ops.drill.desk import DUTIES, Desk
from fencepost_ops.drill.fleet import SimulatedFleet
from fencepost_ops.drill.ledger import DrillLedger
from fencepost_ops.drill.outcome import Left, Struck
from fencepost_ops.drill.people import Office, Producer
from fencepost_ops.drill.process import Host, World
from fencepost_ops.drill.protocol import Asked, Event, Protocol
from fencepost_ops.drill.redis import VirtualRedis
from fencepost_ops.drill.services import Services
from fencepost_ops.drill.strikes import INSIDE, Step, Strikes
from fencepost_ops.drill.virtual import START, VirtualClock
from fencepost_workers.role import Message
from fencepost_workers.sweep import sweep

STEPS: Final = 3000  # a history that takes more has no end
HORIZON_S: Final = 7200.0  # nor does one that lasts so long after its last event
TICK: Final = timedelta(milliseconds=1)  # what a step takes
ALONE: Final = timedelta(minutes=20)  # whom nobody takes over from in so long was the only one of its role
ABANDON_S: Final = 5.0  # real seconds for a step that runs while its history is given up
THOROUGH: Final = timedelta(seconds=1.1)  # a relay finds what lies below its floor once a second

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
       o.queue, o.due_at, o.generation, last.seq, last.projection
FROM fencepost.runs r
LEFT JOIN fencepost.calls c ON c.id = %(id)s
LEFT JOIN fencepost.outbox o ON o.subject = coalesce(c.id, r.id)
LEFT JOIN LATERAL (SELECT e.seq, e.projection FROM fencepost.events e WHERE e.run = r.id
                   ORDER BY e.seq DESC LIMIT 1) AS last ON true
WHERE r.id = coalesce((SELECT run FROM fencepost.calls WHERE id = %(id)s), %(id)s)
"""


class History:
    """Runs one protocol on an emptied ledger. Used once: `run`, then the attributes say what came of it."""

    def __init__(
        self, ledger: DrillLedger, protocol: Protocol, app: App, services: Services, clock: VirtualClock
    ) -> None:
        self.protocol = protocol
        self.clock = clock
        self.struck: list[Struck] = []
        self.taken = 0
        self.settled = False
        self._ledger = ledger
        self._services = services
        self._redis = VirtualRedis()
        takeovers = protocol.limits.takeovers or 5
        self._settings = _settings(takeovers)
        self.strikes = Strikes(protocol, ledger, self._redis, clock)
        world = World(
            app, self._settings, clock, self._redis, services, ledger.sessions["worker"], self.strikes.wait
        )
        self.fleet = SimulatedFleet(ledger, world, takeovers)
        self._chance = self.strikes.chance
        self._held: list[Step] = []
        self._running: Step | None = None
        wanted: list[Asked | Event] = [*protocol.runs, *protocol.events]
        self._due = sorted(((one.at_s, n, one) for n, one in enumerate(wanted)), key=lambda due: due[:2])
        self._looked: datetime | None = None
        self._producer = Producer(ledger.sessions["producer"])
        self._office = Office(ledger, services)
        self._desk = Desk(ledger, app)

    # -- the whole ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """To the end. Raises what a bug of the fleet raises; never what a fault does."""
        self._ledger.checkpoint = self.strikes.checkpoint
        try:
            for queue in Queue:
                for _ in range(getattr(self.protocol.fleet, str(queue))):
                    self.fleet.spawn(queue)
            for _ in range(self.protocol.fleet.relay):
                self.fleet.spawn_relay()
            horizon = HORIZON_S + max((at for at, _, _ in self._due), default=0.0)
            while self.taken < STEPS and self.clock.seconds < horizon:
                if not self._once():
                    self.settled = True
                    break
        finally:
            self._end()

    def _end(self) -> None:
        """Nothing of this history goes on, whatever has ended it: a step may be running at this moment."""
        for host in (*self.fleet.workers, *self.fleet.relays, *(step.host for step in self._held)):
            host.dead = True
        if self._running is not None:
            self._running.host.dead = True
            self._running.execution.abandon(ABANDON_S)
        for step in self._held:
            step.execution.end()
        self._ledger.checkpoint = _nobody
        self.fleet.close()

    def _once(self) -> bool:
        ways = [self._happen, self._wake, self._deliver, self._publish]
        if self._chance is not None:
            self._chance.shuffle(ways)
        return any(way() for way in ways) or self._advance()

    # -- what is possible now -----------------------------------------------------------------------------

    def _happen(self) -> bool:
        """A request lands, a producer asks, or something befalls everybody."""
        if self._services.land():
            return True
        if not self._due or self._due[0][0] > self.clock.seconds:
            return False
        _, number, what = self._due.pop(0)
        if isinstance(what, Asked):
            self._ask(number)  # runs come first in what was wanted
        else:
            self._tick()
            self._event(what)
        return True

    def _ask(self, number: int) -> None:
        asked = self.protocol.runs[number]
        self._start(Host("producer", number + 1), lambda: self._producer.ask(asked, number))

    def _event(self, event: Event) -> None:
        queues = self._redis.queues
        if event.do == "wipe_redis":
            self._redis.wipe()
        elif event.do in ("redis_away", "redis_back"):
            self._redis.away = event.do == "redis_away"
            for step in self._held:  # while nobody can take over, nobody waits for it
                step.since = step.since and self.clock.now
        elif event.do == "jump_clock":
            self._ledger.jump(event.seconds or 0.0)
            self.clock.ahead += timedelta(seconds=event.seconds or 0.0)
        elif event.do in ("double_messages", "lose_messages", "turn_messages"):
            for name, queue in queues.items():
                changed = {"double_messages": queue * 2, "lose_messages": [], "turn_messages": queue[::-1]}
                queues[name] = changed[event.do]
        elif event.do == "cancel":
            self._office.cancel(event.run or 0)
        elif event.do == "sql":
            self._office.straight(event.statement or "")
        elif event.do in DUTIES:
            self._desk.do(event)
        else:
            self._sweep()

    def _sweep(self) -> None:
        worker = next((host for host in self.fleet.workers if self._idle(host)), None)
        if worker is not None:
            republish = timedelta(seconds=self._settings.republish_s)
            self._start(worker, lambda: sweep(worker.pool, worker.ledger, republish))

    def _wake(self) -> bool:
        """Let one that is held go on: its time has come, or somebody else has taken over."""
        ready = [step for step in self._held if self._ready(step)]
        if ready:
            self._go_on(ready[0] if self._chance is None else self._chance.choice(ready))
        return bool(ready)

    def _ready(self, step: Step) -> bool:
        if step.yields or step.wakes is not None:
            return step.yields or (step.wakes or START) <= self.clock.now
        if step.since is not None and step.since + ALONE <= self.clock.now and not self._redis.away:
            return True
        return any(self._fence(subject) > fence for subject, fence in step.fences.items())

    def _fence(self, subject: UUID) -> int:
        row = self._ledger.owner.execute(_FENCE, {"id": subject}).fetchone()
        return int(row[0]) if row else 0

    def _deliver(self) -> bool:
        """A worker takes a message."""
        order = list(self._redis.queues)
        if self._chance is not None:
            self._chance.shuffle(order)
        for name in [] if self._redis.away else order:
            queue = self._redis.queues[name]
            idle = [host for host in self.fleet.workers if host.role == name and self._idle(host)]
            if queue and idle:
                at = 0 if self._chance is None else self._chance.randrange(len(queue))
                host = idle[0] if self._chance is None else self._chance.choice(idle)
                messages = [(tenant, UUID(subject), number) for tenant, subject, number in queue.pop(at)]
                self._start(host, lambda host=host, of=messages: host.work(of), messages)  # type: ignore[misc]
                return True
        return False

    def _publish(self) -> bool:
        """A pass of a relay, unless one has passed at this very time and found nothing."""
        idle = [host for host in self.fleet.relays if self._idle(host)]
        if not idle or self._looked == self.clock.now:
            return False
        host = idle[0] if self._chance is None else self._chance.choice(idle)
        before = self._waiting()
        self._start(host, host.work)
        self._looked = None if before != self._waiting() else self.clock.now
        return True

    def _waiting(self) -> list[int]:
        return [len(queue) for queue in self._redis.queues.values()]

    def _idle(self, host: Host) -> bool:
        return not host.dead and all(step.host is not host for step in self._held)

    # -- time ---------------------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Move to when the next thing can happen; False: nothing ever will."""
        later = [at for at in self._times() if at > self.clock.now]
        if not later:
            return self._overdue() or (self.protocol.persons and self._office.settle(self._pass_time))
        target = min(later)
        if self.fleet.judging(self.clock.seconds):  # relays judge by looks that are near to each other
            target = min(target, self.clock.now + timedelta(seconds=self._settings.worker_ttl_s / 4))
        self._move(target)
        return True

    def _times(self) -> list[datetime]:
        times = [START + timedelta(seconds=at) for at, _, _ in self._due[:1]]
        times += [step.wakes for step in self._held if step.wakes is not None]
        if (lands := self._services.lands_next) is not None:
            times.append(lands)
        if not self._redis.away and any(self._idle(host) for host in self.fleet.relays):
            row = self._ledger.owner.execute(_NEXT).fetchone()
            after, overdue = row or (None, 0)
            if after is not None:
                times.append(max(after, self.clock.now + TICK))
            if overdue and not any(self._redis.queues.values()):
                times.append(self.clock.now + THOROUGH)
        return times

    def _overdue(self) -> bool:
        """Nothing else can happen: whoever waits for a takeover that never comes wakes up."""
        waiting = [step for step in self._held if step.wakes is None]
        if waiting:
            self._go_on(waiting[0])
        return bool(waiting)

    def _pass_time(self, seconds: float) -> None:
        self._move(self.clock.now + timedelta(seconds=seconds))

    def _tick(self) -> None:
        self._move(self.clock.now + TICK)

    def _move(self, to: datetime) -> None:
        self.clock.passed = to - START
        self._ledger.owner.execute(_MOVE, {"at": to, "living": self.fleet.living})

    # -- steps --------------------------------------------------------------------------------------------

    def _start(self, host: Host, work: Callable[[], object], messages: Sequence[Message] = ()) -> None:
        step = Step(host, Execution(host.name, work), tuple(messages))
        self.strikes.steps[step.execution] = step
        self._go_on(step)

    def _go_on(self, step: Step) -> None:
        if step in self._held:
            self._held.remove(step)
        self._tick()
        step.yields, step.wakes, step.fences, step.since = False, None, {}, None
        self.taken += 1
        self._running = step
        step.execution.go_on()
        self._running = None
        if step.execution.ended:
            self._ended(step)
        else:
            self._hold(step)

    def _hold(self, step: Step) -> None:
        self._held.append(step)
        if any(fault.at in INSIDE for fault, _ in step.faults):
            self._ledger.break_session(step.execution)
        if step.wakes is None and not step.yields:
            step.fences = {subject: self._fence(subject) for _, subject, _ in step.messages}
            step.since = self.clock.now
        self._write_down(step)

    def _ended(self, step: Step) -> None:
        del self.strikes.steps[step.execution]
        error = step.execution.error
        if error is not None and not isinstance(error, FaultInjected | FencepostError):
            raise error
        if step.host.dead:
            self.fleet.bury(step.host)
        self._write_down(step)
        if step.host.role == "producer" and isinstance(error, UsageError):
            raise error  # what it asks for is no request, however often it asks
        if step.host.role == "producer" and (step.host.dead or error is not None):
            self._ask(int(step.host.name.rpartition("/")[2]) - 1)  # the same request again, as producers may

    def _write_down(self, step: Step) -> None:
        faults, step.faults = step.faults, []
        for fault, about in faults:
            subject = about or (step.messages[0][1] if step.messages else None)
            self.struck.append(Struck(fault, self.clock.seconds, step.host.name, self._left(subject)))

    def _left(self, subject: UUID | None) -> Left:
        row = self._ledger.owner.execute(_LEFT, {"id": subject}).fetchone() if subject else None
        if row is None:
            return Left()
        left, due = replace(Left(*row[:8]), generation=row[9], seq=row[10], projection=row[11]), row[8]
        return left if due is None or due.year > 9000 else replace(left, due_s=(due - START).total_seconds())


def _nobody() -> None:
    """No history is under way: a step that is left of one ends where it would touch the ledger."""
    if Execution.here() is not None:
        raise Killed


@lru_cache
def _settings(takeovers: int) -> Settings:
    return Settings.model_construct(  # whoever runs a drill may have settings of a fleet's in the environment
        dsn="postgresql://drill",
        redis_url="redis://drill",
        app="drill:app",
        republish_s=15,
        worker_ttl_s=10,
        compensation_s=10,
        planner_grace_s=2,
        takeover_limit=takeovers,
    )
