"""What the tests of a restored ledger do to one: recover, release, and reconcile what is in doubt."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from fencepost import Request
from fencepost import commands as c
from fencepost.ledger import epochs
from fencepost.ledger.connect import connect
from fencepost.ledger.epochs import Epoch
from tests.integration.ledger_bench import Bench

MINUTE = timedelta(minutes=1)
REQUEST = Request.post("/debits", json={}).bind("http://127.0.0.1:9").to_text()


@contextmanager
def released_afterwards(bench: Bench) -> Iterator[None]:
    """Whatever a test leaves held is released by the tables' owner."""
    yield
    bench.sql("UPDATE fencepost.epochs SET released_at = now(), released_by = 'x' WHERE released_at IS NULL")


def restore(bench: Bench, ago: timedelta = MINUTE) -> tuple[Epoch, list[c.Restored]]:
    """Recover since a moment that long ago; what was done to each run."""
    with connect(bench.database.dsns["operator"], "recover", autocommit=True) as connection:
        epoch = epochs.open_epoch(connection, bench.now() - ago, "ann", "restored")
        pages = list(epochs.restore(connection, bench.operator.apply, epoch))
    return epoch, [one for page in pages for one in page]


def release(bench: Bench) -> None:
    with connect(bench.database.dsns["operator"], "recover", autocommit=True) as connection:
        assert epochs.release(connection, "ann", "audited")


def doubted(bench: Bench, run: UUID, call: UUID) -> Any:
    """What a reconciler that can build the request is answered, and its term."""
    claim = replace(bench.claim_doubt(run, call), request=REQUEST)
    claim = replace(claim, term=above(bench, call))
    return bench.one(claim), claim.term


def above(bench: Bench, call: UUID) -> c.Term:
    """A term as Redis grants it: above the floor that is read from Postgres."""
    return replace(bench.term(), fence=bench.call(call).fence + 1)


def planned(bench: Bench, tool: str = "wallet.debit", **args: Any) -> tuple[UUID, UUID]:
    """A run that acts, and its call, which is due and was never sent: so far as this ledger knows."""
    run = bench.start()
    (call,) = bench.plan(run, (tool, args or {"order": bench.order()}))
    return run, call
