"""I11 and I12 on the tables: compensations, what is still open, and what the outbox holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime

from fencepost.states import CallState, RunStatus
from fencepost_ops.checker.facts import CallRow, Key, OutboxRow, RunRow, Tables
from fencepost_ops.checker.report import Violation
from fencepost_ops.checker.story import ENDED

C, R = CallState, RunStatus

NEVER = datetime(9999, 1, 1, tzinfo=UTC)
"""When a row is due that waits for a person or for another step."""
RUN_ENDED = frozenset({R.COMPLETED, R.STOPPED})
PERSONS = frozenset({C.NEEDS_REPAIR, C.AWAITING_APPROVAL})
_DEAD = frozenset({C.REJECTED, C.FAILED, C.CANCELLED})


def compensations(tables: Tables) -> Iterator[Violation]:
    """I11: its own key, an effect of its own run to offset, at most one living per effect, an outcome.

    What compensates an effect once more, because the one before it failed, has the same key as that.
    """
    of_key: dict[tuple[str, str], dict[str, CallRow]] = defaultdict(dict)
    of_effect: dict[tuple[str, str], list[CallRow]] = defaultdict(list)
    forward: dict[tuple[str, str], list[CallRow]] = defaultdict(list)
    for call in tables.calls.values():
        if call.compensates is not None:
            of_effect[call.tenant, call.compensates].append(call)
            if call.operation is not None:
                of_key[call.tenant, call.operation].setdefault(call.compensates, call)
        elif call.operation is not None:
            forward[call.tenant, call.operation].append(call)
    for several in of_key.values():
        if len(several) > 1:
            names = ", ".join(c.named for c in several.values())
            yield _names(
                next(iter(several.values())), f"one key for compensations of several effects: {names}"
            )
    for (tenant, key), made in of_effect.items():
        living = [c for c in made if c.state not in _DEAD]
        if len(living) > 1:
            names = ", ".join(c.named for c in living)
            yield _names(living[0], f"{len(living)} compensations of one effect: {names}")
        for call in made:
            yield from _compensation(tables, call, forward, tenant, key)


def _compensation(
    tables: Tables, call: CallRow, forward: dict[tuple[str, str], list[CallRow]], tenant: str, key: str
) -> Iterator[Violation]:
    run = tables.runs.get((tenant, call.run))
    if call.operation is None and call.attempts:
        yield _names(call, f"compensation {call.named} was sent without a key")
    if call.operation is not None and (tenant, call.operation) in forward:
        yield _names(call, f"compensation {call.named} has the key of a forward call")
    if not any(c.run == call.run for c in forward.get((tenant, key), ())):
        yield _names(call, f"compensation {call.named} offsets an effect that is not its run's")
    if run is not None and run.status in RUN_ENDED and call.state not in ENDED | PERSONS:
        yield _names(call, f"compensation {call.named} is {call.state} although its run has ended")


def rows(tables: Tables) -> Iterator[Violation]:
    """I12: every open subject has its outbox row, and nothing that has ended has one, but for a call that is
    looked at again, because its run's end has changed.
    """
    wanted: dict[Key, RunRow | CallRow] = {k: r for k, r in tables.runs.items() if r.status not in RUN_ENDED}
    wanted |= {k: c for k, c in tables.calls.items() if c.state not in ENDED}
    has = {(row.tenant, row.subject): row for row in tables.outbox}
    for key in wanted.keys() - has.keys():
        yield _missing(wanted[key])
    for key in has.keys() - wanted.keys():
        row = has[key]
        if (call := tables.calls.get(key)) is not None and call.child is not None:
            continue  # its run's end has changed since: somebody is about to look at it again
        text = (
            f"run {row.run}: the outbox has a row of {row.kind} {row.subject}, which has ended or never was"
        )
        yield Violation(text, row.tenant, row.run, row.subject if row.kind == "call" else None)


def _missing(subject: RunRow | CallRow) -> Violation:
    if isinstance(subject, RunRow):
        text = f"run {subject.id} is {subject.status} and has no outbox row: nothing will ever happen to it"
        return Violation(text, subject.tenant, subject.id)
    text = f"run {subject.run}: {subject.named} is {subject.state} and has no outbox row"
    return Violation(text, subject.tenant, subject.run, subject.id)


def waiting(tables: Tables) -> list[str]:
    """What waits for a person, and how that person answers."""
    asked = {
        C.NEEDS_REPAIR: "fencepost repair",
        C.AWAITING_APPROVAL: "fencepost approve",
    }
    calls = [
        f"run {call.run}: {call.named} waits for an operator: {asked[CallState(call.state)]} {call.id}"
        for call in tables.calls.values()
        if call.state in PERSONS
    ]
    return calls + [
        f"run {row.run}: {row.kind} {row.subject} is set aside: fencepost outbox requeue {row.subject}"
        for row in tables.outbox
        if row.dead_at is not None
    ]


def unsettled(tables: Tables) -> Iterator[Violation]:
    """I12, once faults have ceased: every run has ended or waits for a person, and the outbox has drained."""
    open_calls: dict[Key, list[CallRow]] = defaultdict(list)
    for call in tables.calls.values():
        if call.state not in ENDED:
            open_calls[call.tenant, call.run].append(call)
    # What was set aside waits for a person as well, and whatever waits for it.
    aside = {(row.tenant, row.subject) for row in tables.outbox if row.dead_at is not None}
    excused: set[Key] = set(aside)
    for key, run in tables.runs.items():
        left = open_calls.get(key, [])
        persons = {(c.tenant, c.id) for c in left if c.state in PERSONS or (c.tenant, c.id) in aside}
        busy = [c for c in left if (c.tenant, c.id) not in persons]
        excused |= persons
        if key in aside and not busy:
            continue
        if busy:
            names = ", ".join(f"{c.named} {c.state}" for c in busy)
            yield Violation(
                f"run {run.id} is {run.status} and not settled: {names}", run.tenant, run.id, busy[0].id
            )
        elif run.status not in RUN_ENDED and not left:
            yield Violation(f"run {run.id} is {run.status}, and nobody is to do anything", run.tenant, run.id)
        elif run.status not in RUN_ENDED:
            excused.add(key)
    yield from _undrained(tables.outbox, excused)


def _undrained(outbox: list[OutboxRow], excused: set[Key]) -> Iterator[Violation]:
    for row in outbox:
        if (row.tenant, row.subject) not in excused and row.due_at < NEVER:
            text = f"run {row.run}: the outbox still holds {row.kind} {row.subject} for the {row.queue}"
            yield Violation(text, row.tenant, row.run, row.subject if row.kind == "call" else None)


def _names(call: CallRow, text: str) -> Violation:
    return Violation(f"run {call.run}: {text}", call.tenant, call.run, call.id, key=call.operation)
