"""What the fleet does: who works, what waits, what needs a person. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

from fencepost.ledger.tail import Overview, oldest_wait
from fencepost.states import Queue
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.holding import do, held
from fencepost_ops.commands.live import Ages, states_by_role
from fencepost_ops.doctor.findings import Area, Finding, Unread

_AREA = Area("fleet")
OVERDUE: Final = timedelta(minutes=1)
LONG_QUEUE: Final = 1000
"""Messages; a relay publishes nothing a second time to a queue this long."""


def judge_fleet(
    found: Overview,
    sessions: Mapping[str, int] | Unread,
    lengths: Mapping[str, int] | None,
    *,
    intake: str,
    limits: Ages,
) -> list[Finding]:
    """Workers, relays, queues and the outbox. `lengths` are those of the queues in Redis, by name; None where
    it could not be asked.
    """
    roles = states_by_role(found, limits)
    working = {role: states["alive"] + states["busy"] for role, states in roles.items()}
    due = {queue.queue: queue.due for queue in found.queues}
    return [
        *([_AREA.problem(held(found.held), do(found.held))] if found.held is not None else []),
        *_relays(sessions),
        *(finding for role in map(str, Queue) for finding in _workers(role, working, due, lengths)),
        *_intake(intake, sessions, (lengths or {}).get(intake, 0)),
        *_sick({s: sum(states[s] for states in roles.values()) for s in ("silent", "stalled")}, limits),
        *_outbox(found),
        *_people(found),
    ]


def _relays(sessions: Mapping[str, int] | Unread) -> Iterator[Finding]:
    if isinstance(sessions, Unread):
        yield _AREA.unread("relays", sessions)
        return
    relays = sessions.get("fencepost relay", 0)
    if relays == 0:
        yield _AREA.problem("no relay is connected: nothing is published", "start one, better two")
    elif relays == 1:
        yield _AREA.note("one relay: while it is away nothing is published", "run two; they share the work")
    else:
        yield _AREA.ok(f"{relays} relays")


def _workers(
    role: str, working: Mapping[str, int], due: Mapping[str, int], lengths: Mapping[str, int] | None
) -> Iterator[Finding]:
    count, waiting, length = working.get(role, 0), due.get(role, 0), (lengths or {}).get(role, 0)
    queue = "its queue unknown" if lengths is None else f"{_count(length, 'message')} in its queue"
    if count == 0 and (waiting or length):
        yield _AREA.problem(
            f"no {role} works; {_count(waiting, 'step')} due, {queue}",
            f"start one: python -m fencepost_workers {role}",
        )
    elif count == 0:
        yield _AREA.warning(
            f"no {role} works: what needs one will wait", f"start one: python -m fencepost_workers {role}"
        )
    elif length > LONG_QUEUE:
        yield _AREA.warning(
            f"{length} messages wait for {_count(count, role)}: they come faster than they are taken",
            f"start more {role}s",
        )
    else:
        yield _AREA.ok(f"{_count(count, role)}; {_count(waiting, 'step')} due, {queue}")


def _intake(queue: str, sessions: Mapping[str, int] | Unread, length: int) -> Iterator[Finding]:
    takers = 0 if isinstance(sessions, Unread) else sessions.get("fencepost intake", 0)
    if length and not takers:
        yield _AREA.problem(
            f"{_count(length, 'run')} in the queue {queue}, and nobody takes them in: each is the only copy",
            "start an intake: python -m fencepost_workers intake",
        )
    elif length > LONG_QUEUE:
        yield _AREA.warning(f"{length} runs wait to be taken in", "start more intakes")


def _count(count: int, role: str) -> str:
    return f"{count} {role}{'' if count == 1 else 's'}"


def _sick(states: Mapping[str, int], limits: Ages) -> Iterator[Finding]:
    if states["silent"]:
        yield _AREA.warning(
            f"{_count(states['silent'], 'worker')} said nothing for more than {spoken(limits.ttl)}: dead "
            "with its host, or without a way to Postgres; a relay hands over what it held",
            "see which: fencepost workers",
        )
    if states["stalled"] and limits.stall is not None:
        yield _AREA.warning(
            f"{_count(states['stalled'], 'worker')} lives and has taken nothing for {spoken(limits.stall)}",
            "see which: fencepost workers; it should be restarted",
        )


def _outbox(found: Overview) -> Iterator[Finding]:
    oldest = oldest_wait(found)
    if oldest is not None and oldest > OVERDUE:
        yield _AREA.warning(
            f"a step has been due for {spoken(oldest)}: nobody takes it, or the fleet is too small",
            "see where it waits: fencepost outbox, fencepost runs --stuck",
        )
    else:
        yield _AREA.ok("no step has been due for more than a minute")
    if found.dead:
        yield _AREA.warning(
            f"{_count(found.dead, 'step')} set aside, which cannot be published or begun",
            "see why: fencepost outbox --dead; mended, they go on with fencepost outbox requeue",
        )


def _people(found: Overview) -> Iterator[Finding]:
    if found.repairs:
        yield _AREA.warning(
            f"{_count(found.repairs, 'call')} in need of a person who says whether the effect happened",
            "fencepost unresolved says of which nobody knows; fencepost repair settles them",
        )
    if found.owed:
        yield _AREA.warning(
            f"{_count(found.owed, 'effect')} that stopped runs were to offset and did not",
            "see them: fencepost runs --owed, fencepost unresolved; fencepost repair --offset or --leave",
        )
    if (asked := found.unresolved - found.repairs) > 0:
        yield _AREA.note(
            f"of {_count(asked, 'call')} the outcome is not known yet; the reconciler asks",
            "see them: fencepost unresolved",
        )
