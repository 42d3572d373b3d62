"""Processes that stand still while something happens, and go on however it ends."""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def standing_still(pids: Iterable[int]) -> Iterator[None]:
    """SIGSTOP to all of them, SIGCONT at the end; one that has been killed meanwhile stays so."""
    frozen = list(pids)
    try:
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
