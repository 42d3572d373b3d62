"""What is read of the ledger, on real Postgres."""

import hashlib
from collections.abc import Iterator
from unittest.mock import patch
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.ledger.connect import connect
from fencepost.ledger.reads import payload, plan_contexts, prepare
from fencepost.outcomes import Applied
from fencepost_ops.database import LedgerDatabase
from tests.integration.ledger_bench import TENANT, Bench, open_bench


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


def kept(data: bytes) -> c.Payload:
    return c.Payload(hashlib.sha256(data).hexdigest(), data, data.decode())


def succeed(bench: Bench, run: UUID, call: UUID, data: bytes = b'{"id":"d-1"}') -> None:
    term = bench.term()
    send = bench.one(bench.claim_call(run, call, term))
    assert isinstance(send, c.Send), send
    payload = kept(data)
    record = c.RecordOutcome(
        id=uuid7(),
        tenant=TENANT,
        run=run,
        term=term,
        call=call,
        attempt=send.attempt,
        outcome=Applied(data.decode(), "d-1"),
        result=payload,
        payloads=(payload,),
    )
    assert bench.one(record) == c.Done("SUCCEEDED")


def test_contexts_of_many_runs_hold_each_run_and_its_calls_in_order_with_results(bench: Bench) -> None:
    first, second = bench.enqueue("o-1"), bench.enqueue("o-2")
    a, b = bench.plan(first, ("wallet.debit", {"order": "o-1"}), ("wallet.note", {"order": "o-1"}))
    succeed(bench, first, a)
    with connect(bench.database.dsns["worker"], "test") as connection:
        found = plan_contexts(connection, [(TENANT, second), (TENANT, first), (TENANT, uuid7())])
        assert set(found) == {first, second}
        assert found[second].calls == ()
        assert [(call.id, text, data) for call, text, data in found[first].calls] == [
            (a, '{"minor":100,"order":"o-1"}', b'{"id":"d-1"}'),
            (b, '{"minor":100,"order":"o-1"}', None),
        ]
        digest = found[first].calls[0][0].result
        assert digest is not None
        assert payload(connection, TENANT, digest) == b'{"id":"d-1"}'
        assert payload(connection, "other", digest) is None
        assert found[first].run.run_key == "o-1"


def test_contexts_take_two_statements_and_preparing_takes_one(bench: Bench) -> None:
    runs = [(TENANT, bench.enqueue(f"o-{n}")) for n in range(3)]
    with (
        connect(bench.database.dsns["worker"], "test") as connection,
        patch.object(connection, "execute", wraps=connection.execute) as sent,
    ):
        plan_contexts(connection, runs)
        assert sent.call_count == 2
        prepare(connection, runs)
        assert sent.call_count == 3


def test_a_run_and_a_call_are_prepared_with_the_floor_of_their_lease(bench: Bench) -> None:
    run = bench.enqueue()
    (call,) = bench.plan(run, ("wallet.debit", {"order": "o-1"}))
    with connect(bench.database.dsns["worker"], "test", autocommit=True) as connection:
        found = prepare(connection, [(TENANT, run), (TENANT, call), (TENANT, uuid7()), ("other", call)])
        assert set(found) == {run, call}
        assert (found[run].kind, found[run].tool, found[run].fence) == ("run", None, 1)
        ready = found[call]
        assert (ready.kind, ready.run, ready.tenant) == ("call", run, TENANT)
        assert (ready.fence, ready.owner) == (0, None)
        assert (ready.tool, ready.tool_version, ready.effect) == ("wallet.debit", 1, "reversible")
        assert ready.arguments == '{"minor":100,"order":"o-1"}'
        assert ready.operation is not None
        assert ready.request is None
        assert (ready.queue, ready.generation) == ("dispatcher", bench.generation(call))


def test_the_owner_of_a_lease_is_named_only_once_its_row_is_due(bench: Bench) -> None:
    run = bench.enqueue()
    (call,) = bench.plan(run, ("wallet.debit", {"order": "o-1"}))
    term = bench.term()
    bench.one(bench.claim_call(run, call, term))
    with connect(bench.database.dsns["worker"], "test", autocommit=True) as connection:
        assert prepare(connection, [(TENANT, call)])[call].owner is None
        bench.ahead(5)
        due = prepare(connection, [(TENANT, call)])[call]
        assert (due.owner, due.fence) == (term.owner, term.fence)
        assert due.request is not None
