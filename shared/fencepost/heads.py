"""The ledger's head, kept outside it: by that a process notices that the ledger went back.

A ledger that is restored, or fails over to a server that had not everything, knows nothing of what it lost.
So each worker remembers the last event whose COMMIT it was told of, once a second also in Redis and in the
file `FENCEPOST_HEAD_FILE`; with every new session, a relay's too, Postgres is asked whether it is still
there. If it is not, the ledger holds itself (`fencepost.hold_if_gone`): nothing new is planned or sent until
a person has recovered and released it.

What nobody remembers is not noticed: a file and a Redis that went back together with the ledger, or what was
lost of the last second while every process was down.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

import psycopg
import redis

from fencepost.clock import parse_rfc3339, rfc3339
from fencepost.leases import connect

log = logging.getLogger("fencepost.heads")

EVERY_S: Final = 1.0  # between two marks of one process
_TIMEOUT_S: Final = 1.0
_CLOSE_WITHIN_S: Final = 3.0
_AHEAD: Final = timedelta(days=1)
"""A mark that lies further ahead of what is confirmed is none of ours: it would stand there for good."""
_KEY: Final = "fencepost:head:"
_LATER: Final = """
local found = redis.pcall('GET', KEYS[1])
local old = type(found) == 'string' and string.match(found, '"at":"([^"]*)"')
if not old or old < ARGV[2] or old > ARGV[3] then redis.call('SET', KEYS[1], ARGV[1]) end
"""
_LEDGER: Final = "SELECT id FROM fencepost.ledger"
_HOLD: Final = "SELECT fencepost.hold_if_gone(%s, %s, %s)"


@dataclass(frozen=True, slots=True)
class Mark:
    """An event that was committed, and when it was recorded."""

    tenant: str
    event: UUID
    at: datetime

    def to_text(self) -> str:
        """As it is kept."""
        return json.dumps(
            {"tenant": self.tenant, "event": str(self.event), "at": rfc3339(self.at)}, separators=(",", ":")
        )

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """What `to_text` gave; None for anything else: it is no mark of ours."""
        try:
            value = json.loads(text)
            return cls(str(value["tenant"]), UUID(value["event"]), parse_rfc3339(value["at"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


class Heads:
    """What one process knows of the ledger's head. For many threads."""

    def __init__(self, redis_url: str, file: str) -> None:
        self._redis = connect(redis_url, size=1, timeout_s=_TIMEOUT_S)
        self._later = self._redis.register_script(_LATER)
        self._file = Path(file) if file else None
        self._lock = threading.Lock()
        self._mark: Mark | None = None
        self._kept: Mark | None = None
        self._ledger: UUID | None = None
        self._unread = True
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def confirmed(self, tenant: str, event: UUID, at: datetime) -> None:
        """Remember an event whose COMMIT was confirmed."""
        if self._mark is None or self._mark.at <= at:
            self._mark = Mark(tenant, event, at)

    def look(self, connection: psycopg.Connection[Any]) -> None:
        """With a new session: have the ledger hold itself if it lost what is remembered here or outside.

        Psycopg's errors. Leaves no transaction open.
        """
        with self._lock:
            row = connection.execute(_LEDGER).fetchone()
            self._ledger = row[0] if row is not None else None
            for mark in self._marks():
                held = connection.execute(_HOLD, [mark.tenant, mark.event, mark.at]).fetchone()
                if held is not None and held[0]:
                    log.error(
                        "the ledger went back: event %s of %s, which was committed, is gone; it is held, "
                        "nothing new is planned or sent: fencepost recover",
                        mark.event,
                        rfc3339(mark.at),
                    )
            if not connection.autocommit:
                connection.commit()

    def _marks(self) -> list[Mark]:
        """Its own, and until they could be read once those that others keep."""
        marks = [self._mark]
        if self._unread and self._ledger is not None:
            marks.append(_read(self._file, self._ledger))
            with suppress(redis.RedisError):
                found: Any = self._redis.get(f"{_KEY}{self._ledger}")
                marks.append(Mark.from_text(found.decode("utf-8", "replace")) if found else None)
                self._unread = False
        return [mark for mark in marks if mark is not None]

    def start(self) -> None:
        """Keep what is confirmed outside the ledger, once a second, until `close`."""
        self._thread = threading.Thread(target=self._run, name="heads", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Keep the last of it, and end. Never raises."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_WITHIN_S)
        self._redis.close()

    def _run(self) -> None:
        while not self._closed.wait(EVERY_S):
            self.keep()
        self.keep()

    def keep(self) -> None:
        """Write down the latest mark, where it is later than what stands there. Never raises."""
        mark, ledger = self._mark, self._ledger
        if mark is None or ledger is None or mark is self._kept:
            return
        try:
            times = [rfc3339(mark.at), rfc3339(mark.at + _AHEAD)]
            self._later(keys=[f"{_KEY}{ledger}"], args=[mark.to_text(), *times])
            _write(self._file, ledger, mark)
            self._kept = mark
        except (redis.RedisError, OSError) as error:
            log.debug("the ledger's head is kept later: %s", error)


def _read(file: Path | None, ledger: UUID) -> Mark | None:
    """The mark in the file, if it is this ledger's."""
    if file is None:
        return None
    try:
        of, _, text = file.read_text("utf-8").partition(" ")
    except (OSError, UnicodeError):
        return None
    return Mark.from_text(text) if of == str(ledger) else None


def _write(file: Path | None, ledger: UUID, mark: Mark) -> None:
    if file is None:
        return
    known = _read(file, ledger)
    if known is not None and mark.at <= known.at <= mark.at + _AHEAD:
        return
    new = file.with_name(f".{file.name}.{os.getpid()}")
    new.write_text(f"{ledger} {mark.to_text()}", "utf-8")
    new.replace(file)
