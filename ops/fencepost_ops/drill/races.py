"""What cannot happen one step at a time: real threads with real sessions, at once, on one real Postgres.

A drill's histories interleave processes between transactions; here transactions themselves meet, so that
locks, READ COMMITTED and what was read before them are put to the test. In each round all workers, relays,
producers, sweepers and operators of a small fleet work at once, on runs that mean the same intents: many
claim one row, finish one key, ask for one run; cancels meet claims and records, evidence meets settlements,
sweeps meet claims. Chance delays threads at fault points, inside transactions too, for as long as a term
lasts; loses answers to COMMIT, answers of services, and messages; and doubles messages. Time runs faster than
outside.

Afterwards everything must have come to an end, and the checker holds the ledger against the services' books.
Not promised: the same history twice. The seed gives the same runs and the same chances, but threads meet as
the machine has it; that is the point, and why nothing of this can be shrunk to a protocol.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Self, cast
from uuid import UUID

import psycopg

from fencepost.clock import driven
from fencepost.errors import FaultInjected, FencepostError
from fencepost.ledger.connect import connect
from fencepost.settings import Settings
from fencepost.states import Queue
from fencepost.testing import FAULTS
from fencepost_ops.check import terms
from fencepost_ops.checker import Report, check
from fencepost_ops.drill.app import CONTRACTS, app
from fencepost_ops.drill.ledger import DrillLedger, Sessions
from fencepost_ops.drill.mischief import SPEED, Chance, RacingPool, RacingRedis, RacingServices, counted
from fencepost_ops.drill.people import DrillClient, Producer
from fencepost_ops.drill.process import Worker, World
from fencepost_ops.drill.protocol import Asked
from fencepost_ops.drill.virtual import START, VirtualClock
from fencepost_ops.postgres import LocalPostgres
from fencepost_relay.relay import Relay
from fencepost_workers.pulse_program import REGISTER
from fencepost_workers.sweep import sweep

RUNS: Final = 24
STORM_S: Final = 8.0  # real seconds in which chance strikes, unless most runs end before; then it is calm
ENDS_S: Final = 60.0  # real seconds a round may take
LETS_GO_S: Final = 30.0  # real seconds its threads have to end once it is over
CREW: Final = {Queue.PLANNER: 2, Queue.DISPATCHER: 4, Queue.RECONCILER: 2, Queue.COMPENSATOR: 2}
_TICK_S: Final = 0.004
_SKEW: Final = timedelta(seconds=5)  # between a service's look at a clock that runs fast, and the ledger's

_MOVE: Final = """
WITH moved AS (UPDATE fencepost.clock SET at = %(at)s RETURNING at + ahead AS now)
UPDATE fencepost.workers SET last_seen = moved.now FROM moved WHERE token = ANY (%(living)s)
"""
_REPAIRS: Final = "SELECT id, operation FROM fencepost.calls WHERE state = 'NEEDS_REPAIR' ORDER BY id"
_GOING: Final = "SELECT id FROM fencepost.runs WHERE status NOT IN ('COMPLETED', 'STOPPED') ORDER BY id"
_OPEN: Final = """
SELECT count(*), count(*) FILTER (WHERE publish_at < fencepost.now() + interval '20 seconds')
FROM fencepost.outbox WHERE dead_at IS NULL AND publish_at < '9000-01-01'
"""
_LEFT: Final = """
SELECT o.subject, o.queue, coalesce(c.state, r.status),
       'generation ' || o.generation || ', due ' || o.due_at || ', published ' || o.publish_at
FROM fencepost.outbox o JOIN fencepost.runs r ON r.id = o.run LEFT JOIN fencepost.calls c ON c.id = o.subject
WHERE o.dead_at IS NULL ORDER BY o.publish_at
"""
_DEADLOCKS: Final = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@dataclass
class Raced:
    """What came of some rounds. `counts`: how often chance struck, and what the ledger answered. `stuck`:
    threads of a round would not end, and nothing may run beside them any more.
    """

    seed: int
    rounds: int = 0
    took_s: float = 0.0
    runs: int = 0
    attempts: int = 0
    effects: int = 0
    evidence: int = 0
    repairs: int = 0
    deadlocks: int = 0
    stuck: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        names = ("seed", "rounds", "runs", "attempts", "effects", "evidence", "repairs", "deadlocks")
        return {
            "ok": self.ok,
            **{name: getattr(self, name) for name in names},
            "took_s": round(self.took_s, 1),
            "counts": dict(sorted(self.counts.items())),
            "not_asserted": dict(sorted(self.noted.items())),
            "failures": list(self.failures),
        }


def asked(seed: int) -> list[Asked]:
    """The runs of a round: of three kinds of intent, so that most mean what another means too."""
    chance = random.Random(f"races {seed}")
    contracts = chance.sample(sorted(CONTRACTS), 3)
    return [
        Asked(
            planner=chance.choice(("one", "two", "both", "both", "stop")),
            input={"contract": (which := chance.choice(contracts)), "reference": f"{which}-{number % 2}"},
            run_key=f"run-{number + 1}",
            deadline_s=chance.choice((40.0, 120.0, 600.0)),
        )
        for number in range(RUNS)
    ]


class Races:
    """Rounds of one seed on one server: `round(n)` runs the nth; `result` says what came of them."""

    def __init__(self, server: LocalPostgres, seed: int, name: str = "races") -> None:
        self._ledger = DrillLedger(server, name)
        self.result = Raced(seed)

    def close(self) -> None:
        """Let go of the ledger."""
        self._ledger.close()

    def round(self, number: int) -> list[str]:
        """Run it; what is wrong with it, one sentence each."""
        began = time.monotonic()
        self._ledger.empty()
        seed = self.result.seed * 1_000_003 + number
        with _Round(self._ledger, seed) as one:
            failures = one.run()
            report = one.judge()
        failures += [f"{v.invariant}: {x.message}" for v in report.verdicts for x in v.violations]
        self._keep(one, report, [f"round {number}: {text}" for text in failures])
        self.result.took_s += time.monotonic() - began
        return failures

    def _keep(self, one: _Round, report: Report, failures: list[str]) -> None:
        result, totals = self.result, report.totals
        result.rounds += 1
        result.runs += totals.runs
        result.attempts += totals.attempts
        result.effects += totals.effects
        result.evidence += totals.evidence
        result.repairs += one.repairs
        result.stuck |= one.stuck
        result.deadlocks = one.deadlocks()
        result.counts.update(one.chance.counts)
        result.noted.update(v.invariant for v in report.verdicts if v.notes)
        result.failures += failures


class _Round:
    """One round, with its threads."""

    def __init__(self, ledger: DrillLedger, seed: int) -> None:
        self.chance = Chance(seed)
        self.repairs, self.stuck = 0, False
        self._ledger, self._asked = ledger, asked(seed)
        self._clock = VirtualClock(seed)
        self._redis = RacingRedis(self.chance)
        self._services = RacingServices(self._clock, self.chance)
        self._settings = Settings.model_construct(
            dsn="postgresql://races", redis_url="redis://races", app="races:app", republish_s=4,
            worker_ttl_s=30, compensation_s=10, planner_grace_s=2, takeover_limit=20,
        )  # fmt: skip
        self._over = threading.Event()
        self._busy: Counter[str] = Counter()
        self._failures: list[str] = []
        self._threads: list[threading.Thread] = []
        self._stack = ExitStack()
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        stack = self._stack.__enter__()
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, before)
        stack.enter_context(driven(self._clock))
        dsns = self._ledger.database.dsns
        pools = {role: RacingPool(dsns[role], 16, self.chance) for role in ("worker", "producer", "operator")}
        for pool in pools.values():
            stack.callback(pool.close)
        self._pools = cast("dict[str, Sessions]", pools)
        self._world = World(
            app, self._settings, self._clock, self._redis, self._services, self._pools["worker"], self._wait
        )
        self._sight = stack.enter_context(connect(dsns["reader"], "races", autocommit=True))
        FAULTS.drive(self.chance.passed)
        stack.callback(FAULTS.drive, None)
        stack.callback(self._end)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self) -> list[str]:
        """Everything at once, until nothing is open; what went wrong."""
        for queue, many in CREW.items():
            for number in range(many):
                self._hire(queue, number)
        self._thread("clock", self._tick)
        for number in range(2):
            self._thread(f"relay {number}", self._relay)
        for number in range(3):
            self._thread(f"producer {number}", partial(self._produce, number))
        self._thread("canceller", self._cancel)
        self._thread("sweeper", self._sweep)
        began = time.monotonic()
        while not self._done(time.monotonic() - began):
            if time.monotonic() - began > ENDS_S:
                self._failures.append(f"it did not come to an end within {ENDS_S:g} s: {self._left()}")
                break
            time.sleep(0.02)
        self._end()
        return self._failures

    def judge(self) -> Report:
        """What the checker says."""
        with connect(self._ledger.database.dsns["reader"], "races", autocommit=True) as connection:
            return check(connection, self._services, settled=True, terms=terms(app), tolerance=_SKEW)

    def deadlocks(self) -> int:
        """How many there have been in this database."""
        return int(self._ledger.owner.execute(_DEADLOCKS).fetchone()[0])  # type: ignore[index]

    # -- its end --------------------------------------------------------------------------------------------

    def _done(self, passed_s: float) -> bool:
        if passed_s < STORM_S and (self._producing() or len(self._going()) > RUNS // 4):
            return False
        self.chance.calm.set()
        if self._producing() or self._services.lands_next is not None or +self._busy:
            return False
        ((later, soon),) = self._sight.execute(_OPEN).fetchall()
        # Whoever waits for another's key goes on once it is decided.
        return not (soon or +self._busy) and not self._decide() and not later

    def _going(self) -> list[UUID]:
        return [run for (run,) in self._sight.execute(_GOING)]

    def _left(self) -> str:
        rows = self._sight.execute(_LEFT).fetchall()
        busy = ", ".join(sorted(+self._busy)) or "nobody"
        said = "; ".join(f"{state} {subject} in {queue}, {what}" for subject, queue, state, what in rows)
        lands = self._services.lands_next
        return f"at {self._clock.now.time()}: {said or 'nothing open'}; at work: {busy}; lands: {lands}"

    def _producing(self) -> bool:
        return any(t.is_alive() and t.name.startswith("producer") for t in self._threads)

    def _decide(self) -> bool:
        """Two operators settle what waits for a person, at once, by the services' books."""
        waiting = self._sight.execute(_REPAIRS).fetchall()
        if not waiting:
            return False
        orders = (waiting, waiting[::-1])
        both = [threading.Thread(target=self._settle, args=(list(order),)) for order in orders]
        for one in both:
            one.start()
        self._join(both)
        return True

    def _settle(self, calls: list[tuple[UUID, str]]) -> None:
        client = DrillClient(self._pools["operator"])
        booked = {
            effect.key: effect.receipt
            for service in self._services.services()
            for effect in self._services.effects(service)
        }
        for call, key in calls:
            receipt = booked.get(key)
            ended = "SUCCEEDED" if receipt else "FAILED"
            try:
                client.repair(call, ended, "pat", "looked into the book", receipt)
                self.repairs += 1
            except FencepostError:  # the other was first
                self.chance.count("repairs refused")

    def _end(self) -> None:
        self._over.set()
        self.chance.calm.set()
        self._join(self._threads)
        self._threads.clear()

    def _join(self, threads: list[threading.Thread]) -> None:
        by = time.monotonic() + LETS_GO_S
        for thread in threads:
            thread.join(max(0.0, by - time.monotonic()))
        if stuck := [thread.name for thread in threads if thread.is_alive()]:
            self.stuck = True
            self._failures.append(f"still at work after {LETS_GO_S:g} s: {', '.join(stuck)}")

    # -- its threads ----------------------------------------------------------------------------------------

    def _thread(self, name: str, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it is, the round has failed
                self._failures.append(f"{name} raised {type(error).__name__}: {error}")

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _hire(self, queue: Queue, number: int) -> None:
        worker = Worker(queue, len(self._workers) + 1, self._world, self._settings.takeover_limit)
        vars(worker.ledger)["apply"] = counted(worker.ledger.apply, self.chance)
        self._workers.append(worker)
        row = {"token": worker.token, "role": worker.role, "host": worker.name, "pid": len(self._workers)}
        self._ledger.owner.execute(REGISTER, row | {"knows": None})
        self._thread(f"{queue} {number}", lambda: self._work(worker))

    def _work(self, worker: Worker) -> None:
        while not self._over.is_set():
            self._busy[worker.name] = 1
            message = self._redis.take(str(worker.queue))
            if message is not None:
                _forgiving(lambda: worker.work(message))  # noqa: B023 - called at once
            self._busy[worker.name] = 0
            if message is None:
                time.sleep(0.005)

    def _tick(self) -> None:
        began = time.monotonic()
        tokens = [worker.token for worker in self._workers]
        while not self._over.is_set():
            self._clock.passed = timedelta(seconds=(time.monotonic() - began) * SPEED)
            self._ledger.owner.execute(_MOVE, {"at": START + self._clock.passed, "living": tokens})
            self._services.land()
            time.sleep(_TICK_S)

    def _relay(self) -> None:
        relay = Relay(
            self._ledger.database.dsns["relay"],
            self._redis,
            republish=timedelta(seconds=self._settings.republish_s),
            worker_ttl=timedelta(seconds=self._settings.worker_ttl_s),
        )
        while not self._over.is_set():
            _forgiving(relay.run_once)
            time.sleep(0.01)
        relay.close()

    def _produce(self, number: int) -> None:
        """Ask for every run; three do, each in an order of its own."""
        producer, order = Producer(self._pools["producer"]), list(enumerate(self._asked))
        random.Random(number).shuffle(order)
        for place, one in order:
            asking = partial(producer.ask, one, place)
            while not self._over.is_set() and not _forgiving(asking):
                self.chance.count("asked again")

    def _cancel(self) -> None:
        client = DrillClient(self._pools["operator"])
        while not self.chance.calm.is_set():
            time.sleep(0.1 + 0.4 * self.chance.number())
            if going := self._going():
                run = going[int(self.chance.number() * len(going))]
                if _forgiving(lambda: client.cancel(run, "pat", "no longer wanted")):  # noqa: B023
                    self.chance.count("cancelled")

    def _sweep(self) -> None:
        worker = self._workers[0]
        while not self._over.is_set():
            _forgiving(lambda: sweep(worker.pool, worker.ledger))
            time.sleep(0.05)

    def _wait(self, until: datetime) -> None:
        while self._clock.now < until and not self._over.is_set():
            time.sleep(_TICK_S)


def _forgiving(work: Callable[[], object]) -> bool:
    """Whether it went well; what a fault does to it is no news. Raises what only a bug does."""
    try:
        work()
    except (FaultInjected, FencepostError, psycopg.OperationalError):
        return False
    return True
