"""How what happens is told while it happens: a run's events line by line, the fleet as a screen or a line.

Pure: looks in, text out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fencepost.clock import rfc3339
from fencepost.ledger.listings import RunInfo
from fencepost.ledger.tail import Look, Overview, Told, oldest_wait
from fencepost.settings import Settings
from fencepost.states import Queue, RunStatus
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.holding import do, held
from fencepost_ops.commands.output import STYLES
from fencepost_ops.commands.sayings import cut, detail
from fencepost_ops.commands.timeline import waits_for

_OWNER: Final = 6  # digits of an owner's token; enough to tell terms of one run apart
_TYPE: Final = 25  # columns; the longest type there is has one less
_CALL: Final = 26  # columns; a longer name pushes what follows
_COUNT_COSTS_AT_MOST: Final = 0.02  # of the time: what ended is counted by looking at every run
STATES: Final = ("alive", "busy", "draining", "stalled", "silent")
_STATE_STYLES: Final = {"draining": "yellow", "stalled": "bold red", "silent": "bold red"}
_OPEN: Final = ("QUEUED", "PLANNING", "ACTING", "STOPPING", "COMPENSATING")
_ENDED: Final = ("COMPLETED", "STOPPED")


@dataclass(frozen=True, slots=True)
class Ages:
    """How long a worker may say nothing, and how long it may get nowhere while its queue has work."""

    ttl: timedelta
    stall: timedelta | None


class Story:
    """One run as it is told: which process stood behind a term is remembered from when it took it."""

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._processes: dict[str, str] = {}
        self._change: tuple[UUID, datetime] | None = None
        self._blocked = False

    def heading(self) -> str:
        """Which run this is."""
        run = self._run
        return (
            f"run {run.run_id}  key {cut(run.run_key)} · tenant {cut(run.tenant)} · "
            f"planner {cut(run.planner)} v{run.planner_version} · created {rfc3339(run.created_at)}"
        )

    def lines(self, look: Look) -> Iterator[Text]:
        """What this look adds. Above the events of one change: its time, who made it, under whose term."""
        # A change may begin before the event that names its process: a run is created by its first claim.
        self._processes |= {
            str(t.event.data.get("owner")): t.process for t in look.told if t.process is not None
        }
        for told in look.told:
            event = told.event
            if (event.causation, event.recorded_at) != self._change:
                self._change = event.causation, event.recorded_at
                yield self._heading_of(told)
            name = _called(told)
            yield Text(f"{event.seq:>9}  {event.type:<{_TYPE}}{name:<{_CALL}}  {detail(event)}".rstrip())
        if look.blocked and not self._blocked:
            where = "approvals" if look.awaiting else "unresolved"
            who = waits_for(look.awaiting, look.repairs)
            yield Text(f"           {who}: `fencepost {where}` says for what", "bold red")
        self._blocked = look.blocked

    def _heading_of(self, told: Told) -> Text:
        event = told.event
        since = f"+{(event.recorded_at - self._run.created_at).total_seconds():.3f}"
        if event.worker is None:
            who = f"by {cut(event.principal)}"
        else:
            who = f"{self._processes.get(event.worker, '?')}  term {event.worker[:_OWNER]}/{event.fence}"
        return Text(f"{since:>9}  {who}", "bold")


def _called(told: Told) -> str:
    attempt = f" #{told.event.attempt}" if told.event.attempt is not None else ""
    return f"{cut(told.tool)} {cut(told.label)}".rstrip() + attempt if told.tool is not None else ""


def event_objects(look: Look) -> Iterator[dict[str, Any]]:
    """The events of a look as objects: all that is recorded, and what it is about."""
    for told in look.told:
        about = {"tool": told.tool, "label": told.label, "process": told.process}
        yield {"kind": "event", **asdict(told.event), **about}


def ending(run: RunInfo, look: Look) -> str:
    """The last line about a run that has ended."""
    why = [cut(said) for said in (look.stop_reason, look.stop_detail) if said]
    after = spoken(look.told[-1].event.recorded_at - run.created_at) if look.told else ""
    return f"{look.status}" + (f" ({': '.join(why)})" if why else "") + (f" after {after}" if after else "")


# -- the fleet ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pace:
    """How many runs had ended of how many when they were last counted, what that cost, and the pace since."""

    at: datetime
    cost_s: float
    ended: Mapping[str, int]
    total: int
    started_per_s: float | None = None
    ended_per_s: float | None = None


def count_due(pace: Pace | None, now: datetime) -> bool:
    """Whether to count again: at once while it costs next to nothing, ever more rarely as it costs more."""
    return pace is None or (now - pace.at).total_seconds() * _COUNT_COSTS_AT_MOST >= pace.cost_s


def paced(before: Pace | None, found: Overview, cost_s: float) -> Pace | None:
    """The pace after one more look; unchanged by one that did not count."""
    if found.ended is None:
        return before
    ended, total = sum(found.ended.values()), sum(found.ended.values()) + sum(found.open.values())
    pace = Pace(found.now, cost_s, found.ended, total)
    if before is None or (span := (found.now - before.at).total_seconds()) <= 0:
        return pace
    # Runs may also leave the ledger.
    started = max(0, total - before.total) / span
    finished = max(0, ended - sum(before.ended.values())) / span
    return Pace(found.now, cost_s, found.ended, total, started, finished)


def ages(settings: Settings) -> Ages:
    """How old a stamp may be, and how old a worker's progress while its queue has work (None: any age)."""
    stall = timedelta(seconds=settings.deaf_s) if settings.deaf_s else None
    return Ages(timedelta(seconds=settings.worker_ttl_s), stall)


def states_by_role(found: Overview, limits: Ages) -> dict[str, Counter[str]]:
    """How many workers of each role are in which state; every role is there, also without a worker."""
    roles: dict[str, Counter[str]] = {str(queue): Counter() for queue in Queue}
    for worker in found.workers:
        roles.setdefault(worker.role, Counter())[worker.state(found.now, limits.ttl, limits.stall)] += 1
    return roles


def overview_object(found: Overview, pace: Pace | None, limits: Ages) -> dict[str, Any]:
    """The overview for a program."""
    oldest = oldest_wait(found)
    return {
        "kind": "overview",
        "at": found.now,
        "runs": {**found.open, **(pace.ended if pace is not None else {})},
        "started_per_s": pace.started_per_s if pace is not None else None,
        "ended_per_s": pace.ended_per_s if pace is not None else None,
        "due": sum(queue.due for queue in found.queues),
        "oldest_due_s": oldest.total_seconds() if oldest is not None else None,
        "queues": found.queues,
        "workers": states_by_role(found, limits),
        "unresolved": found.unresolved,
        "repairs": found.repairs,
        "approvals": found.approvals,
        "owed": found.owed,
        "dead": found.dead,
        "held": found.held,
    }


def overview_line(found: Overview, pace: Pace | None, limits: Ages) -> str:
    """The overview in one line, for a log."""
    states = sum(states_by_role(found, limits).values(), Counter[str]())
    oldest = oldest_wait(found)
    parts = [
        f"open {sum(found.open.values())}{_listed(found.open, _OPEN)}",
        f"ended {sum(pace.ended.values())}{_listed(pace.ended, _ENDED)}" if pace is not None else "",
        _pace(pace),
        f"due {sum(queue.due for queue in found.queues)}" + (f", oldest {spoken(oldest)}" if oldest else ""),
        "workers " + (", ".join(f"{states[state]} {state}" for state in STATES if states[state]) or "none"),
        f"unresolved {found.unresolved}",
        f"owed {found.owed}" if found.owed else "",
        f"dead {found.dead}",
        f"HELD since {rfc3339(found.held.opened_at)[:19]}Z: fencepost recover" if found.held else "",
    ]
    return f"{rfc3339(found.now)[:19]}Z  " + " · ".join(filter(None, parts))


def _listed(counts: Mapping[str, int], order: tuple[str, ...]) -> str:
    said = ", ".join(f"{counts[status]} {status}" for status in order if counts.get(status))
    return f" ({said})" if said else ""


def _pace(pace: Pace | None) -> str:
    return f"{pace.ended_per_s:.1f} ended/s" if pace is not None and pace.ended_per_s is not None else ""


def overview_screen(found: Overview, pace: Pace | None, limits: Ages) -> Group:
    """The overview for a terminal."""
    warned = [Text(f"{held(found.held)}; {do(found.held)}", "bold red"), Text()] if found.held else []
    return Group(
        Text(f"fencepost  {rfc3339(found.now)[:19]}Z", "bold"),
        Text(),
        *warned,
        _runs_table(found, pace),
        Text(),
        _queues_table(found),
        Text(),
        _workers_table(found, limits),
        Text(),
        _trouble(found),
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _runs_table(found: Overview, pace: Pace | None) -> Table:
    ended = pace.ended if pace is not None else {}
    counts = {**found.open, **ended}
    table = _table("RUNS", *(str(status) for status in RunStatus), "STARTED/S", "ENDED/S")
    rates = (pace.started_per_s, pace.ended_per_s) if pace is not None else (None, None)
    cells = [Text(str(counts.get(status, 0)), STYLES.get(status, "")) for status in map(str, RunStatus)]
    table.add_row("", *cells, *("" if rate is None else f"{rate:.1f}" for rate in rates))
    return table


def _queues_table(found: Overview) -> Table:
    table = _table("QUEUE", "DUE", "OLDEST", "HELD", "FOR A PERSON", "ROWS")
    by_name = {queue.queue: queue for queue in found.queues}
    for name in (*map(str, Queue), *sorted(by_name.keys() - set(map(str, Queue)))):
        queue = by_name.get(name)
        if queue is None:
            table.add_row(name, "0", "", "0", "0", "0")
            continue
        oldest = spoken(found.now - queue.oldest_due_at) if queue.oldest_due_at is not None else ""
        table.add_row(name, *map(str, (queue.due, oldest, queue.held, queue.waiting, queue.rows)))
    return table


def _workers_table(found: Overview, limits: Ages) -> Table:
    table = _table("WORKERS", *(state.upper() for state in STATES), "BUSY", "SLOTS")
    for role, states in states_by_role(found, limits).items():
        cells = [Text(str(states[s]), _STATE_STYLES.get(s, "") if states[s] else "dim") for s in STATES]
        of_role = [worker for worker in found.workers if worker.role == role]
        load = (sum(w.busy or 0 for w in of_role), sum(w.slots or 0 for w in of_role))
        table.add_row(Text(role, "" if states else "bold red"), *cells, *map(str, load))
    return table


def _trouble(found: Overview) -> Text:
    said = [f"unresolved calls {found.unresolved}"]
    if found.repairs:
        said.append(f"{found.repairs} wait for a person (`fencepost unresolved`)")
    if found.owed:
        said.append(f"{found.owed} effects are owed an offset (`fencepost runs --owed`)")
    if found.approvals:
        said.append(f"{found.approvals} wait for an approval (`fencepost approvals`)")
    said.append(f"steps set aside {found.dead}" + (" (`fencepost outbox --dead`)" if found.dead else ""))
    return Text(" · ".join(said), "bold red" if found.repairs or found.dead or found.owed else "")
