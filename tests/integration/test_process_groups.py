"""Supervised processes: how they end is told, and what died is started again."""

import io
import os
import re
import signal

import pytest

from fencepost_ops.folders import is_running
from fencepost_ops.local import Ending, Leashed, ProcessError, ProcessGroup
from tests.awaiting import until

WITHIN_S = 30.0  # for anything that must come about


def test_a_program_that_does_not_exist_is_named() -> None:
    child = Leashed(["/no/such/program"])
    with pytest.raises(ProcessError, match="No such file or directory: /no/such/program"):
        _ = child.pid
    child.stop()


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace_with_all_its_children() -> None:
    read_end, write_end = os.pipe()
    script = "trap '' TERM; (trap '' TERM; sleep 1000) & echo $!; while :; do wait; done"
    child = Leashed(
        ["/bin/sh", "-c", script], output=write_end, ending=Ending(stop=((signal.SIGTERM, 0.2),), linger=0.1)
    )
    os.close(write_end)
    with os.fdopen(read_end) as lines:
        grandchild = int(lines.readline())
    assert child.stop() == -signal.SIGKILL
    until("the grandchild is dead", lambda: not is_running(grandchild))


def test_the_exit_status_of_a_child_is_told() -> None:
    child = Leashed(["/bin/sh", "-c", "exit 3"])
    assert child.poll(WITHIN_S) == 3
    assert child.stop() == 3


class Lines(io.StringIO):
    """What a group wrote."""

    def has(self, pattern: str) -> bool:
        return re.search(pattern, self.getvalue(), re.MULTILINE) is not None


def test_a_group_prefixes_each_line_and_starts_what_died_again() -> None:
    out = Lines()
    with ProcessGroup(out=out, colour=False) as group:
        group.add("long-name", ["/bin/sh", "-c", 'echo "here $WHO"; exec sleep 1000'], {"WHO": "we are"})
        group.add("once", ["/bin/sh", "-c", "printf 'no newline'; exit 4"], restart=False)
        with pytest.raises(ValueError, match="named once already"):
            group.add("once", ["/bin/true"])
        until("it ended once", lambda: out.has(r"^once      \| ended: exit code 4$"))
        until("it spoke", lambda: out.has(r"^long-name \| here we are$"))
        first = group.pids()["long-name"]
        assert set(group.pids()) == {"long-name"}
        os.kill(first, signal.SIGKILL)
        until("it was started again", lambda: group.pids().get("long-name", first) != first)
        second = group.pids()["long-name"]
    assert out.has(r"^once      \| no newline\nonce      \| ended")
    assert out.has(r"^long-name \| ended: killed by SIGKILL; starting it again in 0\.2 s$")
    assert not is_running(second)
    with pytest.raises(RuntimeError, match="stopped"):
        group.add("late", ["/bin/true"])


def test_the_last_words_of_a_group_are_heard_and_names_are_coloured() -> None:
    out = Lines()
    with ProcessGroup(out=out, colour=True) as group:
        group.add(
            "polite", ["/bin/sh", "-c", "trap 'echo bye; exit 0' TERM; echo hi; while :; do sleep 0.05; done"]
        )
        until("it runs", lambda: out.has("hi$"))
    assert out.has(r"^\x1b\[36mpolite \|\x1b\[0m bye$")


def test_a_group_outlives_a_closed_output() -> None:
    out = Lines()
    with ProcessGroup(out=out, colour=False) as group:
        group.add("talker", ["/bin/sh", "-c", "while :; do echo on; sleep 0.01; done"])
        until("it talks", lambda: out.has("on$"))
        out.close()
        pid = group.pids()["talker"]
        os.kill(pid, signal.SIGKILL)
        until("it is still looked after", lambda: group.pids().get("talker", pid) != pid)
