"""Forks of a worker. A tool may fork; its child may do what it likes, but must not come back.

A child that returns from the tool would go on as if it were the worker: run what others have claimed, on
copies of its queues, sockets and sessions. So whoever is about to run, send or record something, or comes
back from code of the application, asks whether this is still the process it was made in. A child ends there,
at once: it runs no handler and closes nothing that its parent still uses.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Final

FORKED: Final = 70
"""The exit code of a child that came back."""

_SAID: Final = b"a process that a tool or planner forked came back from it; it ends\n"


def ours(pid: int) -> None:
    """Return if this process is still `pid`; else it is a fork of it, and ends here."""
    if os.getpid() != pid:
        end()


def end() -> None:
    """End a forked child."""
    os.write(2, _SAID)
    os._exit(FORKED)


class LoopGuard:
    """Ends a child that was forked on the thread of an event loop before its copy of the loop runs anything.

    What waits there are items of the parent: answers half read, tools half done. Nothing but the code that
    forked goes on in the child, up to its first await.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread: int | None = None
        os.register_at_fork(after_in_child=self._in_child)

    def of_this_thread(self) -> None:
        """Called once on the loop's thread."""
        self._thread = threading.get_ident()

    def _in_child(self) -> None:
        if self._thread != threading.get_ident() or self._loop.is_closed():
            return
        self._loop.call_soon(end)
        # Before whatever is ready already. There is no public way to the head of that queue.
        ready = getattr(self._loop, "_ready", None)
        if ready:
            ready.rotate(1)
