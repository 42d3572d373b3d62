"""Signals: taken once, numbered, for good; seen by the planner's next turn, the same on every rebuild."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from fencepost import App, Client, Context, Turn
from fencepost import commands as c
from fencepost.errors import Conflict, NotFound, UsageError
from fencepost.ledger import concerns, load, standing
from fencepost.ledger.connect import connect
from fencepost.ledger.signals import Deaf, Sent, read_signals, send
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.planner import Planner
from fencepost_workers.step import Step
from tests.integration.ledger_bench import TENANT, WORKER_TTL, Bench
from tests.integration.step_shop import opened


def told(bench: Bench, run: UUID, key: str, body: Any = 1, tenant: str = TENANT, **said: str) -> Sent:
    words = {"name": "go", "sender": "svc:x", **said}
    with connect(bench.database.dsns["api"], "test", autocommit=True) as session:
        session.execute("SELECT set_config('fencepost.tokens', %s, false)", [bench.token])
        return send(session, tenant, run, key=key, body=body, **words)


def test_a_signal_is_taken_once_and_its_key_stands_for_it(bench: Bench) -> None:
    run = bench.start()
    first = told(bench, run, "a", {"n": 1.5})
    assert (first.number, first.created) == (1, True)
    again = told(bench, run, "a", {"n": 1.50})
    assert (again.number, again.created, again.sent_at) == (1, False, first.sent_at)
    for other in ({"body": 2}, {"name": "stop"}, {"sender": "svc:y"}):
        with pytest.raises(Conflict, match="number 1"):
            told(bench, run, "a", **{"body": {"n": 1.5}, **other})  # type: ignore[arg-type]
    assert told(bench, run, "b").number == 2
    with pytest.raises(NotFound):
        told(bench, run, "c", tenant="bank")
    with pytest.raises(NotFound):
        told(bench, uuid4(), "c")


def test_what_cannot_be_a_signal_is_refused(bench: Bench) -> None:
    run = bench.start()
    deep: Any = 1
    for _ in range(65):
        deep = [deep]
    for said, why in (
        ({"key": ""}, "required"),
        ({"key": "k" * 201}, "at most 200"),
        ({"key": "a\0"}, "stored as text"),
        ({"key": "a", "name": "n" * 101}, "100"),
        ({"key": "a", "body": "x" * 64 * 1024}, "at most 65536 bytes"),
        ({"key": "a", "body": deep}, "64 levels"),
        ({"key": "a", "body": {"\0": 1}}, "NUL"),
    ):
        with pytest.raises(UsageError, match=why):
            told(bench, run, **said)
    assert bench.sql("SELECT count(*) FROM fencepost.signals WHERE run = %s", run) == [(0,)]


def test_the_signals_of_a_run_are_bounded_together(bench: Bench) -> None:
    run, other = bench.start(), bench.start()
    large = "x" * (64 * 1024 - 2)  # and its quotes
    for number in range(16):
        assert told(bench, run, f"k{number}", large).created
    with pytest.raises(UsageError, match=f"signals of run {run} are at most 1048576 bytes of JSON together"):
        told(bench, run, "more")
    assert told(bench, run, "k0", large).number == 1, "what was taken is known"
    assert told(bench, other, "more").number == 1


def test_a_run_that_stops_or_has_ended_is_deaf(bench: Bench) -> None:
    run = bench.start()
    told(bench, run, "before")
    bench.cancel(run)
    with pytest.raises(Deaf, match="STOPPED"):
        told(bench, run, "after")
    assert told(bench, run, "before").created is False


def test_many_senders_at_once_leave_no_gap(bench: Bench) -> None:
    run = bench.start()
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda n: told(bench, run, f"k-{n}").number, range(16)))
    assert sorted(numbers) == list(range(1, 17))


def test_signals_and_tokens_are_never_edited(bench: Bench) -> None:
    run = bench.start()
    told(bench, run, "a")
    for statement in ("UPDATE fencepost.signals SET name = 'x'", "DELETE FROM fencepost.signals"):
        with pytest.raises(psycopg.Error, match="append-only"):
            bench.sql(statement)
    with pytest.raises(psycopg.Error, match="append-only"):
        bench.sql("TRUNCATE fencepost.signals")
    for role in ("worker", "operator", "api", "producer", "reader"):
        with (
            psycopg.connect(bench.database.dsns[role], autocommit=True) as session,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            session.execute(
                "INSERT INTO fencepost.signals VALUES (%s, %s, 9, 'k', 'n', '1', 's', now())", [TENANT, run]
            )


def test_a_request_is_pinned_to_the_signals_that_were_there(bench: Bench) -> None:
    run = bench.start()
    told(bench, run, "a")
    claim = bench.claim_run(run)
    plan = bench.one(claim)
    assert isinstance(plan, c.Plan)
    assert plan.signals == 1
    told(bench, run, "b")
    started = next(e for e in bench.events(run) if e.type == "ModelRequestStarted")
    assert started.data["signals"] == 1
    with connect(bench.database.dsns["worker"], "test", autocommit=True) as session:
        seen = read_signals(session, [(TENANT, run, plan.signals)])[TENANT, run]
        assert [(one.number, one.sender) for one in seen] == [(1, "svc:x")]
    # Who sent the second was told that it would be seen: a turn that has not seen it completes nothing.
    early = replace(bench.finish_with(bench.turn(run, claim)), signals=plan.signals)
    assert bench.one(early) == c.Done("ACTING")
    said = bench.events(run)[-1]
    assert said.type == "ModelResponseRecorded"
    assert said.data["objection"].startswith("1 signals came")
    claim = bench.claim_run(run)
    plan = bench.one(claim)
    assert isinstance(plan, c.Plan)
    done = replace(bench.finish_with(bench.turn(run, claim)), signals=plan.signals)
    assert (plan.signals, bench.one(done)) == (2, c.Done("COMPLETED"))


def test_how_many_there_are_is_read_of_asked_runs_alone_and_from_the_last_one(bench: Bench) -> None:
    runs = [bench.start() for _ in range(4)]
    calls = [bench.debit(run, bench.order()) for run in runs[:2]]
    for run in runs:
        for number in range(50):
            bench.sql("SELECT fencepost.signal_run(%s, %s, %s, 'n', '1', 's')", TENANT, run, f"k{number}")
    bench.sql("ANALYZE fencepost.signals")
    assert read_of_signals(bench, [bench.claim_call(*one) for one in zip(runs[:2], calls, strict=True)]) == 0
    claims = [bench.claim_run(run) for run in runs[2:]]
    assert read_of_signals(bench, claims) == 2, "one row of each"
    plans = bench.ledger.apply(claims)
    assert [plan.signals for plan in plans if isinstance(plan, c.Plan)] == [50, 50]


def read_of_signals(bench: Bench, batch: Sequence[c.Command]) -> int:
    """How many rows of signals the batch reads."""
    args = concerns.parameters(concerns.wanted(batch), WORKER_TTL) | standing.persons(batch)
    with bench.owner.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {load.READ_REST}".encode(), args)
        ((plan,),) = cursor.fetchall()
    return sum(
        int(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))
        for node in nodes(plan[0]["Plan"])
        if node.get("Relation Name") == "signals"
    )


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def test_a_run_without_signals_says_nothing_of_them(bench: Bench) -> None:
    run = bench.start()
    plan = bench.one(bench.claim_run(run))
    assert isinstance(plan, c.Plan)
    assert plan.signals == 0
    assert all("signals" not in e.data for e in bench.events(run))


def test_a_run_that_waits_for_time_alone_is_made_due_and_one_with_open_calls_is_not(bench: Bench) -> None:
    waiting, busy = bench.start(), bench.start()
    bench.plan(waiting)  # nothing was proposed: it is to be asked again
    bench.debit(busy, bench.order())
    for run in (waiting, busy):
        bench.sql("SET session_replication_role = replica")
        bench.sql(
            "UPDATE fencepost.outbox SET due_at = fencepost.now() + interval '1 h', publish_at = '9000-01-01'"
            " WHERE subject = %s",
            run,
        )
        bench.sql("SET session_replication_role = origin")
        told(bench, run, "wake")
    due = "SELECT due_at <= fencepost.now() AND publish_at <= fencepost.now() FROM fencepost.outbox"
    assert bench.sql(f"{due} WHERE subject = %s", waiting) == [(True,)]
    assert bench.sql(f"{due} WHERE subject = %s", busy) == [(False,)]


def test_a_planner_is_told_of_signals_in_order(database: LedgerDatabase, valkey: LocalValkey) -> None:
    app = App("hearing")

    @app.planner("note", version=1)
    def hearing(context: Context) -> Turn:
        heard = [[one.number, one.name, one.body, one.sender] for one in context.signals]
        return Turn(finish={"heard": heard}) if len(heard) > 1 else Turn()

    with opened(database, valkey, 4, app) as shop, Client(database.dsns["producer"]) as client:
        (run,) = shop.enqueue("a")
        client.signal(run, "paid", {"by": "ann"}, key="1", sender="svc:shop")
        planner = Step(shop.worker, Planner(shop.worker))
        assert planner.handle(shop.due(Queue.PLANNER)) == 1
        assert shop.idle()
        assert shop.sql("SELECT status FROM fencepost.runs") == [("ACTING",)]
        client.signal(run, "shipped", [1], key="2", sender="svc:shop")
        assert planner.handle(shop.due(Queue.PLANNER)) == 1
        assert shop.idle()
        assert client.run(run).status == "COMPLETED"
        heard = [[1, "paid", {"by": "ann"}, "svc:shop"], [2, "shipped", [1], "svc:shop"]]
        assert json.loads(client.run(run).preview or "") == {"heard": heard}
