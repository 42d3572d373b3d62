"""`check`: the ledger and the services' own books, held against the invariants; one verdict each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg

from fencepost.states import RunStatus
from fencepost_ops.checker import chain, dispatches, effects, openings, spending, wire
from fencepost_ops.checker.allowances import Counters
from fencepost_ops.checker.bodies import body_of
from fencepost_ops.checker.books import BookReader, Books, read_books
from fencepost_ops.checker.facts import CallRow, EventRow, Key, Snapshot, Tables, snapshot
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


def check(
    connection: psycopg.Connection[Any],
    books: BookReader | None,
    *,
    settled: bool,
    terms: Terms | None = None,
    runs: Collection[UUID] | None = None,
    tolerance: timedelta = TOLERANCE,
) -> Report:
    """Hold everything against everything. Needs a reader's login and a connection outside a transaction.

    `settled`: faults have ceased and the fleet had its time, so that every run must have ended or wait for a
    person; without it a running fleet may be checked. `terms` say what each tool's contract promises and
    allows; of a tool they do not name everything is asserted. `runs`: these alone, else all.
    """
    findings = Findings()
    known = terms or {}
    before = read_books(books)  # what they hold now, the ledger must know when it is read next
    with snapshot(connection, runs) as taken:
        tables = taken.tables()
        seen = _Seen(tables, known, Standings.of(tables.changes, tolerance))
        _histories(findings, taken, seen)
    seen.families.judge(findings, tables)
    findings.broken("I13", seen.counters.broken(tables))
    findings.looked("I13", seen.counters.count)
    if seen.counters.count and not tables.whole:
        findings.note("I13", "counters of allowances also count runs that were not read: check --all adds up")
    for unseen in seen.counters.unseen(tables):
        findings.note("I13", unseen)
    findings.broken("I6.replay", replay_faults(connection, tables.runs))
    after = read_books(books)
    ledger = Ledgered(tables, seen.started, seen.people, seen.absent, seen.taken)
    findings.broken("I6", keys(ledger))
    findings.broken("I1", results_taken(ledger))
    owners = Owners(ledger, after.effects)
    before, after = owners.own(before), owners.own(after)
    _tables(findings, tables, settled=settled)
    whole = runs is None
    effects.check_effects(findings, ledger, after, before, known, tolerance, whole=whole)
    wire.check_wire(findings, ledger, before, known, tolerance, whole=whole)
    return Report(
        findings.verdicts(),
        _totals(seen, after, ledger, whole=whole),
        tuple(openings.waiting(tables)),
        tuple(sorted(after.services)),
    )


class _Seen:
    """What is kept of the histories once their rules have been applied."""

    def __init__(self, tables: Tables, terms: Terms, standings: Standings) -> None:
        self.tables = tables
        self.terms = terms
        self.standings = standings
        self.counters = Counters()
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


def _histories(findings: Findings, taken: Snapshot, seen: _Seen) -> None:
    for key, events in taken.histories():
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


def _totals(seen: _Seen, books: Books, ledger: Ledgered, *, whole: bool) -> Totals:
    states = [run.status for run in seen.tables.runs.values()]
    return Totals(
        runs=len(states),
        completed=states.count(RunStatus.COMPLETED),
        stopped=states.count(RunStatus.STOPPED),
        calls=len(seen.tables.calls),
        attempts=len(seen.started),
        events=seen.events,
        evidence=seen.tables.evidence,
        effects=sum(whole or e.key in ledger.of_key for e in books.effects),
    )
