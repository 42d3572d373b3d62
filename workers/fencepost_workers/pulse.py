"""
The pulse: a small process beside each worker that says "this worker lives" and, the moment it does not, hands
its rows back.

    worker ── pipe, held open ──▶ pulse ── a stamp every ttl / 3 ──▶ fencepost.workers
       │ a tick a second: progress, load    └── what the ticks said goes with it
       ╳ killed: end of file        └──── ended_at; its rows due at once ──▶ fencepost.outbox

Why a process. A thread of the worker would stop when a tool hogs the interpreter, and would die with it; this
one is only as dead as the machine. A frozen worker keeps its stamps: its attempts fall due by deadline. One
that stands still for `stall_s`, frozen or held by code that does not let go, is killed.

What is guaranteed. After a kill the worker's rows are due within a second while Postgres answers. A token is
never used by two workers. The pulse ends within four seconds after its worker, Postgres or no Postgres. It
kills its own worker only, and only after so many seconds of its own in which it looked and heard nothing: a
machine that was suspended or starved counts for nothing.
What is not. The death of a whole host, or of worker and Postgres together, is found by the relays, which
judge silence. A stamp proves that the process exists; `progress_at`, at most a stamp late, that it works.

What runs there is `pulse_program.py`; here is the worker's end of it.
"""

import contextlib
import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Final, Self

from fencepost.errors import Unreachable
from fencepost.ledger.outbox import FAIL
from fencepost.publication import pauses
from fencepost.settings import file_of, fresh
from fencepost_workers.pulse_program import BYE, END_WITHIN_S, STAMPED
from fencepost_workers.suspects import Suspects

START_WITHIN_S: Final = 5.0
LEAVE_WITHIN_S: Final = 0.2  # how soon a wait for a stamp notices that the worker ends
SPENT: Final = 8  # earlier tokens of this worker that a new pulse is told of; others the sweep ends
TO_BEGIN: Final = (
    4  # times as long for a process that has not said a word: on a crowded machine it still starts
)


class Pulse:
    """
    The worker's end. Starts the process and returns once Postgres holds a stamp; raises Unreachable when that
    takes more than five seconds, or twenty where the process itself is slow to start. Safe for many threads.
    Use as a context manager, or call `close`.

    A worker that does not tick for `stall_s` seconds is killed; 0: never. What is named in
    `suspects` when it dies has failed once; `republish_s` is the base of the pause until it is tried again.
    `knows` is stamped once: which versions this process can run (`fencepost.knowledge`).
    """

    def __init__(
        self,
        dsn: str,
        role: str,
        ttl: timedelta = timedelta(seconds=10),
        *,
        stall_s: float = 0.0,
        republish_s: float = 15.0,
        knows: str | None = None,
    ) -> None:
        self.suspects = Suspects()
        self._order = {
            "dsn": fresh(dsn),
            "dsn_file": file_of(dsn),
            "role": role,
            "knows": knows,
            "ttl_s": ttl.total_seconds(),
            "stall_s": stall_s,
            "suspects": self.suspects.descriptor,
            "fail": {
                "sql": FAIL,
                "pauses_s": [pause.total_seconds() for pause in pauses(timedelta(seconds=republish_s))],
            },
        }
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._token = ""
        self._stamped = False
        self._spent: list[str] = []
        self._leaving = threading.Event()
        _PULSES.add(self)
        try:
            self.ensure()
        except BaseException:
            self.close()
            raise

    @property
    def token(self) -> str:
        """The token last stamped for. Whether it may still be used, `alive` says."""
        return self._token

    def alive(self) -> bool:
        """False once the process has ended: the token is spent; stop claiming, ask `ensure` for the next."""
        child = self._child
        return self._stamped and child is not None and child.running()

    def ensure(self) -> str:
        """
        The token to claim under, a new one when the last pulse ended. Raises Unreachable while Postgres has
        no stamp of it: at once, except that a fresh process is given five seconds.
        """
        if self.alive():
            return self._token
        with self._lock:
            if self.alive():
                return self._token
            if self._leaving.is_set():
                raise Unreachable("this worker is ending; it gets no other pulse")
            patience = 0.0
            if self._child is None or not self._child.running():
                self._start()
                patience = START_WITHIN_S
            self._await_stamp(patience)
            return self._token

    def tick(self, *, progress: bool, busy: int, slots: int, draining: bool) -> None:
        """
        Say once a second that this process runs, whether it has made progress since the last tick, and how
        much it does of what it could. Never waits and never raises; a tick may be lost.
        """
        child = self._child
        if child is not None:
            child.tell({"progress": progress, "busy": busy, "slots": slots, "draining": draining})

    def leave(self) -> None:
        """From now on no other process takes this one's place; whoever waits for one gives up soon."""
        self._leaving.set()

    def close(self) -> None:
        """End cleanly: the worker is marked as ended, rows it still holds are due. At most five seconds."""
        with self._lock:
            child, self._child, self._stamped = self._child, None, False
            if child is not None:
                child.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        if self._child is not None:
            self._child.end()
        if self._token:
            self._spent.append(self._token)
        self._token, self._stamped = secrets.token_hex(16), False
        self._child = _Child(self.suspects.descriptor, self._leaving)
        worker = {"token": self._token, "host": socket.gethostname(), "pid": os.getpid()}
        self._child.tell(self._order | worker | {"spent": self._spent[-SPENT:]})

    def _await_stamp(self, patience: float) -> None:
        said = self._child.hear(patience) if self._child else b""
        if not said.endswith(STAMPED):
            reason = said.rpartition(b"\n")[2].decode(errors="replace") or "no answer yet"
            raise Unreachable(f"Postgres holds no stamp of this worker: {reason}")
        self._stamped = True


class _Child:
    """The process as its worker sees it: two pipes and something to wait for."""

    def __init__(self, page: int, leaving: threading.Event) -> None:
        self._leaving = leaving
        theirs_in, ours_in = os.pipe()  # neither end survives an exec, except where Popen hands it on
        ours_out, theirs_out = os.pipe()
        os.set_blocking(ours_in, False)  # a pulse that hangs must not hang its worker
        self.pipe = open(ours_in, "wb", buffering=0)  # noqa: PTH123, SIM115  # a descriptor; held while we live
        self._speaking = threading.Lock()  # lest a tick goes to whoever gets the descriptor after us
        self.voice = open(ours_out, "rb", buffering=0)  # noqa: PTH123, SIM115
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fencepost_workers.pulse_program"],
                stdin=theirs_in,
                stdout=theirs_out,
                pass_fds=(page,),
                start_new_session=True,  # a Ctrl-C at the terminal is for the worker, which then drains
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def running(self) -> bool:
        return self.process.poll() is None

    def tell(self, order: dict[str, Any]) -> None:
        """By the pipe and not as an argument, which everybody on the host may read: it holds a password."""
        with self._speaking, contextlib.suppress(BrokenPipeError):
            if not self.pipe.closed:
                self.pipe.write(json.dumps(order).encode() + b"\n")

    def hear(self, patience: float) -> bytes:
        """What it said, up to its stamp, its end, our worker's, or the end of our patience (seconds)."""
        said, began = b"", time.monotonic()
        with selectors.DefaultSelector() as ready:
            ready.register(self.voice, selectors.EVENT_READ)
            while True:
                left = began + patience * (1 if said else TO_BEGIN) - time.monotonic()
                if not ready.select(min(LEAVE_WITHIN_S, max(0.0, left))):
                    if left <= LEAVE_WITHIN_S or self._leaving.is_set():
                        break
                    continue
                chunk = self.voice.read(4096)
                said += chunk
                if not chunk or said.endswith(STAMPED):
                    break
        return said

    def end(self) -> None:
        with self._speaking:
            with contextlib.suppress(BrokenPipeError):
                self.pipe.write(BYE)
            self.pipe.close()
        self.voice.close()
        try:
            self.process.wait(END_WITHIN_S + 1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_PULSES: Final[weakref.WeakSet[Pulse]] = weakref.WeakSet()


def _close_in_fork() -> None:
    # A forked child that kept the pipe open would hide its parent's death.
    for pulse in list(_PULSES):
        if pulse._child is not None:  # noqa: SLF001
            pulse._child.pipe.close()  # noqa: SLF001


os.register_at_fork(after_in_child=_close_in_fork)
