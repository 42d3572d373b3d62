"""What is read of the ledger, on real Postgres."""

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from unittest.mock import patch
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.errors import NotFound, UsageError
from fencepost.ledger import listings
from fencepost.ledger import unresolved as doubtful
from fencepost.ledger.connect import connect
from fencepost.ledger.find import find_call, find_run, id_range
from fencepost.ledger.reads import context_calls, payload, prepare
from fencepost.ledger.unresolved import unresolved
from fencepost.outcomes import Applied, Unsure
from fencepost.recovery import Answer, LookupAnswer
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
        found = context_calls(connection, [(TENANT, second, 0), (TENANT, first, 0), ("other", first, 0)])
        assert set(found) == {(TENANT, first)}
        told = found[TENANT, first]
        assert [(call.tool, call.arguments, call.result) for call in told] == [
            ("wallet.debit", '{"minor":100,"order":"o-1"}', b'{"id":"d-1"}'),
            ("wallet.note", '{"minor":100,"order":"o-1"}', None),
        ]
        assert [call.id for call in told] == [a, b]
        assert context_calls(connection, [(TENANT, first, bench.run(first).seq)]) == {}
        (later,) = context_calls(connection, [(TENANT, first, bench.call(b).version)])[TENANT, first]
        assert later == told[0]  # it succeeded after the other was recorded
        digest = bench.call(a).result
        assert digest is not None
        assert payload(connection, TENANT, digest) == b'{"id":"d-1"}'
        assert payload(connection, "other", digest) is None


def test_contexts_take_one_statement_and_so_does_preparing(bench: Bench) -> None:
    runs = [bench.enqueue(f"o-{n}") for n in range(3)]
    with (
        connect(bench.database.dsns["worker"], "test") as connection,
        patch.object(connection, "execute", wraps=connection.execute) as sent,
    ):
        context_calls(connection, [(TENANT, run, 0) for run in runs])
        assert sent.call_count == 1
        prepare(connection, [(TENANT, run) for run in runs])
        assert sent.call_count == 2


def test_a_run_and_a_call_are_prepared_with_the_floor_of_their_lease(bench: Bench) -> None:
    run = bench.enqueue()
    (call,) = bench.plan(run, ("wallet.debit", {"order": "o-1"}))
    with connect(bench.database.dsns["worker"], "test", autocommit=True) as connection:
        found = prepare(connection, [(TENANT, run), (TENANT, call), (TENANT, uuid7()), ("other", call)])
        assert set(found) == {run, call}
        assert (found[run].kind, found[run].tool, found[run].fence) == ("run", None, bench.run(run).fence)
        assert found[run].fence > 0
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


# -- what people read ---------------------------------------------------------------------------------------


def unknown(bench: Bench, run: UUID, call: UUID) -> None:
    term = bench.term()
    send = bench.one(bench.claim_call(run, call, term))
    assert isinstance(send, c.Send), send
    assert bench.one(bench.outcome(send, term, Unsure("timeout", "no answer"))) == c.Done("UNKNOWN")


def test_a_history_holds_all_that_belongs_to_a_run(bench: Bench) -> None:
    run = bench.enqueue()
    (call,) = bench.plan(run, ("wallet.debit", {"order": "o-1"}))
    unknown(bench, run, call)
    late = c.FileEvidence(
        id=uuid7(),
        tenant=TENANT,
        run=run,
        call=call,
        attempt=1,
        term=term_of_attempt(bench, call),
        outcome=Applied('{"id":"d-9"}', "d-9"),
    )
    assert bench.one(late) == c.Done("UNKNOWN")
    with connect(bench.database.dsns["reader"], "test", autocommit=True) as connection:
        found = listings.history(connection, TENANT, run)
        assert listings.history(connection, "other", run) is None
        assert found is not None
    assert (found.run.id, [one.id for one in found.calls]) == (run, [call])
    assert [event.seq for event in found.events] == list(range(1, found.run.seq + 1))
    assert {step.subject: step.queue for step in found.steps} == {run: "planner", call: "reconciler"}
    assert [(one.attempt, one.applied, one.receipt) for one in found.evidence] == [(1, True, "d-9")]
    assert found.workers[bench.worker].pid == 1
    assert found.now > found.run.created_at


def term_of_attempt(bench: Bench, call: UUID) -> c.Term:
    ((owner, fence),) = bench.sql(
        "SELECT worker, fence FROM fencepost.events WHERE call = %s AND type = 'ToolAttemptStarted'", call
    )
    return c.Term(owner, fence)


def test_an_unresolved_call_says_since_when_what_was_sent_and_what_was_answered(bench: Bench) -> None:
    run = bench.enqueue()
    (call,) = bench.plan(run, ("wallet.debit", {"order": "o-1"}))
    with connect(bench.database.dsns["reader"], "test", autocommit=True) as connection:
        assert unresolved(connection) == []
        unknown(bench, run, call)
        term = bench.term()
        ask = bench.one(bench.claim_doubt(run, call, term))
        assert isinstance(ask, c.Ask), ask
        answer = LookupAnswer(Answer.UNCLEAR, ask.asked_at, None, None, "503 from the wallet")
        record = c.RecordLookup(id=uuid7(), tenant=TENANT, run=run, term=term, call=call, answer=answer)
        assert bench.one(record) == c.Done("UNKNOWN")
        (found,) = unresolved(connection)
        marked = "SELECT recorded_at FROM fencepost.events WHERE type = 'ToolOutcomeMarkedUnknown'"
        assert (found.call, found.run_key, found.state, found.doubt) == (call, "o-1", "UNKNOWN", True)
        assert [(found.since,)] == bench.sql(marked)
        assert found.request is not None
        assert "/debits" in found.request
        assert found.lookup is not None
        assert "503 from the wallet" in found.lookup
        assert (found.queue, found.asks) == ("reconciler", 1)
        assert unresolved(connection, tenant="other") == []


def test_unresolved_calls_are_found_without_reading_the_settled_ones(bench: Bench) -> None:
    parameters = {"tenant": None, "limit": 100, "call": None}
    bench.sql("SET enable_seqscan = off")
    plan = bench.owner.execute("EXPLAIN " + doubtful._UNRESOLVED, parameters).fetchall()
    assert any("calls_open" in line for (line,) in plan)


def test_the_oldest_due_row_of_each_queue_is_told(bench: Bench) -> None:
    first, _ = bench.enqueue("o-1"), bench.enqueue("o-2")
    (call,) = bench.plan(first, ("wallet.debit", {"order": "o-1"}))
    with connect(bench.database.dsns["relay"], "test", autocommit=True) as connection:
        found = {info.queue: info for info in listings.queues(connection)}
    assert (found["planner"].rows, found["planner"].due) == (2, 1)
    oldest = "SELECT due_at FROM fencepost.outbox WHERE subject = %s"
    assert [(found["dispatcher"].oldest_due_at,)] == bench.sql(oldest, call)
    assert found["planner"].next_due_at is not None


def test_runs_are_overdue_when_their_step_has_been_due_for_a_minute(bench: Bench) -> None:
    run = bench.enqueue()
    with connect(bench.database.dsns["reader"], "test", autocommit=True) as connection:
        assert listings.list_runs(connection, stuck=True) == []
        bench.ahead(listings.OVERDUE.total_seconds() + 1)
        (found,) = listings.list_runs(connection, stuck=True)
        assert found.run_id == run
        assert listings.now(connection) - found.created_at > timedelta(minutes=1)


def test_a_producer_sees_runs_and_nothing_else(bench: Bench) -> None:
    run = bench.enqueue()
    with connect(bench.database.dsns["producer"], "test", autocommit=True) as connection:
        assert [info.run_id for info in listings.list_runs(connection)] == [run]
        assert [info.run_id for info in listings.runs_by_id(connection, [run, uuid7()])] == [run]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            listings.history(connection, TENANT, run)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            unresolved(connection)


def test_a_run_key_goes_before_an_id_that_begins_like_it(bench: Bench) -> None:
    run = bench.enqueue("o-1")
    other = bench.enqueue(str(run)[:8])
    with connect(bench.database.dsns["reader"], "test", autocommit=True) as connection:
        assert find_run(connection, str(run)[:8]) == (TENANT, other)
        assert find_run(connection, str(run)[:13]) == (TENANT, run)
        assert find_run(connection, str(run), TENANT) == (TENANT, run)
        with pytest.raises(NotFound, match="there is no run"):
            find_run(connection, str(run), "other")


def test_a_call_is_found_by_the_unique_beginning_of_its_id(bench: Bench) -> None:
    run = bench.enqueue()
    a, b = bench.plan(run, ("wallet.debit", {"order": "o-1"}), ("wallet.note", {"order": "o-1"}))
    with connect(bench.database.dsns["reader"], "test", autocommit=True) as connection:
        assert find_call(connection, str(a)).call == a
        assert find_call(connection, str(b).upper()).run == run
        with pytest.raises(UsageError, match=r"names several calls: .*wallet\.debit.* give more of the id"):
            find_call(connection, str(a)[:8])
        for absent in ("0000", "xyz", "", str(a)[:3], str(a) + "0"):
            with pytest.raises(NotFound, match="there is no call"):
                find_call(connection, absent)


def test_the_beginning_of_an_id_spans_all_ids_that_begin_with_it() -> None:
    low, high = id_range(" 01A2-b3 ")
    assert str(low) == "01a2b300-0000-0000-0000-000000000000"
    assert str(high) == "01a2b3ff-ffff-ffff-ffff-ffffffffffff"
    assert id_range("o-1") == (None, None)
    assert id_range("123") == (None, None)


def test_a_call_is_found_by_its_run_and_its_label_in_that(bench: Bench) -> None:
    run, other = bench.start(), bench.start()
    order = bench.order()
    (call,) = bench.plan(run, ("wallet.debit", {"order": order}))
    (same,) = bench.plan(other, ("wallet.debit", {"order": bench.order()}))
    ((key, label),) = bench.sql(
        "SELECT r.run_key, c.label FROM fencepost.runs r JOIN fencepost.calls c ON c.run = r.id"
        " WHERE c.id = %s",
        call,
    )
    with connect(bench.database.dsns["reader"], "test", autocommit=True) as connection:
        for text in (f"{key}/{label}", f"{run}/{label}", f"{str(run).upper()}/{label}"):
            assert find_call(connection, text).call == call, text
        assert find_call(connection, f"{other}/{label}").call == same
        for absent in (f"{key}/{label}x", f"x{key}/{label}", f"{key}/", f"/{label}", f"{key}//{label}"):
            with pytest.raises(NotFound, match="there is no call"):
                find_call(connection, absent)
    # Both may hold slashes: then the whole decides, and what can be read twice is asked about.
    with bench.attacker.session() as session:
        session.execute("SET session_replication_role = replica")
        session.execute("UPDATE fencepost.runs SET run_key = 'a/b' WHERE id = %s", [run])
        session.execute("UPDATE fencepost.calls SET label = 'c/d' WHERE id = %s", [call])
        assert find_call(session, "a/b/c/d").call == call
        session.execute("UPDATE fencepost.runs SET run_key = 'a/b/c' WHERE id = %s", [other])
        session.execute("UPDATE fencepost.calls SET label = 'd' WHERE id = %s", [same])
        with pytest.raises(UsageError, match=r"names several calls: .*give the id of one"):
            find_call(session, "a/b/c/d")
        assert find_call(session, f"{run}/c/d").call == call
