"""One run's history as lines and cells for people. Pure: `listings.History` in, text out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final
from uuid import UUID

from rich.text import Text

from fencepost.canonical import sanitize
from fencepost.clock import NEVER, rfc3339
from fencepost.events import Event, EventType
from fencepost.ledger.listings import History, NextStep, WorkerInfo
from fencepost.states import RUN_ENDS, CallState
from fencepost.subjects import Call
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.output import when
from fencepost_ops.commands.sayings import cut, detail

EVENT_COLUMNS: Final = ["TIME>", "EVENT!", "CALL", "DETAIL"]
CALL_COLUMNS: Final = [
    "TURN",
    "TOOL",
    "LABEL?",
    "STATE!",
    "ATTEMPTS>",
    "RECEIPT",
    "RESULT OR REASON",
    "CALL!?",
]
_BODY: Final = 4000  # characters of one event body at most
_OWNER: Final = 6  # digits of an owner's token; enough to tell terms of one run apart
E = EventType


def header(history: History) -> Iterator[str]:
    """Who asked for the run, and how far it came."""
    run = history.run
    stopped = f" ({run.stop_reason}: {cut(run.stop_detail)})" if run.stop_detail else ""
    if run.stop_reason and not stopped:
        stopped = f" ({run.stop_reason})"
    blocked = run.status not in RUN_ENDS and 0 < run.repairs + run.awaiting == run.open
    if run.owed is not None:
        stopped += f", {len(json.loads(run.owed))} effects owed an offset"
    waits = f", {waits_for(run.awaiting, run.repairs)}" if blocked else ""
    yield f"run {run.id}  {run.status}{stopped}{waits}"
    yield f"key {cut(run.run_key)} · tenant {cut(run.tenant)} · principal {cut(run.principal)}"
    yield f"planner {cut(run.planner)} v{run.planner_version} · on stop: {run.on_stop}"
    if run.parent is not None:
        yield f"started by call {run.parent_call} of run {run.parent} · depth {run.depth} · root {run.root}"
    deadline = "" if run.status in RUN_ENDS else f" ({when(run.deadline, history.now)})"
    age = spoken(history.now - run.created_at)
    yield f"created {rfc3339(run.created_at)} ({age} ago) · deadline {rfc3339(run.deadline)}{deadline}"
    yield f"turns {run.turn} · calls {run.calls} · attempts {run.attempts} · effects not offset {run.effects}"
    if run.preview is not None:
        yield f"result {cut(run.preview)}"
    if run.tainted is not None:
        yield f"tainted by event {run.tainted}: it may know what nobody vouches for"


def waits_for(awaiting: int, repairs: int) -> str:
    """For whom a blocked run waits."""
    if not awaiting:
        return "waits for a person"
    return "blocked: waits for approval" + (", and another call for a repair" if repairs else "")


def event_rows(history: History, *, bodies: bool = False) -> Iterator[tuple[object, ...]]:
    """The timeline. Above the events of one change stand its time, who made it, and under whose term."""
    calls = {call.id: call for call in history.calls}
    processes = owners(history)
    change = None
    for event in history.events:
        if (event.causation, event.recorded_at) != change:
            change = event.causation, event.recorded_at
            yield _change(history, event, processes)
        call = calls.get(event.call) if event.call is not None else None
        attempt = f" #{event.attempt}" if event.attempt is not None else ""
        said = sanitize(event.body, _BODY) if bodies else detail(event)
        yield event.seq, event.type, _called(call) + attempt if call is not None else "", said


def _change(history: History, event: Event, processes: Mapping[str, str]) -> tuple[object, ...]:
    since = (event.recorded_at - history.run.created_at).total_seconds()
    if event.worker is None:
        who, term = f"by {cut(event.principal)}", ""
    else:
        who = _process(history.workers.get(processes.get(event.worker, "")))
        term = f"term {event.worker[:_OWNER]}/{event.fence}"
    return tuple(Text(cell, style="bold") for cell in (f"+{since:.3f}", who, term, ""))


def owners(history: History) -> dict[str, str]:
    """Which process each owner of a term was an execution of."""
    leases = (event.data for event in history.events if event.type == E.LEASE_ACQUIRED)
    return {lease["owner"]: lease["worker"] for lease in leases if lease.get("worker")}


def call_rows(history: History) -> Iterator[tuple[object, ...]]:
    """The calls, in the order they were proposed."""
    for call in history.calls:
        doubt = " (in doubt)" if call.doubt and call.state == CallState.DISPATCHING else ""
        reused = "of another call: " if call.reused else ""
        yield (
            f"{call.turn}.{call.ordinal}",
            f"{call.tool} v{call.tool_version}" if call.tool_version else call.tool,
            call.label,
            call.state + doubt,
            call.attempts,
            call.receipt,
            cut(call.error or reused + (call.preview or "")),
            call.id,
        )


def following(history: History, *, held: bool = False) -> Iterator[str]:
    """What happens next, and when; how a person settles what waits for one. `held`: the whole ledger is."""
    calls = {call.id: call for call in history.calls}
    if not history.steps:
        yield "nothing is left to happen"
    for step in history.steps:
        call = calls.get(step.subject)
        subject = f"call {_called(call)}" if call is not None else "the run"
        due = when(step.due_at, history.now)
        due = due if step.due_at >= NEVER else f"due {due}"
        if step.dead_at is not None:
            why = f"failed {step.failures} times: {cut(step.error)}"
            yield f"set aside: {subject}: {_purpose(history, step)}; {why}"
            yield f"send it again: fencepost outbox requeue {step.subject}"
            continue
        if held and step.queue != "reconciler":
            yield f"held: {subject}: {_purpose(history, step)}, once the ledger is released"
            continue
        if call is None and step.due_at >= NEVER and not _asks_a_person(history):
            yield f"next: {subject}: {_purpose(history, step)}"
            continue
        due += _because(history, step, call)
        yield f"next: {subject}: {_purpose(history, step)}, {due}{_held(history, step)}"
    for call in history.calls:
        if call.state == CallState.NEEDS_REPAIR:
            yield f"settle it: {how_to_repair(call.id, call.effect, call.compensates)}"
        elif call.state == CallState.AWAITING_APPROVAL:
            yield f"look at it: fencepost approvals show {call.id}"
            yield f"decide it: fencepost approve {call.id} --reason TEXT, or fencepost deny"


def _asks_a_person(history: History) -> bool:
    return any(c.state in (CallState.NEEDS_REPAIR, CallState.AWAITING_APPROVAL) for c in history.calls)


def _because(history: History, step: NextStep, call: Call | None) -> str:
    """Why it is not due yet, as far as its last event or what it offsets tells."""
    if step.worker is not None or not history.now < step.due_at < NEVER:
        return ""
    subject = step.subject if step.kind == "call" else None
    last = next((one for one in reversed(history.events) if one.call == subject), None)
    said = json.loads(last.body) if last is not None else {}
    if reason := said.get("reason") or said.get("message"):
        return f": {cut(reason)}"
    if call is not None and call.compensates is not None:
        return ": not before what was sent for its effect can land no more"
    return ""


def how_to_repair(call: UUID, effect: str, compensates: str | None) -> str:
    """The command that settles a call which waits for a person."""
    offset = " | --compensate --receipt R" if effect == "reversible" and compensates is None else ""
    ways = f"--happened --receipt R{offset} | --did-not-happen | --ask-again | --accept-unknown"
    return f"fencepost repair {call} --reason TEXT ({ways})"


def _purpose(history: History, step: NextStep) -> str:
    if step.due_at >= NEVER:
        return "its calls settle first" if step.kind == "run" else "it needs repair"
    if any(c.id == step.subject and c.state == CallState.AWAITING_APPROVAL for c in history.calls):
        return "nobody has approved it in time"
    if step.worker is not None:
        return f"taken over by the {step.queue} unless its worker answers"
    if step.kind == "run" and step.due_at == history.run.deadline:
        return "its deadline"
    return _PURPOSES.get((step.queue, step.kind), f"the {step.queue} takes it")


_PURPOSES: Final = {
    ("planner", "run"): "the planner is asked for a turn",
    ("dispatcher", "call"): "the dispatcher sends it",
    ("reconciler", "call"): "the reconciler finds out what happened",
    ("compensator", "run"): "the compensator offsets what was done",
}


def _held(history: History, step: NextStep) -> str:
    holder = history.workers.get(step.worker or "")
    held = f" · held by {_process(holder)}" if holder is not None else ""
    offered = f" · published {step.publish_count} times" if step.publish_count > 1 else ""
    if step.worker is None and step.publish_count > 1 and step.due_at < history.now:
        what = f"; planner {history.run.planner} v{history.run.planner_version}" if step.kind == "run" else ""
        offered += f", and no {step.queue} has taken it: is one running that knows it?{what}"
    return held + offered


def _called(call: Call) -> str:
    return cut(f"{call.tool} {call.label}" if call.label else call.tool)


def _process(worker: WorkerInfo | None) -> str:
    return f"{worker.role} {worker.host}:{worker.pid}" if worker is not None else "?"
