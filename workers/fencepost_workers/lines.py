"""Who waits for a dependency in this process: items beyond its slots stand in line, and hold nothing there.

A message is only a hint, so keeping it costs nobody anything: it holds no slot, no lease and no row, and what
this process loses with its end the relay publishes again. So a slow dependency fills its own slots, and the
items of the others pass it by.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from fencepost.clock import boottime
from fencepost.commands import Full
from fencepost.ledger.outbox import Message

LONGEST = 10_000
"""Messages one line holds; what comes on top is dropped, and published again some seconds later."""
ROOM_PAUSE_S = 0.2  # about how long whoever meets a limit of the whole fleet waits before asking again
AT_ONCE = 100
AT_ONCE_WHERE_FULL = 16  # claims of which most will be refused again

_Key = tuple[str, UUID]

log = logging.getLogger(__name__)


class Lines:
    """The slots of each dependency in this process (`shares`, by scope), and a line before each of them.

    `begin` is called, by a thread of its own, with items of one dependency whose turn it is; it claims them
    as it would items of a message, and asks `enter` for each. `hand_back` gets those who wait when it closes.
    """

    def __init__(
        self,
        shares: Mapping[str, int],
        begin: Callable[[Sequence[Message]], object],
        hand_back: Callable[[Sequence[Message]], object],
    ) -> None:
        self._shares = shares
        self._begin = begin
        self._hand_back = hand_back
        self._thread: threading.Thread | None = None
        self._executing: dict[str, int] = defaultdict(int)
        self._lines: OrderedDict[str, OrderedDict[_Key, Message]] = OrderedDict()
        self._called: dict[_Key, str] = {}
        self._paused: dict[str, tuple[float, bool]] = {}
        self._closed = False
        self._changed = threading.Condition()

    def enter(self, scope: str, message: Message) -> bool:
        """Whether this item may be executed now; else it stands in line. Who stands there goes first."""
        key = message[:2]
        with self._changed:
            if self._called.pop(key, None) is None and (self._lines.get(scope) or self._free(scope) <= 0):
                self._stand(scope, message)
                return False
            self._executing[scope] += 1
            return True

    def call_again(self, scope: str, message: Message) -> None:
        """Keep an item's turn, which is about to ask again."""
        with self._changed:
            self._called[message[:2]] = scope

    def leave(self, scope: str, count: int = 1, *, ended: bool = False) -> None:
        """Give slots back. An item that `ended` has made room in the whole fleet, too."""
        with self._changed:
            self._executing[scope] -= count
            if ended and self._paused.get(scope, (0.0, False))[1]:
                del self._paused[scope]
            self._changed.notify_all()

    def full(self, scope: str, message: Message, answer: Full) -> None:
        """Stand in line: the fleet has no room, and nothing was written. Asked again a little later, or when
        an item ends that may have made room.
        """
        for_room, wait_s = answer.limit == "concurrency", answer.wait.total_seconds()
        pause_s = (min(wait_s, ROOM_PAUSE_S) if for_room else wait_s) + ROOM_PAUSE_S * random.random()
        with self._changed:
            self._stand(scope, message)
            self._paused[scope] = (boottime() + pause_s, for_room)
            self._changed.notify_all()

    def _run(self) -> None:
        while called := self._next():
            try:
                self._begin(called)
            except BaseException:  # SystemExit and its kind, too: without this thread nobody is called again
                log.exception("%d items were not begun; they are published again later", len(called))
            finally:
                self.done(called)
        if left := self._left():
            self._hand_back(left)

    def _next(self) -> Sequence[Message]:
        """Items of one dependency whose turn it is; blocks until there are any. None once closed."""
        with self._changed:
            while not self._closed:
                now = boottime()
                for scope, line in self._lines.items():
                    until = self._paused.get(scope, (0.0, False))[0]
                    if line and until <= now and (free := self._free(scope)) > 0:
                        return self._call(scope, line, free)
                pauses = [until - now for until, _ in self._paused.values() if until > now]
                self._changed.wait(min(pauses, default=None))
            return ()

    def done(self, messages: Sequence[Message]) -> None:
        """These were called, and those that did not enter never will."""
        with self._changed:
            for message in messages:
                self._called.pop(message[:2], None)
            self._changed.notify_all()

    def close(self) -> None:
        """Call nobody any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _left(self) -> list[Message]:
        with self._changed:
            found = [message for line in self._lines.values() for message in line.values()]
            self._lines.clear()
            return found

    def _free(self, scope: str) -> int:
        called = sum(one == scope for one in self._called.values())
        return self._shares.get(scope, LONGEST) - self._executing[scope] - called

    def _stand(self, scope: str, message: Message) -> None:
        line = self._lines.setdefault(scope, OrderedDict())
        if message[:2] in line or len(line) < LONGEST:
            line[message[:2]] = message
            self._changed.notify_all()
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="lines", daemon=True)
            self._thread.start()

    def _call(self, scope: str, line: OrderedDict[_Key, Message], free: int) -> list[Message]:
        # Whoever finds no room says so anew; where these all find some, the next are more.
        most = AT_ONCE if self._paused.pop(scope, None) is None else AT_ONCE_WHERE_FULL
        found = [line.popitem(last=False)[1] for _ in range(min(free, most, len(line)))]
        self._called |= {message[:2]: scope for message in found}
        self._lines.move_to_end(scope)
        return found
