"""Processes as chaos sees them, by what /proc says of them at this moment, and signals to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    return _stat(pid)[:1] == ["T"]


def children(pid: int) -> tuple[int, ...]:
    """The processes that this one has started."""
    return tuple(_below().get(pid, ()))


def descendants(pid: int) -> set[int]:
    """The processes below this one."""
    below, found, left = _below(), set[int](), [pid]
    while left:
        young = below.get(left.pop(), [])
        found.update(young)
        left += young
    return found


def send(pids: Iterable[int], number: int, ours: Callable[[int], bool] = lambda _: True) -> set[int]:
    """Signal those of the processes that are there and `ours`, all at once; whom it was sent to.

    The number of a process that has gone may be given to another one: so each is held before `ours` is asked,
    and whoever was asked about is signalled, or nobody (Linux; elsewhere there is no holding it).
    """
    sent: set[int] = set()
    with ExitStack() as stack:
        held: dict[int, int | None] = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                held[pid] = stack.enter_context(_held(pid))
        for pid in [pid for pid in held if ours(pid)]:
            with suppress(ProcessLookupError):
                if (one := held[pid]) is None:
                    os.kill(pid, number)
                else:
                    signal.pidfd_send_signal(one, number)
                sent.add(pid)
    return sent


def wake(pids: Iterable[int]) -> None:
    """SIGCONT to those that are stopped."""
    send(pids, signal.SIGCONT, stopped)


@contextmanager
def _held(pid: int) -> Iterator[int | None]:
    if not hasattr(os, "pidfd_open"):
        yield None
        return
    held = os.pidfd_open(pid)
    try:
        yield held
    finally:
        os.close(held)


def _stat(pid: int) -> list[str]:
    """What /proc says of a process after its name: state, parent and so on; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _below() -> dict[int, list[int]]:
    """The children of every process that has any."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if len(stat := _stat(int(entry.name))) > 1:
            found.setdefault(int(stat[1]), []).append(int(entry.name))
    return found
