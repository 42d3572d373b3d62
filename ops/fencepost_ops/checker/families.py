"""Runs that calls start, held against each other: what is above says what is below, and the other way round.

| asked | of |
|---|---|
| I1 | one run per call at most; of one key, one that was not settled as a failure |
| I2 | each run below another was named by an event of its parent, before it was there |
| I4 | a call is settled by the end of its run as that end was: its result, or a failure that left nothing |
| I10 | a run ends before the one above it, but for what offsets an effect |
| I11 | it acts for the principal of the run above it |

What was to offset an effect did so only where its run COMPLETED; what comes to light of a run later reopens
its call (R9). Of runs that were not read nothing is asked. That what they use adds up is I13's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fencepost.states import CallState, RunStatus
from fencepost_ops.checker.facts import EventRow, Key, RunRow, Tables
from fencepost_ops.checker.report import Findings, Violation, at
from fencepost_ops.checker.story import CallStory, RunStory

C, R = CallState, RunStatus


@dataclass(slots=True)
class Families:
    """What histories tell of the runs below theirs."""

    born: dict[Key, tuple[EventRow, CallStory | None]] = field(default_factory=dict)
    heard: list[tuple[EventRow, dict[str, Any], UUID, CallStory]] = field(default_factory=list)
    twice: list[EventRow] = field(default_factory=list)
    keys: Counter[tuple[str, str]] = field(default_factory=Counter)

    def keep(self, key: Key, story: RunStory) -> None:
        """What one history tells, once it was told to its end."""
        starting: set[UUID] = set()
        of_call: dict[UUID, UUID] = {}
        for child, event in story.born.items():
            call = story.calls.get(event.call) if event.call is not None else None
            self.born[key[0], child] = (event, call)
            if event.call is None or call is None:
                continue
            if event.call in starting:
                self.twice.append(event)
            starting.add(event.call)
            of_call[event.call] = child
            if call.operation is not None and call.state not in (C.FAILED, C.REJECTED, C.CANCELLED):
                self.keys[key[0], call.operation] += 1
        for event, body in story.heard:
            if event.call in of_call:
                self.heard.append((event, body, of_call[event.call], story.calls[event.call]))

    def judge(self, findings: Findings, tables: Tables) -> None:
        """Hold it against the rows."""
        findings.broken("I1", self._several())
        findings.broken("I2", self._unnamed(tables))
        findings.broken("I4", self._misheard(tables))
        findings.broken("I10", self._outlives(tables))
        findings.broken("I11", self._strangers(tables))
        findings.looked("I1", len(self.keys))
        unread = sum(key not in tables.runs for key in self.born) if not tables.whole else 0
        findings.tally("I2", unread, "runs that calls have started were not read: check --all holds them")

    def _several(self) -> Iterator[Violation]:
        for event in self.twice:
            yield at(event, "a call has started a second run")
        for (tenant, key), count in self.keys.items():
            if count > 1:
                yield Violation(f"{count} runs were started for one intent", tenant, key=key)

    def _unnamed(self, tables: Tables) -> Iterator[Violation]:
        for key, run in tables.runs.items():
            if run.parent is None or (run.tenant, run.parent) not in tables.runs:
                continue
            event, _ = self.born.get(key, (None, None))
            if event is None or (event.run, event.call) != (run.parent, run.parent_call):
                text = f"run {run.id} stands below run {run.parent}, whose history does not say so"
                yield Violation(text, run.tenant, run.id)
        for (tenant, child), (event, _) in self.born.items():
            if tables.whole and (tenant, child) not in tables.runs:
                yield at(event, f"it started run {child}, and there is none")

    def _misheard(self, tables: Tables) -> Iterator[Violation]:
        asked = {(row.tenant, row.subject) for row in tables.outbox}
        for event, body, child, call in self.heard:
            run = tables.runs.get((event.tenant, child))
            stands = call.state == body.get("to") and (event.tenant, call.id) not in asked
            offsets = call.compensates is not None
            if run is not None and (wrong := _otherwise(run, body, stands, offsets)) is not None:
                yield at(event, f"it was settled by the end of run {child}, {wrong}")

    def _outlives(self, tables: Tables) -> Iterator[Violation]:
        for run, parent, call in self._pairs(tables):
            offsets = call is not None and call.compensates
            late = run.deadline is not None and parent.deadline is not None and run.deadline > parent.deadline
            if late and not offsets:
                text = f"run {run.id} may take until {run.deadline}, the run above until {parent.deadline}"
                yield Violation(text, run.tenant, run.id)

    def _strangers(self, tables: Tables) -> Iterator[Violation]:
        for run, parent, _ in self._pairs(tables):
            if run.principal != parent.principal:
                text = f"run {run.id} acts for {run.principal}, the run above it for {parent.principal}"
                yield Violation(text, run.tenant, run.id)
            root = parent.root or parent.id
            if (run.root, run.depth) != (root, parent.depth + 1):
                yield Violation(f"run {run.id} does not stand below run {parent.id}", run.tenant, run.id)

    def _pairs(self, tables: Tables) -> Iterator[tuple[RunRow, RunRow, CallStory | None]]:
        for key, run in tables.runs.items():
            parent = tables.runs.get((run.tenant, run.parent)) if run.parent is not None else None
            if parent is not None:
                yield run, parent, self.born.get(key, (None, None))[1]


def _otherwise(run: RunRow, body: dict[str, Any], stands: bool, offsets: bool) -> str | None:
    """What of a call's end is not so by its run's; a stopped one may have been taken up again since.

    `stands`: the call is still where that end has put it, and nobody is about to look at it again.
    """
    to = body.get("to")
    if run.status == R.COMPLETED:
        if to != C.SUCCEEDED:
            return f"which COMPLETED, as {to}"
        return None if body.get("result") == run.result else "with another result than that run had"
    if run.status not in (R.STOPPED, R.COMPENSATING):
        return f"which is {run.status}"
    if body.get("status") != R.STOPPED:
        return f"told as {body.get('status')}, and it is {run.status}"
    if offsets and to == C.SUCCEEDED:
        return "which gave up, as an effect that was offset"
    if run.status == R.STOPPED and to == C.FAILED and stands and (run.effects or run.unknowns):
        return f"as {to}, and {run.effects} of its effects are not offset, {run.unknowns} are not known"
    return None
