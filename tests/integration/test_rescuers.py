"""A rescuer that acts on an old snapshot: frozen between its look and its write while the world goes on.

The relay that judges silence, the pulse that hands back, the sweep that re-creates a row, the reconciler that
claims a takeover: each looks, then somebody finishes the run or takes it over, then it writes. What is
finished is never rewritten, and whoever took over keeps what they hold (riverqueue/river#1302).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.clock import token
from fencepost.outcomes import Applied, Unsure
from fencepost_relay import relay as relay_module
from fencepost_relay.publisher import Item, Publisher
from fencepost_relay.relay import Relay
from fencepost_workers import sweep as sweep_module
from fencepost_workers.pulse_program import END, MAKE_DUE
from tests.integration.ledger_bench import Bench

TTL = timedelta(seconds=3)
APPLIED = Applied('{"id":"r-1"}', "r-1")


class Deaf:
    """A broker that takes everything and holds nothing."""

    def __init__(self) -> None:
        self.sent: list[UUID] = []

    def lengths(self) -> dict[str, int]:
        return dict.fromkeys(("planner", "dispatcher", "reconciler", "compensator"), 0)

    def publish(self, _queue: str, items: list[Item], _tree: str | None = None) -> None:
        self.sent += [UUID(str(subject)) for _, subject, _ in items]

    def close(self) -> None:
        pass


class Held:
    """A run whose call is under the term of a worker that somebody is about to declare lost."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.run = bench.start(deadline_s=600)
        with as_another(bench):
            self.worker = bench.worker
            self.call = bench.debit(self.run, bench.order())
            self.send, self.term = bench.dispatch(self.run, self.call)

    def finished(self) -> None:
        """The worker was not lost after all: it records, and the run completes."""
        assert self.bench.record(self.send, self.term, APPLIED) == c.Done("SUCCEEDED")
        with as_another(self.bench):
            assert self.bench.finish(self.run) == c.Done("COMPLETED")

    def taken_over(self) -> None:
        """Another worker is now at it, under its own term."""
        self.bench.ahead(5)
        with as_another(self.bench):
            order, _ = self.bench.reconcile(self.run, self.call)
        assert isinstance(order, c.Ask | c.Send)

    def seen(self) -> Any:
        """Everything the ledger holds of it."""
        rows = self.bench.row(self.run), self.bench.row(self.call)
        return self.bench.run(self.run), self.bench.call(self.call), self.bench.kinds(self.run), rows


@contextmanager
def as_another(bench: Bench) -> Iterator[None]:
    mine, bench.worker = bench.worker, token()
    bench.sql(
        "INSERT INTO fencepost.workers (token, role, host, pid, started_at, last_seen)"
        " VALUES (%s, 'reconciler', 'h', 2, fencepost.now(), fencepost.now())",
        bench.worker,
    )
    try:
        yield
    finally:
        bench.worker = mine


@pytest.fixture(params=["finished", "taken_over"])
def meanwhile(request: pytest.FixtureRequest) -> Callable[[Held], None]:
    return cast("Callable[[Held], None]", getattr(Held, request.param))


@pytest.fixture
def held(bench: Bench) -> Held:
    return Held(bench)


def after(held: Held, meanwhile: Callable[[Held], None], written: list[Any]) -> Callable[[str], None]:
    """What happens at the fault point between the look and the write, once."""

    def happen(_point: str) -> None:
        if not written:
            meanwhile(held)
            written.append(held.seen())

    return happen


def test_a_relay_that_judged_silence_long_ago(
    held: Held, meanwhile: Callable[[Held], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, written = [1000.0], list[Any]()
    happen = after(held, meanwhile, written)
    relay = relay_of(held.bench, clock=lambda: seconds[0])

    def fault(point: str) -> None:
        if point == "relay.after_judge" and seconds[0] >= 1000 + TTL.total_seconds():
            happen(point)

    monkeypatch.setattr(relay_module, "fault", fault)
    dead: list[str] = []
    while held.worker not in dead:
        dead += relay.run_once().declared_dead
        seconds[0] += 1
    relay.close()
    assert held.worker in dead
    assert held.seen() == written[0]


def test_a_pulse_that_hands_back_late(held: Held, meanwhile: Callable[[Held], None]) -> None:
    with psycopg.connect(held.bench.database.dsns["worker"], autocommit=True) as session:
        session.execute(END, {"token": held.worker})
        meanwhile(held)
        before = held.seen()
        session.execute(MAKE_DUE, {"token": held.worker})
    assert held.seen() == before


def test_a_sweep_that_looked_long_ago(
    held: Held, meanwhile: Callable[[Held], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, written = held.bench, list[Any]()
    bench.sql("SET session_replication_role = replica")  # what no login of ours may do
    bench.sql("DELETE FROM fencepost.outbox WHERE subject = %s", held.call)
    bench.sql("SET session_replication_role = origin")

    def first(held: Held) -> None:
        """Another sweep was faster, and work went on."""
        monkeypatch.setattr(sweep_module, "fault", lambda _point: None)
        sweep_module.sweep(bench.pools[0], bench.ledger)
        assert bench.row(held.call) is not None
        meanwhile(held)

    happen, passages = after(held, first, written), list[str]()

    def fault(point: str) -> None:
        passages.append(point)
        if len(passages) == 2:  # it looks for runs first, then for calls
            happen(point)

    monkeypatch.setattr(sweep_module, "fault", fault)
    swept = sweep_module.sweep(bench.pools[0], bench.ledger)
    assert held.call in swept.missing, "that is what it had seen"
    assert held.seen() == written[0]


def test_a_reconciler_that_claims_a_takeover_late(held: Held, meanwhile: Callable[[Held], None]) -> None:
    bench = held.bench
    with as_another(bench):
        late = bench.claim_doubt(held.run, held.call)
    meanwhile(held)
    before = held.seen()
    late = replace(late, term=bench.term())  # even if a wiped Redis grants it the highest fence of all
    assert isinstance(bench.one(late), c.Gone | c.Moved)
    assert held.seen() == before


def test_a_woken_worker_changes_nothing_that_was_settled_without_it(held: Held) -> None:
    bench = held.bench
    held.taken_over()
    before = held.seen()
    assert bench.record(held.send, held.term, Unsure("timeout", "it slept")) == c.Fenced()
    assert bench.record(held.send, held.term, APPLIED) == c.Fenced()
    assert held.seen() == before


def relay_of(bench: Bench, **settings: Any) -> Relay:
    publisher = cast("Publisher", settings.pop("publisher", Deaf()))
    return Relay(bench.database.dsns["relay"], publisher, worker_ttl=TTL, **settings)


def test_a_batch_of_rows_that_must_be_skipped_hides_nothing_behind_it(bench: Bench) -> None:
    """A full batch that others hold, longer due than the one run that is truly stuck."""
    skipped, stuck = [bench.start() for _ in range(8)], bench.start()
    bench.sql(
        "UPDATE fencepost.outbox SET publish_at = publish_at - interval '1 minute' WHERE subject = ANY(%s)",
        skipped,
    )
    broker = Deaf()
    relay = relay_of(bench, publisher=broker, take=4)
    with psycopg.connect(bench.database.owner) as other:
        other.execute("SELECT FROM fencepost.outbox WHERE subject = ANY(%s) FOR UPDATE", [skipped])
        for _ in range(2):  # more than a batch of rows of other tests may be due as well
            relay.run_once()
        relay.close()
        assert stuck in broker.sent
        assert not set(skipped) & set(broker.sent)
