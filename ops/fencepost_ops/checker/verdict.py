"""`check`: the ledger and the services' own books, held against the invariants; one verdict each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import psycopg

from fencepost.states import RunStatus
from fencepost_ops.checker import chain, effects, openings
from fencepost_ops.checker.books import BookReader, Books, read_books
from fencepost_ops.checker.effects import Ledgered, Started, Terms
from fencepost_ops.checker.facts import CallRow, EventRow, Key, Snapshot, Tables, snapshot
from fencepost_ops.checker.replayed import replay_faults
from fencepost_ops.checker.report import Findings, Report, Totals
from fencepost_ops.checker.rules import RULES, attempts
from fencepost_ops.checker.story import RunStory, body_of

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
        seen = _Seen(tables)
        _histories(findings, taken, seen)
    findings.broken("I6.replay", replay_faults(connection, tables.runs))
    after = read_books(books)
    ledger = Ledgered(tables, seen.started, seen.people)
    _tables(findings, ledger, known, settled=settled)
    effects.check_effects(findings, ledger, after, before, known, tolerance, whole=runs is None)
    return Report(
        findings.verdicts(), _totals(seen, after, ledger, whole=runs is None), tuple(openings.waiting(tables))
    )


class _Seen:
    """What is kept of the histories once their rules have been applied."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.started: list[Started] = []
        self.people: dict[UUID, str] = {}
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
            for number, attempt in call.attempts.items():
                made = attempt.started
                until = _moment(body_of(made).get("deadline"))
                self.started.append(Started(*key, call.id, number, made.recorded_at, made.fence, until))


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def _histories(findings: Findings, taken: Snapshot, seen: _Seen) -> None:
    for key, events in taken.histories():
        seen.keep(key, events, _told(findings, seen, key, events))
    for key in seen.tables.runs.keys() - seen.told:
        # No event yet: it has just been enqueued, or its history is gone.
        _told(findings, seen, key, [])


def _told(findings: Findings, seen: _Seen, key: Key, events: Sequence[EventRow]) -> RunStory:
    run, calls = seen.tables.runs.get(key), seen.calls.get(key, {})
    story = RunStory() if run is None else RunStory(run.budget, run.on_stop)
    for event in events:
        body = body_of(event)
        for invariant, rule in RULES:
            findings.broken(invariant, rule(story, event, body))
        story.tell(event, body)
    findings.broken("I4", attempts(key, story))
    findings.broken("I5", chain.row_fences(key, run, calls, story))
    findings.broken("I6", chain.chain(events))
    findings.broken("I6", chain.rows(key, run, calls, events, story))
    _count(findings, events, story)
    return story


def _count(findings: Findings, events: Sequence[EventRow], story: RunStory) -> None:
    findings.looked("I4", sum(len(c.attempts) for c in story.calls.values()))
    findings.looked("I5", 1 + len(story.calls))
    findings.looked("I6", len(events))
    findings.looked("I7", story.status == RunStatus.COMPLETED)
    findings.looked("I8", story.ended is not None)
    findings.looked("I9", len(story.calls))
    findings.looked("I6.replay")
    findings.looked("I11", sum(c.compensates is not None for c in story.calls.values()))


def _tables(findings: Findings, ledger: Ledgered, terms: Terms, *, settled: bool) -> None:
    tables = ledger.tables
    findings.broken("I9", effects.limits(ledger, terms))
    unknown = {(c.tool, c.tool_version) for c in ledger.calls.values() if c.attempts} - terms.keys()
    for tool, version in sorted(unknown):
        findings.note("I9", f"the attempt limit of {tool} version {version} is not known here")
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
