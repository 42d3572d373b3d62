"""What must hold after every test, whatever was done to the fleet: one effect per key, and a true history."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from fencepost.events import GENESIS, chain_fault
from fencepost.ledger import rows
from fencepost.ledger.connect import Connection
from fencepost.machine import evolve, next_row
from fencepost.events import Event
from fencepost.states import CALL_ENDS
from fencepost.subjects import Call, Run, View
from fencepost_ops.sandbox.book import Book

_EVENTS = f"SELECT {rows.select('events', rows.EVENT_COLUMNS)} FROM fencepost.events ORDER BY tenant, run, seq"
_CALLS = f"SELECT {rows.select('calls', rows.CALL_COLUMNS)} FROM fencepost.calls"
_RUNS = f"SELECT {rows.select('runs', rows.RUN_COLUMNS)} FROM fencepost.runs"


def violations(connection: Connection, book: Book, deeds: Iterable[str]) -> list[str]:
    """What is wrong with the ledger, and with the services' books against it; one sentence each.

    `deeds` are the operation keys of the effects of Python tools.
    """
    connection.rollback()
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        runs = [Run(*row) for row in connection.execute(_RUNS)]
        calls = [Call(*row) for row in connection.execute(_CALLS)]
        events = [Event(*row) for row in connection.execute(_EVENTS)]
        steps = {row[0] for row in connection.execute("SELECT subject FROM fencepost.outbox")}
    effects = Counter(key for _, key in book.effects_per_key().elements())
    effects.update(deeds)
    found = [*_effects(calls, events, effects), *_requests(book)]
    found += [*_histories(runs, calls, events), *_steps(runs, calls, steps)]
    return found


def _effects(calls: list[Call], events: list[Event], effects: Counter[str | None]) -> Iterator[str]:
    by_key: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.operation is not None:
            by_key[call.operation].append(call)
    started = {event.call for event in events if event.type == "ToolAttemptStarted"}
    for key, count in effects.items():
        if count > 1:
            yield f"key {key} had {count} effects"
        if not any(call.id in started for call in by_key.get(key or "", ())):
            yield f"key {key} had an effect that no attempt preceded"
    for key, same in by_key.items():
        states = {call.state for call in same}
        if "SUCCEEDED" in states and effects[key] != 1:
            yield f"{same[0].tool} {key} SUCCEEDED with {effects[key]} effects"
        if states <= {"FAILED", "REJECTED", "CANCELLED"} and effects[key]:
            yield f"{same[0].tool} {key} ended {states} with {effects[key]} effects"


def _requests(book: Book) -> Iterator[str]:
    attempts = Counter(
        (request.headers["fencepost-call"], request.headers["fencepost-attempt"]) for request in book.requests()
    )
    for (call, attempt), count in attempts.items():
        if count > 1:
            yield f"attempt {attempt} of call {call} made {count} requests"


def _histories(runs: list[Run], calls: list[Call], events: list[Event]) -> Iterator[str]:
    views: dict[object, View] = {}
    heads: dict[object, tuple[str, int]] = {}
    for event in events:
        head, number = heads.get(event.run, (GENESIS, 0))
        if (fault := chain_fault(event, head, number + 1)) is not None:
            yield f"run {event.run}: {fault}"
        heads[event.run] = event.hash, event.seq
        views[event.run] = evolve(views.get(event.run), event)
    for run in runs:
        view = views.get(run.id)
        if view is None:
            continue
        # Two fields of the row are not folded from events: the running sum and the head.
        now = Run(**{n: getattr(run, n) for n in rows.RUN_COLUMNS} | {"calls_sum": GENESIS, "head_hash": GENESIS})
        replayed = Run(
            **{n: getattr(view.run, n) for n in rows.RUN_COLUMNS} | {"calls_sum": GENESIS, "head_hash": GENESIS}
        )
        if now != replayed:
            yield f"run {run.id}: the row is not what its events say"
    for call in calls:
        if views[call.run].calls[call.id] != call:
            yield f"call {call.id}: the row is not what its events say"


def _steps(runs: list[Run], calls: list[Call], steps: set[object]) -> Iterator[str]:
    for subject in (*runs, *calls):
        if (next_row(subject) is not None) != (subject.id in steps):
            yield f"{type(subject).__name__} {subject.id}: its outbox row and its state disagree"
    ended = {run.id for run in runs if run.status == "COMPLETED"}
    for call in calls:
        if call.run in ended and (call.state not in CALL_ENDS or call.doubt):
            yield f"run {call.run} completed with call {call.id} {call.state}"
