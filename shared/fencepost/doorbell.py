"""
The doorbell: after a commit a writer rings, and a relay that waits looks at the outbox at once.

It carries no data and no promise. A lost ring costs one poll (a quarter of a second), a ring too many costs
one empty look. It hangs in Redis because with a NOTIFY in each, all commits queue behind one lock.

Key: fencepost:doorbell, a list of at most one element; of several waiting relays one is woken.
"""

import threading
import time
from typing import Final, Self

import redis

from fencepost.leases import connect

_KEY: Final = "fencepost:doorbell"
_TIMEOUT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 0.5  # per command, well inside the socket timeout
_SHORTEST_WAIT_S: Final = 0.005  # a timeout that rounds to 0 ms would wait for ever
_MUTE_S: Final = 0.1  # after a failure; a dead Redis is tried ten times a second however many ring
_PRESS: Final = "if redis.call('LLEN', KEYS[1]) == 0 then redis.call('RPUSH', KEYS[1], '1') end"


class Doorbell:
    """
    Ring after every commit that made a row due; wait in the relay. Safe for many threads.
    A process that rings should close, or its last ring may be lost with it.
    """

    def __init__(self, url: str) -> None:
        self._redis = connect(url, size=2, timeout_s=_TIMEOUT_S)
        self._press = self._redis.register_script(_PRESS)
        self._pressed = threading.Event()
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._ringer: threading.Thread | None = None

    def ring(self) -> None:
        """
        Wake one waiting relay soon. Never raises and never waits for Redis: a thread of this doorbell sends,
        and rings that meet one on its way become a single further one. Best effort.
        """
        self._pressed.set()
        if self._ringer is None:
            self._start()

    def wait(self, timeout_s: float) -> bool:
        """
        True when rung, False after about `timeout_s`. While Redis is down it waits out its time and says
        False; a Redis that is silent adds up to a second. Never raises.
        """
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0 and not self._closed.is_set():
            try:
                if self._redis.blpop([_KEY], timeout=min(max(left, _SHORTEST_WAIT_S), _LONGEST_WAIT_S)):
                    return True
            except redis.RedisError:
                self._closed.wait(max(0.0, end - time.monotonic()))
        return False

    def close(self) -> None:
        """Send a ring still on its way if that takes no more than 100 ms, then let go of Redis."""
        self._closed.set()
        self._pressed.set()
        if self._ringer is None:
            self._redis.connection_pool.disconnect()
        else:
            self._ringer.join(timeout=0.1)  # it disconnects when it is through

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        with self._starting:
            if self._ringer is None and not self._closed.is_set():
                self._ringer = threading.Thread(target=self._carry, name="doorbell", daemon=True)
                self._ringer.start()

    def _carry(self) -> None:
        while not self._closed.is_set() or self._pressed.is_set():
            self._pressed.wait()
            # Cleared before sending: a ring for a commit that this one may have missed is sent again.
            self._pressed.clear()
            try:
                self._press(keys=[_KEY])
            except redis.RedisError:
                self._closed.wait(_MUTE_S)
        self._redis.connection_pool.disconnect()
