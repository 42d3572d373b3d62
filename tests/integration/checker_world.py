"""A small healthy world for the checker, with books that agree, and the means to spoil one thing in it."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg

from fencepost import commands as c
from fencepost.events import GENESIS, Event, body_digest, body_text, chain_hash
from fencepost.ledger import rows
from fencepost.machine import evolve
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.projection import projection_hash, seal
from fencepost.recovery import Answer
from fencepost.subjects import Call, View
from fencepost.tools import StoredRequest
from fencepost_ops.checker import BookEffect, BookRequest, Origin, Report, Terms, ToolTerms, Violation, check
from fencepost_ops.local import LocalPostgres
from tests.databases import copied
from tests.integration.ledger_bench import Bench, open_bench

MILLISECOND = timedelta(milliseconds=1)
TERMS = {
    ("wallet.debit", 1): ToolTerms("dedupes", 3, timedelta(hours=1)),
    ("wallet.refund", 1): ToolTerms("dedupes", 3, timedelta(hours=1)),
    ("wallet.hold", 1): ToolTerms("dedupes", 3, timedelta(hours=1)),
}
Edit = Callable[[list[Event]], Sequence[Event]]


@dataclass
class PaperBooks:
    """The wallet's book, kept by hand."""

    kept: list[BookEffect] = field(default_factory=list)
    asked: list[BookRequest] = field(default_factory=list)

    def services(self) -> Sequence[str]:
        return ("wallet",)

    def effects(self, service: str) -> Sequence[BookEffect]:
        return self.kept

    def requests(self, service: str) -> Sequence[BookRequest]:
        return self.asked

    def change(self, receipt: str, /, **changes: Any) -> None:
        self.kept = [replace(e, **changes) if e.receipt == receipt else e for e in self.kept]


@dataclass
class World:
    """Four runs: completed, completed after a doubt, stopped and offset, waiting for a person."""

    bench: Bench
    books: PaperBooks = field(default_factory=PaperBooks)
    completed: UUID = field(default_factory=uuid4)
    paid: UUID = field(default_factory=uuid4)  # its call, receipt r-paid
    doubted: UUID = field(default_factory=uuid4)
    found: UUID = field(default_factory=uuid4)  # its call: two attempts, receipt r-found
    stopped: UUID = field(default_factory=uuid4)
    offset: UUID = field(default_factory=uuid4)  # the call that was offset, receipt r-offset
    refused: UUID = field(default_factory=uuid4)  # the call that failed, without an effect
    refund: UUID = field(default_factory=uuid4)  # the compensation, receipt r-refund
    waiting: UUID = field(default_factory=uuid4)
    unknown: UUID = field(default_factory=uuid4)  # its call, in NEEDS_REPAIR

    def build(self) -> None:
        self._completed()
        self._doubted()
        self._stopped()
        self._waiting()
        self.write_books()

    def _completed(self) -> None:
        bench = self.bench
        self.completed = bench.start()
        self.paid = bench.debit(self.completed, bench.order())
        bench.succeed(self.completed, self.paid, "r-paid")
        bench.finish(self.completed)

    def _doubted(self) -> None:
        bench = self.bench
        self.doubted = run = bench.start()
        self.found = call = bench.debit(run, bench.order())
        send, term = bench.dispatch(run, call)
        bench.record(send, term, Unsure("timeout", "no answer"))
        ask, term = bench.reconcile(run, call)
        bench.one(bench.looked_up(ask, term, Answer.UNCLEAR))
        bench.ahead(4)
        ask, term = bench.reconcile(run, call)
        assert isinstance(ask, c.Ask), ask
        bench.one(bench.looked_up(ask, term, Answer.ABSENT))
        send, term = bench.reconcile(run, call)
        assert isinstance(send, c.Send), send
        assert bench.record(send, term, Applied('{"id":"r-found"}', "r-found")) == c.Done("SUCCEEDED")
        bench.finish(run)

    def _stopped(self) -> None:
        bench = self.bench
        self.stopped = run = bench.start()
        self.offset = bench.debit(run, bench.order())
        bench.succeed(run, self.offset, "r-offset")
        self.refused = bench.debit(run, bench.order())
        send, term = bench.dispatch(run, self.refused)
        bench.record(send, term, Refused("http_402", "no funds", retryable=False))
        bench.ahead(4)
        _, self.refund = bench.offset(run)
        bench.succeed(run, self.refund, "r-refund")
        bench.one(bench.claim_stopped(run))
        assert bench.status(run) == "STOPPED"

    def _waiting(self) -> None:
        bench = self.bench
        self.waiting = run = bench.start()
        self.unknown = call = bench.debit(run, bench.order(), "wallet.hold")
        send, term = bench.dispatch(run, call)
        bench.record(send, term, Unsure("timeout", "no answer"))
        bench.ahead(60)
        bench.reconcile(run, call)
        assert bench.state(call) == "NEEDS_REPAIR"

    def write_books(self) -> None:
        """What a wallet would have kept: a request per attempt, an effect where the last one succeeded."""
        self.books.kept, self.books.asked = [], []
        for run in (self.completed, self.doubted, self.stopped, self.waiting):
            for event in self.bench.events(run):
                if event.type == "ToolAttemptStarted" and event.call is not None:
                    self._book(event, self.bench.call(event.call))

    def _book(self, event: Event, call: Call) -> None:
        origin = Origin(event.call, event.attempt, event.fence)
        soon, number = event.recorded_at + 5 * MILLISECOND, str(len(self.books.asked) + 1)
        self.books.asked.append(BookRequest("wallet", number, call.operation, soon, 201, origin))
        if call.state == "SUCCEEDED" and event.attempt == call.attempts and call.receipt:
            digest = hashlib.sha256(StoredRequest.from_text(call.request or "").body).hexdigest()
            effect = BookEffect("wallet", call.receipt, call.operation, digest, soon, origin)
            self.books.kept.append(effect)

    def effect(self, receipt: str) -> BookEffect:
        return next(e for e in self.books.kept if e.receipt == receipt)

    def check(self, *, settled: bool = True, terms: Terms = TERMS, **how: Any) -> Report:
        with psycopg.connect(self.bench.database.dsns["reader"], autocommit=True) as reader:
            return check(reader, self.books, settled=settled, terms=terms, **how)

    # -- spoiling ------------------------------------------------------------------------------------------

    @contextmanager
    def unguarded(self) -> Iterator[psycopg.Connection[Any]]:
        """The owner's session with all triggers and foreign keys switched off."""
        with self.bench.owner.transaction():
            self.bench.owner.execute("SET LOCAL session_replication_role = replica")
            yield self.bench.owner

    def sql(self, statement: str, *values: object) -> None:
        with self.unguarded() as owner:
            assert owner.execute(statement, values).rowcount > 0, "nothing was spoiled"

    def forge(self, run: UUID, edit: Edit) -> None:
        """Rewrite a history as its owner could: chain, projections, rows, keys and outbox agree with it."""
        events, view = _rechained(list(edit(self.bench.events(run))))
        with self.unguarded() as owner:
            owner.execute("DELETE FROM fencepost.events WHERE run = %s", [run])
            for event in events:
                _insert(owner, event)
            _update(owner, "runs", view.run, _RUN_REST)
            for call in view.calls.values():
                _update(owner, "calls", call, _CALL_REST)
                sent = [e.recorded_at for e in events if (e.call, e.type) == (call.id, "ToolAttemptStarted")]
                status = KEPT.get(call.state, "open")
                told = (status, call.doubt, call.receipt, min(sent, default=None), call.operation, call.id)
                owner.execute(KEY, told)
            self._outbox(owner, view)

    def _outbox(self, owner: psycopg.Connection[Any], view: View) -> None:
        subjects = [("run", view.run.id, view.run.status)]
        subjects += [("call", call.id, call.state) for call in view.calls.values()]
        for kind, subject, state in subjects:
            owner.execute("DELETE FROM fencepost.outbox WHERE subject = %s", [subject])
            if state not in ENDED:
                owner.execute(ROW, [view.run.tenant, subject, kind, view.run.id])


ENDED = {"COMPLETED", "STOPPED", "SUCCEEDED", "FAILED", "REJECTED", "CANCELLED", "ACCEPTED_UNKNOWN"}
ROW = """
INSERT INTO fencepost.outbox (tenant, subject, kind, run, generation, queue, due_at, publish_at)
VALUES (%s, %s, %s, %s, 99, 'planner', '9999-01-01 00:00:00+00', '9999-01-01 00:00:00+00')
"""
KEPT = {"SUCCEEDED": "completed", "FAILED": "failed", "REJECTED": "released", "CANCELLED": "released"}
KEY = """
UPDATE fencepost.operations SET status = CASE WHEN status LIKE 'compensat%%' THEN status ELSE %s END,
    doubt = %s, receipt = %s, first_sent_at = least(first_sent_at, %s) WHERE key = %s AND call = %s
"""
_OF_RUN = {"tenant", "id", "run_key", "planner", "planner_version", "principal", "request", "on_stop"}
_RUN_REST = tuple(n for n in rows.RUN_COLUMNS if n not in _OF_RUN)
_CALL_REST = tuple(n for n in rows.CALL_COLUMNS if n not in ("tenant", "id", "run"))


def _rechained(events: list[Event]) -> tuple[list[Event], View]:
    view: View | None = None
    sealed: Any = {}
    head, done = GENESIS, []
    for seq, found in enumerate(events, start=1):
        event = replace(found, seq=seq, prev_hash=head, digest=body_digest(found.body))
        view = evolve(view, event)
        if event.projection is not None or seq == len(events):
            view = seal(sealed, view)
            sealed = view.calls
            event = replace(event, projection=projection_hash(view.run))
        event = replace(event, hash=chain_hash(event))
        head = event.hash
        view = replace(view, run=replace(view.run, head_hash=head))
        done.append(event)
    assert view is not None
    return done, view


def _insert(owner: psycopg.Connection[Any], event: Event) -> None:
    names = rows.EVENT_COLUMNS
    places = ", ".join("%s::json" if name == "body" else "%s" for name in names)
    owner.execute(
        f"INSERT INTO fencepost.events ({rows.columns(names)}) VALUES ({places})",
        [getattr(event, name) for name in names],
    )


def _update(owner: psycopg.Connection[Any], table: str, subject: Any, names: Sequence[str]) -> None:
    names = tuple(dict.fromkeys(names))
    sets = ", ".join(f"{rows.columns([name])} = %s" for name in names)
    owner.execute(
        f"UPDATE fencepost.{table} SET {sets} WHERE id = %s",
        [*(getattr(subject, name) for name in names), subject.id],
    )


def like(
    event: Event, kind: str | None = None, *, body: dict[str, Any] | None = None, **header: Any
) -> Event:
    """Another event like this one: with a new id, its body's fields changed, its header changed."""
    fields = event.data if kind is None or kind == event.type else {}
    text = body_text({**fields, **(body or {})})
    return replace(event, id=uuid4(), type=kind or event.type, body=text, **header)


def changed(event: Event, **fields: Any) -> Event:
    """The same event with other fields in its body."""
    return replace(event, body=body_text({**event.data, **fields}))


def place(events: Sequence[Event], kind: str, nth: int = 1, call: UUID | None = None) -> int:
    """Where the nth event of a type (of a call) stands."""
    found = [n for n, e in enumerate(events) if e.type == kind and call in (None, e.call)]
    return found[nth - 1]


@contextmanager
def built(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[World]:
    """A world in a database of its own. While nobody is connected to it, `copy_of` copies it."""
    with copied(postgres, template) as database, open_bench(database) as bench:
        world = World(bench)
        world.build()
        bench.close()
        bench.owner.close()
        yield world


@contextmanager
def copy_of(world: World, postgres: LocalPostgres) -> Iterator[World]:
    """The same world in another database, to be spoiled."""
    database = world.bench.database
    with copied(postgres, database.dsns, source=database.name) as own, open_bench(own) as bench:
        books = PaperBooks(list(world.books.kept), list(world.books.asked))
        yield replace(world, bench=bench, books=books)


def sentence(report: Report, invariant: str) -> str:
    """Everything one verdict says, as one text."""
    return json.dumps(report.verdict(invariant).to_json())


@contextmanager
def forged(world: World, run: UUID, edit: Edit) -> Iterator[None]:
    """A history rewritten for a while, and then as it was."""
    was = world.bench.events(run)
    try:
        world.forge(run, edit)
        yield
    finally:
        world.forge(run, lambda _: was)


def culprit(report: Report, invariant: str) -> Violation:
    """The one violation of an invariant."""
    (violation,) = report.verdict(invariant).violations
    return violation
