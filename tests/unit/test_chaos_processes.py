"""Signals go to the process that was meant: one that has gone meanwhile is not mistaken for its successor."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from fencepost_ops.chaos_processes import children, descendants, send, stopped, wake
from tests.awaiting import until


@pytest.fixture
def family() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child and a grandchild."""
    with subprocess.Popen(["sh", "-c", "sh -c 'sleep 600 & wait' & wait"], start_new_session=True) as one:
        until("a grandchild", lambda: len(descendants(one.pid)) == 2)
        yield one
        os.killpg(one.pid, signal.SIGKILL)


def test_children_are_the_first_generation_and_descendants_all(family: subprocess.Popen[bytes]) -> None:
    (child,) = children(family.pid)
    (grandchild,) = children(child)
    assert descendants(family.pid) == {child, grandchild}
    assert children(grandchild) == ()


def test_who_is_stopped_is_woken_and_who_is_not_ours_is_left_alone(family: subprocess.Popen[bytes]) -> None:
    pid, child = family.pid, *children(family.pid)
    assert send([pid, child], signal.SIGSTOP, lambda each: each == pid) == {pid}
    until("it sleeps", lambda: stopped(pid))
    assert not stopped(child)
    wake((pid, child))
    until("it is awake", lambda: not stopped(pid))


def test_nothing_is_sent_to_whoever_has_the_number_of_one_that_went(family: subprocess.Popen[bytes]) -> None:
    """Whoever was held and then reaped is nobody, whatever is said of its number."""
    (child,) = children(family.pid)

    def goes(pid: int) -> bool:
        os.kill(pid, signal.SIGKILL)
        until("its parent has reaped it", lambda: pid not in children(family.pid))
        return True

    assert send([child], signal.SIGKILL, goes) == set()
    assert send([child], signal.SIGKILL) == set()
