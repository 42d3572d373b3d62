"""What Postgres refuses of histories, keys and the outbox, and what each role may do at all."""

from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest

from fencepost.clock import uuid7
from fencepost.ledger.ddl import tables
from fencepost.ledger.schema import metadata
from fencepost.outcomes import Applied
from tests.integration.guards_bench import OPERATOR, OWNER, WORKER, Attack, attack
from tests.integration.ledger_bench import TENANT, Bench, Fields

RELAY, PRODUCER, READER = "fencepost_relay", "fencepost_producer", "fencepost_reader"


class Settled:
    """A run whose call was taken over and of which evidence was filed: it has all there is to attack."""

    def __init__(self, bench: Bench) -> None:
        self.run = bench.start()
        self.call = bench.debit(self.run, bench.order())
        self.first, self.term = bench.dispatch(self.run, self.call)
        bench.ahead(4)
        bench.reconcile(self.run, self.call)
        bench.one(bench.evidence(self.first, self.term, Applied('{"id":"r-1"}', "r-1")))


@pytest.fixture(scope="module")
def settled(module_bench: Bench) -> Settled:
    return Settled(module_bench)


@pytest.fixture
def opened(module_bench: Bench) -> Iterator[Attack]:
    with attack(module_bench) as opened:
        yield opened


# -- history -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["events", "evidence"])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE fencepost.{} SET recorded_at = recorded_at + interval '1 s'",
        "DELETE FROM fencepost.{}",
        "TRUNCATE fencepost.{}",
    ],
)
def test_history_is_neither_edited_nor_deleted_nor_truncated(
    settled: Settled, opened: Attack, table: str, statement: str
) -> None:
    assert opened.force(f"SELECT count(*) FROM fencepost.{table}") != [(0,)]
    assert opened.attempt(statement.format(table), role=WORKER) == "42501"
    assert opened.attempt(statement.format(table), role=OPERATOR) == "42501"
    assert opened.attempt(statement.format(table), role=OWNER) == "FP004"


@pytest.mark.parametrize(
    "changed",
    [{"owner": "x"}, {"fence": 99}, {"attempt": 2}, {"call": uuid7()}, {"run": uuid7()}, {"tenant": "x"}],
)
def test_evidence_is_of_an_attempt_that_was_started(
    settled: Settled, opened: Attack, changed: Fields
) -> None:
    names = "tenant, id, run, call, attempt, owner, fence, applied, code, recorded_at"
    filed: Fields = {
        "tenant": TENANT,
        "id": uuid7(),
        "run": settled.run,
        "call": settled.call,
        "attempt": 1,
        "owner": settled.term.owner,
        "fence": settled.term.fence,
    }
    said: Fields = {"attempt": 1, "worker": settled.term.owner, "fence": settled.term.fence}
    body = {"applied": True, "receipt": None, "result": None}
    opened.event(settled.run, settled.call, "EvidenceFiled", id=filed["id"], body=body, **said)
    statement = f"INSERT INTO fencepost.evidence ({names}) VALUES ({'%s, ' * 7} true, 'x', now())"
    assert opened.attempt(statement, *filed.values()) is None
    for role in (WORKER, OWNER):
        assert opened.attempt(statement, *(filed | changed).values(), role=role) == "FP002"


def test_a_payload_cannot_hold_other_bytes_than_its_digest_names(settled: Settled, opened: Attack) -> None:
    statement = "INSERT INTO fencepost.payloads VALUES (%s, %s, 'x')"
    assert opened.attempt(statement, TENANT, "0" * 64) == "23514"
    assert opened.attempt("UPDATE fencepost.payloads SET data = 'x'", role=OWNER) == "23514"


# -- outbox --------------------------------------------------------------------------------------------


def row_update(opened: Attack, subject: UUID, change: str, role: str | None = WORKER) -> str | None:
    return opened.attempt(f"UPDATE fencepost.outbox SET {change} WHERE subject = %s", subject, role=role)


@pytest.mark.parametrize(
    "change",
    [
        "generation = generation - 1",
        "due_at = due_at + interval '1 s'",
        "queue = 'planner'",
        "worker = 'x'",
        "fence = fence + 1",
        "takeovers = takeovers + 1",
        "subject = gen_random_uuid(), generation = generation + 1",
        "kind = 'run', generation = generation + 1",
        "run = gen_random_uuid(), generation = generation + 1",
        "tenant = 'x', generation = generation + 1",
        "root = gen_random_uuid(), generation = generation + 1",
    ],
)
def test_a_row_changes_only_with_a_new_generation(settled: Settled, opened: Attack, change: str) -> None:
    for role in (WORKER, OWNER):
        assert row_update(opened, settled.call, change, role) == "FP001"


@pytest.mark.parametrize(
    "change",
    [
        "due_at = due_at - interval '1 s'",
        "publish_at = now(), publish_count = publish_count + 1",
        "due_at = due_at + interval '1 s', queue = 'dispatcher', generation = generation + 1",
    ],
)
def test_what_anybody_may_do_to_a_row(settled: Settled, opened: Attack, change: str) -> None:
    assert row_update(opened, settled.call, change) is None


def test_an_open_subject_keeps_its_row(settled: Settled, opened: Attack) -> None:
    delete = "DELETE FROM fencepost.outbox WHERE subject = %s"
    for subject in (settled.run, settled.call):
        for role in (WORKER, OWNER):
            assert opened.attempt(delete, subject, role=role) is None, "judged at COMMIT, not before"
            assert opened.attempt(delete, subject, role=role, deferred=True) == "FP001"


def test_a_row_may_go_when_its_subject_has_ended_or_another_takes_its_place(
    settled: Settled, opened: Attack
) -> None:
    opened.put("calls", settled.call, state="SUCCEEDED")
    delete = "DELETE FROM fencepost.outbox WHERE subject = %s"
    assert opened.attempt(delete, settled.call, deferred=True) is None
    opened.put("calls", settled.call, state="UNKNOWN")
    assert opened.attempt(delete, settled.call, deferred=True) == "FP001"
    opened.connection.execute("DELETE FROM fencepost.outbox WHERE subject = %s", [settled.call])
    opened.connection.execute(
        "INSERT INTO fencepost.outbox (tenant, subject, kind, run, generation, queue, due_at, publish_at)"
        " VALUES (%s, %s, 'call', %s, 99, 'reconciler', now(), now())",
        [TENANT, settled.call, settled.run],
    )
    assert opened.attempt("SELECT 1", deferred=True) is None


# -- roles ---------------------------------------------------------------------------------------------

API = "fencepost_api"
TABLES = sorted(table.name for table in tables())
VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
ALL_READ = {(table, "SELECT") for table in TABLES}
WRITES = {
    ("runs", "UPDATE"),
    *(("calls", verb) for verb in ("INSERT", "UPDATE")),
    *(("operations", verb) for verb in ("INSERT", "UPDATE")),
    *(("dependencies", verb) for verb in ("INSERT", "UPDATE")),
    *(("outbox", verb) for verb in ("INSERT", "UPDATE", "DELETE")),
    *(("workers", verb) for verb in ("INSERT", "UPDATE")),
    *((table, "INSERT") for table in ("events", "evidence", "payloads")),
    *(("allowances", verb) for verb in ("INSERT", "UPDATE", "DELETE")),
}
RULES = {
    *((table, "INSERT") for table in ("policies", "principals", "delegations", "withdrawn")),
    ("principals", "UPDATE"),
    ("withdrawn", "DELETE"),
}
TOKENS = {("api_tokens", "SELECT")}
OVER_HTTP = {
    *((table, "SELECT") for table in ("runs", "events", "calls", "payloads", "signals")),
    *((table, "SELECT") for table in ("operations", "outbox", "workers", "dependencies", "allowances")),
    *((table, "SELECT") for table in ("epochs", "policies", "principals", "delegations", "withdrawn")),
    ("events", "INSERT"),  # a cancel writes them, and what stands below; of five more tables some columns
    ("outbox", "DELETE"),
}
MAY = {
    API: OVER_HTTP,
    WORKER: ALL_READ - TOKENS | WRITES | {("memory", "INSERT")},
    OPERATOR: ALL_READ
    | WRITES
    | RULES
    | {("intake_refusals", "DELETE"), ("epochs", "INSERT"), ("api_tokens", "INSERT")},
    READER: ALL_READ - TOKENS,
    RELAY: {("ledger", "SELECT"), ("outbox", "SELECT"), ("workers", "SELECT")},
    PRODUCER: {("runs", "SELECT"), ("epochs", "SELECT")},  # whether its runs are held
}


@pytest.mark.parametrize("role", sorted(MAY))
def test_a_role_may_do_what_it_needs_and_no_more(opened: Attack, role: str) -> None:
    asked = "SELECT has_table_privilege(%s, %s, %s)"
    granted = {
        (table, verb)
        for table in TABLES
        for verb in VERBS
        if opened.force(asked, role, f"fencepost.{table}", verb) == [(True,)]
    }
    assert granted == MAY[role]


def test_the_relay_says_when_a_row_is_published_and_that_it_fails_and_reads_no_business(
    settled: Settled, opened: Attack
) -> None:
    columns = [c.name for c in metadata.tables["fencepost.outbox"].columns]
    may = {c for c in columns if row_update(opened, settled.call, f"{c} = {c}", RELAY) is None}
    assert may == {"publish_at", "publish_count", "due_at", "failures", "error", "dead_at"}
    for table in ("runs", "calls", "events", "payloads", "operations", "evidence"):
        assert opened.attempt(f"SELECT 1 FROM fencepost.{table}", role=RELAY) == "42501"


def test_a_producers_login_enqueues_and_sees_runs_and_nothing_else(
    module_bench: Bench, settled: Settled
) -> None:
    run = module_bench.start()
    with psycopg.connect(module_bench.database.dsns["producer"], autocommit=True) as connection:
        found = connection.execute("SELECT id FROM fencepost.runs WHERE id = %s", [run]).fetchall()
        assert found == [(run,)]
        forbidden = [f"SELECT 1 FROM fencepost.{t}" for t in TABLES if t not in {"runs", "epochs"}]
        forbidden += [f"{verb} fencepost.runs" for verb in ("DELETE FROM", "TRUNCATE")]
        forbidden += ["UPDATE fencepost.runs SET status = 'COMPLETED'", "CREATE TABLE fencepost.mine ()"]
        forbidden += [
            "INSERT INTO fencepost.outbox DEFAULT VALUES",
            "DROP FUNCTION fencepost.guard_run() CASCADE",
        ]
        for statement in forbidden:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


@pytest.mark.parametrize("role", [RELAY, READER, "public"])
def test_others_cannot_enqueue(opened: Attack, role: str) -> None:
    signature = "fencepost.enqueue_run(text,text,text,integer,text,jsonb,interval,jsonb,text,uuid,text)"
    assert opened.force("SELECT has_function_privilege(%s, %s, 'EXECUTE')", role, signature) == [(False,)]


@pytest.mark.parametrize("role", [WORKER, RELAY, READER, "public"])
def test_others_cannot_send_signals(opened: Attack, role: str) -> None:
    signature = "fencepost.signal_run(text,uuid,text,text,jsonb,text)"
    assert opened.force("SELECT has_function_privilege(%s, %s, 'EXECUTE')", role, signature) == [(False,)]


@pytest.mark.parametrize("role", [WORKER, RELAY, READER, OPERATOR, API, "public"])
def test_only_a_producers_login_keeps_what_an_intake_refused(opened: Attack, role: str) -> None:
    signature = "fencepost.refuse_intake(uuid,text,text,text,text,text)"
    assert opened.force("SELECT has_function_privilege(%s, %s, 'EXECUTE')", role, signature) == [(False,)]


@pytest.mark.parametrize("role", sorted(MAY))
def test_no_role_creates_or_drops_anything(opened: Attack, role: str) -> None:
    for statement in (
        "CREATE TABLE fencepost.mine ()",
        "DROP TABLE fencepost.events CASCADE",
        "ALTER TABLE fencepost.calls DISABLE TRIGGER guard_call",
        "CREATE OR REPLACE FUNCTION fencepost.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
        "SET LOCAL session_replication_role = replica",
        "UPDATE fencepost.clock SET ahead = '1 year'",
    ):
        assert opened.attempt(statement, role=role) == "42501"


# -- names -----------------------------------------------------------------------------------------------

OPEN_PATHS = """
SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'fencepost'::regnamespace
    AND (p.prosecdef OR p.prorettype = 'trigger'::regtype)
    AND p.proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp']
"""
SPY = """
CREATE TEMP TABLE seen (who name);
GRANT ALL ON pg_temp.seen TO PUBLIC;
CREATE FUNCTION pg_temp.spy(value anyelement) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN INSERT INTO pg_temp.seen VALUES (current_user); RETURN true; END $$;
"""
SPIED = ("jsonb", "json", "uuid", "text", "timestamptz", "xid")


def test_no_function_of_ours_looks_names_up_where_its_caller_says(opened: Attack) -> None:
    assert opened.force(OPEN_PATHS) == []


def test_nobody_runs_a_type_of_their_own_with_the_owner_s_rights(bench: Bench) -> None:
    enqueue = "SELECT fencepost.enqueue_run('t', %s, 'p', 1, 'svc:x', '{}', '1 h')"
    signal = "SELECT fencepost.signal_run(%s, %s, 'k', 'n', '{}', 's')"
    run = bench.start()
    with psycopg.connect(bench.database.dsns["producer"], autocommit=True) as producer:
        producer.execute(SPY)
        for name in SPIED:
            producer.execute(f"CREATE DOMAIN pg_temp.{name} AS pg_catalog.{name} CHECK (pg_temp.spy(VALUE))")
        producer.execute("SELECT '{}'::pg_temp.jsonb")
        producer.execute(enqueue, [str(uuid7())])
        producer.execute(signal, [TENANT, run])
        seen = producer.execute("SELECT DISTINCT who <> current_user FROM pg_temp.seen").fetchall()
    assert seen == [(False,)], "it looked at itself alone"
