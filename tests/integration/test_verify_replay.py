"""`verify`: the rows are what the events say, and every tampering with either is found and named."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.ledger import rows, verify
from fencepost.ledger.connect import connect
from fencepost.ledger.verify import VerifyResult, verify_all, verify_run
from fencepost.outcomes import Unsure
from fencepost.recovery import Answer
from fencepost_ops.local import LocalPostgres
from tests.integration.conftest import copied
from tests.integration.ledger_bench import TENANT, Bench, open_bench


class Story:
    """A run with everything in it, and a way to tamper with it that is undone."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.run = bench.start(deadline_s=600)
        self.call = bench.debit(self.run, bench.order())
        send, term = bench.dispatch(self.run, self.call)
        bench.record(send, term, Unsure("timeout", "lost"))
        ask, asking = bench.reconcile(self.run, self.call)
        bench.one(bench.looked_up(ask, asking, Answer.FOUND, "r-1"))
        bench.cancel(self.run)
        bench.ahead(4)
        _, self.undo = bench.offset(self.run)
        bench.succeed(self.run, self.undo)
        bench.one(bench.claim_stopped(self.run))
        assert bench.status(self.run) == "STOPPED"


@pytest.fixture(scope="module")
def story(module_bench: Bench) -> Story:
    return Story(module_bench)


@pytest.fixture
def tampering(module_bench: Bench) -> Iterator[psycopg.Connection[Any]]:
    """A session with all guards off, whose changes are verified inside and then rolled back."""
    with psycopg.connect(module_bench.database.owner) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.commit()
        with connection.transaction(force_rollback=True):
            yield connection


def verified(connection: psycopg.Connection[Any], run: UUID) -> VerifyResult:
    """Verify inside an open transaction: what `verify_run` does, without a snapshot of its own."""
    reading = verify._Reading()
    fault = verify._fault(connection, TENANT, run, verify._head(connection, TENANT, run), reading)
    return VerifyResult(TENANT, run, reading.events, fault)


def test_an_honest_run_is_verified_event_by_event(bench: Bench, story: Story) -> None:
    with connect(bench.database.dsns["reader"], "verify") as connection:
        result = verify_run(connection, TENANT, story.run)
    assert (result.ok, result.fault, result.run) == (True, None, story.run)
    assert result.events == len(bench.events(story.run))


def test_every_single_change_replays_to_the_rows_of_that_moment(bench: Bench) -> None:
    with connect(bench.database.dsns["reader"], "verify") as connection:
        apply = bench.ledger.apply
        results: list[VerifyResult] = []

        def watched(commands: Any) -> Any:
            answers = apply(commands)
            results.extend(verify_run(connection, TENANT, command.run) for command in commands)
            return answers

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bench.ledger, "apply", watched)
            Story(bench)
    assert len(results) > 10
    assert [result.fault for result in results] == [None] * len(results)
    assert [result.events for result in results] == sorted({result.events for result in results})


# -- rows --------------------------------------------------------------------------------------------

RUN_FIELDS = sorted(set(rows.RUN_COLUMNS) - {"tenant", "id"})
CALL_FIELDS = sorted(set(rows.CALL_COLUMNS) - {"tenant", "id", "run"})


@pytest.mark.parametrize(
    ("table", "field"), [*(("runs", f) for f in RUN_FIELDS), *(("calls", f) for f in CALL_FIELDS)]
)
def test_a_changed_field_of_a_row_is_named(
    story: Story, tampering: psycopg.Connection[Any], table: str, field: str
) -> None:
    kind = tampering.execute(
        "SELECT data_type FROM information_schema.columns"
        " WHERE table_schema = 'fencepost' AND table_name = %s AND column_name = %s",
        [table, field],
    ).fetchone()
    assert kind is not None
    other = {
        "text": "'tampered'",
        "integer": f'"{field}" + 1',
        "bigint": f'coalesce("{field}", 0) + 1',
        "boolean": f'NOT "{field}"',
        "uuid": "gen_random_uuid()",
        "jsonb": """'{"tampered": true}'""",
        "timestamp with time zone": f"coalesce(\"{field}\", now()) + interval '1 microsecond'",
    }[kind[0]]
    subject = story.run if table == "runs" else story.call
    tampering.execute(f'UPDATE fencepost.{table} SET "{field}" = {other} WHERE id = %s', [subject])
    result = verified(tampering, story.run)
    assert not result.ok
    assert f" {field} is " in str(result.fault), result.fault


def test_a_call_that_is_missing_or_made_up_is_named(story: Story, tampering: psycopg.Connection[Any]) -> None:
    with tampering.transaction(force_rollback=True):
        tampering.execute("DELETE FROM fencepost.calls WHERE id = %s", [story.undo])
        assert verified(tampering, story.run).fault == f"call {story.undo} has no row"
    made_up = uuid7()
    others = rows.columns([n for n in rows.CALL_COLUMNS if n != "id"])
    copy = (
        f"INSERT INTO fencepost.calls (id, {others}) SELECT %s, {others} FROM fencepost.calls WHERE id = %s"
    )
    tampering.execute(copy, [made_up, story.call])
    assert verified(tampering, story.run).fault == f"call {made_up} has no history"


# -- events ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("principal = 'mallory'", "event 5: its header was changed"),
        ("body = '{}'", "event 5: its body was changed"),
        ("digest = 'x'", "event 5: its body was changed"),
        ("hash = 'x'", "event 5: its header was changed"),
        ("prev_hash = 'x'", "event 5 does not follow the one before it"),
        ("seq = 1000", "event 5 is missing: found 6"),
        ("type = 'NotYetInvented'", "event 5: its header was changed"),
        ("recorded_at = recorded_at + interval '1 microsecond'", "event 5: its header was changed"),
        ("worker = 'x'", "event 5: its header was changed"),
    ],
)
def test_a_changed_event_is_named(
    story: Story, tampering: psycopg.Connection[Any], change: str, fault: str
) -> None:
    tampering.execute(f"UPDATE fencepost.events SET {change} WHERE run = %s AND seq = 5", [story.run])
    assert verified(tampering, story.run).fault == fault


def test_a_removed_event_a_cut_tail_and_a_lost_history_are_found(
    story: Story, tampering: psycopg.Connection[Any]
) -> None:
    cut = {
        "seq = 7": "event 7 is missing: found 8",
        "seq > 20": "the run's status is",
        "seq >= 1": "the history is empty",
    }
    for where, fault in cut.items():
        with tampering.transaction(force_rollback=True):
            tampering.execute(f"DELETE FROM fencepost.events WHERE run = %s AND {where}", [story.run])
            assert fault in str(verified(tampering, story.run).fault)


def test_events_of_a_run_that_says_nothing_happened_are_found(
    story: Story, tampering: psycopg.Connection[Any]
) -> None:
    tampering.execute("UPDATE fencepost.runs SET seq = 0 WHERE id = %s", [story.run])
    assert verified(tampering, story.run).fault == "it has events, yet its row says that nothing happened"


# -- payloads ----------------------------------------------------------------------------------------


def test_a_changed_and_a_missing_payload_are_named(story: Story, tampering: psycopg.Connection[Any]) -> None:
    digest = story.bench.call(story.call).result
    tampering.execute("ALTER TABLE fencepost.payloads DROP CONSTRAINT payloads_digest_check")
    tampering.execute("UPDATE fencepost.payloads SET data = 'other' WHERE digest = %s", [digest])
    assert verified(tampering, story.run).fault == f"payload {digest} was changed"
    tampering.execute("DELETE FROM fencepost.payloads WHERE digest = %s", [digest])
    assert verified(tampering, story.run).fault == f"payload {digest} is missing"


# -- all of them -------------------------------------------------------------------------------------


def test_all_runs_are_verified_in_pages_and_in_order(
    postgres: LocalPostgres, template: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "PAGE", 2)
    with copied(postgres, template) as database, open_bench(database) as bench:
        runs = [bench.start() for _ in range(5)]
        bench.debit(runs[0], bench.order())
        with psycopg.connect(database.owner, autocommit=True) as owner:
            owner.execute("SET session_replication_role = replica")
            owner.execute("UPDATE fencepost.runs SET turn = 9 WHERE id = %s", [runs[0]])
        with connect(database.dsns["reader"], "verify") as connection:
            results = list(verify_all(connection))
    assert [result.run for result in results] == sorted(runs)
    assert {result.run: result.ok for result in results} == {run: run != runs[0] for run in runs}
    assert {result.events for result in results if result.ok} == {0}


def test_a_run_that_is_not_there_is_a_fault(bench: Bench) -> None:
    with connect(bench.database.dsns["reader"], "verify") as connection:
        assert verify_run(connection, TENANT, uuid7()).fault == "there is no such run"


def test_a_run_that_moves_meanwhile_is_seen_as_it_was(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = bench.start()
    original = verify._differs

    def moving(*args: Any) -> str | None:
        monkeypatch.setattr(verify, "_differs", original)
        assert isinstance(bench.one(bench.claim_run(run)), c.Plan)
        return original(*args)

    monkeypatch.setattr(verify, "_differs", moving)
    with connect(bench.database.dsns["reader"], "verify") as connection:
        result = verify_run(connection, TENANT, run)
    assert (result.ok, result.events) == (True, 0)
