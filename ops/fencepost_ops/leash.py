"""A leash: the small process between a supervisor and one child, so that nothing outlives the supervisor.

Run by path (`python -I -S leash.py`), never imported by what it guards. Its standard input is the lifeline:
the first line says what to do, and the end of the file, whatever caused it (an orderly stop, `kill -9`, a
crash), means "stop the child, kill what is left of its tree, remove the folder, exit". On Linux a child gets
PR_SET_PDEATHSIG too, so it dies when the leash itself is killed. Not covered: killing the leash together with
its supervisor leaves a temporary folder, and off Linux a running child.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_WITHIN = 10.0  # seconds to wait for killed processes to be reaped
REMOVE_WITHIN = 60.0  # seconds to go on removing a folder whose writers are still ending
LIFELINE = 0

_LINUX = sys.platform == "linux"


def _prctl(option: int, value: int) -> None:
    import ctypes  # here and not above: off Linux there is no prctl

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _read_spec() -> dict[str, Any] | None:
    """The first line of the lifeline; None when the supervisor died before it wrote one."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(LIFELINE, 1)
        if not byte:
            return None
        line += byte
    spec: dict[str, Any] = json.loads(line)
    return spec


class _Leash:
    """One child and everything that descends from it."""

    def __init__(self, spec: dict[str, Any], wake: int) -> None:
        self.spec = spec
        self.wake = wake
        self.report = int(spec["report"])
        self.held = True  # the lifeline is open
        self.status: int | None = None
        self.child = 0

    def tell(self, text: str) -> None:
        try:
            os.write(self.report, f"{text}\n".encode())
        except OSError:  # nobody listens any more
            self.held = False

    def start(self) -> None:
        spec, parent = self.spec, os.getpid()
        if _LINUX:
            _prctl(PR_SET_CHILD_SUBREAPER, 1)

        def in_child() -> None:  # runs after setuid, which would have cleared the death signal
            if _LINUX:
                _prctl(PR_SET_PDEATHSIG, int(spec["death"]))
                if os.getppid() != parent:  # the leash died before the line above
                    os._exit(1)

        process = subprocess.Popen(
            spec["argv"],
            cwd=spec["cwd"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=spec["keep"],
            user=spec["uid"],
            group=spec["gid"],
            extra_groups=None if spec["uid"] is None else [],
            preexec_fn=in_child,  # noqa: PLW1509 (this process has one thread)
        )
        self.child = process.pid
        process.returncode = 0  # reaped below, not by subprocess
        self.tell(f"pid {self.child}")

    def pause(self, seconds: float | None) -> None:
        """Wait for a signal or, while it is held, for the lifeline to end."""
        watched = [self.wake, LIFELINE] if self.held else [self.wake]
        ready, _, _ = select.select(watched, [], [], seconds)
        if LIFELINE in ready and not os.read(LIFELINE, 4096):
            self.held = False
        if self.wake in ready and {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} & set(
            os.read(self.wake, 512)
        ):
            self.held = False

    def reap(self) -> bool:
        """Collect the dead; True when no descendant is left that we could know of."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return _LINUX or not self._signal_group(0)
            if pid == 0:
                return False
            if pid == self.child:
                self.status = os.waitstatus_to_exitcode(status)
                self.tell(f"exit {self.status}")

    def _signal_group(self, number: int) -> bool:
        try:
            os.killpg(self.child, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def run(self) -> None:
        while self.held and self.status is None:
            self.pause(None)
            self.reap()
        for number, grace in self.spec["stop"]:
            if self.status is None:
                os.kill(self.child, number)
                self.wait_until_empty(grace, main_only=True)
        if self.status is not None:  # it ended by itself or as asked: let its own children finish
            self.wait_until_empty(self.spec["linger"])
        self.kill_tree()

    def wait_until_empty(self, seconds: float, *, main_only: bool = False) -> bool:
        deadline = time.monotonic() + seconds
        while not (empty := self.reap()) and not (main_only and self.status is not None):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.pause(min(left, 0.1))  # 0.1 s: off Linux no signal tells of a grandchild's end
        return empty

    def kill_tree(self) -> None:
        """Kill the group and, on Linux, every orphan we adopt, until there is nobody left to kill."""
        deadline = time.monotonic() + KILL_WITHIN
        while not self.reap() and time.monotonic() < deadline:
            children = _children(os.getpid())
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            if not children and self.child:
                self._signal_group(signal.SIGKILL)
            self.pause(0.05)


def _children(parent: int) -> list[int]:
    """Direct children by /proc; none where there is no /proc. Only unreaped children, so no pid is reused."""
    try:
        names = os.listdir("/proc")
    except FileNotFoundError:
        return []
    found = []
    for name in filter(str.isdigit, names):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it ended in between
            continue
        if int(fields[1]) == parent:
            found.append(int(name))
    return found


def _remove(folder: str) -> None:
    """Remove a folder although processes that are just ending may still write into it."""
    import shutil  # here and not above: most leashes hold no folder

    deadline = time.monotonic() + REMOVE_WITHIN
    doomed = f"{folder}.removed"  # so that nobody can make new files by the old name
    with suppress(FileNotFoundError):
        os.rename(folder, doomed)
    while os.path.lexists(doomed) and time.monotonic() < deadline:
        shutil.rmtree(doomed, ignore_errors=True)
        if os.path.lexists(doomed):
            time.sleep(0.05)


def _guard_folder(leash: _Leash) -> None:
    import tempfile  # here and not above: most leashes hold no folder

    folder = tempfile.mkdtemp(prefix=leash.spec["folder"], dir=leash.spec["parent"])
    try:
        leash.tell(f"folder {folder}")
        while leash.held:
            leash.pause(None)
    finally:
        _remove(folder)


def main() -> int:
    """Serve one lifeline; the exit code says only whether the leash itself did its work."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a handler, since ignored signals are inherited by the child
    spec = _read_spec()
    if spec is None:
        return 0
    leash = _Leash(spec, read_end)
    try:
        if "folder" in spec:
            _guard_folder(leash)
        else:
            leash.start()
            leash.run()
    except OSError as error:
        leash.tell(f"error {error.strerror or error}: {error.filename or ''}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
