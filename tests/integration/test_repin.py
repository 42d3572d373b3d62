"""A person moves a run to another version of its planner; nothing else of it changes."""

from typing import Any

import psycopg
import pytest

from fencepost import commands as c
from fencepost.events import EventType
from fencepost.ledger.verify import verify_run
from tests.integration.ledger_bench import TENANT, Bench

E = EventType


def repin(bench: Bench, run: Any, to: int = 2, seen: int | None = 1) -> Any:
    said: dict[str, Any] = {"to": to, "by": "ann", "login": login(bench), "reason": "gone", "seen": seen}
    (answer,) = bench.operator.apply([c.Repin(**bench.base(run), **said)])
    return answer


def login(bench: Bench) -> str:
    with psycopg.connect(bench.database.dsns["operator"]) as connection:
        row = connection.execute("SELECT session_user").fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize("stands", ["QUEUED", "PLANNING", "ACTING"])
def test_a_run_goes_on_by_the_version_it_was_given(bench: Bench, stands: str) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    if stands != "QUEUED":
        bench.one(claim)
    if stands == "ACTING":
        bench.one(bench.turn(run, claim, ("wallet.debit", {"order": bench.order()})))
    assert bench.status(run) == stands
    assert repin(bench, run) == c.Done(stands)
    now = bench.run(run)
    assert (now.planner_version, now.owner, now.status) == (2, None, stands)
    lost = bench.kinds(run).count(E.MODEL_OUTCOME_UNKNOWN)
    assert lost == (stands == "PLANNING")
    if stands == "PLANNING":  # whoever planned it has planned in vain
        assert bench.one(bench.turn(run, claim)) == c.Fenced()
    asked = bench.claim_run(run)
    blind = bench.ledger_as("worker", planner=lambda _, version: version == 1)
    knowing = bench.ledger_as("worker", planner=lambda _, version: version == 2)
    if stands != "ACTING":
        assert isinstance(blind.apply([asked])[0], c.Unfamiliar)
        assert isinstance(knowing.apply([bench.claim_run(run)])[0], c.Plan)
    with bench.ledger._pool.reading() as connection:
        assert verify_run(connection, TENANT, run).fault is None


def test_what_is_refused_says_why(bench: Bench) -> None:
    run = bench.start()
    assert repin(bench, run, to=1) == c.Denied("version 1 of p plans it already")
    assert repin(bench, run) == c.Done("QUEUED")
    moved = "it is planned by version 2 meanwhile; look again, then decide"
    assert repin(bench, run, to=3) == c.Denied(moved)
    bench.cancel(run)
    assert repin(bench, run, to=3, seen=2) == c.Gone()


def test_postgres_takes_another_version_from_an_operator_with_the_event_only(bench: Bench) -> None:
    run = bench.start()
    with psycopg.connect(bench.database.dsns["worker"]) as worker, pytest.raises(psycopg.Error) as refused:
        worker.execute("UPDATE fencepost.runs SET planner_version = 9 WHERE id = %s", [run])
    assert refused.value.sqlstate in {"FP002", "FP004"}
    said: dict[str, Any] = {"to": 2, "by": "ann", "login": "somebody else", "reason": "r", "seen": 1}
    (answer,) = bench.operator.apply([c.Repin(**bench.base(run), **said)])
    assert isinstance(answer, c.Broken)
    assert "a person's word only" in answer.why
    (answer,) = bench.ledger.apply([c.Repin(**bench.base(run), **{**said, "login": login(bench)})])
    assert isinstance(answer, c.Broken)
    assert bench.run(run).planner_version == 1
