"""What people watch of the ledger while it happens: one run's events as they are recorded, the whole fleet.

Read-only, a statement or a few per look, and none costs more the longer a run or the ledger has grown, but
for the count of runs that have ended, which its caller asks for as rarely as it likes. A reader's login does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from fencepost.clock import NEVER
from fencepost.events import Event
from fencepost.ledger import epochs, rows
from fencepost.ledger.connect import Connection
from fencepost.ledger.epochs import Epoch
from fencepost.ledger.listings import QueueInfo, WorkerInfo, queues, workers
from fencepost.states import RUN_ENDS

PAGE: Final = 500
"""Events one look brings at most."""

_LOOK: Final = f"""
SELECT fencepost.now(), r.status, r.stop_reason, r.stop_detail, r.open, r.repairs, r.awaiting, r.seq,
       r.created_at, n.*
FROM fencepost.runs r LEFT JOIN LATERAL (
    SELECT {rows.select("events", rows.EVENT_COLUMNS)}, k.tool, k.label, w.role, w.host, w.pid
    FROM fencepost.events
    LEFT JOIN fencepost.calls k ON k.tenant = events.tenant AND k.id = events.call
    LEFT JOIN fencepost.workers w
        ON w.token = CASE WHEN events.type = 'LeaseAcquired' THEN events.body ->> 'worker' END
    WHERE events.run = r.id AND events.tenant = r.tenant AND events.seq > %(after)s
    ORDER BY events.seq LIMIT %(page)s
) AS n ON true
WHERE r.id = %(run)s AND r.tenant = %(tenant)s ORDER BY n.seq
"""
_BEFORE: Final = 9  # columns of the run before those of an event

_OPEN: Final = """
SELECT r.status, count(*) FROM fencepost.runs r WHERE NOT r.ended GROUP BY 1
"""
_ENDED: Final = """
SELECT r.status, count(*) FROM fencepost.runs r WHERE r.ended GROUP BY 1
"""
_TROUBLE: Final = """
SELECT fencepost.now(),
       (SELECT count(*) FROM fencepost.calls c
        WHERE c.live AND (c.state IN ('UNKNOWN', 'NEEDS_REPAIR') OR c.doubt)),
       (SELECT count(*) FROM fencepost.calls c WHERE c.live AND c.state = 'NEEDS_REPAIR'),
       (SELECT count(*) FROM fencepost.outbox o WHERE o.dead_at IS NOT NULL),
       (SELECT count(*) FROM fencepost.calls c WHERE c.live AND c.state = 'AWAITING_APPROVAL'),
       (SELECT coalesce(sum(json_array_length(r.owed::json)), 0) FROM fencepost.runs r
        WHERE r.owed IS NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class Told:
    """An event with what it is about: the call's tool and label, and the process that took a lease."""

    event: Event
    tool: str | None
    label: str | None
    process: str | None


@dataclass(frozen=True, slots=True)
class Look:
    """A run at one instant, and the events after those seen before. `seq` is that of its last event."""

    now: datetime
    status: str
    stop_reason: str | None
    stop_detail: str | None
    open: int
    repairs: int
    awaiting: int
    seq: int
    created_at: datetime
    told: tuple[Told, ...]

    @property
    def seen(self) -> int:
        """The last event up to which everything has been told by now; 0 if this look told nothing."""
        return self.told[-1].event.seq if self.told else 0

    @property
    def ended(self) -> bool:
        """Whether the run has ended, and its end is among what has been told."""
        return self.status in RUN_ENDS and (not self.told or self.seen == self.seq)

    @property
    def more(self) -> bool:
        """Whether there are events left to look for at once."""
        return bool(self.told) and self.seen < self.seq

    @property
    def blocked(self) -> bool:
        """Whether the run can go on only after a person has settled or approved a call."""
        return self.status not in RUN_ENDS and 0 < self.repairs + self.awaiting == self.open


def look(connection: Connection, tenant: str, run: UUID, after: int, *, page: int = PAGE) -> Look | None:
    """The run, and its events after number `after`, in order; None if there is no such run.

    One statement, served by the key of the events, whatever their number.
    """
    of_run = {"tenant": tenant, "run": run, "after": after, "page": page}
    found = connection.execute(_LOOK, of_run).fetchall()
    if not found:
        return None
    told = tuple(_told(row[_BEFORE:]) for row in found if row[_BEFORE] is not None)
    return Look(*(*found[0][:_BEFORE], told))


def _told(row: tuple[object, ...]) -> Told:
    *event, tool, label, role, host, pid = row
    process = f"{role} {host}:{pid}" if role is not None else None
    return Told(
        Event(*event),  # type: ignore[arg-type]
        None if tool is None else str(tool),
        None if label is None else str(label),
        process,
    )


@dataclass(frozen=True, slots=True)
class Overview:
    """The fleet at about one instant: a few reads of their own, which need not agree with each other.

    `open` and `ended` count runs by status (`ended` is None when it was not asked for), `unresolved` calls of
    which nobody knows whether their effect happened, of which `repairs` wait for a person, `dead` the steps
    that were set aside because they could not be published or begun.
    """

    now: datetime
    open: Mapping[str, int]
    ended: Mapping[str, int] | None
    queues: tuple[QueueInfo, ...]
    workers: tuple[WorkerInfo, ...]
    unresolved: int
    repairs: int
    dead: int
    held: Epoch | None = None
    """The last recovered epoch that is not released, else the last: nothing new is planned or sent."""
    approvals: int = 0
    """Calls that wait for an approval."""
    owed: int = 0
    """Effects that stopped runs were to offset and did not, although something could."""


def overview(connection: Connection, *, ended: bool) -> Overview:
    """What the whole fleet does. `ended` counts the runs that have ended, which costs a look at each."""
    trouble = connection.execute(_TROUBLE).fetchone()
    assert trouble is not None
    now, unresolved, repairs, dead, approvals, owed = trouble
    return Overview(
        now=now,
        open=dict(connection.execute(_OPEN).fetchall()),
        ended=dict(connection.execute(_ENDED).fetchall()) if ended else None,
        queues=tuple(queues(connection)),
        workers=tuple(workers(connection)),
        unresolved=unresolved,
        repairs=repairs,
        dead=dead,
        held=epochs.last(epochs.held(connection)),
        approvals=approvals,
        owed=owed,
    )


def oldest_wait(found: Overview) -> timedelta | None:
    """How long the step that waits longest for a worker has been due; None if none is due."""
    due = [q.oldest_due_at for q in found.queues if q.oldest_due_at is not None and q.oldest_due_at < NEVER]
    return found.now - min(due) if due else None
