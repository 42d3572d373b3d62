"""What one history left behind, read from its ledger and the services' own books, and held against I1–I13."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fencepost.app import App
from fencepost.canonical import reveal, sanitize
from fencepost.events import Event
from fencepost.ledger import rows
from fencepost.ledger.abandoned import abandoned
from fencepost.ledger.connect import Connection
from fencepost.projection import ReplayError, projection_hash, replay
from fencepost_ops.check import terms
from fencepost_ops.checker import BookEffect, BookRequest, check
from fencepost_ops.drill.because import Booked, Key, Noted, command, followed, told, why_one
from fencepost_ops.drill.history import History
from fencepost_ops.drill.ledger import DrillLedger
from fencepost_ops.drill.outcome import CallEnd, Outcome, Owed, RunEnd, Struck
from fencepost_ops.drill.services import Services
from fencepost_ops.drill.virtual import START

_RUNS: Final = """
SELECT r.id::text, r.run_key, r.status, r.stop_reason, r.head_hash,
       (SELECT e.projection FROM fencepost.events e WHERE e.run = r.id AND e.projection IS NOT NULL
        ORDER BY e.seq DESC LIMIT 1)
FROM fencepost.runs r ORDER BY r.created_at, r.run_key
"""
_CALLS: Final = """
SELECT c.operation, c.tool_version,
       c.id::text, c.run::text, c.label, c.tool, c.state, c.doubt, c.attempts, c.receipt,
       CASE WHEN c.state = 'NEEDS_REPAIR' THEN 'person' ELSE o.queue END
FROM fencepost.calls c LEFT JOIN fencepost.outbox o ON o.subject = c.id
ORDER BY c.run, c.turn, c.ordinal, c.id
"""
_EVENTS: Final = """
SELECT e.run::text, e.seq, e.recorded_at, e.type, e.call::text, e.attempt, e.fence, e.worker, e.body,
       c.label, r.run_key
FROM fencepost.events e JOIN fencepost.runs r ON r.id = e.run LEFT JOIN fencepost.calls c ON c.id = e.call
ORDER BY e.recorded_at, r.run_key, e.seq
"""
_HISTORY: Final = f"""
SELECT {rows.select("events", rows.EVENT_COLUMNS)} FROM fencepost.events
WHERE run = %s AND (seq <= %s OR %s::bigint IS NULL) ORDER BY seq
"""
Begun = tuple[str | None, int | None]
"""An attempt: its call and its number."""
_OPEN: Final = frozenset({"UNKNOWN", "NEEDS_REPAIR"})


@dataclass(frozen=True, slots=True)
class _Read:
    """One call as its row has it, besides what is told of every call."""

    operation: str | None
    version: int
    end: CallEnd


def judged(ledger: DrillLedger, history: History, app: App, services: Services) -> Outcome:
    """Everything that came of a history that is over."""
    known = terms(app)
    with ledger.sessions["reader"].reading() as connection:
        report = check(connection, services, settled=history.settled, terms=known)
    listed = ledger.owner.execute(_EVENTS).fetchall()
    events = _noted(listed, history.fleet.names)
    read = [_Read(row[0], row[1], CallEnd(*row[2:])) for row in ledger.owner.execute(_CALLS).fetchall()]
    begun: dict[Begun, int] = {(e.call, e.attempt): e.seq for e in events if e.type == "ToolAttemptStarted"}
    book = [one for service in services.services() for one in _booked(services, service, begun)]
    kinds = {place: one.kind for place, one in known.items()}
    calls = tuple(_explained(one, book, kinds, events) for one in read)
    ends = {call.id: call.state for call in calls}
    fired = {(one.fault.at, one.fault.nth) for one in history.struck}
    return Outcome(
        protocol=history.protocol,
        struck=tuple(_concluded(ledger.owner, one, ends, events) for one in history.struck),
        never=tuple(f for f in history.protocol.faults if (f.at, f.nth) not in fired),
        steps=history.taken,
        seconds=history.clock.seconds,
        runs=tuple(
            replace(end, replayed=_replayed(ledger.owner, end.id, None))
            for end in (RunEnd(*row) for row in ledger.owner.execute(_RUNS).fetchall())
        ),
        calls=calls,
        effects={s: len(services.effects(s)) for s in services.services() if services.effects(s)},
        dispatches=sum(len(services.requests(s)) for s in services.services()),
        timeline=tuple(_timeline(listed, events, history.struck)),
        report=report,
        passages=dict(history.strikes.passages),
        before=history.strikes.before or {},
        settled=history.settled,
        owed=tuple(_owed(ledger.owner, read, book, events)),
    )


def _noted(listed: Sequence[Sequence[Any]], names: Mapping[str, str]) -> list[Noted]:
    """The events; the process of each is the one that took the lease it was recorded under."""
    holders: dict[str, str] = {}
    events = []
    for run, seq, at, kind, call, attempt, fence, owner, body, _, _ in listed:
        data = body or {}
        if kind == "LeaseAcquired":
            holders[str(data.get("owner"))] = names.get(str(data.get("worker")), "")
        by = holders.get(owner or "", "")
        events.append(Noted(run, seq, (at - START).total_seconds(), kind, call, attempt, fence, by, data))
    return events


def _booked(services: Services, service: str, begun: Mapping[Begun, int]) -> Iterator[Booked]:
    entries: list[tuple[BookEffect | BookRequest, str | None, int | None]] = [
        (one, one.receipt, None) for one in services.effects(service)
    ]
    entries += [(one, None, one.status) for one in services.requests(service)]
    for one, receipt, status in entries:
        call = str(one.origin.call) if one.origin.call is not None else None
        at, attempt = (one.at - START).total_seconds(), one.origin.attempt
        yield Booked(service, at, one.key, receipt, status, call, attempt, begun.get((call, attempt)))


def _of_key(read: _Read, book: Sequence[Booked]) -> list[Booked]:
    """What the books say of a call's key; of a call that has none, what says that it comes from it."""
    if read.operation is None:
        return [one for one in book if one.call == read.end.id]
    return [one for one in book if one.key == read.operation]


def _explained(
    read: _Read, book: Sequence[Booked], kinds: Mapping[tuple[str, int], str], events: Sequence[Noted]
) -> CallEnd:
    end, mine = read.end, _of_key(read, book)
    effects = tuple(one for one in mine if one.receipt is not None)
    requests = tuple(one for one in mine if one.receipt is None)
    kind = kinds.get((end.tool, read.version), "")
    history = tuple(event for event in events if event.call == end.id)
    why = why_one(Key(end.label, end.state, kind, end.attempts, effects, requests, history))
    return replace(end, kind=kind, requests=len(requests), effects=len(effects), why=why)


def _concluded(
    connection: Connection, struck: Struck, ends: Mapping[str, str], events: Sequence[Noted]
) -> Struck:
    left = struck.left
    if left.run is None or left.seq is None:
        return replace(struck, ended=ends.get(left.call or ""))
    return replace(
        struck,
        ended=ends.get(left.call or ""),
        replayed=_replayed(connection, left.run, left.seq),
        followed=tuple(followed(events, left.run, left.call, left.seq)),
    )


def _replayed(connection: Connection, run: str, until: int | None) -> str:
    """The projection the kernel's replay gives for a history up to an event, or what is wrong with it."""
    try:
        view = replay(Event(*row) for row in connection.execute(_HISTORY, (run, until, until)))
    except ReplayError as error:
        return str(error)
    return projection_hash(view.run)


def _owed(
    connection: Connection, read: Sequence[_Read], book: Sequence[Booked], events: Sequence[Noted]
) -> Iterator[Owed]:
    for one in read:
        end = one.end
        if end.state in _OPEN:
            receipt = next((b.receipt for b in _of_key(one, book) if b.receipt is not None), None)
            why = [told(event) for event in events if event.call == end.id][-1:]
            way = command(end.id, end.state, receipt)
            yield Owed(end.id, end.label, end.state, end.owner or "nobody", "".join(why), way)
    for left in abandoned(connection):
        way = f"fencepost repair {left.call} {'--offset' if left.again else '--leave'} --reason TEXT"
        yield Owed(str(left.call), left.label, "not offset", "person", left.why, way)


def _timeline(
    listed: Sequence[Sequence[Any]], events: Sequence[Noted], struck: Sequence[Struck]
) -> Iterator[str]:
    lines: list[tuple[float, int, str]] = []
    for event, row in zip(events, listed, strict=True):
        what = f"{row[10]} {row[9] or ''}".strip() + (f" attempt {event.attempt}" if event.attempt else "")
        held = f" fence {event.fence}" if event.fence else ""
        who = f" · {event.by}" if event.by and event.type == "LeaseAcquired" else ""
        raised = event.data.get("message") if event.type == "ToolOutcomeMarkedUnknown" else None
        why = f" ({reveal(' '.join(sanitize(raised, 200).split()))})" if raised else ""
        lines.append((event.at_s, event.seq, f"{event.type} · {what}{held}{who}{why}"))
    for number, one in enumerate(struck):
        lines.append((one.at_s, 10_000 + number, f"*** {one.fault.named} · {one.process}"))
    for seconds, _, text in sorted(lines):
        yield f"{seconds:9.3f}  {text}"
