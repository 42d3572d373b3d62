"""How much one process does at once: slots for items, and threads for tools that block."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from fencepost_workers import forks

P = ParamSpec("P")
T = TypeVar("T")

LINGER_S = 0.005
"""How long a full process waits for more slots than the first that became free: a claim costs a transaction,
whatever it claims, and items that were recorded together end within a moment of each other."""


class Slots:
    """How many items this process executes at once, whatever the number of tasks. Draining gives none out."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._size = size
        self._draining = False
        self._waiting = 0
        self._freed = 0
        self._changed = threading.Condition()
        self._told: list[Callable[[], object]] = []

    def take(self, wanted: int) -> int:
        """Up to `wanted` slots; blocks until there is one. 0 once the process drains."""
        with self._changed:
            if not self._some():
                self._waiting += 1
                self._changed.wait_for(self._some)
                self._linger(min(wanted, self._size // 4))
                self._waiting -= 1
            if self._draining:
                return 0
            taken = min(wanted, self._free)
            self._free -= taken
            return taken

    def _some(self) -> bool:
        return self._free > 0 or self._draining

    def _linger(self, enough: int) -> None:
        until = time.monotonic() + LINGER_S
        while self._free < enough and not self._draining and (left := until - time.monotonic()) > 0:
            self._changed.wait(left)
        # Others lingered for the same slots and may have been faster.
        self._changed.wait_for(self._some)

    def free(self, count: int) -> None:
        """Give slots back."""
        if count == 0:
            return
        with self._changed:
            self._free += count
            self._freed += count
            self._changed.notify_all()

    def drain(self) -> None:
        """Give out no more."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
        for tell in self._told:
            tell()

    def tell(self, drained: Callable[[], object]) -> None:
        """Have `drained` called, by whoever drains, once no more are given out."""
        self._told.append(drained)

    def idle(self, timeout_s: float) -> bool:
        """Wait until nothing is being executed; False when the time ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free == self._size, timeout_s)

    @property
    def size(self) -> int:
        """How many there are."""
        return self._size

    @property
    def used(self) -> int:
        """How many are taken at this moment."""
        return self._size - self._free

    @property
    def full(self) -> bool:
        """Whether all are taken, or somebody waits for the next one."""
        return self._free <= 0 or self._waiting > 0

    @property
    def freed(self) -> int:
        """How many have been given back so far: it grows with every item that ends."""
        return self._freed

    @property
    def draining(self) -> bool:
        """Whether none are given out any more."""
        return self._draining


class ToolThreads(ThreadPoolExecutor):
    """Threads for functions that block: as many as there are slots, so that an item never waits for one.

    A function that outlives its attempt keeps its thread, which nobody can stop: `busy` counts those too.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size, thread_name_prefix="tool")
        self._running = 0
        self._pid = os.getpid()
        self._counting = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `Executor.submit`."""
        return super().submit(self._counted, fn, *args, **kwargs)

    def _counted(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        forks.ours(self._pid)
        with self._counting:
            self._running += 1
        try:
            return fn(*args, **kwargs)
        finally:
            forks.ours(self._pid)
            with self._counting:
                self._running -= 1

    @property
    def busy(self) -> int:
        """How many threads are in a function at this moment."""
        return self._running
