"""A supervised group of processes: prefixed output, restarts with backoff, one stop for all."""

import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from fencepost_ops.processes import Ending, Leashed, ProcessError

FIRST_BACKOFF = 0.2  # seconds before a restart; doubled with every early death
LAST_BACKOFF = 5.0  # seconds, the longest wait
SETTLED_AFTER = 10.0  # seconds of life after which a death counts as the first one again
LONGEST_LINE = 65536  # bytes; a longer one is cut into several
COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # ANSI foregrounds, none of them red


def backoff(early_deaths: int) -> float:
    """Seconds to wait before the next start, after so many deaths in a row."""
    return min(LAST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(early_deaths - 1, 30))


@dataclass
class _Output:
    """One incarnation's output, cut into lines."""

    name: str
    colour: int
    descriptor: int
    text: bytes = b""
    closed: bool = False

    def read(self, *, last: bool = False) -> tuple[list[str], bool]:
        """Complete lines read now (at the end, or with `last`, the incomplete one too); whether it ended."""
        try:
            chunk = os.read(self.descriptor, LONGEST_LINE)
            ended = not chunk
        except BlockingIOError:
            chunk, ended = b"", False
        *lines, self.text = (self.text + chunk).split(b"\n")
        if self.text and (last or ended or len(self.text) > LONGEST_LINE):
            lines.append(self.text)
            self.text = b""
        return [line.decode(errors="replace").rstrip("\r") for line in lines], ended


@dataclass
class _Member:
    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None
    restart: bool
    colour: int
    child: Leashed | None = None  # the one that runs, or ran last
    output: _Output | None = None  # what that one says
    started: float = 0.0  # monotonic
    early_deaths: int = 0
    due: float | None = 0.0  # monotonic time of the next start; None while it runs or when it shall not


class ProcessGroup:
    """Child processes that are kept alive until stop(), each on a leash of its own.

    One thread starts them, copies their output line by line and restarts what ends. Nothing of them outlives
    stop(), the `with` block, or this process, however it dies.
    """

    def __init__(
        self,
        *,
        out: TextIO | None = None,
        colour: bool | None = None,
        grace: float = 10.0,
        linger: float = 3.0,
    ) -> None:
        """`grace`: seconds from SIGTERM to SIGKILL. `linger`: seconds a dead child's own children get."""
        self._out = out or sys.stdout
        self._colour = self._out.isatty() and "NO_COLOR" not in os.environ if colour is None else colour
        self._ending = Ending(stop=((signal.SIGTERM, grace),), linger=linger)
        self._members: dict[str, _Member] = {}
        self._children: set[Leashed] = set()  # all whose leash may still be there, the replaced ones too
        self._outputs = 0  # pipes that may still bring something
        self._lock = threading.Lock()  # guards what stands above; never held while waiting for an end
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._stopping = False
        self._let_go = threading.Event()  # set when the thread touches no child any more
        self._drained_by = float("inf")  # monotonic; then the thread ends although output may be open
        self._thread = threading.Thread(target=self._run, name="process-group", daemon=True)

    def add(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        cwd: Path | None = None,
        restart: bool = True,
    ) -> None:
        """Start a process, and again when it ends unless `restart` is false. `env` adds to our environment.

        A program that does not exist is reported as output and tried again like one that died.
        Raises ValueError for a name that is taken, RuntimeError after stop().
        """
        with self._lock:
            if self._stopping:
                raise RuntimeError("the group has been stopped")
            if name in self._members:
                raise ValueError(f"there is a process named {name} already")
            everything = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
            colour = COLOURS[len(self._members) % len(COLOURS)]
            self._members[name] = _Member(name, argv, everything, cwd, restart, colour)
            if not self._thread.is_alive():
                self._thread.start()
        self._wake()

    def pids(self) -> dict[str, int]:
        """The process ids of those that run at this moment, by name; one between two lives is left out."""
        found = {}
        with self._lock:
            for member in self._members.values():
                with suppress(ProcessError):
                    if member.child is not None and member.child.poll() is None:
                        found[member.name] = member.child.pid
        return found

    def stop(self) -> None:
        """Stop all at once: SIGTERM, after the grace SIGKILL for their trees. May be called again."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        if self._thread.is_alive():
            self._wake()
            self._let_go.wait()
        for child in self._children:
            child.release()
        for child in self._children:
            child.stop()
        self._drained_by = time.monotonic() + 1.0  # s: what they said is in the pipes already
        if self._thread.is_alive():
            self._wake()
            self._thread.join()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wake(self) -> None:
        os.write(self._wake_write, b"!")

    def _woken(self) -> None:
        os.read(self._wake_read, 4096)

    def _run(self) -> None:
        while not (self._stopping and (self._outputs == 0 or time.monotonic() > self._drained_by)):
            for key, _ in self._selector.select(self._patience()):
                key.data()
            with self._lock:
                if self._stopping:
                    self._release_children()
                else:
                    self._start_due()

    def _patience(self) -> float | None:
        with self._lock:
            if self._stopping:
                return 0.1  # s: an output held open by somebody else must not keep us
            due = [member.due for member in self._members.values() if member.due is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _release_children(self) -> None:
        for child in self._children:
            with suppress(KeyError, ValueError):  # one whose leash is gone has no descriptor any more
                self._selector.unregister(child)
        self._let_go.set()

    def _start_due(self) -> None:
        now = time.monotonic()
        for member in self._members.values():
            if member.due is not None and member.due <= now:
                member.due, member.started = None, now
                self._start(member)

    def _start(self, member: _Member) -> None:
        read_end, write_end = os.pipe()
        try:
            child = Leashed(
                member.argv, env=member.env, output=write_end, ending=self._ending, cwd=member.cwd
            )
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        member.child, member.output = child, _Output(member.name, member.colour, read_end)
        self._children.add(child)
        self._outputs += 1
        self._selector.register(read_end, selectors.EVENT_READ, partial(self._copy, member.output))
        self._selector.register(child, selectors.EVENT_READ, partial(self._look, member, child))

    def _look(self, member: _Member, child: Leashed) -> None:
        """A leash said something: its child started, ended, or the leash itself is gone."""
        with self._lock:
            if self._stopping:
                return
            ended = child.poll() is not None
            if ended and member.child is child and member.due is None:
                self._mourn(member, child)
            if child.is_gone():
                self._selector.unregister(child)
                self._children.discard(child)
                child.stop()

    def _mourn(self, member: _Member, child: Leashed) -> None:
        if member.output is not None:
            self._copy(member.output, last=True)  # its last words come before ours
        lived = time.monotonic() - member.started
        member.early_deaths = 1 if lived > SETTLED_AFTER else member.early_deaths + 1
        how = child.failure or _cause(child.poll() or 0)
        if not member.restart:
            self._say(member, f"ended: {how}")
            member.child = None
            return
        wait = backoff(member.early_deaths)
        member.due = time.monotonic() + wait
        self._say(member, f"ended: {how}; starting it again in {wait:.1f} s")

    def _copy(self, output: _Output, *, last: bool = False) -> None:
        if output.closed:  # by an earlier handler of the same round
            return
        lines, ended = output.read(last=last)
        for line in lines:
            self._say(output, line)
        if ended:
            output.closed = True
            self._selector.unregister(output.descriptor)
            os.close(output.descriptor)
            self._outputs -= 1

    def _say(self, speaker: _Member | _Output, text: str) -> None:
        prefix = f"{speaker.name:<{max(map(len, self._members))}} |"
        if self._colour:
            prefix = f"\x1b[{speaker.colour}m{prefix}\x1b[0m"
        with suppress(OSError, ValueError):  # nobody reads us any more; the processes go on
            self._out.write(f"{prefix} {text}\n")
            self._out.flush()


def _cause(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    return f"killed by {signal.Signals(-status).name}"
