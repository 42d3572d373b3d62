"""A ledger of any size is checked in the memory of one group of runs, and however long that takes."""

import gc
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from uuid import UUID

import psycopg
import pytest

from fencepost.ledger import verify
from fencepost_ops.checker import BookEffect, BookRequest, check, facts, verdict
from fencepost_ops.checker.facts import LIMITS, snapshot
from tests.integration.ledger_bench import Bench

GROUP = 5


@pytest.fixture
def reader(bench: Bench) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(bench.database.dsns["reader"], autocommit=True) as connection:
        yield connection


def done(bench: Bench, *orders: str) -> UUID:
    """A run that has made these debits, or taken their results."""
    run = bench.start()
    for order in orders:
        call = bench.debit(run, order)
        if bench.operation(call).status == "completed":
            bench.one(bench.claim_call(run, call))
        else:
            bench.succeed(run, call, receipt=f"r-{order}")
    bench.finish(run)
    return run


class Slow:
    """A book that takes longer to read than any transaction of a fleet may."""

    def services(self) -> Sequence[str]:
        return ("elsewhere",)

    def effects(self, service: str) -> Sequence[BookEffect]:
        time.sleep(0.1)
        return ()

    def requests(self, service: str) -> Sequence[BookRequest]:
        return ()


def test_a_check_takes_as_long_as_it_takes(
    bench: Bench, reader: psycopg.Connection[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    done(bench, bench.order())
    for name in ("transaction_timeout", "idle_in_transaction_session_timeout"):
        reader.execute(f"SET {name} = '90ms'")
    monkeypatch.setattr(verdict, "replay_faults", lambda *_: ())
    assert check(reader, Slow(), settled=False).totals.runs >= 1
    shown = [reader.execute(f"SHOW {name}").fetchone() for name in LIMITS]
    assert ("90ms",) in shown, "the session's own limits hold again"


def test_memory_does_not_grow_with_runs(
    bench: Bench, reader: psycopg.Connection[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (facts, verify):
        monkeypatch.setattr(module, "PAGE", 20)
    kept: list[int] = []
    told: list[tuple[int, int]] = []

    def far(runs: int, events: int) -> None:
        gc.collect()
        kept[-1] = max(kept[-1], tracemalloc.get_traced_memory()[0])
        told.append((runs, events))

    report = None
    for runs in (2 * GROUP, 6 * GROUP):
        for _ in range(runs):
            done(bench, bench.order())
        kept.append(0)
        tracemalloc.start()
        report = check(reader, None, settled=False, group=GROUP, progress=far)
        tracemalloc.stop()
        assert report.ok, report.violated
    assert report is not None
    assert told[-1] == (report.totals.runs, report.totals.events)
    assert report.totals.runs >= 8 * GROUP
    assert kept[1] < kept[0] + 64 * 1024, "of four times as many runs"


def test_runs_that_share_a_key_are_looked_at_together(
    bench: Bench, reader: psycopg.Connection[tuple[object, ...]]
) -> None:
    one, two = bench.order(), bench.order()
    first, alone, second, third = (
        done(bench, one),
        done(bench, bench.order()),
        done(bench, one, two),
        done(bench, two),
    )
    with snapshot(reader) as taken:
        groups = list(taken.groups(1))
    (shared,) = [set(group) for group in groups if first in group]
    assert {first, second, third} <= shared
    assert alone not in shared
    assert sorted(run for group in groups for run in group) == sorted(
        run for (run,) in bench.sql("SELECT id FROM fencepost.runs")
    )
