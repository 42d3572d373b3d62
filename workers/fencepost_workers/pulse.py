"""
The pulse: a small process beside each worker that says "this worker lives" and, the moment it does not, hands
its rows back.

    worker ── pipe, held open ──▶ pulse ── a stamp every ttl / 3 ──▶ fencepost.workers
       ╳ killed: end of file        └──── ended_at; its rows due at once ──▶ fencepost.outbox

Why a process. A thread of the worker would stop when a tool hogs the interpreter, and would die with it; this
one is only as dead as the machine. A frozen worker keeps its stamps: its attempts fall due by deadline.

What is guaranteed. After a kill the worker's rows are due within a second while Postgres answers. A token is
never used by two workers. The pulse ends within four seconds after its worker, Postgres or no Postgres.
What is not. The death of a whole host, or of worker and Postgres together, is found by the relays, which
judge silence. A stamp proves that the process exists, not that it makes progress.

This module is also the program that runs, so it imports nothing of Fencepost until an error must be raised.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Final, NoReturn, Self

import psycopg

START_WITHIN_S: Final = 5.0
END_WITHIN_S: Final = 3  # whole seconds: alarm() takes no less
_BYE: Final = b"bye"
_STAMPED: Final = b"\nstamped"

_REGISTER: Final = """
INSERT INTO fencepost.workers (token, role, host, pid, started_at, last_seen)
VALUES (%(token)s, %(role)s, %(host)s, %(pid)s, fencepost.now(), fencepost.now())
ON CONFLICT (token) DO NOTHING
"""
_STAMP: Final = """
UPDATE fencepost.workers SET last_seen = fencepost.now() WHERE token = %(token)s AND ended_at IS NULL
"""
_END: Final = """
UPDATE fencepost.workers SET ended_at = fencepost.now() WHERE token = %(token)s AND ended_at IS NULL
"""
# SKIP LOCKED: never waits for, nor deadlocks with, a change in progress; a later look finds the rest.
_MAKE_DUE: Final = """
WITH clock AS MATERIALIZED (SELECT fencepost.now() AS now),
held AS MATERIALIZED (
    SELECT tenant, subject FROM fencepost.outbox
    WHERE worker = %(token)s AND due_at > (SELECT now FROM clock)
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE fencepost.outbox AS o SET due_at = clock.now, publish_at = least(o.publish_at, clock.now)
FROM held, clock WHERE o.tenant = held.tenant AND o.subject = held.subject
"""


class Pulse:
    """
    The worker's end. Starts the process and returns once Postgres holds a stamp; raises Unreachable when that
    takes more than five seconds. Safe for many threads. Use as a context manager, or call `close`.
    """

    def __init__(self, dsn: str, role: str, ttl: timedelta = timedelta(seconds=10)) -> None:
        self._order = {"dsn": dsn, "role": role, "ttl_s": ttl.total_seconds()}
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._token = ""
        self._stamped = False
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
            patience = 0.0
            if self._child is None or not self._child.running():
                self._start()
                patience = START_WITHIN_S
            self._await_stamp(patience)
            return self._token

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
        self._token, self._stamped = secrets.token_hex(16), False
        self._child = _Child()
        worker = {"token": self._token, "host": socket.gethostname(), "pid": os.getpid()}
        self._child.tell(self._order | worker)

    def _await_stamp(self, patience: float) -> None:
        said = self._child.hear(patience) if self._child else b""
        if not said.endswith(_STAMPED):
            from fencepost.errors import Unreachable  # the program itself must stay small

            reason = said.rpartition(b"\n")[2].decode(errors="replace") or "no answer yet"
            raise Unreachable(f"Postgres holds no stamp of this worker: {reason}")
        self._stamped = True


class _Child:
    """The process as its worker sees it: two pipes and something to wait for."""

    def __init__(self) -> None:
        theirs_in, ours_in = os.pipe()  # neither end survives an exec, except where Popen hands it on
        ours_out, theirs_out = os.pipe()
        self.pipe = open(ours_in, "wb", buffering=0)  # noqa: PTH123, SIM115  # a descriptor; held while we live
        self.voice = open(ours_out, "rb", buffering=0)  # noqa: PTH123, SIM115
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fencepost_workers.pulse"],
                stdin=theirs_in,
                stdout=theirs_out,
                start_new_session=True,  # a Ctrl-C at the terminal is for the worker, which then drains
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def running(self) -> bool:
        return self.process.poll() is None

    def tell(self, order: dict[str, Any]) -> None:
        """By the pipe and not as an argument, which everybody on the host may read: it holds a password."""
        with contextlib.suppress(BrokenPipeError):
            self.pipe.write(json.dumps(order).encode() + b"\n")

    def hear(self, patience: float) -> bytes:
        """What it said, up to its stamp, its end, or the end of our patience (seconds)."""
        said, until = b"", time.monotonic() + patience
        with selectors.DefaultSelector() as ready:
            ready.register(self.voice, selectors.EVENT_READ)
            while ready.select(max(0.0, until - time.monotonic())):
                chunk = self.voice.read(4096)
                said += chunk
                if not chunk or said.endswith(_STAMPED):
                    break
        return said

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.pipe.write(_BYE)
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


class _Stamper:
    """
    What runs in the process. Stamping has a thread of its own, so that a silent Postgres cannot hide the end
    of file.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.registered = False
        self.failing = False
        self.leaving = False

    def run(self) -> NoReturn:
        while True:
            try:
                with _session(self.order["dsn"]) as session:
                    self._register(session)
                    while session.execute(_STAMP, self.order).rowcount or self.leaving:
                        self.failing = False
                        time.sleep(self.order["ttl_s"] / 3)
                # Our row is gone, or somebody else ended it: the worker must come back under a new token.
                os._exit(1)
            except psycopg.Error as error:
                self._complain(error)
                time.sleep(min(1.0, self.order["ttl_s"] / 10))

    def _register(self, session: psycopg.Connection[Any]) -> None:
        if not self.registered:
            session.execute(_REGISTER, self.order)
            self.registered = True
            _say(_STAMPED)

    def _complain(self, error: psycopg.Error) -> None:
        reason = " ".join(str(error).split())
        if not self.registered:
            _say(b"\n" + reason.encode())
            if not isinstance(error, psycopg.OperationalError):
                os._exit(1)  # missing tables or rights do not mend themselves
        elif not self.failing:
            self.failing = True
            sys.stderr.write(f"pulse {self.order['token'][:8]}: cannot stamp: {reason}\n")

    def leave(self, *, clean: bool) -> None:
        """Mark the end and make the rows due. A killed worker's last commit may be under way: look thrice."""
        self.leaving = True
        for pause in (0.0,) if clean else (0.0, 0.2, 0.8):
            time.sleep(pause)
            self._hand_back()

    def _hand_back(self) -> None:
        while True:
            try:
                with _session(self.order["dsn"]) as session:
                    # First the end, from which claims are refused, then what was claimed before it.
                    session.execute(_END, self.order)
                    session.execute(_MAKE_DUE, self.order)
                    return
            except psycopg.Error:
                time.sleep(0.1)  # until the alarm ends it


def _session(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(
        dsn,
        autocommit=True,
        connect_timeout=2,
        tcp_user_timeout=3000,
        application_name="fencepost pulse",
        options="-c statement_timeout=2s -c lock_timeout=1s -c idle_in_transaction_session_timeout=2s",
    )


def _say(text: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the worker has ended; the end of file says so too
        os.write(1, text)


def main() -> NoReturn:
    """Stamp until the pipe on standard input ends, then hand the rows back. Only `Pulse` starts this."""
    for unwanted in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(unwanted, signal.SIG_IGN)  # it ends when its worker ends, not before
    order = sys.stdin.buffer.readline()
    if not order.endswith(b"\n"):
        os._exit(0)
    stamper = _Stamper(json.loads(order))
    threading.Thread(target=stamper.run, daemon=True).start()
    said = sys.stdin.buffer.read()
    signal.alarm(END_WITHIN_S)  # its default action: whatever hangs, this process ends
    if stamper.registered:  # else the token was never given out
        stamper.leave(clean=said == _BYE)
    os._exit(0)


if __name__ == "__main__":
    main()
