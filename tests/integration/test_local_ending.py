"""Local servers and supervised processes leave nothing behind, however their owner ends."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost_ops.folders import is_running
from fencepost_ops.local import Leashed, TemporaryFolder
from tests.awaiting import until
from tests.integration.listening import nobody_listens

WITHIN_S = 30.0  # for anything that must come about
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and PR_SET_PDEATHSIG")


def descendants(pid: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except OSError:
                continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


OWNER = """
import json, sys, time
from fencepost_ops.local import LocalPostgres, LocalValkey, ProcessGroup
hide = "import subprocess, sys, time; subprocess.Popen(['sleep', '1000'], start_new_session=True)\\n"
hide += "print('hidden', flush=True); time.sleep(1000)"
class Out:
    def write(self, text): self.text = text
    def flush(self): pass
    def isatty(self): return False
out = Out()
group = ProcessGroup(out=out, grace=1, linger=1)
with LocalPostgres.start(fsync=False) as pg, LocalValkey.start() as vk, group:
    group.add("child", [sys.executable, "-c", hide])
    while not hasattr(out, "text"):
        time.sleep(0.01)
    print(json.dumps([[pg.port, vk.port], [str(pg.folder), str(vk.folder)]]), flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        yield process
        process.kill()


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_owner_of_everything_is_ended_by(
    number: signal.Signals, owner: subprocess.Popen[bytes]
) -> None:
    assert owner.stdout is not None
    assert select.select([owner.stdout], [], [], WITHIN_S)[0], "the servers did not start"
    used, folders = json.loads(owner.stdout.readline())
    family = descendants(owner.pid)
    assert len(family) > 12  # postgres and its own, valkey, the child and its hidden one, and their leashes
    os.killpg(owner.pid, number)  # as Ctrl-C does: the whole group of the terminal
    owner.wait(WITHIN_S)
    until("all processes have ended", lambda: not any(map(is_running, family)))
    assert all(map(nobody_listens, used))
    left = [Path(name) for folder in folders for name in (folder, f"{folder}.removed")]
    until("the temporary folders are gone", lambda: not any(path.exists() for path in left))


@linux
def test_a_child_dies_with_its_leash() -> None:
    child = Leashed(["/bin/sleep", "1000"])
    pid = child.pid
    leash = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    os.kill(leash, signal.SIGKILL)
    until("the child is dead", lambda: not is_running(pid))
    assert child.stop() == -signal.SIGKILL


def test_a_folder_is_removed_although_somebody_still_writes_into_it() -> None:
    with TemporaryFolder() as folder:
        loop = 'i=0; while : > "$0/$i"; do i=$((i+1)); done 2>/dev/null'
        writer = Leashed(["/bin/sh", "-c", loop, str(folder)])
        until("it writes", lambda: any(folder.iterdir()))
    assert not list(folder.parent.glob(f"{folder.name}*"))
    writer.stop()
