"""One run through the ledger, command by command, on real Postgres."""

from collections.abc import Iterator

import pytest

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost_ops.database import LedgerDatabase
from tests.integration.ledger_bench import TENANT, Bench, open_bench


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


def test_a_run_with_one_call_completes_and_replays(bench: Bench) -> None:
    run = bench.enqueue()
    (call,) = bench.plan(run, ("wallet.debit", {"order": "o-1"}))
    term = bench.term()
    send = bench.one(bench.claim_call(run, call, term))
    assert isinstance(send, c.Send)
    assert bench.one(bench.outcome(send, term, Applied('{"id":"d-1"}', "d-1"))) == c.Done("SUCCEEDED")
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    done = c.Payload("2a3c", b"", "")
    import hashlib

    done = c.Payload(hashlib.sha256(b"ok").hexdigest(), b"ok", "ok")
    record = c.RecordTurn(
        id=uuid7(), tenant=TENANT, run=run, term=claim.term, turn=2, finish=done, payloads=(done,)
    )
    assert bench.one(record) == c.Done("COMPLETED")
    assert bench.sql("SELECT count(*) FROM fencepost.outbox") == [(0,)]
