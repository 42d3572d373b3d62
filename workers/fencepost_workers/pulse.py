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
LOOK_S: Final = 1.0  # how long the pulse listens before it counts a silence; the worker ticks as often
LATE_S: Final = 2.0  # a look that took longer was kept from looking itself: it counts for nothing
ANSWER_WITHIN_S: Final = 2.5  # Postgres itself ends a statement after two seconds
END_WITHIN_S: Final = 3  # whole seconds: alarm() takes no less
_BYE: Final = b"bye"
_STAMPED: Final = b"\nstamped"

_REGISTER: Final = """
INSERT INTO fencepost.workers (token, role, host, pid, started_at, last_seen)
VALUES (%(token)s, %(role)s, %(host)s, %(pid)s, fencepost.now(), fencepost.now())
ON CONFLICT (token) DO NOTHING
"""
_STAMP: Final = """
UPDATE fencepost.workers SET last_seen = fencepost.now(),
    progress_at = fencepost.now() - make_interval(secs => %(progress_age)s::float8),
    busy = %(busy)s, slots = %(slots)s, draining = %(draining)s
WHERE token = %(token)s AND ended_at IS NULL
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

    A worker that has ticked once and then not for `stall_s` seconds is killed; 0: never.
    """

    def __init__(
        self, dsn: str, role: str, ttl: timedelta = timedelta(seconds=10), *, stall_s: float = 0.0
    ) -> None:
        self._order = {"dsn": dsn, "role": role, "ttl_s": ttl.total_seconds(), "stall_s": stall_s}
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

    def tick(self, *, progress: bool, busy: int, slots: int, draining: bool) -> None:
        """
        Say once a second that this process runs, whether it has made progress since the last tick, and how
        much it does of what it could. Never waits and never raises; a tick may be lost.
        """
        child = self._child
        if child is not None:
            child.tell({"progress": progress, "busy": busy, "slots": slots, "draining": draining})

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
        os.set_blocking(ours_in, False)  # noqa: FBT003  # a pulse that hangs must not hang its worker
        self.pipe = open(ours_in, "wb", buffering=0)  # noqa: PTH123, SIM115  # a descriptor; held while we live
        self._speaking = threading.Lock()  # lest a tick goes to whoever gets the descriptor after us
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
        with self._speaking, contextlib.suppress(BrokenPipeError):
            if not self.pipe.closed:
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
        with self._speaking:
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


def _clock() -> float:
    """Seconds, those of a suspended machine included, where the system counts them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def unheard(looks: int, *, ticked: bool, took_s: float) -> int:
    """
    After one more look that took so long: how many in a row have heard no tick. A look that took too long
    says nothing of the worker, and counting begins anew.
    """
    return 0 if ticked or took_s > LATE_S else looks + 1


class _Heard:
    """What the worker said of itself. Written by the listener, read by the stamper."""

    def __init__(self) -> None:
        self.ticked = False
        self.changed = threading.Event()
        """Set when the worker has begun to drain: that is stamped at once."""
        self._progressed: float | None = None
        self._said: dict[str, Any] = {"busy": None, "slots": None, "draining": False}

    def take(self, line: bytes) -> None:
        """One tick."""
        said = json.loads(line)
        if said.pop("progress"):
            self._progressed = _clock()
        before, self._said, self.ticked = self._said, said, True
        if before["draining"] != said["draining"]:
            self.changed.set()

    def columns(self) -> dict[str, Any]:
        """What the next stamp says besides "it exists"."""
        at = self._progressed
        return {**self._said, "progress_age": None if at is None else max(0.0, _clock() - at)}


class _Stamper:
    """
    What runs in the process. Stamping has a thread of its own, so that a silent Postgres cannot hide the end
    of file.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.heard = _Heard()
        self.registered = False
        self.failing = False
        self.leaving = False

    def run(self) -> NoReturn:
        while True:
            try:
                with _session(self.order["dsn"]) as session:
                    self._register(session)
                    while self._stamp(session) or self.leaving:
                        self.failing = False
                        self.heard.changed.wait(self.order["ttl_s"] / 3)
                # Our row is gone, or somebody else ended it: the worker must come back under a new token.
                os._exit(1)
            except psycopg.Error as error:
                self._complain(error)
                time.sleep(min(1.0, self.order["ttl_s"] / 10))

    def _stamp(self, session: psycopg.Connection[Any]) -> int:
        self.heard.changed.clear()
        return session.execute(_STAMP, self.order | self.heard.columns()).rowcount

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


class _Session(psycopg.Connection[Any]):
    """A silent Postgres is given up (`fencepost.ledger.session` says why; it would import too much)."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        try:
            return super().wait(gen, interval, ANSWER_WITHIN_S if timeout is None else timeout)
        except psycopg.OperationalError as error:
            if error.sqlstate is None:
                self.pgconn.finish()
            raise


def _session(dsn: str) -> psycopg.Connection[Any]:
    return _Session.connect(
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


class _Listener:
    """The ear: hears the worker's ticks and its end, and kills it when it has stood still for too long."""

    def __init__(self) -> None:
        self._text = b""
        self._worker: int | None = None  # a descriptor of that very process, where the system has such

    def order(self) -> dict[str, Any] | None:
        """The worker's first line; None if it ended before it had said it."""
        while b"\n" not in self._text:
            if not (chunk := os.read(0, 65536)):
                return None
            self._text += chunk
        line, _, self._text = self._text.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        if order["stall_s"] > 0 and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._worker = os.pidfd_open(os.getppid())
        return order

    def listen(self, heard: _Heard, order: dict[str, Any]) -> bool:
        """Until the worker ends; whether it said goodbye."""
        looks, stall_s = 0, order["stall_s"]
        with selectors.DefaultSelector() as ready:
            ready.register(0, selectors.EVENT_READ)
            while True:
                began = _clock()
                spoke = bool(ready.select(LOOK_S))
                if spoke and not self._hear(heard):
                    return self._text == _BYE
                if not heard.ticked or stall_s <= 0:
                    continue
                looks = unheard(looks, ticked=spoke, took_s=_clock() - began)
                if looks * LOOK_S >= stall_s:
                    self._kill(order, looks * LOOK_S)
                    looks = 0

    def _hear(self, heard: _Heard) -> bool:
        chunk = os.read(0, 65536)
        *lines, self._text = (self._text + chunk).split(b"\n")
        for line in lines:
            heard.take(line)
        return bool(chunk)

    def _kill(self, order: dict[str, Any], silent_s: float) -> None:
        """
        By the descriptor, or while it is our parent still: whoever got its number after it is left alone.
        """
        sys.stderr.write(
            f"pulse {order['token'][:8]}: worker {order['pid']} has stood still for {silent_s:.0f} s, frozen "
            "or held by code that does not let go; it is killed\n"
        )
        if os.getppid() != order["pid"]:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._worker is not None:
                signal.pidfd_send_signal(self._worker, signal.SIGKILL)
            else:
                os.kill(order["pid"], signal.SIGKILL)


def main() -> NoReturn:
    """Stamp until the pipe on standard input ends, then hand the rows back. Only `Pulse` starts this."""
    for unwanted in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(unwanted, signal.SIG_IGN)  # it ends when its worker ends, not before
    listener = _Listener()
    order = listener.order()
    if order is None:
        os._exit(0)
    stamper = _Stamper(order)
    threading.Thread(target=stamper.run, daemon=True).start()
    clean = listener.listen(stamper.heard, order)
    signal.alarm(END_WITHIN_S)  # its default action: whatever hangs, this process ends
    if stamper.registered:  # else the token was never given out
        stamper.leave(clean=clean)
    os._exit(0)


if __name__ == "__main__":
    main()
