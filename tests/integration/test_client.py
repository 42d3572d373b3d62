"""The Python client against real Postgres, logged in as the roles it is meant for."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost import (
    Budget,
    Client,
    Conflict,
    Enqueued,
    FencepostError,
    NotFound,
    OnStop,
    RunRequest,
    Unreachable,
    UsageError,
)
from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.outcomes import Unsure
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres
from tests.integration.ledger_bench import TENANT, Bench, open_bench

MINUTE = timedelta(minutes=1)


@pytest.fixture
def bench(database: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(database) as opened:
        yield opened


@pytest.fixture
def client(database: LedgerDatabase) -> Iterator[Client]:
    with Client(database.dsns["producer"]) as opened:
        yield opened


@pytest.fixture
def operator(database: LedgerDatabase) -> Iterator[Client]:
    with Client(database.dsns["operator"]) as opened:
        yield opened


def request(key: str = "o-1", **changes: Any) -> RunRequest:
    given: dict[str, Any] = {"planner": "p", "input": {"order": key}, "run_key": key, "tenant": TENANT}
    given |= {"principal": "svc:checkout", "deadline": MINUTE}
    return RunRequest(**{**given, **changes})


def enqueue(client: Client, key: str = "o-1", **changes: Any) -> Enqueued:
    (outcome,) = client.enqueue_many([request(key, **changes)])
    assert isinstance(outcome, Enqueued), outcome
    return outcome


def count(bench: Bench, table: str) -> int:
    return int(bench.sql(f"SELECT count(*) FROM fencepost.{table}")[0][0])


def test_a_run_is_enqueued_once_with_its_outbox_row(bench: Bench, client: Client) -> None:
    budget = Budget(turns=3, wall_clock=MINUTE)
    given: dict[str, Any] = {
        "run_key": "o-1",
        "tenant": TENANT,
        "principal": "svc:checkout",
        "deadline": timedelta(seconds=90),
        "budget": budget,
        "on_stop": OnStop.LEAVE,
    }
    first = client.enqueue("p", {"order": "o-1", "weight": 1.5}, **given)
    assert first.created
    assert client.enqueue("p", {"weight": 1.5, "order": "o-1"}, **given) == Enqueued(
        first.run_id, created=False
    )
    ((request, on_stop, lasts),) = bench.sql(
        "SELECT request, on_stop, deadline - created_at FROM fencepost.runs"
    )
    assert request["input"] == {"order": "o-1", "weight": 1.5}
    assert request["budget"] == budget.to_json()
    assert (on_stop, lasts) == ("leave", timedelta(seconds=90))
    assert bench.sql("SELECT subject, queue FROM fencepost.outbox") == [(first.run_id, "planner")]


def test_a_taken_key_is_a_conflict_that_says_what_to_do(client: Client) -> None:
    enqueue(client)
    for changes in ({"input": {"order": "o-2"}}, {"deadline": 2 * MINUTE}, {"budget": Budget(turns=1)}):
        with pytest.raises(
            Conflict, match=r"run key o-1 of tenant shop is taken by another request.*use another"
        ):
            client.enqueue(**{**fields(request()), **changes})


def fields(asked: RunRequest) -> dict[str, Any]:
    names = ("planner", "input", "run_key", "tenant", "principal", "deadline")
    return {name: getattr(asked, name) for name in names}


def test_many_requests_come_back_in_order_with_their_own_conflicts(bench: Bench, client: Client) -> None:
    enqueue(client, "o-0700")
    enqueue(client, "o-0003", input={"order": "another"})
    asked = [request(f"o-{n:04}") for n in reversed(range(1200))]
    outcomes = client.enqueue_many(iter(asked))
    told = dict(zip([one.run_key for one in asked], outcomes, strict=True))
    assert isinstance(told["o-0003"], Conflict)
    assert isinstance(told["o-0700"], Enqueued)
    assert not told["o-0700"].created
    made = [key for key, outcome in told.items() if isinstance(outcome, Enqueued) and outcome.created]
    assert len(made) == 1198
    (found,) = bench.sql("SELECT id FROM fencepost.runs WHERE run_key = 'o-0042'")
    assert told["o-0042"] == Enqueued(found[0], created=True)
    assert count(bench, "outbox") == 1200


def test_a_key_twice_in_one_batch_is_one_run(bench: Bench, client: Client) -> None:
    one, two, three = client.enqueue_many([request(), request(), request(input=[])])
    assert isinstance(one, Enqueued)
    assert two == Enqueued(one.run_id, created=False)
    assert isinstance(three, Conflict)
    assert count(bench, "runs") == 1


def test_a_batch_takes_one_statement_and_one_transaction(bench: Bench, client: Client) -> None:
    client.enqueue_many([request("warm")])
    written = "SELECT count(DISTINCT xmin::text) FROM fencepost.runs WHERE run_key LIKE 'b-%%'"
    client.enqueue_many([request(f"b-{n}") for n in range(500)])
    assert bench.sql(written) == [(1,)]


def test_what_the_ledger_refuses_leaves_nothing_of_its_batch(bench: Bench, client: Client) -> None:
    bad = replace(request("o-2"))
    object.__setattr__(bad, "deadline", timedelta(0))  # as a client of another version might let through
    with pytest.raises(UsageError, match="the deadline lies in the past"):
        client.enqueue_many([request("o-1"), bad, request("o-3")])
    assert count(bench, "runs") == 0


def test_two_producers_of_the_same_runs_in_opposite_order_both_get_them(
    bench: Bench, database: LedgerDatabase
) -> None:
    asked = [request(f"o-{n:03}") for n in range(300)]
    told: list[list[Enqueued | Conflict]] = []

    def send(requests: list[RunRequest]) -> None:
        with Client(database.dsns["producer"]) as client:
            told.append(client.enqueue_many(requests))

    threads = [threading.Thread(target=send, args=(order,)) for order in (asked, asked[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    created = [o for outcomes in told for o in outcomes if isinstance(o, Enqueued) and o.created]
    assert len(created) == 300
    assert count(bench, "runs") == 300


def test_where_a_run_stands_can_be_asked_by_its_producer(client: Client) -> None:
    run = enqueue(client)
    info = client.run(str(run.run_id))
    assert (info.run_id, info.run_key, info.status, info.ended) == (run.run_id, "o-1", "QUEUED", False)
    assert info.deadline - info.created_at == MINUTE
    with pytest.raises(NotFound, match="there is no run"):
        client.run(uuid7())
    with pytest.raises(UsageError, match="is no id"):
        client.run("o-1")


def test_waiting_ends_when_the_last_run_has_ended(client: Client, operator: Client) -> None:
    first, second = enqueue(client, "o-1"), enqueue(client, "o-2")
    operator.cancel(first.run_id, "pat", "not wanted")
    later = threading.Timer(0.1, operator.cancel, (second.run_id, "pat", "not wanted"))
    later.start()
    infos = client.wait([second.run_id, first.run_id, second.run_id], timedelta(seconds=20))
    later.join()
    assert [info.run_key for info in infos] == ["o-2", "o-1", "o-2"]
    assert all(info.ended for info in infos)


def test_waiting_gives_up_in_time_and_says_who_has_not_ended(client: Client) -> None:
    run = enqueue(client)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=rf"run {run.run_id} \(QUEUED\) has not ended after 0:00:00.1"):
        client.wait([run.run_id], timedelta(seconds=0.1))
    assert time.monotonic() - began < 5
    with pytest.raises(NotFound):
        client.wait([uuid7()], MINUTE)


def test_an_operator_cancels_a_run_and_the_history_says_who(
    bench: Bench, client: Client, operator: Client
) -> None:
    run = enqueue(client)
    info = operator.cancel(run.run_id, "pat", "the customer called")
    assert (info.status, info.stop_reason, info.stop_detail) == (
        "STOPPED",
        "cancelled",
        "the customer called",
    )
    asked = bench.sql(
        "SELECT principal, body ->> 'reason' FROM fencepost.events WHERE type = 'CancelRequested'"
    )
    assert asked == [("pat", "the customer called")]
    with pytest.raises(FencepostError, match="has ended STOPPED: there is nothing to cancel"):
        operator.cancel(run.run_id, "pat", "again")


def test_a_producer_may_not_cancel(client: Client) -> None:
    run = enqueue(client)
    with pytest.raises(UsageError, match=r"this login may not do that.*use the DSN of another role"):
        client.cancel(run.run_id, "mallory", "why not")
    assert client.run(run.run_id).status == "QUEUED"


def unknown_call(bench: Bench) -> tuple[UUID, UUID]:
    """A call that waits for a person: of its attempt nobody knows, and its downstream keeps no keys."""
    run = bench.enqueue()
    (call,) = bench.plan(run, ("wallet.note", {"order": "o-1"}))
    term = bench.term()
    send = bench.one(bench.claim_call(run, call, term))
    assert isinstance(send, c.Send)
    assert bench.one(bench.outcome(send, term, Unsure("timeout", "no answer"))) == c.Done("UNKNOWN")
    bench.ahead(3)
    assert bench.one(bench.claim_doubt(run, call)) == c.Done("NEEDS_REPAIR")
    return run, call


def test_an_operator_settles_what_nobody_can_know(bench: Bench, operator: Client) -> None:
    _, call = unknown_call(bench)
    with pytest.raises(FencepostError, match="a receipt is required"):
        operator.repair(call, "SUCCEEDED", "pat", "seen in their books")
    assert operator.repair(call, "SUCCEEDED", "pat", "seen in their books", "n-1") == "SUCCEEDED"
    assert bench.sql("SELECT state, receipt, doubt FROM fencepost.calls") == [("SUCCEEDED", "n-1", False)]
    with pytest.raises(FencepostError, match="only a call in NEEDS_REPAIR can be repaired"):
        operator.repair(call, "FAILED", "pat", "no, it did not")


def test_a_repair_needs_a_decision_a_name_and_a_reason(bench: Bench, operator: Client) -> None:
    _, call = unknown_call(bench)
    with pytest.raises(UsageError, match="a repair decides SUCCEEDED"):
        operator.repair(call, "MAYBE", "pat", "who knows")
    with pytest.raises(UsageError, match="say reason"):
        operator.repair(call, "FAILED", "pat", " ")
    with pytest.raises(NotFound):
        operator.repair(uuid7(), "FAILED", "pat", "it is not there")


def test_a_worker_may_not_settle_a_repair(bench: Bench, database: LedgerDatabase) -> None:
    _, call = unknown_call(bench)
    with Client(database.dsns["worker"]) as worker, pytest.raises(FencepostError, match="is not an operator"):
        worker.repair(call, "ACCEPTED_UNKNOWN", "mallory", "let it go")
    assert bench.state(call) == "NEEDS_REPAIR"


def test_errors_name_the_cause_and_never_the_password(
    postgres: LocalPostgres, database: LedgerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = database.dsns["producer"]
    password = good.split(":")[2].split("@")[0]
    cases = [
        (good.replace(password, "wrong-secret"), UsageError, "refuses the login"),
        (good.rsplit("/", 1)[0] + "/absent", UsageError, "does not exist"),
        (
            "postgresql://u:s3cret@127.0.0.1:9/db",
            Unreachable,
            r"cannot reach Postgres at .* Connection refused",
        ),
        ("postgresql+psycopg://u:s3cret@127.0.0.1/db", UsageError, "is no DSN of a Postgres"),
        ("dbname", UsageError, "is no DSN of a Postgres"),
        (postgres.superuser_dsn, NotFound, "run `fencepost migrate` first"),
    ]
    for dsn, kind, complaint in cases:
        with Client(dsn) as client, pytest.raises(kind, match=complaint) as caught:
            enqueue(client)
        assert "s3cret" not in str(caught.value)
        assert "wrong-secret" not in str(caught.value)
        assert password not in str(caught.value)
    monkeypatch.delenv("FENCEPOST_DSN", raising=False)
    with pytest.raises(UsageError, match="set FENCEPOST_DSN"):
        Client()
    with pytest.raises(UsageError, match="FENCEPOST_REDIS_URL: it begins with redis://"):
        Client(good, "nonsense")


def test_settings_come_from_the_environment(
    database: LedgerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_DSN", database.dsns["producer"])
    with Client() as client:
        assert enqueue(client).created


def test_a_redis_that_is_away_delays_nobody(database: LedgerDatabase) -> None:
    with Client(database.dsns["producer"], "redis://127.0.0.1:9/0") as client:
        assert enqueue(client).created


def test_a_connection_that_was_cut_is_replaced(bench: Bench, client: Client) -> None:
    enqueue(client, "o-1")
    with psycopg.connect(bench.database.owner, autocommit=True) as owner:
        owner.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'fencepost client' AND datname = current_database()"
        )
    assert enqueue(client, "o-2").created
