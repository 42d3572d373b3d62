"""What Postgres refuses of runs that calls start, whatever a bug in Python would have it write."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.decide import child_ends, children
from fencepost.ledger import folding
from tests.integration.family import asked, begin, grown, heard, stopped
from tests.integration.ledger_bench import TENANT, Bench


@pytest.fixture
def family(bench: Bench) -> Bench:
    return grown(bench)


@pytest.fixture
def worker(family: Bench) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(family.database.dsns["worker"], autocommit=True) as connection:
        yield connection


def refused(answer: Any, why: str) -> None:
    assert isinstance(answer, c.Broken)
    assert why in answer.why


def test_a_claim_that_is_applied_twice_starts_one_run(family: Bench) -> None:
    run = family.start()
    (call,) = family.plan(run, ("wallet.ask", {"topic": family.order()}))
    claim = replace(family.claim_call(run, call), child=uuid7(), request=None)
    assert [family.one(claim), family.one(claim)] == [c.Done("DISPATCHING")] * 2
    made = family.sql("SELECT id FROM fencepost.runs WHERE parent_call = %s", call)
    assert [row[0] for row in made] == [claim.child]
    assert isinstance(family.one(replace(claim, id=uuid7(), child=uuid7())), c.Moved)


def test_nobody_starts_a_run_without_the_event_that_names_it_or_a_second_time(
    family: Bench, worker: psycopg.Connection[Any]
) -> None:
    run, call, _ = asked(family)
    unsent = family.plan(family.start(), ("wallet.ask", {"topic": family.order()}))[0]
    for where, which in ((run, call), (family.call(unsent).run, unsent)):
        with pytest.raises(psycopg.Error, match="by the event that names them, and once") as error:
            worker.execute("SELECT fencepost.start_children(%s, %s, %s)", [[TENANT], [where], [which]])
        assert error.value.sqlstate == "FP004"
    with (
        psycopg.connect(family.database.dsns["producer"], autocommit=True) as producer,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        producer.execute("SELECT fencepost.start_children('{}', '{}', '{}')")


def test_a_call_names_no_run_but_the_one_it_started(family: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = family.start()
    (call,) = family.plan(run, ("wallet.ask", {"topic": family.order()}))
    claim = replace(family.claim_call(run, call), child=uuid7(), request=None)
    with monkeypatch.context() as forgetful:
        forgetful.setattr(folding.Folding, "_kin", lambda *_: None)
        refused(family.one(claim), "it starts one run, by the event that names it")
    assert family.state(call) == "INTENT_RECORDED"
    begin(family, run, call)


def test_a_run_ends_before_the_one_that_starts_it(family: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = family.start(deadline_s=30)
    (call,) = family.plan(run, ("wallet.ask", {"topic": family.order()}))
    begun: Callable[..., None] = children.begin

    def generous(*args: Any) -> None:
        begun(*args[:-1], args[-1] + timedelta(minutes=1))

    monkeypatch.setattr(children, "begin", generous)
    claim = replace(family.claim_call(run, call), child=uuid7(), request=None)
    refused(family.one(claim), "it ends before the run it is started by")


def _in_time(_run: Any) -> bool:
    return True


def _without(child_end: Callable[..., Any]) -> Callable[..., Any]:
    def believing(fold: Any, call: Any, tool: Any, child: Any) -> None:
        child_end(fold, call, tool, replace(child, run=replace(child.run, effects=0)))

    return believing


def test_a_call_is_settled_by_the_end_of_its_run_and_by_nothing_before_it(
    family: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, call, child = asked(family)
    family.ahead(0.1)
    family.sql("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", call)
    with monkeypatch.context() as hasty:
        hasty.setattr(child_ends, "_ended", _in_time)
        refused(heard(family, run, call), "only by a proof of its own")
    assert family.state(call) == "DISPATCHING"
    stopped(family, child)
    assert heard(family, run, call) == c.Done("FAILED")


def test_a_run_that_left_effects_is_no_failure(family: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run, call, child = asked(family)
    tip = family.debit(child, family.order(), "wallet.tip")
    family.succeed(child, tip)
    family.cancel(child)
    assert family.one(family.claim_stopped(child)) == c.Done("STOPPED")
    with monkeypatch.context() as believing:
        believing.setattr(child_ends, "_settle", _without(child_ends._settle))
        refused(heard(family, run, call), "only by a proof of its own")
    assert heard(family, run, call) == c.Done("SUCCEEDED")


def test_only_its_events_say_whether_a_turn_waits_for_a_call(
    family: Bench, worker: psycopg.Connection[Any]
) -> None:
    _, call, _ = asked(family)
    with pytest.raises(psycopg.Error) as error:
        worker.execute("UPDATE fencepost.calls SET detached = true WHERE id = %s", [call])
    assert error.value.sqlstate == "FP004"


def test_nobody_takes_the_run_key_of_a_call(family: Bench) -> None:
    run = family.start()
    (call,) = family.plan(run, ("wallet.ask", {"topic": family.order()}))
    with pytest.raises(psycopg.Error, match="run keys that begin with child: are") as error:
        family.enqueue(f"child:{call}")
    assert error.value.sqlstate == "FP422"
    begin(family, run, call)
