"""One worker process: what its threads and its event loop share. Nothing here decides anything."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg

from fencepost.app import App
from fencepost.authority.inforce import Engines
from fencepost.clock import boottime, token
from fencepost.decide.fold import Known
from fencepost.dependencies import DependencySpec
from fencepost.doorbell import Doorbell
from fencepost.errors import FencepostError
from fencepost.heads import Heads
from fencepost.health import HealthFile
from fencepost.knowledge import knows
from fencepost.leases import RedisLeases, Want
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import SILENCE, Pool
from fencepost.loading import load_app
from fencepost.settings import Settings
from fencepost.states import Queue
from fencepost.telemetry import metrics
from fencepost_workers import forks
from fencepost_workers.committer import PATIENCE_S, Committer
from fencepost_workers.hearing import Hearing
from fencepost_workers.models.providers import Providers
from fencepost_workers.pulse import Pulse
from fencepost_workers.signing import signer_of
from fencepost_workers.slots import Slots, ToolThreads
from fencepost_workers.tools import mcp
from fencepost_workers.tools.http import HttpEngine
from fencepost_workers.watch import Watch, Watched, ask_to_end

log = logging.getLogger(__name__)

CLOSE_WITHIN_S = 5.0
GIVE_UP_WITHIN_S = 3.0  # what is given up is recorded within
SPARE_S = 15.0  # what a batch may take beyond its patience and one transaction
RENEW_S = 1.0  # between two looks at the pulse
RENEW_AGAIN_S = 5.0  # after one that could not be started: each try may cost a process
TRUSTED_S = 1.0  # a session used so recently is not tried first; what fails is asked again with patience


class Worker:
    """The parts of one process. Starting it stamps the `workers` table; stopping it ends cleanly.

    Raises UsageError for wrong settings or an application that cannot be loaded, Unreachable without
    Postgres.
    """

    def __init__(self, settings: Settings, role: Queue, app: App | None = None) -> None:
        settings.need("dsn", "redis_url", "app")
        self.settings = settings
        self.app = app or load_app(settings.app)
        self._ttl = timedelta(seconds=settings.worker_ttl_s)
        sends = role in {Queue.DISPATCHER, Queue.RECONCILER}
        self.signer = signer_of(settings.signing_keys, self.app.dependencies if sends else ())
        mcp.needed(self.app.dependencies if sends else ())
        self.pid = os.getpid()
        known = knows(self.app.planner_versions, self.app.registry)
        self.pulse = Pulses(settings, str(role), self._ttl, known)
        self.heads = Heads(settings.redis_url, settings.head_file)
        self.pool = Pool(
            settings.dsn,
            f"fencepost-{role}",
            settings.pool_size,
            trusted_s=TRUSTED_S,
            transaction_s=settings.transaction_s,
            opened=self.heads.look,
        )
        self.heads.start()
        self._doorbell = Doorbell(settings.redis_url)
        self.leases = RedisLeases(settings.redis_url)
        self.ledger = Ledger(
            self.pool,
            self._known(),
            worker_ttl=self._ttl,
            ring=self._doorbell.ring,
            confirmed=self.heads.confirmed,
        )
        slots = settings.planner_slots if role is Queue.PLANNER and self.app.models else settings.slots
        self.slots = Slots(slots)
        self.shares = shares_of(self.app, role, slots)
        self.executor = ToolThreads(slots)
        self.loop = asyncio.new_event_loop()
        guard = forks.LoopGuard(self.loop)
        self.loop.call_soon(guard.of_this_thread)
        self._tasks: set[asyncio.Task[None]] = set()
        self._interruptible: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()
        self.committer = Committer(self.ledger, self.loop)
        self.mcp = mcp.McpEngine()
        self.engine = asyncio.run_coroutine_threadsafe(self._engine(), self.loop).result()
        self.models = Providers()
        self._releaser = Releaser(self.leases)
        self.cut_off: list[Callable[[], bool]] = []
        self._health = HealthFile(settings.health_file)
        self._freed = 0
        self.hearing = Hearing(
            settings.redis_url, [str(role)], settings.deaf_s, able=self._able, leave=self._leave
        )
        self._watch = Watch(
            self.loop,
            self._watched(),
            held_limit=max(1, settings.slots // 2),
            drain_ticks=math.ceil(settings.drain_s),
            batch_ticks=math.ceil(PATIENCE_S + SILENCE * settings.transaction_s + SPARE_S),
            ask=self._drain_and_end,
        )

    @staticmethod
    async def _engine() -> HttpEngine:
        return HttpEngine()  # made on the loop it belongs to

    def _known(self) -> Known:
        app = self.app
        return Known(
            tool=lambda name, version: app.registry.get((name, version)),
            planner=lambda name, version: (name, version) in app.planner_versions,
            authority=app.authority,
            engines=Engines() if app.governed else None,
            takeover_limit=self.settings.takeover_limit,
            limited=frozenset(spec.scope for spec in app.dependencies if spec.limited),
            providers=frozenset(spec.scope for spec in app.providers),
            allowances=app.allowances,
            agent=app.agent_of,
        )

    def _broken(self) -> str | None:
        parts = (
            ("the event loop", self._thread.is_alive()),
            ("the committer", self.committer.alive()),
            ("the releaser", self._releaser.alive()),
        )
        return next((name for name, alive in parts if not alive), None)

    def _watched(self) -> Watched:
        return Watched(
            broken=self._broken,
            held=lambda: self.executor.busy - self.slots.used,
            batch=self.committer.batch,
            draining=lambda: self.slots.draining,
            busy=lambda: self.slots.used,
            well=self._well,
            tick=self._tick,
        )

    def _able(self) -> bool:
        return not (self.slots.full or self.slots.draining or any(cut_off() for cut_off in self.cut_off))

    def served(self) -> bool:
        """Whether Postgres answers this process, and Redis would grant it a lease."""
        try:
            with self.pool.reading() as connection:
                connection.execute("SELECT 1")
            self.leases.grant([Want("fencepost/served", token(), 0, None, timedelta(milliseconds=1))])
        except (FencepostError, psycopg.Error):
            return False
        return True

    def _leave(self, why: str) -> None:
        self._watch.ask(why)

    def _drain_and_end(self, why: str) -> None:
        self.drain()  # now: the thread that hears signals may be the one that is stuck
        ask_to_end(why)

    def _well(self) -> None:
        if not self.hearing.deaf and not self._health.touch():
            log.error("%s", self._health.error)

    def _tick(self) -> None:
        freed, self._freed = self._freed, self.slots.freed
        progress = self.hearing.progress() or freed != self._freed
        slots = self.slots
        metrics.busy(slots.used)
        self.pulse.tick(progress=progress, busy=slots.used, slots=slots.size, draining=slots.draining)

    def rand(self) -> float:
        """Randomness for jitter, in [0, 1)."""
        return random.random()

    def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def start(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run these items on the event loop."""
        forks.ours(self.pid)
        self.loop.call_soon_threadsafe(self._spawn, works)

    def _spawn(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        for work in works:
            task = self.loop.create_task(work)
            self._tasks.add(task)  # the loop itself holds its tasks weakly
            task.add_done_callback(self._tasks.discard)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, the task that runs may be cancelled because this process is to end: nothing it has sent has
        to be accounted for. On the loop only.
        """
        task = asyncio.current_task()
        assert task is not None
        self._interruptible.add(task)
        try:
            yield
        finally:
            self._interruptible.discard(task)

    def _give_up(self) -> None:
        for task in tuple(self._interruptible):
            task.cancel()

    def let_go(self, lease: str, owner: str) -> None:
        """Release a lease, soon and best-effort: it only ever says "do not disturb"."""
        self._releaser.put(lease, owner)

    def drain(self) -> None:
        """Claim nothing more."""
        self.pulse.drain()
        self.slots.drain()

    def stop(self, patience_s: float) -> None:
        """Let what is in flight finish and be recorded, then end; what is left its takeover settles."""
        self.drain()
        if not self.slots.idle(patience_s):
            self.loop.call_soon_threadsafe(self._give_up)
        if not self.slots.idle(GIVE_UP_WITHIN_S):
            log.warning("stopping with items in flight; their takeover will settle them")
        self._watch.closing()
        self.hearing.stop()
        self.committer.close()
        self._releaser.close()
        self._close_loop()
        self.executor.shutdown(wait=False, cancel_futures=True)
        self._watch.stop()
        # Last among those that speak to the ledger: it makes due at once whatever this process still holds.
        self.pulse.close()
        self.leases.close()
        self._doorbell.close()
        self.heads.close()
        self.pool.close()

    async def _close_connections(self) -> None:
        for what, part in (("providers", self.models), ("downstreams", self.engine)):
            try:
                await part.aclose()
            except Exception:
                log.exception("connections to %s did not close", what)

    def _close_loop(self) -> None:
        closing = asyncio.run_coroutine_threadsafe(self._close_connections(), self.loop)
        try:
            closing.result(CLOSE_WITHIN_S)
        except TimeoutError:
            log.warning("connections to downstreams and providers did not close in time")
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CLOSE_WITHIN_S)
        if not self._thread.is_alive():
            self.loop.close()


def shares_of(app: App, role: Queue, slots: int) -> dict[str, int]:
    """How many of a process's slots the items of each dependency may take: runs by the provider of their
    model, calls by that of their tool.
    """
    others = any(app.agent_of(name, version) is None for name, version in app.planner_versions)
    models = shares(app.providers, slots, beside=others)
    tools = shares((tool.dependency for tool in app.registry.values()), slots)
    return tools | models if role is Queue.PLANNER else models | tools


def shares(dependencies: Iterable[DependencySpec], slots: int, *, beside: bool = False) -> dict[str, int]:
    """The shares of so many slots, by scope; `beside`: there are items that go to no dependency.

    Half of them where there is something else to be done and a dependency says nothing itself: the slowest of
    them still leaves the other half to the rest. Where there is one only, nobody is spared by keeping slots
    from it.
    """
    specs = {spec.scope: spec for spec in dependencies}
    usual = slots if len(specs) == 1 and not beside else max(1, slots // 2)
    return {scope: min(slots, spec.slots or usual) for scope, spec in specs.items()}


class Pulses:
    """This process's pulse, and the next one when it ended or fell silent."""

    def __init__(self, settings: Settings, role: str, ttl: timedelta, knows: str | None = None) -> None:
        self._pulse = Pulse(
            settings.dsn,
            role,
            ttl,
            stall_s=settings.stall_s,
            republish_s=settings.republish_s,
            knows=knows,
        )
        self.suspects = self._pulse.suspects
        self._ttl_s = ttl.total_seconds()
        self._lock = threading.Lock()
        self._suspected: tuple[str, float] | None = None
        self._draining = False
        self._closed = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name="pulses", daemon=True)
        self._renewer.start()

    def token(self) -> str:
        """The token to claim under from this moment; a new one when the pulse ended. Raises `Unreachable`."""
        return self._pulse.ensure()

    def tick(self, *, progress: bool, busy: int, slots: int, draining: bool) -> None:
        """See `Pulse.tick`."""
        self._pulse.tick(progress=progress, busy=busy, slots=slots, draining=draining)

    def trusted(self, token: str) -> None:
        """A claim under this token was judged by its merits: its stamp is fresh."""
        if self._suspected is not None and self._suspected[0] == token:
            self._suspected = None

    def suspect(self, token: str) -> None:
        """Claims under this token are refused because its stamp is stale.

        A stamp may be late for a moment. One that stays stale for two TTLs has a pulse that hangs: it is
        replaced, and rows held under the old token come due, as they do for a worker that died.
        """
        with self._lock:
            if self._suspected is None or self._suspected[0] != token:
                self._suspected = (token, boottime())
                log.warning("claims are refused: the stamp of worker %s is stale", token[:8])
                return
            if boottime() - self._suspected[1] < 2 * self._ttl_s:
                return
            self._suspected = None
            log.error("the pulse of worker %s hangs; another takes its place", token[:8])
            self._pulse.close()

    def close(self) -> None:
        """End the pulse, for good."""
        self._closed.set()
        self._pulse.leave()
        self._pulse.close()
        self._renewer.join(CLOSE_WITHIN_S)

    def drain(self) -> None:
        """A pulse that ends from now on is not replaced: nothing is claimed any more. Takes no lock."""
        self._draining = True

    def _renew(self) -> None:
        # A thread of its own: a pulse may take long to start, and a worker may wait long for its next claim.
        failing = False
        while not self._closed.wait(RENEW_AGAIN_S if failing else RENEW_S):
            if self._pulse.alive() or self._draining:
                continue
            try:
                self._pulse.ensure()
            except Exception as error:  # noqa: BLE001 - whatever it is, it must be tried again
                if not failing and not self._closed.is_set():
                    log.warning("the pulse of this worker ended, and there is no other yet: %s", error)
                failing = True
            else:
                log.warning(
                    "the pulse of this worker ended; worker %s takes its place", self._pulse.token[:8]
                )
                failing = False


class Releaser:
    """A thread that gives leases back, in batches, so that nobody waits for Redis to do so."""

    def __init__(self, leases: RedisLeases) -> None:
        self._leases = leases
        self._waiting: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="releaser", daemon=True)
        self._thread.start()

    def put(self, lease: str, owner: str) -> None:
        """Release this lease soon."""
        self._waiting.put((lease, owner))

    def alive(self) -> bool:
        """Whether somebody still releases what is put."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Release what is waiting and end."""
        self._waiting.put(None)
        self._thread.join(CLOSE_WITHIN_S)

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch = [first]
            while not self._waiting.empty():
                entry = self._waiting.get()
                if entry is None:
                    self._waiting.put(None)
                    break
                batch.append(entry)
            self._leases.release(batch)
