"""Whether this process still hears its queue: one that lives but takes nothing is found, and ends.

A consumer can be up and deaf: its socket to the broker dead without a word, its consumer cancelled, its
thread stuck. No exception says so. What can be seen is a queue that is not empty, for long, in front of a
process that has room and takes nothing. A thread with a connection of its own looks at that, several times
within the limit; a process that is deaf for `deaf_s` seconds is found one look later at most.

Nobody is called deaf for what is not his fault: a Redis that does not answer, a full house, a drain, a pause
of the process itself. What it leaves in the queue costs time only; others take it, or the relay publishes
again (R1).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import redis

from fencepost.clock import boottime
from fencepost.leases import connect

log = logging.getLogger(__name__)

LOOKS = 10  # within the limit
LONGEST_LOOK_S = 3.0  # between two looks
ANSWER_S = 1.0  # how long Redis is given
START_S = 60.0  # how long a process may take until it consumes for the first time


@dataclass(frozen=True, slots=True)
class Look:
    """What one look saw: when (`boottime`), how many messages waited (None: Redis did not say), how many this
    process had taken by then, and whether it could have taken one more.
    """

    at: float
    waiting: int | None
    taken: int
    able: bool


def untouched_since(since: float | None, before: Look | None, look: Look, late_s: float) -> float | None:
    """Since when, as far as two looks can tell, messages have been waiting that nobody here takes; None if
    none are. A look that comes more than `late_s` after the last one begins anew: this process stood still.
    """
    if not look.waiting or not look.able:
        return None
    if before is None or look.taken != before.taken:
        return None
    if since is None or look.at - before.at > late_s:
        return look.at
    return since


class Hearing:
    """A thread that looks, for as long as it is not stopped; `deaf_s` of 0 never finds anybody deaf.

    `able` says whether the process could take a message; `leave`, called once, ends a deaf one.
    """

    def __init__(
        self,
        url: str,
        queues: Iterable[str],
        deaf_s: float,
        *,
        able: Callable[[], bool],
        leave: Callable[[str], None],
    ) -> None:
        self.deaf = False
        """Whether it was found deaf."""
        self._redis = connect(url, size=1, timeout_s=ANSWER_S)
        self._queues = set(queues)
        self._deaf_s = deaf_s
        self._every_s = min(LONGEST_LOOK_S, deaf_s / LOOKS) if deaf_s else LONGEST_LOOK_S
        self._able = able
        self._leave = leave
        self._taken = 0
        self._moved = False
        self._began = boottime()
        self._ready = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hearing", daemon=True)
        self._thread.start()

    def also(self, queue: str) -> None:
        """This process consumes another queue too."""
        self._queues = self._queues | {queue}

    def ready(self) -> None:
        """The consumer has begun."""
        self._ready = True

    def took(self) -> None:
        """A message was taken, by any thread. Two at once may count as one, which is as good."""
        self._taken += 1
        self._moved = True

    def progress(self) -> bool:
        """Whether, since this was last asked, a message was taken or the queue was found empty."""
        moved, self._moved = self._moved, False
        return moved

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._thread.join()
        self._redis.connection_pool.disconnect()

    def _run(self) -> None:
        before: Look | None = None
        since: float | None = None
        while not self._stopped.wait(self._every_s):
            look = self._look()
            if look.waiting == 0:
                self._moved = True
            # A look may itself take a connection's and an answer's time.
            since = untouched_since(since, before, look, 3 * self._every_s + 2 * ANSWER_S)
            before = look
            if since is not None and 0 < self._deaf_s <= look.at - since + self._every_s and not self.deaf:
                self.deaf = True
                self._leave(f"messages have been waiting for {self._deaf_s:g} s and none was taken")

    def _look(self) -> Look:
        waiting = self._waiting()
        started = self._ready or boottime() - self._began > START_S
        return Look(boottime(), waiting, self._taken, started and self._able())

    def _waiting(self) -> int | None:
        try:
            return sum(int(self._redis.llen(queue)) for queue in self._queues)
        except redis.RedisError:
            return None
