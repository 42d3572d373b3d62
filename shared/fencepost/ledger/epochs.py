"""The epochs of a ledger that was restored to an earlier moment: opened, applied in pages, released.

Each restore opens an epoch, and while one is not released the ledger is held: nothing is planned (the claim
of a run answers `OnHold`), and whatever is in doubt is settled. Rows of `epochs` are added and released, and
never change otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from fencepost import commands
from fencepost.clock import uuid7
from fencepost.errors import FencepostError
from fencepost.ledger.connect import Connection

PAGE: Final = 50
"""Runs per transaction; a run may have hundreds of calls."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One restore: what came after `since` is lost. `released_at` is None while the ledger is held."""

    epoch: int
    since: datetime
    opened_at: datetime
    opened_by: str
    reason: str
    released_at: datetime | None
    released_by: str | None
    release_reason: str | None
    marked: bool = True
    """Whether what may have been sent since then was made UNKNOWN; else it is only held."""


@dataclass(frozen=True, slots=True)
class Affected:
    """What a restore concerns, by the rows as they are: runs under a term of a planner or compensator, and
    open calls by state. `last_stamp` is the last that a worker left here: if none has come back since the
    restore, about the moment the ledger stands at.
    """

    runs: int
    calls: dict[str, int]
    last_stamp: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Left:
    """A call that an epoch marked and that is not settled yet."""

    call: UUID
    run: UUID
    tenant: str
    tool: str
    state: str
    error: str | None


_COLUMNS: Final = (
    "epoch, since, opened_at, opened_by, reason, released_at, released_by, release_reason, marked"
)
_HELD: Final = f"SELECT {_COLUMNS} FROM fencepost.epochs WHERE released_at IS NULL ORDER BY epoch"
_OPEN: Final = f"""
INSERT INTO fencepost.epochs (epoch, since, opened_at, opened_by, reason, marked)
SELECT coalesce(max(epoch), 0) + 1, %s, fencepost.now(), %s, %s, %s FROM fencepost.epochs RETURNING {_COLUMNS}
"""
_RELEASE: Final = """
UPDATE fencepost.epochs SET released_at = fencepost.now(), released_by = %s, release_reason = %s
WHERE released_at IS NULL RETURNING epoch
"""
# Of whatever run: a person may have had a call of one that has stopped asked about again.
_OPEN_CALLS: Final = "FROM fencepost.calls c WHERE c.live AND c.state <> 'NEEDS_REPAIR'"
_HELD_RUNS: Final = """FROM fencepost.runs r WHERE NOT r.ended
    AND (r.owner IS NOT NULL OR (r.status IN ('PLANNING', 'COMPENSATING') AND r.open = r.repairs))"""
_CALLING: Final = f"""
SELECT DISTINCT c.run, c.tenant {_OPEN_CALLS} AND c.run > %s ORDER BY c.run LIMIT {PAGE}
"""
_PLANNING: Final = f"""
SELECT r.id, r.tenant {_HELD_RUNS} AND r.id > %s ORDER BY r.id LIMIT {PAGE}
"""
_AFFECTED: Final = f"""
SELECT (SELECT count(*) {_HELD_RUNS}),
    (SELECT coalesce(json_object_agg(s.state, s.n ORDER BY s.state), '{{}}')
        FROM (SELECT c.state, count(*) AS n {_OPEN_CALLS} GROUP BY c.state) s),
    (SELECT max(w.last_seen) FROM fencepost.workers w),
    fencepost.now()
"""
_AUDITED: Final = """
SELECT DISTINCT a.scope FROM fencepost.audits a
WHERE a.at >= (SELECT max(opened_at) FROM fencepost.epochs WHERE released_at IS NULL)
  AND a.since <= (SELECT min(since) FROM fencepost.epochs WHERE released_at IS NULL AND marked)
"""
_LEFT: Final = """
SELECT c.id, c.run, c.tenant, c.tool, c.state, c.error FROM fencepost.calls c
WHERE c.live AND EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = c.run AND e.call = c.id
    AND e.tenant IS NOT DISTINCT FROM c.tenant AND e.type = 'ToolOutcomeMarkedUnknown'
    AND e.body ->> 'code' = 'ledger_restored')
ORDER BY c.id LIMIT %s
"""
_FIRST: Final = UUID(int=0)


def held(connection: Connection) -> list[Epoch]:
    """The epochs that are not released; none when the ledger is not held."""
    return [Epoch(*row) for row in connection.execute(_HELD)]


def last(found: Sequence[Epoch]) -> Epoch | None:
    """Of the epochs that hold a ledger the one to tell of: the last that was recovered, else the last."""
    recovered = [epoch for epoch in found if epoch.marked]
    return next(reversed(recovered or found), None)


def affected(connection: Connection) -> Affected:
    """What a restore would concern now. Reads all open runs and calls."""
    row = connection.execute(_AFFECTED).fetchone()
    assert row is not None
    return Affected(*row)


def open_epoch(
    connection: Connection, since: datetime, by: str, reason: str, *, marked: bool = True
) -> Epoch:
    """Open an epoch: from its commit on the ledger is held. Psycopg's errors for what Postgres refuses.

    `marked` False: it is held and no more; nobody knows yet what may have been sent.
    """
    row = connection.execute(_OPEN, [since, by, reason, marked]).fetchone()
    assert row is not None
    return Epoch(*row)


def release(connection: Connection, by: str, reason: str) -> list[int]:
    """Release all that are open; their numbers."""
    return [int(row[0]) for row in connection.execute(_RELEASE, [by, reason])]


def note_audit(connection: Connection, scope: str, since: datetime, differences: int) -> bool:
    """Note that a dependency was audited while the ledger is held; whether it is."""
    if not held(connection):
        return False
    connection.execute("SELECT fencepost.note_audit(%s, %s, %s)", [scope, since, differences])
    return True


def audited(connection: Connection) -> set[str]:
    """The scopes that were audited since the last epoch began, from its moment on or from before."""
    return {str(row[0]) for row in connection.execute(_AUDITED)}


def left(connection: Connection, limit: int) -> list[Left]:
    """Calls that an epoch marked and that are neither settled nor a person's last word; at most `limit`."""
    return [Left(*row) for row in connection.execute(_LEFT, [limit])]


def restore(
    connection: Connection,
    apply: Callable[[Sequence[commands.Command]], list[commands.Answer]],
    epoch: Epoch,
) -> Iterator[list[commands.Restored]]:
    """Mark what may have been sent, page by page; what became of each page's runs, once it is committed.

    Interrupted it leaves the ledger held and a part marked: recover again, which opens another epoch. Raises
    FencepostError for a run that Postgres refuses to change.
    """
    yield from _pages(connection, apply, epoch, _CALLING)
    # Last, because a claim that was under way as the epoch was opened may have been granted beside it.
    yield from _pages(connection, apply, epoch, _PLANNING)


def _pages(
    connection: Connection,
    apply: Callable[[Sequence[commands.Command]], list[commands.Answer]],
    epoch: Epoch,
    query: str,
) -> Iterator[list[commands.Restored]]:
    after = _FIRST
    while found := connection.execute(query, [after]).fetchall():
        batch = [
            commands.Restore(
                id=uuid7(),
                tenant=tenant,
                run=run,
                epoch=epoch.epoch,
                since=epoch.since,
                by=epoch.opened_by,
            )
            for run, tenant in found
        ]
        answers = apply(batch)
        after = found[-1][0]
        for (run, tenant), answer in zip(found, answers, strict=True):
            if not isinstance(answer, commands.Restored):
                why = answer.why if isinstance(answer, commands.Broken) else type(answer).__name__
                raise FencepostError(f"run {run} of {tenant} could not be marked, recover again: {why}")
        yield [answer for answer in answers if isinstance(answer, commands.Restored)]
