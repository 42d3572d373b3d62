"""
The program beside a worker: it stamps while the pipe on its standard input is open, hears the worker's ticks
in it, and hands the worker's rows back when it ends. `pulse.py` says what that is worth.

It imports nothing of Fencepost, so that it starts at once and stays small.
"""

import contextlib
import json
import os
import selectors
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn
from uuid import UUID

import psycopg

LOOK_S: Final = 1.0  # how long the pulse listens before it counts a silence; the worker ticks as often
LATE_S: Final = 2.0  # a look that took longer was kept from looking itself: it counts for nothing
ANSWER_WITHIN_S: Final = 2.5  # Postgres itself ends a statement after two seconds
END_WITHIN_S: Final = 3  # whole seconds: alarm() takes no less
PLACES: Final = 8  # threads that may run code of the application before a claim
PLACE_BYTES: Final = 1024
BYE: Final = b"bye"
STAMPED: Final = b"\nstamped"

REGISTER: Final = """
INSERT INTO fencepost.workers (token, role, host, pid, knows, started_at, last_seen)
VALUES (%(token)s, %(role)s, %(host)s, %(pid)s, %(knows)s, fencepost.now(), fencepost.now())
ON CONFLICT (token) DO NOTHING
"""
STAMP: Final = """
UPDATE fencepost.workers SET last_seen = fencepost.now(),
    progress_at = fencepost.now() - make_interval(secs => %(progress_age)s::float8),
    busy = %(busy)s, slots = %(slots)s, draining = %(draining)s
WHERE token = %(token)s AND ended_at IS NULL
"""
END: Final = """
UPDATE fencepost.workers SET ended_at = fencepost.now() WHERE token = %(token)s AND ended_at IS NULL
"""
# Not while it holds a row that is not due: that item still runs in this very worker, and the relays judge it.
_END_SPENT: Final = """
UPDATE fencepost.workers AS w SET ended_at = fencepost.now()
WHERE token = ANY(%(spent)s::text[]) AND ended_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM fencepost.outbox o WHERE o.worker = w.token AND o.due_at > (SELECT fencepost.now()))
"""
_OPEN: Final = """
SELECT token FROM fencepost.workers WHERE token = ANY(%(spent)s::text[]) AND ended_at IS NULL
"""
# SKIP LOCKED: never waits for, nor deadlocks with, a change in progress; a later look finds the rest.
MAKE_DUE: Final = """
WITH clock AS MATERIALIZED (SELECT fencepost.now() AS now),
held AS MATERIALIZED (
    SELECT tenant, subject FROM fencepost.outbox
    WHERE worker = %(token)s AND due_at > (SELECT now FROM clock)
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE fencepost.outbox AS o SET due_at = clock.now, publish_at = least(o.publish_at, clock.now)
FROM held, clock WHERE o.tenant = held.tenant AND o.subject = held.subject
"""


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
        self.changed = threading.Event()
        """Set when the worker has begun to drain: that is stamped at once."""
        self._progressed: float | None = None
        self._said: dict[str, Any] = {"busy": None, "slots": None, "draining": False}

    def take(self, line: bytes) -> None:
        """One tick."""
        said = json.loads(line)
        if said.pop("progress"):
            self._progressed = _clock()
        before, self._said = self._said, said
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
                with _session(self.order) as session:
                    self._register(session)
                    while self._stamp(session) or self.leaving:
                        self.failing = False
                        self._end_spent(session)
                        self.heard.changed.wait(self.order["ttl_s"] / 3)
                # Our row is gone, or somebody else ended it: the worker must come back under a new token.
                os._exit(1)
            except psycopg.Error as error:
                self._complain(error)
                time.sleep(min(1.0, self.order["ttl_s"] / 10))

    def _stamp(self, session: psycopg.Connection[Any]) -> int:
        self.heard.changed.clear()
        return session.execute(STAMP, self.order | self.heard.columns()).rowcount

    def _end_spent(self, session: psycopg.Connection[Any]) -> None:
        """The earlier tokens of our worker, whose pulses died without a word: nobody else knows they are."""
        if self.order["spent"]:
            session.execute(_END_SPENT, self.order)
            self.order["spent"] = [token for (token,) in session.execute(_OPEN, self.order)]

    def _register(self, session: psycopg.Connection[Any]) -> None:
        if not self.registered:
            session.execute(REGISTER, self.order)
            self.registered = True
            _say(STAMPED)

    def _complain(self, error: psycopg.Error) -> None:
        reason = " ".join(str(error).split())
        if not self.registered:
            _say(b"\n" + reason.encode())
            if not isinstance(error, psycopg.OperationalError):
                os._exit(1)  # missing tables or rights do not mend themselves
        elif not self.failing:
            self.failing = True
            _log(self.order, f"cannot stamp: {reason}")

    def leave(self, *, clean: bool) -> None:
        """Mark the end and make the rows due. A killed worker's last commit may be under way: look thrice."""
        self.leaving = True
        for pause in (0.0,) if clean else (0.0, 0.2, 0.8):
            time.sleep(pause)
            self._hand_back()

    def _accusation(self) -> dict[str, Any]:
        """The failures to count, against the rows whose code, run before any claim, the worker died in."""
        found = suspects(os.pread(self.order["suspects"], PLACES * PLACE_BYTES, 0))
        if not found:
            return {}
        why = "its worker died in code that runs before the claim: the request function, or the arguments"
        tenants, subjects, generations = map(list, zip(*found, strict=True))
        return {
            "tenants": tenants,
            "subjects": subjects,
            "generations": generations,
            "errors": [why] * len(found),
            "pauses": [timedelta(seconds=pause) for pause in self.order["fail"]["pauses_s"]],
            "published": 1,
        }

    def _hand_back(self) -> None:
        accused = self._accusation()
        while True:
            try:
                with _session(self.order) as session:
                    # First the end, from which claims are refused, then what was claimed before it.
                    session.execute(END, self.order)
                    # Before the rows, which may take all the time there is. A failure counts once for each
                    # publication: asking again counts nothing twice.
                    if accused:
                        session.execute(self.order["fail"]["sql"], accused)
                    session.execute(MAKE_DUE, self.order)
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


def suspects(page: bytes) -> list[tuple[str, UUID, int]]:
    """Tenant, subject and generation of each item named in a page; what is not whole is left out."""
    found = []
    for at in range(0, len(page), PLACE_BYTES):
        entry, _, _ = page[at : at + PLACE_BYTES].partition(b"\0")
        with contextlib.suppress(ValueError):
            tenant, subject, generation = json.loads(entry)
            found.append((tenant, UUID(subject), generation))
    return found


_SETTINGS: Final = {
    "statement_timeout": "2s",
    "lock_timeout": "1s",
    "idle_in_transaction_session_timeout": "2s",
}
_SET: Final = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS s (name, value)"


def _dsn(order: dict[str, Any]) -> str:
    """As its file holds it now, if it came from one: a password may have been rotated."""
    if order["dsn_file"]:
        with contextlib.suppress(OSError, ValueError):
            text = Path(order["dsn_file"]).read_text(encoding="utf-8").rstrip("\r\n")
            order["dsn"] = text or order["dsn"]
    return str(order["dsn"])


def _session(order: dict[str, Any]) -> psycopg.Connection[Any]:
    """One whose limits are set by SQL, as `fencepost.ledger.session` does and for its reasons."""
    dsn = _dsn(order)
    found = psycopg.conninfo.conninfo_to_dict(dsn)
    how: dict[str, Any] = {"application_name": "fencepost pulse"}
    several = any("," in str(found.get(name, "")) for name in ("host", "hostaddr"))
    if several and "target_session_attrs" not in found:
        how["target_session_attrs"] = "read-write"
    session = _Session.connect(
        dsn,
        autocommit=True,
        connect_timeout=2,
        tcp_user_timeout=3000,
        **how,
    )
    try:
        session.execute(_SET, [list(_SETTINGS), list(_SETTINGS.values())])
    except BaseException:
        session.close()
        raise
    return session


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

    def listen(self, stamper: _Stamper) -> bool:
        """Until the worker ends; whether it said goodbye."""
        order, heard = stamper.order, stamper.heard
        looks, stall_s = 0, order["stall_s"]
        with selectors.DefaultSelector() as ready:
            ready.register(0, selectors.EVENT_READ)
            while True:
                began = _clock()
                spoke = bool(ready.select(LOOK_S))
                if spoke and not self._hear(heard):
                    return self._text == BYE
                if stall_s <= 0 or not stamper.registered:  # until then it waits for us
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
        """Our parent and nobody else: whoever got its number after it is left alone."""
        init = (
            " (which the first process of a container survives: give it an init)" if order["pid"] == 1 else ""
        )
        why = f"has stood still for {silent_s:.0f} s, frozen or held by code that does not let go"
        _log(order, f"worker {order['pid']} {why}; it is killed{init}")
        if os.getppid() != order["pid"]:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._worker is not None:
                signal.pidfd_send_signal(self._worker, signal.SIGKILL)
            else:
                os.kill(order["pid"], signal.SIGKILL)


def _log(order: dict[str, Any], text: str) -> None:
    """One line, in the form that all lines of this worker have."""
    if (
        os.environ.get("FENCEPOST_LOG", "").lower() == "json"
    ):  # this program reads no settings: it starts fast
        said = {"level": "error", "logger": "fencepost_workers.pulse", "worker": order["token"]}
        sys.stderr.write(json.dumps({**said, "timestamp": _utc(), "message": f"pulse: {text}"}) + "\n")
        return
    sys.stderr.write(f"pulse {order['token'][:8]}: {text}\n")


def _utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def main() -> NoReturn:
    """Stamp until the pipe on standard input ends, then hand the rows back. Only `Pulse` starts it."""
    for unwanted in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(unwanted, signal.SIG_IGN)  # it ends when its worker ends, not before
    listener = _Listener()
    order = listener.order()
    if order is None:
        os._exit(0)
    stamper = _Stamper(order)
    threading.Thread(target=stamper.run, daemon=True).start()
    clean = listener.listen(stamper)
    signal.alarm(END_WITHIN_S)  # its default action: whatever hangs, this process ends
    if stamper.registered:  # else the token was never given out
        stamper.leave(clean=clean)
    os._exit(0)


if __name__ == "__main__":
    main()
