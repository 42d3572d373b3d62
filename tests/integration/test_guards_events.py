"""Histories attacked in plain SQL: gaps, forks, loose ends, events beyond the head, ids of other tenants."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.outcomes import Applied
from tests.integration.guards_bench import OPERATOR, OWNER, WORKER, Attack, attack
from tests.integration.ledger_bench import TENANT, Bench

INSERT = """
INSERT INTO fencepost.events (tenant, run, seq, id, type, version, body, digest, principal, causation,
    recorded_at, projection, prev_hash, hash, call)
SELECT n.tenant, n.run, n.seq, coalesce(n.id, gen_random_uuid()), coalesce(n.type, 'CancelRequested'), 1,
    '{}', '', 'p', n.run, now(), n.projection, n.prev_hash, n.hash, n.call
FROM jsonb_to_recordset(%s::jsonb) AS n (tenant text, run uuid, seq bigint, id uuid, type text,
    projection text, prev_hash text, hash text, call uuid)
"""
MOVE = "UPDATE fencepost.runs SET seq = %s, head_hash = %s, {} WHERE id = %s"
PRESENTED = "presented_owner = 'next', presented_fence = fence + 1, fence = fence + 1"

Said = dict[str, Any]


@dataclass
class History:
    """A run that acts, its head, and events that go on from it."""

    attack: Attack
    run: UUID
    seq: int
    head: str

    def next(self, number: int = 1, **but: Any) -> Said:
        before = self.head if number == 1 else f"h{number - 1}"
        event: Said = {"tenant": TENANT, "run": str(self.run), "seq": self.seq + number, "projection": "p"}
        return event | {"prev_hash": before, "hash": f"h{number}"} | but

    def insert(self, *events: Said, role: str | None = WORKER, deferred: bool = False) -> str | None:
        text = psycopg.types.json.Jsonb(list(events))
        return self.attack.attempt(INSERT, text, role=role, deferred=deferred)

    def move(self, number: int) -> None:
        """Move the run to the nth of its new events, under a claim."""
        values = (self.seq + number, f"h{number}", self.run)
        self.attack.connection.execute(MOVE.format(PRESENTED), values)


@pytest.fixture(scope="module")
def acting(module_bench: Bench) -> UUID:
    run = module_bench.start()
    module_bench.debit(run, module_bench.order())
    return run


@pytest.fixture
def history(module_bench: Bench, acting: UUID) -> Iterator[History]:
    run = module_bench.run(acting)
    with attack(module_bench) as opened:
        yield History(opened, acting, run.seq, run.head_hash)


@pytest.mark.parametrize("role", [WORKER, OPERATOR, OWNER])
def test_a_history_goes_on_where_it_ends(history: History, role: str | None) -> None:
    assert history.insert(history.next(), role=role) is None
    assert history.insert(history.next(projection=None), history.next(2), role=role) is None
    wrong = [
        [history.next(seq=history.seq + 2)],
        [history.next(seq=history.seq + 7)],
        [history.next(seq=-1)],
        [history.next(prev_hash="0" * 64)],
        [history.next(run=str(uuid7()))],
        [history.next(tenant="other")],
        [history.next(), history.next(3)],
        [history.next(), history.next(2, seq=history.seq + 3)],
        [history.next(), history.next(2, prev_hash="x")],
        [history.next(), history.next(2, prev_hash=history.head)],
    ]
    assert {history.insert(*events, role=role) for events in wrong} == {"FP004"}
    assert history.insert(history.next(seq=history.seq), role=role) == "23505"


def test_a_change_says_where_the_run_stands_after_it(history: History) -> None:
    assert history.insert(history.next(projection=None)) == "FP004"
    assert history.insert(history.next(), history.next(2, projection=None)) == "FP004"


def test_a_history_begins_once(module_bench: Bench, history: History) -> None:
    assert history.insert(history.next(type="RunCreated")) == "FP004"
    fresh: Said = {"run": str(module_bench.start()), "seq": 1, "prev_hash": "0" * 64}
    assert history.insert(history.next(**fresh)) == "FP004"
    assert history.insert(history.next(**fresh, type="RunCreated")) is None


def test_every_run_of_a_statement_is_judged(module_bench: Bench, history: History) -> None:
    other = module_bench.start()
    first: Said = {"run": str(other), "seq": 1, "prev_hash": "0" * 64, "type": "RunCreated"}
    assert history.insert(history.next(), history.next(**first)) is None
    assert history.insert(history.next(), history.next(**first, projection=None)) == "FP004"
    assert history.insert(history.next(), history.next(**(first | {"seq": 2}))) == "FP004"


def test_what_follows_in_the_same_transaction_follows_the_run(history: History) -> None:
    both = psycopg.types.json.Jsonb([history.next()])
    history.attack.connection.execute(INSERT, [both])
    assert history.insert(history.next(2)) == "FP004", "the run has not moved yet"
    history.move(1)
    assert history.insert(history.next(2)) is None


# -- at COMMIT -------------------------------------------------------------------------------------------


def test_a_history_says_nothing_of_a_call_that_its_row_does_not_say(
    module_bench: Bench, history: History
) -> None:
    calls = module_bench.sql("SELECT id FROM fencepost.calls WHERE run = %s", history.run)
    said: Said = {"call": str(calls[0][0]), "type": "EvidenceFiled"}
    first = [history.next(projection=None, **said), history.next(2)]
    strange = [history.next(projection=None, **said | {"call": str(uuid7())}), history.next(2)]
    connection = history.attack.connection
    for events, version, refused in ((first, 1, False), (first, 0, True), (strange, 0, True)):
        connection.execute("SAVEPOINT one")
        connection.execute(INSERT, [psycopg.types.json.Jsonb(events)])
        history.move(2)
        if version:
            moved = "UPDATE fencepost.calls SET version = %s WHERE id = %s"
            connection.execute(moved, [history.seq + version, calls[0][0]])
        assert (history.attack.attempt("SELECT 1", deferred=True) == "FP004") == refused
        assert not refused or "a call has not moved to its event" in history.attack.said
        connection.execute("ROLLBACK TO SAVEPOINT one")


@pytest.mark.parametrize("role", [WORKER, OPERATOR, OWNER])
def test_no_event_is_left_beyond_the_head_of_its_run(history: History, role: str | None) -> None:
    assert history.insert(history.next(), role=role) is None, "judged at COMMIT, not before"
    assert history.insert(history.next(), role=role, deferred=True) == "FP004"
    two = [history.next(projection=None), history.next(2)]
    assert history.insert(*two, role=role, deferred=True) == "FP004"


def test_a_run_moves_to_the_end_of_its_change(history: History) -> None:
    two = psycopg.types.json.Jsonb([history.next(), history.next(2)])
    history.attack.connection.execute(INSERT, [two])
    history.attack.connection.execute("SAVEPOINT half")
    history.move(1)
    assert history.attack.attempt("SELECT 1", deferred=True) == "FP004"
    history.attack.connection.execute("ROLLBACK TO SAVEPOINT half")
    history.move(2)
    assert history.attack.attempt("SELECT 1", deferred=True) is None


def test_a_run_does_not_move_into_the_middle_of_a_change(history: History) -> None:
    two = psycopg.types.json.Jsonb([history.next(projection=None), history.next(2)])
    history.attack.connection.execute(INSERT, [two])
    values = (history.seq + 1, "h1", history.run)
    assert history.attack.attempt(MOVE.format(PRESENTED), *values) == "FP004"


def test_an_orphan_event_cannot_stop_a_run_for_ever(bench: Bench) -> None:
    run = bench.start()
    bench.debit(run, bench.order())
    stands = bench.run(run)
    orphan = {"tenant": TENANT, "run": str(run), "seq": stands.seq + 1, "projection": "p"}
    orphan |= {"prev_hash": stands.head_hash, "hash": "x"}
    with psycopg.connect(bench.database.dsns["worker"]) as connection:
        connection.execute(INSERT, [psycopg.types.json.Jsonb([orphan])])
        with pytest.raises(psycopg.Error) as refused:
            connection.commit()
    assert refused.value.sqlstate == "FP004"
    assert bench.cancel(run) == c.Done("STOPPED")


# -- tenants ---------------------------------------------------------------------------------------------


def test_an_id_is_taken_within_its_tenant_only(module_bench: Bench, history: History) -> None:
    identity = str(uuid7())
    first = psycopg.types.json.Jsonb([history.next(id=identity)])
    history.attack.connection.execute(INSERT, [first])
    history.move(1)
    assert history.insert(history.next(2, id=identity)) == "23505"
    other = module_bench.start()
    history.attack.put("runs", other, tenant="other")
    theirs: Said = {"tenant": "other", "run": str(other), "seq": 1, "prev_hash": "0" * 64, "id": identity}
    assert history.insert(history.next(**theirs, type="RunCreated")) is None


def test_two_tenants_may_give_a_run_the_same_id_and_send_the_same_command_id(bench: Bench) -> None:
    run = bench.start()
    bench.producer.execute(
        "SELECT fencepost.enqueue_run('other', 'o-1', 'p', 1, 'svc', '{}', '1 h', p_id => %s)", [run]
    )
    command: dict[str, Any] = {"id": uuid7(), "run": run, "by": "ann"}
    (first,) = bench.ledger.apply([c.RequestCancel(tenant=TENANT, **command)])
    (second,) = bench.ledger.apply([c.RequestCancel(tenant="other", **command)])
    assert first == second == c.Done("STOPPED")
    stopped = bench.sql("SELECT tenant, status FROM fencepost.runs WHERE id = %s ORDER BY tenant", run)
    assert stopped == [("other", "STOPPED"), (TENANT, "STOPPED")]
    events = "SELECT tenant, count(*) FROM fencepost.events WHERE run = %s GROUP BY tenant ORDER BY tenant"
    assert [tenant for tenant, _ in bench.sql(events, run)] == ["other", TENANT]
    bench.started.remove(run)  # reading one run by its id alone would find both


# -- evidence --------------------------------------------------------------------------------------------

FILED = """
INSERT INTO fencepost.evidence (tenant, id, run, call, attempt, owner, fence, applied, receipt, result, code,
    recorded_at) VALUES (%s, %s, %s, %s, 1, %s, %s, %s, %s, %s, 'applied', now())
"""


def test_evidence_is_what_an_event_says(module_bench: Bench) -> None:
    run = module_bench.start()
    call = module_bench.debit(run, module_bench.order())
    send, term = module_bench.dispatch(run, call)
    module_bench.ahead(4)
    module_bench.reconcile(run, call)
    with attack(module_bench) as opened:
        said: dict[str, Any] = {"attempt": 1, "worker": term.owner, "fence": term.fence}
        body = {"applied": True, "receipt": "r-1", "result": None}
        _, event, _ = opened.event(run, call, "EvidenceFiled", body=body, **said)
        _, other, _ = opened.event(run, call, "ToolLookupRecorded", body=body, **said)
        _, second, _ = opened.event(run, call, "EvidenceFiled", body=body, **(said | {"attempt": 2}))
        _, foreign, _ = opened.event(run, call, "EvidenceFiled", body=body, tenant="x", **said)
        _, theirs, _ = opened.event(run, uuid7(), "EvidenceFiled", body=body, **said)
        _, stranger, _ = opened.event(run, call, "EvidenceFiled", body=body, **(said | {"worker": "x"}))
        filed = (run, call, term.owner, term.fence, True, "r-1", None)
        for role in (WORKER, OWNER):
            assert opened.attempt(FILED, TENANT, event, *filed, role=role) is None
            for wrong in (uuid7(), other, second, foreign, theirs, stranger):
                assert opened.attempt(FILED, TENANT, wrong, *filed, role=role) == "FP004"
        for column, value in ((4, False), (5, "r-2"), (5, None), (6, "d-1")):
            changed = (*filed[:column], value, *filed[column + 1 :])
            assert opened.attempt(FILED, TENANT, event, *changed) == "FP004"
    module_bench.one(module_bench.evidence(send, term, Applied('{"id":"r-1"}', "r-1")))
    kept = module_bench.sql("SELECT applied, receipt FROM fencepost.evidence WHERE call = %s", call)
    assert kept == [(True, "r-1")]
