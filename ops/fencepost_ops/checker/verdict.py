"""`check`: the ledger and the services' own books, held against the invariants; one verdict each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg

from fencepost.states import RunStatus
from fencepost_ops.checker import chain, dispatches, effects, openings, spending, wire
from fencepost_ops.checker.allowances import Counters
from fencepost_ops.checker.bodies import body_of
from fencepost_ops.checker.books import BookReader, Books, Sides, read_books
from fencepost_ops.checker.facts import CallRow, Common, EventRow, Key, Snapshot, Tables, snapshot
from fencepost_ops.checker.families import Families
from fencepost_ops.checker.keys import keys, results_taken
from fencepost_ops.checker.ledgered import Ledgered, Owners, Started, started
from fencepost_ops.checker.purse import Limits, Purse
from fencepost_ops.checker.replayed import replay_faults
from fencepost_ops.checker.report import Findings, Report, Totals
from fencepost_ops.checker.rules import attempts, rules_for
from fencepost_ops.checker.standing import Standings
from fencepost_ops.checker.story import RunStory
from fencepost_ops.checker.terms import Terms

TOLERANCE: Final = timedelta(seconds=1)
"""How far a service's clock may be behind the ledger's."""
GROUP: Final = 500
"""Runs that are held in memory at once, with their calls; of their events those of one."""
AMOUNTS: Final = "whether effects have the amounts asked for: fencepost audit DEPENDENCY compares them"
Progress = Callable[[int, int], object]


def check(
    connection: psycopg.Connection[Any],
    books: BookReader | None,
    *,
    settled: bool,
    terms: Terms | None = None,
    runs: Collection[UUID] | None = None,
    tolerance: timedelta = TOLERANCE,
    progress: Progress = lambda _runs, _events: None,
    group: int = GROUP,
) -> Report:
    """Hold everything against everything. Needs a reader's login and a connection outside a transaction.

    `settled`: faults have ceased and the fleet had its time, so that every run must have ended or wait for a
    person; without it a running fleet may be checked. `terms` say what each tool's contract promises and
    allows; of a tool they do not name everything is asserted. `runs`: these alone, else all. `progress` is
    told of how many runs and events were read.

    Runs are read in groups of about `group`, in one snapshot, and but for the books, what allowances count
    and what is found, nothing is kept of a group: a ledger of any size takes the memory of one.
    """
    before = read_books(books)  # what they hold now, the ledger must know when it is read next
    with snapshot(connection, runs) as taken:
        common = taken.common()
        now = read_books(books)
        owners = Owners(taken.keyed(), (*before.effects, *now.effects))
        sides = Sides(owners.own(before), owners.own(now))
        checking = _Checking(Findings(), taken, common, terms or {}, tolerance, whole=runs is None)
        for ids in taken.groups(group):
            checking.group(ids, sides, settled=settled)
            progress(checking.runs, checking.events)
        checking.rest(sides)
    checking.findings.broken("I6.replay", replay_faults(connection, None if runs is None else checking.keys))
    return checking.report(now.services)


class _Checking:
    """One check under way: what is found, and how much was looked at."""

    def __init__(
        self,
        findings: Findings,
        taken: Snapshot,
        common: Common,
        terms: Terms,
        tolerance: timedelta,
        *,
        whole: bool,
    ) -> None:
        self.findings = findings
        self.runs = self.events = 0
        self.keys: list[Key] = []
        self._taken = taken
        self._common = common
        self._terms = terms
        self._tolerance = tolerance
        self._whole = whole
        self._standings = Standings.of(common.changes, tolerance)
        self._counters = Counters()
        self._counts = dict.fromkeys(("completed", "stopped", "calls", "attempts", "effects"), 0)
        self._waiting: list[str] = []

    def group(self, ids: list[UUID], sides: Sides, *, settled: bool) -> None:
        """Hold these runs against each other, and against what the books say of them."""
        tables = self._taken.tables(ids, self._common)
        seen = _Seen(tables, self._terms, self._standings, self._counters)
        _histories(self.findings, self._taken.histories(ids), seen)
        seen.families.judge(self.findings, tables)
        ledger = Ledgered(tables, seen.started, seen.people, seen.absent, seen.taken)
        self.findings.broken("I6", keys(ledger))
        self.findings.broken("I1", results_taken(ledger))
        _tables(self.findings, tables, settled=settled)
        self._books(ledger, *sides.of(ledger))
        self._add(tables, seen)

    def rest(self, sides: Sides) -> None:
        """What belongs to no group: counters, and what the books tell of what nobody knows."""
        tables = Tables({}, {}, [], 0, epochs=self._common.epochs, whole=self._whole,
                        allowances=self._common.allowances, read_at=self._common.read_at)  # fmt: skip
        self.findings.broken("I13", self._counters.broken(tables))
        self.findings.looked("I13", self._counters.count)
        if self._counters.count and not self._whole:
            self.findings.note(
                "I13", "counters of allowances also count runs that were not read: check --all adds up"
            )
        for unseen in self._counters.unseen(tables):
            self.findings.note("I13", unseen)
        before, now = sides.left()
        origins = [one.origin for one in (*now.effects, *before.effects)]
        origins += [one.origin for one in before.requests]
        calls = {origin.call for origin in origins if origin.call is not None}
        self._books(self._strange(calls), before, now)
        if before.services:
            wire.uncounted(self.findings, sides.before)
            self.findings.note("I1", AMOUNTS)

    def _strange(self, calls: set[UUID]) -> Ledgered:
        """Calls that effects name as theirs under a key that is not those calls'."""
        ids = self._taken.runs_of(calls)
        tables = self._taken.tables(ids, self._common)
        seen = _Seen(tables, self._terms, self._standings, Counters())
        _histories(Findings(), self._taken.histories(ids), seen)  # their own faults are told already
        ledger = Ledgered(tables, seen.started, seen.people, seen.absent)
        ledger.of_key.clear()
        return ledger

    def _books(self, ledger: Ledgered, before: Books, now: Books) -> None:
        how: dict[str, Any] = {"whole": self._whole}
        effects.check_effects(self.findings, ledger, now, before, self._terms, self._tolerance, **how)
        wire.check_wire(self.findings, ledger, before, self._terms, self._tolerance, **how)
        self._counts["effects"] += sum(self._whole or e.key in ledger.of_key for e in now.effects)

    def _add(self, tables: Tables, seen: _Seen) -> None:
        states = [run.status for run in tables.runs.values()]
        self.runs += len(states)
        self.events += seen.events
        self._counts["completed"] += states.count(RunStatus.COMPLETED)
        self._counts["stopped"] += states.count(RunStatus.STOPPED)
        self._counts["calls"] += len(tables.calls)
        self._counts["attempts"] += len(seen.started)
        self._waiting += openings.waiting(tables)
        if not self._whole:
            self.keys += tables.runs

    def report(self, services: frozenset[str]) -> Report:
        """What came of it."""
        totals = Totals(runs=self.runs, events=self.events, evidence=self._common.evidence, **self._counts)
        return Report(self.findings.verdicts(), totals, tuple(self._waiting), tuple(sorted(services)))


class _Seen:
    """What is kept of the histories of a group once their rules have been applied."""

    def __init__(self, tables: Tables, terms: Terms, standings: Standings, counters: Counters) -> None:
        self.tables = tables
        self.terms = terms
        self.standings = standings
        self.counters = counters
        self.families = Families()
        self.started: list[Started] = []
        self.people: dict[UUID, str] = {}
        self.absent: set[UUID] = set()
        self.taken: dict[UUID, tuple[str | None, str | None]] = {}
        self.events = 0
        self.told: set[Key] = set()
        self.calls: dict[Key, dict[UUID, CallRow]] = {}
        for call in tables.calls.values():
            self.calls.setdefault((call.tenant, call.run), {})[call.id] = call

    def keep(self, key: Key, events: Sequence[EventRow], story: RunStory) -> None:
        self.told.add(key)
        self.events += len(events)
        for call in story.calls.values():
            if call.repaired_by is not None:
                self.people[call.id] = call.repaired_by
            if call.absent_end:
                self.absent.add(call.id)
            if call.taken is not None:
                self.taken[call.id] = call.taken
            self.started += started(key, call)
        self.families.keep(key, story)
        self.counters.forget()


def _histories(findings: Findings, histories: Iterable[tuple[Key, list[EventRow]]], seen: _Seen) -> None:
    for key, events in histories:
        seen.keep(key, events, _told(findings, seen, key, events))
    for key in seen.tables.runs.keys() - seen.told:
        # No event yet: it has just been enqueued, or its history is gone.
        _told(findings, seen, key, [])


def _told(findings: Findings, seen: _Seen, key: Key, events: Sequence[EventRow]) -> RunStory:
    run, calls = seen.tables.runs.get(key), seen.calls.get(key, {})
    story = RunStory.of(run, seen.terms)
    purse = Purse(Limits.of(run))
    for event in events:
        body = body_of(event)
        findings.broken("I13", purse.tell(story, event, body))
        for invariant, rule in rules_for(event.type):
            findings.broken(invariant, rule(story, event, body))
        if event.type == "ApprovalDecided":
            findings.broken("I3", seen.standings.approved(story, event, body))
        story.tell(event, body)
        findings.broken("I13", seen.counters.tell(story, event, body))
    findings.broken("I3", dispatches.rows(key, calls, story))
    findings.broken("I3", seen.standings.sent(story))
    findings.broken("I4", attempts(key, story))
    findings.broken("I5", chain.row_fences(key, run, calls, story))
    findings.broken("I6", chain.chain(events))
    findings.broken("I6", chain.rows(key, run, calls, events, story))
    findings.broken("I9", dispatches.limits(key, story))
    findings.broken("I13", spending.counters(key, run, len(events), story))
    findings.broken("I13", purse.ends(key, run, story))
    dispatches.unasserted(findings, story)
    _count(findings, events, story)
    return story


def _count(findings: Findings, events: Sequence[EventRow], story: RunStory) -> None:
    made = [attempt for call in story.calls.values() for attempt in call.attempts.values()]
    first = sum(not a.repeat for c in story.calls.values() if not c.compensates for a in c.attempts.values())
    findings.looked("I3", len(made))
    findings.looked("I4", len(made))
    findings.looked("I5", 1 + len(story.calls))
    findings.looked("I6", len(events))
    findings.looked("I7", story.status == RunStatus.COMPLETED)
    findings.looked("I8", story.ended is not None)
    findings.looked("I9", len(story.calls))
    findings.looked("I6.replay")
    findings.looked("I10", first)
    findings.looked("I11", sum(c.compensates is not None for c in story.calls.values()))
    findings.looked("I13")


def _tables(findings: Findings, tables: Tables, *, settled: bool) -> None:
    findings.broken("I11", openings.compensations(tables))
    findings.looked("I12", len(tables.runs))
    findings.broken("I12", openings.rows(tables))
    if settled:
        findings.broken("I12", openings.unsettled(tables))
    else:
        findings.note("I12", "the fleet may be at work: that everything ends was not asserted")
