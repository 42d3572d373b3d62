"""The rows of `allowances` in `apply`: only a batch that sends what an allowance limits locks and reads any.

The keys depend on what a call's arguments say, so they are known only once the batch is loaded: its counters
are a second, small load. They are locked last, after the outbox, in the order of tenant and key, and with
them those that other calls of the batch may give something back to. A batch that only gives back needs to
read nothing: it locks its counters, in the same order, right before it changes them. So no two batches wait
for counters in a ring; a ring of a counter and of an outbox row that a settled key wakes is possible, and is
rerun as every deadlock is.

The clock is read again under these locks (R6). If it has come into another window meanwhile, so that other
counters count, the batch is loaded anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fencepost import commands as c
from fencepost.allowances import Refusal, Share, Used, counted, taken, until
from fencepost.decide import allow
from fencepost.decide.fold import Known
from fencepost.events import Event
from fencepost.ledger import rows
from fencepost.ledger.connect import Connection, Pipeline
from fencepost.ledger.guards.allowances import FORGOTTEN_AFTER
from fencepost.ledger.load import Loaded
from fencepost.ledger.stopwatch import Stopwatch
from fencepost.states import CallState
from fencepost.subjects import Call

C = CallState
Key = tuple[str, str]
"""A tenant and a counter's key."""

NEW_COUNTERS = """
INSERT INTO fencepost.allowances (tenant, key, allowance, since, until, first_call)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::timestamptz[], %s::timestamptz[], %s::uuid[])
    AS new (tenant, key, allowance, since, until, first_call)
ORDER BY tenant, key ON CONFLICT DO NOTHING
"""
LOCK_COUNTERS = """
SELECT tenant, key, used_count, used_minor FROM fencepost.allowances
WHERE tenant = ANY(%s::text[]) AND key = ANY(%s::text[])
ORDER BY tenant, key FOR NO KEY UPDATE
"""
READ_CLOCK = "SELECT fencepost.now()"
# Who gives back to a counter that is not there any more gives back to a window that is long past.
UPDATE_COUNTERS = """
WITH n AS (
    UPDATE fencepost.allowances t SET (used_count, used_minor, event, presented_events, limit_count,
            limit_minor, currency)
        = (t.used_count + n.calls, t.used_minor + n.minor, n.event, n.events,
           CASE WHEN n.granted THEN n.limit_count ELSE t.limit_count END,
           CASE WHEN n.granted THEN n.limit_minor ELSE t.limit_minor END,
           CASE WHEN n.granted THEN n.currency ELSE t.currency END)
    FROM json_to_recordset(%s::json) AS n (tenant text, key text, calls bigint, minor bigint, event uuid,
        events uuid[], granted boolean, limit_count bigint, limit_minor bigint, currency text)
    WHERE t.tenant = n.tenant AND t.key = n.key RETURNING n.granted
) SELECT 1 / (count(*) FILTER (WHERE granted) = %s)::int FROM n
"""
FORGET = f"""
DELETE FROM fencepost.allowances WHERE (key, tenant) IN (
    SELECT key, tenant FROM fencepost.allowances
    WHERE until IS NOT NULL AND until <= fencepost.now() - interval '{FORGOTTEN_AFTER}'
    ORDER BY tenant, key LIMIT %s FOR UPDATE SKIP LOCKED)
"""


@dataclass(slots=True)
class Moved:
    """How a batch changes one counter; by the last event that took of it, and the last that gave back.

    `granted`: the last share that a call took anew. What evidence brings back is no such share.
    """

    calls: int = 0
    minor: int = 0
    granted: Share | None = None
    took: UUID | None = None
    gave: UUID | None = None
    events: list[UUID] = field(default_factory=list)
    """All of them."""

    @property
    def event(self) -> UUID | None:
        """The one that speaks for the whole change."""
        return self.gave if self.calls < 0 or self.minor < 0 else self.took


def lock(
    connection: Connection,
    pipeline: Pipeline,
    batch: Sequence[c.Command],
    loaded: Loaded,
    known: Known,
    watch: Stopwatch,
) -> bool:
    """Lock and read the counters this batch takes from, if it does; False: load it anew.

    Sends nothing at all for a batch that takes nothing. Raises TooSlowError.
    """
    watch.begin()
    needed = _needed(batch, loaded, known, watch)
    if not needed:
        return True
    made = [
        (tenant, key, share.allowance, share.since, share.until, call)
        for (tenant, key), (share, call) in needed.items()
    ]
    columns = list(zip(*made, strict=True))
    texts = [rows.text_array(column) for column in columns[:5]]
    connection.execute(NEW_COUNTERS, [*texts, rows.plain_array(columns[5])])
    keys = needed.keys() | set(_held(loaded))
    found = connection.execute(LOCK_COUNTERS, _arrays(keys))
    clock = connection.execute(READ_CLOCK)
    pipeline.sync()
    loaded.allowances = {(row[0], row[1]): Used(row[2], row[3]) for row in found.fetchall()}
    loaded.now = clock.fetchall()[0][0]
    ends = [end for share, _ in needed.values() if (end := until(share)) is not None]
    return all(loaded.now < end for end in ends)


def _arrays(keys: Sequence[Key] | set[Key]) -> list[str]:
    return [rows.text_array(t for t, _ in keys), rows.text_array(k for _, k in keys)]


def _needed(
    batch: Sequence[c.Command], loaded: Loaded, known: Known, watch: Stopwatch
) -> dict[Key, tuple[Share, UUID]]:
    if not known.allowances and not loaded.standing.policies:
        return {}
    found: dict[Key, tuple[Share, UUID]] = {}
    for command in batch:
        if isinstance(command, c.ClaimCall | c.ClaimDoubt):
            for share in _taken(command, loaded, known):
                found.setdefault((command.tenant, share.key), (share, command.subject))
            watch.judged(command)
        elif isinstance(command, c.Restore):
            for call in loaded.calls[command.tenant, command.run].values():
                for share in _missing(command, call, loaded, known):
                    found.setdefault((command.tenant, share.key), (share, call.id))
            watch.judged(command)
    return found


def _taken(command: c.Claim, loaded: Loaded, known: Known) -> tuple[Share, ...]:
    place = command.tenant, command.run
    run, call = loaded.runs.get(place), loaded.calls[place].get(command.subject)
    tool = known.tool(call.tool, call.tool_version) if call is not None else None
    if run is None or call is None or tool is None or not _first(call):
        return ()
    try:
        found = allow.wanted(known, loaded.standing, run, call, tool, loaded.now)
    except Exception:  # noqa: BLE001 - the application's functions: the claim is denied for what they raise
        found = ()
    more = () if isinstance(found, Refusal) else found
    if call.restored is not None:  # what it catches up with, sent or not; or what it took where it was marked
        owed = _missing(command, call, loaded, known) if call.reserved is None else ()
        more = (*owed, *allow.brought_in(call, loaded.now), *more)
    return more


def _missing(command: c.Command, call: Call, loaded: Loaded, known: Known) -> tuple[Share, ...]:
    run, tool = loaded.runs.get((command.tenant, command.run)), known.tool(call.tool, call.tool_version)
    if run is None or tool is None:
        return ()
    found = allow.missing(known, loaded.standing, run, call, tool, loaded.now)
    return () if found is None else found[0]


def _first(call: Call) -> bool:
    """Whether a claim may send it for the first time, as far as the ledger knows."""
    return call.state == C.INTENT_RECORDED or (call.state == C.UNKNOWN and call.attempts == 0)


def _held(loaded: Loaded) -> Iterator[Key]:
    """The counters whose shares calls of this batch have, whatever has become of them."""
    for calls in loaded.calls.values():
        for call in calls.values():
            if call.reserved is not None:
                yield from ((call.tenant, share.key) for share in taken(call.reserved))


# -- what a change of a call changes of its counters ------------------------------------------------------


def follow(
    old: Call | None, new: Call, events: Sequence[Event], held: dict[Key, Used], moved: dict[Key, Moved]
) -> None:
    """Keep the counters true to a call that has changed: `held` for the commands that follow, `moved` for
    what is written.
    """
    if new.reserved is None:
        return
    before = {share.key: share for share in counted(old.reserved, old.state)} if old is not None else {}
    after = {share.key: share for share in counted(new.reserved, new.state)}
    if before.keys() == after.keys():
        return
    last = next(e.id for e in reversed(events) if e.call == new.id)
    took = next((e.id for e in reversed(events) if e.call == new.id and "reserved" in e.data), last)
    had = {share.key for share in taken(old.reserved)} if old is not None else set()
    for key in before.keys() ^ after.keys():
        takes = key in after
        share = after[key] if takes else before[key]
        change = moved.setdefault((new.tenant, key), Moved())
        sign = 1 if takes else -1
        change.calls += sign * share.count
        change.minor += sign * share.minor
        if takes:
            change.took = took
            change.events.append(took)
            change.granted = change.granted if key in had else share
        else:
            change.gave = last
            change.events.append(last)
        if (used := held.get((new.tenant, key))) is not None:
            held[new.tenant, key] = Used(used.calls + sign * share.count, used.minor + sign * share.minor)


def write(connection: Connection, moved: Mapping[Key, Moved], locked: Mapping[Key, Used]) -> None:
    """Write what has changed of counters; those not locked yet are, in their order."""
    changed = {key: change for key, change in moved.items() if change.calls or change.minor}
    if not changed:
        return
    if not changed.keys() <= locked.keys():
        connection.execute(LOCK_COUNTERS, _arrays(set(changed)))
    granted = sum(change.granted is not None for change in changed.values())
    records = [_record(key, change) for key, change in changed.items()]
    connection.execute(UPDATE_COUNTERS, [rows.to_json(records), granted])


def _record(key: Key, change: Moved) -> dict[str, Any]:
    share = change.granted
    return {
        "tenant": key[0],
        "key": key[1],
        "calls": change.calls,
        "minor": change.minor,
        "event": rows.plain(change.event),
        "events": [rows.plain(one) for one in change.events],
        "granted": share is not None,
        "limit_count": share.limit_count if share else None,
        "limit_minor": share.limit_minor if share else None,
        "currency": share.currency if share else None,
    }


def forget(connection: Connection, limit: int = 1000) -> int:
    """Delete counters whose window ended a day ago; how many. What is later given back to them is nothing."""
    return connection.execute(FORGET, [limit]).rowcount
