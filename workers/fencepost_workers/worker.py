"""One worker process: what its threads and its event loop share. Nothing here decides anything."""

from __future__ import annotations

import asyncio
import logging
import queue
import random
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from fencepost.app import App, load_app
from fencepost.decide.fold import Known
from fencepost.doorbell import Doorbell
from fencepost.leases import RedisLeases
from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Pool
from fencepost.settings import Settings
from fencepost.states import Queue
from fencepost_workers.committer import Committer
from fencepost_workers.pulse import Pulse
from fencepost_workers.tools.http import HttpEngine

log = logging.getLogger(__name__)


class Slots:
    """How many items this process executes at once, whatever the number of tasks. Draining gives none out."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._size = size
        self._draining = False
        self._changed = threading.Condition()

    def take(self, wanted: int) -> int:
        """Up to `wanted` slots; blocks until there is one. 0 once the process drains."""
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0 or self._draining)
            if self._draining:
                return 0
            taken = min(wanted, self._free)
            self._free -= taken
            return taken

    def free(self, count: int) -> None:
        """Give slots back."""
        with self._changed:
            self._free += count
            self._changed.notify_all()

    def drain(self) -> None:
        """Give out no more."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def idle(self, timeout_s: float) -> bool:
        """Wait until nothing is being executed; False when the time ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free == self._size, timeout_s)


class Worker:
    """The parts of one process. Starting it stamps the `workers` table; stopping it ends cleanly."""

    def __init__(self, settings: Settings, role: Queue, app: App | None = None) -> None:
        settings.need("dsn", "redis_url", "app")
        self.settings = settings
        self.app = app or load_app(settings.app)
        ttl = timedelta(seconds=settings.worker_ttl_s)
        self.pool = Pool(settings.dsn, f"fencepost-{role}", settings.pool_size)
        self._doorbell = Doorbell(settings.redis_url)
        self.leases = RedisLeases(settings.redis_url)
        self.ledger = Ledger(self.pool, self._known(), worker_ttl=ttl, ring=self._doorbell.ring)
        self.committer = Committer(self.ledger)
        self.slots = Slots(settings.slots)
        self.executor = ThreadPoolExecutor(settings.slots, thread_name_prefix="tool")
        self._pulse = Pulse(settings.dsn, str(role), ttl)
        self._claiming = threading.Lock()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()
        self.engine = asyncio.run_coroutine_threadsafe(self._engine(), self.loop).result()
        self._released: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._releaser = threading.Thread(target=self._release, name="releaser", daemon=True)
        self._releaser.start()

    @staticmethod
    async def _engine() -> HttpEngine:
        return HttpEngine()  # made on the loop it belongs to

    def _known(self) -> Known:
        app = self.app
        return Known(
            tool=lambda name, version: app.registry.get((name, version)),
            planner=lambda name, version: (name, version) in app.planner_versions,
            authority=app.authority,
            takeover_limit=self.settings.takeover_limit,
        )

    def pulse_token(self) -> str:
        """The token this process claims under; a new one when its pulse ended. Raises `Unreachable`."""
        with self._claiming:
            return self._pulse.ensure()

    @property
    def token(self) -> str:
        """The token of the last `pulse_token`."""
        return self._pulse.token

    def rand(self) -> float:
        """Randomness for jitter, in [0, 1)."""
        return random.random()

    def suspect(self, stamped: str) -> None:
        """A claim was refused because this token's stamp is stale: say so; the pulse catches up or is replaced."""
        log.warning("claims are refused: the stamp of worker %s is stale", stamped[:8])

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run one item on the event loop."""
        asyncio.run_coroutine_threadsafe(work, self.loop)

    def let_go(self, lease: str, owner: str) -> None:
        """Release a lease, soon and best-effort: it only ever says "do not disturb"."""
        self._released.put((lease, owner))

    def _release(self) -> None:
        while (first := self._released.get()) is not None:
            batch = [first]
            while not self._released.empty():
                entry = self._released.get()
                if entry is None:
                    self._released.put(None)
                    break
                batch.append(entry)
            self.leases.release(batch)

    def drain(self) -> None:
        """Claim nothing more."""
        self.slots.drain()

    def stop(self, patience_s: float) -> None:
        """Let what is in flight finish and be recorded, then end; what is left its takeover settles."""
        self.drain()
        if not self.slots.idle(patience_s):
            log.warning("stopping with items in flight; their takeover will settle them")
        self.committer.close()
        self._released.put(None)
        self._releaser.join()
        asyncio.run_coroutine_threadsafe(self.engine.aclose(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.executor.shutdown(wait=False, cancel_futures=True)
        self._pulse.close()
        self.leases.close()
        self._doorbell.close()
        self.pool.close()
