"""What Postgres refuses of runs that calls start, whatever a bug in Python would have it write."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import Budget, slices
from fencepost import commands as c
from fencepost.clock import rfc3339, uuid7
from fencepost.decide import child_ends, children
from fencepost.events import EventType
from fencepost.ledger import folding
from tests.integration.family import LARGE, asked, begin, grown, heard, stopped
from tests.integration.guards_bench import CallTarget, attack
from tests.integration.ledger_app import SECOND
from tests.integration.ledger_bench import TENANT, Bench

E = EventType


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


# -- in plain SQL ------------------------------------------------------------------------------------------

START = "SELECT fencepost.start_children(ARRAY[%s], ARRAY[%s]::uuid[], ARRAY[%s]::uuid[])"


def test_a_run_that_no_call_names_is_not_started(family: Bench) -> None:
    run = family.start(budget=LARGE)
    (call,) = family.plan(run, ("wallet.ask", {"topic": family.order()}))
    body = {"child": str(uuid7()), "planner": "p", "version": 1, "deadline": rfc3339(family.now() + SECOND)}
    body |= {"budget": {}, "tools": ["*"], "on_stop": "leave"}
    with attack(family) as opened:
        opened.event(run, call, E.CHILD_RUN_STARTED, projection=None, body=body, recorded_at=family.now())
        seq, _, head = opened.event(run, call, E.EVIDENCE_FILED)
        opened.connection.execute("SET LOCAL ROLE fencepost_worker")
        opened.connection.execute(START, [TENANT, run, call])
        moved = "UPDATE fencepost.runs SET seq = %s, head_hash = %s WHERE id = %s"
        opened.connection.execute(moved, [seq, head, run])
        opened.connection.execute("UPDATE fencepost.calls SET version = %s WHERE id = %s", [seq, call])
        with pytest.raises(psycopg.Error, match="the call that starts it does not name it") as error:
            opened.connection.execute("SET CONSTRAINTS fencepost.guard_child IMMEDIATE")
    assert error.value.sqlstate == "FP004"


def _wide(_may: Budget, _used: Any, _below: Any, wanted: Budget, **_how: Any) -> Budget:
    return wanted


@pytest.mark.parametrize(
    ("given", "tool", "wrong"),
    [
        ('{"turns": 4}', "wallet.ask", True),  # one turn is used, and the child takes four
        ('{"turns": 5}', "wallet.ask", False),
        ('{"calls": 4}', "wallet.ask", True),
        ('{"attempts": 8}', "wallet.ask", True),
        ('{"attempts": 9}', "wallet.ask", False),
        ('{"children": 0}', "wallet.ask", True),
        ('{"children": 1}', "wallet.deep", True),
        ('{"children": 2}', "wallet.deep", False),
        ('{"tokens": 9}', "wallet.ask", True),  # its own are without a limit
        ('{"cost": 9}', "wallet.ask", True),
        ('{"depth": 1}', "wallet.deep", True),
        ('{"depth": 2}', "wallet.deep", False),
    ],
)
def test_no_slice_is_more_than_what_is_left(
    family: Bench, monkeypatch: pytest.MonkeyPatch, given: str, tool: str, wrong: bool
) -> None:
    run = family.start(budget=given)
    (call,) = family.plan(run, (tool, {"topic": family.order()}))
    claim = replace(family.claim_call(run, call), child=uuid7(), request=None)
    monkeypatch.setattr(slices, "carve", _wide)
    if not wrong:
        assert family.one(claim) == c.Done("DISPATCHING")
        return
    refused(family.one(claim), "its slice is more than is left of its parent's budget")
    assert family.state(call) == "INTENT_RECORDED"


def test_what_was_used_and_is_held_leaves_less(family: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = family.start(budget='{"turns": 9, "children": 3}')
    topics = [("wallet.ask", {"topic": family.order()}) for _ in range(3)]
    first, second, third = family.plan(run, *topics)
    child = begin(family, run, first)
    begin(family, run, second)
    monkeypatch.setattr(slices, "carve", _wide)
    claim = replace(family.claim_call(run, third), child=uuid7(), request=None)
    refused(family.one(claim), "its slice is more than is left of its parent's budget")
    stopped(family, child)
    heard(family, run, first)
    assert family.one(replace(claim, id=uuid7())) == c.Done("DISPATCHING")


@pytest.mark.parametrize("held", [{}, {"turns": 1}, None])
def test_a_parent_holds_what_its_child_may_use(
    family: Bench, monkeypatch: pytest.MonkeyPatch, held: dict[str, int] | None
) -> None:
    holds: Callable[[Budget], dict[str, int]] = slices.held_for
    run = family.start()
    (call,) = family.plan(run, ("wallet.ask", {"topic": family.order()}))
    claim = replace(family.claim_call(run, call), child=uuid7(), request=None)
    monkeypatch.setattr(slices, "held_for", lambda piece: {} if not held else holds(piece) | held)
    refused(family.one(claim), "its parent holds another slice for it")


@pytest.mark.parametrize(("via", "to"), [("term", "SUCCEEDED"), ("term", "FAILED"), ("claim", "FAILED")])
def test_while_its_run_goes_on_no_answer_ends_a_call(target: CallTarget, via: str, to: str) -> None:
    kind = E.TOOL_RESULT_RECORDED if to == "SUCCEEDED" else E.TOOL_ATTEMPT_FAILED
    for child, code in ((None, None), (uuid7(), "FP003")):
        target.put("DISPATCHING", child=child, effect="read")
        seq, proof = target.event(via, kind, attempt=target.column("attempts"), body={"final": True})
        change = {"state": to, "version": seq, "proof": proof, "doubt": False}
        assert target.update(via, change) == code, target.attack.said
        seq, _ = target.event(via, E.TOOL_ATTEMPT_FAILED, attempt=target.column("attempts"))
        assert target.update(via, {"state": "INTENT_RECORDED", "version": seq}) == code, target.attack.said


def test_a_run_with_an_open_call_has_not_ended_whatever_it_counts(family: Bench) -> None:
    run, call, child = asked(family)
    tip = family.debit(child, family.order(), "wallet.tip")
    term = family.sql("SELECT state FROM fencepost.calls WHERE id = %s", tip)
    assert term == [("INTENT_RECORDED",)]
    family.sql("SET session_replication_role = replica")
    family.sql("UPDATE fencepost.runs SET status = 'STOPPED', open = 0 WHERE id = %s", child)
    family.sql("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", call)
    try:
        refused(heard(family, run, call), "only by a proof of its own")
    finally:
        family.sql("UPDATE fencepost.runs SET status = 'ACTING', open = 1 WHERE id = %s", child)
        family.sql("SET session_replication_role = origin")


class _NothingReads:
    READ = object()


def test_what_a_call_that_reads_starts_changes_nothing_whatever_its_event_says(
    family: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool, reads in (("wallet.look", True), ("wallet.ask", False)):
        run = family.start()
        (call,) = family.plan(run, (tool, {"topic": family.order()}))
        with monkeypatch.context() as forgetful:
            forgetful.setattr(children, "Effect", _NothingReads)
            child = begin(family, run, call)
        assert family.sql("SELECT request -> 'reads' FROM fencepost.runs WHERE id = %s", child) == [(reads,)]
        assert [e.data["reads"] for e in family.events(run) if e.type == E.CHILD_RUN_STARTED] == [False]
