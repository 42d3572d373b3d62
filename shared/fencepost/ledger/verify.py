"""Proof that the tables are what the events say, and that nobody changed the events (I6), run by run.

A run's history is replayed from its first event: every link of the chain, every body's digest, the projection
recorded after every change. What comes out is compared with the run's and its calls' rows field by field, and
the payloads it names are hashed again. Not seen: a history rewritten as a whole by the owner of the tables,
or one cut off together with its rows; exported heads show that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from fencepost.events import Event
from fencepost.ledger import rows
from fencepost.ledger.connect import Connection
from fencepost.projection import ReplayError, replay
from fencepost.subjects import Call, Run, View

PAGE = 500  # rows of one round trip: memory stays constant however long a history or a ledger is

_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_EVENTS = f"""
SELECT {rows.select("events", rows.EVENT_COLUMNS)} FROM fencepost.events
WHERE tenant = %s AND run = %s AND seq > %s AND seq <= %s ORDER BY seq LIMIT %s
"""
_LAST = "SELECT coalesce(max(seq), 0) FROM fencepost.events WHERE tenant = %s AND run = %s"
_RUN = f"SELECT {rows.select('runs', rows.RUN_COLUMNS)} FROM fencepost.runs WHERE tenant = %s AND id = %s"
_CALLS = (
    f"SELECT {rows.select('calls', rows.CALL_COLUMNS)} FROM fencepost.calls WHERE tenant = %s AND run = %s"
)
_PAYLOADS = """
SELECT digest, digest = encode(sha256(data), 'hex') FROM fencepost.payloads
WHERE tenant = %s AND digest = ANY(%s)
"""
_RUNS = """
SELECT tenant, id FROM fencepost.runs WHERE (tenant, id) > (%s, %s) ORDER BY tenant, id LIMIT %s
"""
_PAYLOAD_NAMES = ("answer", "result")  # fields of bodies that hold a payload's digest


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What became of one run's proof: how many events it has, and the first fault found, if any."""

    tenant: str
    run: UUID
    events: int
    fault: str | None = None

    @property
    def ok(self) -> bool:
        """Whether events, chain, rows and payloads agree."""
        return self.fault is None


@dataclass(frozen=True, slots=True)
class _Head:
    """What the rows of a run say at one instant, and the number of its last event then."""

    run: Run
    calls: Mapping[UUID, Call]
    last: int


@dataclass(slots=True)
class _Reading:
    """A history as it streams by: what is counted and kept of it."""

    events: int = 0
    payloads: set[str] | None = None

    def note(self, history: Iterable[Event]) -> Iterator[Event]:
        self.payloads = set()
        for event in history:
            self.events += 1
            self.payloads |= {d for n in _PAYLOAD_NAMES if isinstance(d := event.data.get(n), str)}
            yield event


def verify_run(connection: Connection, tenant: str, run: UUID) -> VerifyResult:
    """Verify one run as it stands; `connection` must not be inside a transaction.

    Its rows are read in one snapshot, the events they stand for afterwards, page by page and each in a
    transaction of its own: nothing changes them, and no session is held while a long history is replayed.
    """
    reading = _Reading()
    with connection.transaction():
        connection.execute(_SNAPSHOT)
        head = _head(connection, tenant, run)
    fault = _fault(connection, tenant, run, head, reading)
    return VerifyResult(tenant, run, reading.events, fault)


def verify_all(connection: Connection) -> Iterator[VerifyResult]:
    """Verify every run there is, in order of tenant and id, one snapshot each."""
    place = ("", UUID(int=0))
    while page := _page(connection, place):
        for tenant, run in page:
            yield verify_run(connection, tenant, run)
        place = page[-1]


def _page(connection: Connection, after: tuple[str, UUID]) -> list[tuple[str, UUID]]:
    with connection.transaction():
        return [(tenant, run) for tenant, run in connection.execute(_RUNS, (*after, PAGE))]


def _head(connection: Connection, tenant: str, run: UUID) -> _Head | None:
    row = connection.execute(_RUN, (tenant, run)).fetchone()
    last = connection.execute(_LAST, (tenant, run)).fetchone()
    calls = {
        call.id: call for call in (Call(*values) for values in connection.execute(_CALLS, (tenant, run)))
    }
    return _Head(Run(*row), calls, last[0] if last is not None else 0) if row is not None else None


def _fault(
    connection: Connection, tenant: str, run: UUID, head: _Head | None, reading: _Reading
) -> str | None:
    if head is None:
        return "there is no such run"
    stored, last = head.run, head.last
    if stored.seq == 0 and last:
        return "it has events, yet its row says that nothing happened"
    try:
        view = replay(reading.note(_history(connection, tenant, run, last))) if stored.seq else None
    except ReplayError as error:
        return str(error)
    except psycopg.OperationalError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a history does to its reader is a fault of the history
        return f"event {reading.events} cannot be read: {type(error).__name__}: {error}"
    return _differs(stored, head.calls, view) or _payload_fault(connection, tenant, reading.payloads or set())


def _history(connection: Connection, tenant: str, run: UUID, last: int) -> Iterator[Event]:
    place = 0
    while place < last:
        with connection.transaction():
            page = connection.execute(_EVENTS, (tenant, run, place, last, PAGE)).fetchall()
        if not page:
            return
        events = [Event(*values) for values in page]
        place = events[-1].seq
        yield from events


def _differs(stored: Run, calls: Mapping[UUID, Call], view: View | None) -> str | None:
    if view is None:
        return f"call {next(iter(calls))} has no history" if calls else None
    if (name := _first_difference(stored, view.run, rows.RUN_COLUMNS)) is not None:
        return f"the run's {name} is {_shown(stored, name)}; its events say {_shown(view.run, name)}"
    for call in sorted(calls.keys() | view.calls.keys()):
        row, replayed = calls.get(call), view.calls.get(call)
        if row is None or replayed is None:
            return f"call {call} has no {'row' if row is None else 'history'}"
        if (name := _first_difference(row, replayed, rows.CALL_COLUMNS)) is not None:
            return f"call {call}: its {name} is {_shown(row, name)}; its events say {_shown(replayed, name)}"
    return None


def _first_difference(row: Any, replayed: Any, names: Iterable[str]) -> str | None:
    return next((name for name in names if getattr(row, name) != getattr(replayed, name)), None)


def _shown(record: Any, name: str) -> str:
    return repr(rows.plain(getattr(record, name)))[:100]


def _payload_fault(connection: Connection, tenant: str, named: set[str]) -> str | None:
    wanted = sorted(named)
    for start in range(0, len(wanted), PAGE):
        page = wanted[start : start + PAGE]
        with connection.transaction():
            found = dict(connection.execute(_PAYLOADS, (tenant, page)).fetchall())
        for digest in page:
            if digest not in found:
                return f"payload {digest} is missing"
            if not found[digest]:
                return f"payload {digest} was changed"
    return None
