"""Child processes that cannot outlive us: one on a leash, and a folder on a leash."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

LEASH = Path(__file__).with_name("leash.py")
ANSWER_WITHIN = (
    30.0  # seconds for a leash to start its child: an interpreter and one fork, on a crowded machine
)
SPARE = 30.0  # seconds on top of a child's own grace before the leash itself is killed


class LocalServerError(Exception):
    """Something local cannot be started or used; the message says what, and what to do."""


class ProcessError(LocalServerError):
    """A child process could not be started, or did not do in time what it was asked."""


@dataclass(frozen=True)
class Identity:
    """The user a child runs as where that is not ours; only root may choose one."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Ending:
    """How a child is ended: signals in order, each with the seconds it is given; then its tree is killed."""

    stop: Sequence[tuple[int, float]] = ((signal.SIGTERM, 5.0),)
    death: int = signal.SIGKILL  # what the child gets when its leash dies (Linux)
    linger: float = 2.0  # seconds for the child's own children after it has ended


class Lifeline:
    """Our end of a leash. Closing it, or our death, makes the leash end what it holds."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        *,
        keep: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        output: int | IO[bytes] | None = None,
    ) -> None:
        self._report, write_end = os.pipe()
        self._text = b""
        self.said: dict[str, str] = {}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LEASH)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                env=env,
                cwd="/",
                pass_fds=(write_end, *keep),
                start_new_session=True,  # Ctrl-C in our terminal is ours to handle
            )
        except OSError:
            os.close(self._report)
            raise
        finally:
            os.close(write_end)
        self._send(json.dumps({**spec, "report": write_end, "keep": list(keep)}))

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def fileno(self) -> int:
        """The descriptor that turns readable when the leash has something to say."""
        return self._report

    def told(self, word: str, within: float) -> str | None:
        """What the leash said under that word ("" once it has gone); None when it said nothing in time."""
        deadline = time.monotonic() + within
        while word not in self.said and "gone" not in self.said:
            ready, _, _ = select.select([self._report], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            self._hear()
        return self.said.get(word, "")

    def _hear(self) -> None:
        chunk = os.read(self._report, 4096)
        if not chunk:
            self.said["gone"] = ""
        *lines, self._text = (self._text + chunk).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            self.said[word] = rest

    def demand(self, word: str) -> str:
        """What the leash says under that word; raises ProcessError with its reason when it cannot say it."""
        if answer := self.told(word, ANSWER_WITHIN):
            return answer
        raise ProcessError(self.said.get("error") or "the process could not be started in time")

    def release(self) -> None:
        """Let go without waiting: the leash ends what it holds, and then itself."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self, grace: float) -> None:
        """Let go, and wait until everything has ended: `grace` seconds and a spare, then by force."""
        self.release()
        try:
            self._process.wait(grace + SPARE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._report >= 0:
            self.told("gone", 0.0)
            self.said.setdefault("gone", "")  # after close() nothing more is read
            os.close(self._report)
            self._report = -1


class Leashed:
    """One child process in its own session. It ends when we stop it, and also when we die, however we die.

    `output` takes the child's standard output and error. `keep` are descriptors the child inherits.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        output: int | IO[bytes] | None = None,
        ending: Ending | None = None,
        identity: Identity | None = None,
        cwd: Path | None = None,
        keep: Sequence[int] = (),
    ) -> None:
        self._ending = ending or Ending()
        spec = {
            "argv": list(argv),
            "cwd": str(cwd or Path.cwd()),
            "uid": identity.uid if identity else None,
            "gid": identity.gid if identity else None,
            "stop": [[int(number), grace] for number, grace in self._ending.stop],
            "death": int(self._ending.death),
            "linger": self._ending.linger,
        }
        self._lifeline = Lifeline(spec, keep=keep, env=env, output=output)
        self._status: int | None = None

    def fileno(self) -> int:
        """The descriptor that turns readable when the child has started or ended."""
        return self._lifeline.fileno()

    @property
    def pid(self) -> int:
        """The child's own process id; raises ProcessError when it could not be started."""
        return int(self._lifeline.demand("pid"))

    def poll(self, within: float = 0.0) -> int | None:
        """The exit status (negative: the signal) if the child ends within so many seconds, else None.

        A leash that was killed reads as a child that was killed.
        """
        if self._status is None and (said := self._lifeline.told("exit", within)) is not None:
            self._status = int(said) if said else -int(signal.SIGKILL)
        return self._status

    @property
    def failure(self) -> str | None:
        """Why the child could not be started, once that is known."""
        return self._lifeline.said.get("error")

    def is_gone(self) -> bool:
        """Whether the child has ended and its leash too, so that stop() would not wait."""
        return self._lifeline.told("gone", 0.0) is not None

    def release(self) -> None:
        """Begin to stop without waiting; stop() must follow."""
        self._lifeline.release()

    def stop(self) -> int:
        """End the child and its whole tree as its Ending says, and return its status. May be called again."""
        self._lifeline.close(sum(grace for _, grace in self._ending.stop) + self._ending.linger)
        status = self.poll()
        return -int(signal.SIGKILL) if status is None else status
