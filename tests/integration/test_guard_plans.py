"""What a change reads, guards and all, does not grow with the ledger, also where nobody has analysed it yet.

Postgres plans the queries of a function as a session first runs them, on tables that are small then, and
keeps those plans while they grow.
"""

from collections.abc import Iterator

import pytest

from fencepost import commands as c
from fencepost.outcomes import Applied
from fencepost_ops.local import LocalPostgres
from tests.integration.conftest import copied
from tests.integration.ledger_bench import Bench, open_bench

RUNS = 20
ROUNDS = 10
READ = """
SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables)
    + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)
"""


@pytest.fixture
def fresh(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[Bench]:
    with copied(postgres, template) as database, open_bench(database) as bench:
        bench.sql("ALTER TABLE fencepost.calls SET (autovacuum_enabled = off)")
        bench.sql("ALTER TABLE fencepost.events SET (autovacuum_enabled = off)")
        yield bench


def work(bench: Bench) -> None:
    """Some runs from their first claim to their end, in batches."""
    runs = [bench.start() for _ in range(RUNS)]
    asked = [bench.claim_run(run) for run in runs]
    bench.ledger.apply(asked)
    turns = [
        bench.turn(run, claim, ("wallet.debit", {"order": bench.order()}))
        for run, claim in zip(runs, asked, strict=True)
    ]
    bench.ledger.apply(turns)
    claims = [bench.claim_call(run, turn.call_ids[0]) for run, turn in zip(runs, turns, strict=True)]
    sends = bench.ledger.apply(claims)
    bench.ledger.apply([
        bench.outcome(send, claim.term, Applied('{"id":"r"}', "r"))
        for send, claim in zip(sends, claims, strict=True)
        if isinstance(send, c.Send)
    ])  # fmt: skip
    asked = [bench.claim_run(run) for run in runs]
    bench.ledger.apply(asked)
    ends = bench.ledger.apply([
        bench.finish_with(bench.turn(run, claim)) for run, claim in zip(runs, asked, strict=True)
    ])  # fmt: skip
    assert ends == [c.Done("COMPLETED")] * RUNS


def read(bench: Bench) -> int:
    """How many rows and entries of indexes the worker's session has read so far."""
    with bench.pools[0].connection() as session:
        session.execute("SELECT pg_stat_force_next_flush()")
        session.commit()
    return int(bench.sql(READ)[0][0])


def test_what_a_run_reads_does_not_grow_with_the_ledger(fresh: Bench) -> None:
    read_by, before = [], read(fresh)
    for _ in range(ROUNDS):
        work(fresh)
        after = read(fresh)
        read_by.append((after - before) / RUNS)
        before = after
    assert max(read_by[-3:]) < 1.5 * min(read_by[1:4]), read_by
