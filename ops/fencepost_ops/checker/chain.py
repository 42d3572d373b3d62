"""I6, computed anew: the hash chain of a history, and the rows it must have led to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from fencepost_ops.checker.facts import CallRow, EventRow, Key, RunRow
from fencepost_ops.checker.report import Violation, at
from fencepost_ops.checker.story import RunStory

FIRST = "0" * 64
"""What the first event of a history follows."""


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _id(value: UUID | None) -> str | None:
    return None if value is None else str(value)


def body_digest(body: str) -> str:
    """The digest an event's body must carry: SHA-256 of its exact text, domain-separated."""
    return hashlib.sha256(b"fencepost.body.v1\0" + body.encode()).hexdigest()


def header_hash(event: EventRow) -> str:
    """The hash an event must carry: SHA-256 of its header, its body's digest and the hash before it."""
    header: list[Any] = [event.tenant, str(event.run), event.seq, str(event.id), event.type, event.version]
    header += [_id(event.call), event.attempt, event.digest, event.principal, event.worker, event.fence]
    header += [
        event.policy,
        str(event.causation),
        _time(event.recorded_at),
        event.projection,
        event.prev_hash,
    ]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(b"fencepost.event.v1\0" + text.encode()).hexdigest()


def chain(events: Sequence[EventRow]) -> Iterator[Violation]:
    """Every break of the chain: a gap, an edited body, an edited header, an event out of order."""
    before = FIRST
    for number, event in enumerate(events, start=1):
        if event.seq != number:
            yield at(event, f"event {number} is missing")
            return
        if event.prev_hash != before:
            yield at(event, "it does not follow the event before it")
        if body_digest(event.body) != event.digest:
            yield at(event, "its body was changed after it was recorded")
        elif header_hash(event) != event.hash:
            yield at(event, "its header was changed after it was recorded")
        before = event.hash


def rows(
    key: Key, run: RunRow | None, calls: Mapping[UUID, CallRow], events: Sequence[EventRow], story: RunStory
) -> Iterator[Violation]:
    """Every difference between the tables and what the history tells."""
    tenant, run_id = key
    for event in story.strays:
        yield at(event, f"it names call {event.call}, which nobody proposed")
    if run is None:
        yield Violation(f"run {run_id}: it has events and no row", tenant, run_id)
        return
    told = {
        "status": story.status,
        "seq": events[-1].seq if events else 0,
        "head_hash": events[-1].hash if events else FIRST,
    }
    for name, value in told.items():
        if getattr(run, name) != value:
            text = f"run {run_id}: its {name} is {getattr(run, name)}, its history says {value}"
            yield Violation(text, tenant, run_id)
    yield from _call_rows(key, calls, story)


def _call_rows(key: Key, calls: Mapping[UUID, CallRow], story: RunStory) -> Iterator[Violation]:
    tenant, run_id = key
    for call_id in calls.keys() ^ story.calls.keys():
        what = "a row and no events" if call_id in calls else "events and no row"
        yield Violation(f"run {run_id}: call {call_id} has {what}", tenant, run_id, call_id)
    for call_id in calls.keys() & story.calls.keys():
        row, told = calls[call_id], story.calls[call_id]
        for name, has, says in (
            ("state", row.state, told.state),
            ("doubt", row.doubt, told.doubt),
            ("number of attempts", row.attempts, len(told.attempts)),
        ):
            if has != says:
                text = f"{row.named}: its {name} is {has}, its history says {says}"
                yield Violation(text, tenant, run_id, call_id)


def row_fences(
    key: Key, run: RunRow | None, calls: Mapping[UUID, CallRow], story: RunStory
) -> Iterator[Violation]:
    """I5 for the rows: none carries a lower fence than one its history accepted."""
    tenant, run_id = key
    if run is not None and run.fence < story.fence:
        text = f"run {run_id}: its fence is {run.fence}, although {story.fence} was accepted"
        yield Violation(text, tenant, run_id)
    for call_id in calls.keys() & story.calls.keys():
        row, told = calls[call_id], story.calls[call_id]
        if row.fence < told.fence:
            text = f"{row.named}: its fence is {row.fence}, although {told.fence} was accepted"
            yield Violation(text, tenant, run_id, call_id)
