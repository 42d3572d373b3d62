"""Runs that calls start, on real Postgres with the real `apply`: one per call, and its end is the proof."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any, Unpack
from uuid import UUID

import pytest
from pydantic import BaseModel

from fencepost import App, Budget, Effect, slices
from fencepost import commands as c
from fencepost.children import ChildOptions
from fencepost.clock import uuid7
from fencepost.joins import ALL, Join
from fencepost.outcomes import Refused
from tests.integration.ledger_app import SECOND
from tests.integration.ledger_bench import Bench
from tests.integration.shell import Shell

SMALL = Budget(turns=4, calls=4, attempts=8, depth=0, children=0)
NESTED = Budget(turns=8, calls=8, attempts=16, depth=1, children=1)


class Question(BaseModel):
    topic: str


def declare(app: App, name: str, **more: Unpack[ChildOptions]) -> None:
    """A tool that starts a run, of which the parent's planner is told whatever becomes of it."""
    usual: ChildOptions = {"deadline": 20 * SECOND, "grace": SECOND, "reserve": SECOND, "required": False}
    usual |= {"reconcile_for": 30 * SECOND, "budget": SMALL, "intent": lambda a: ("topic", a.topic)}
    said: ChildOptions = {**usual, **more}
    app.child(name, planner="p", arguments=Question, effect=Effect.REVERSIBLE, **said)


@pytest.fixture
def family(bench: Bench) -> Bench:
    """The bench's application with tools that start runs."""
    app = bench.app
    if ("wallet.ask", 1) not in app.registry:
        declare(app, "wallet.ask")
        declare(app, "wallet.must", required=True)
        declare(app, "wallet.deep", budget=NESTED)
        declare(app, "wallet.only", tools=("wallet.b*",))
        look: ChildOptions = {"budget": SMALL, "required": False}
        app.child("wallet.look", planner="p", arguments=Question, effect=Effect.READ, **look)
    return bench


def begin(bench: Bench, run: UUID, call: UUID) -> UUID:
    """Claim the call, and say which run it started."""
    claim = replace(bench.claim_call(run, call), child=uuid7(), request=None)
    assert bench.one(claim) == c.Done("DISPATCHING")
    child = bench.call(call).child
    assert child is not None
    assert child == claim.child
    bench.started.append(child)
    return child


def heard(bench: Bench, run: UUID, call: UUID) -> Any:
    """The reconciler takes the call."""
    return bench.one(replace(bench.claim_doubt(run, call), starts=True))


def told(bench: Bench, run: UUID, call: UUID, child: UUID) -> None:
    """The reconciler takes the call, and has its run stop."""
    order = heard(bench, run, call)
    assert isinstance(order, c.Tell), order
    assert order.child == child
    bench.one(c.RequestCancel(**bench.base(child), by=f"run:{run}", reason=order.reason))


def due(bench: Bench, subject: UUID) -> bool:
    row = bench.row(subject)
    return row is not None and row.due_at <= bench.now()


def fan(
    bench: Bench, count: int, join: Join = ALL, tool: str = "wallet.ask"
) -> tuple[UUID, list[UUID], list[UUID]]:
    """A run whose turn starts so many; all of them are begun."""
    run = bench.start(budget=LARGE)
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    turn = bench.turn(run, claim, *((tool, {"topic": bench.order()}) for _ in range(count)))
    assert bench.one(replace(turn, join=join)) == c.Done("ACTING")
    calls = list(turn.call_ids)
    return run, calls, [begin(bench, run, call) for call in calls]


LARGE = '{"turns": 40, "calls": 60, "children": 16}'


def asked(bench: Bench, tool: str = "wallet.ask", **how: Any) -> tuple[UUID, UUID, UUID]:
    """A run, its call, and the run that started."""
    run = bench.start(**how)
    (call,) = bench.plan(run, (tool, {"topic": bench.order()}))
    return run, call, begin(bench, run, call)


def stopped(bench: Bench, child: UUID) -> None:
    bench.cancel(child)
    assert bench.status(child) == "STOPPED"


def test_a_claim_starts_one_run_that_inherits_and_whose_result_is_the_calls(family: Bench) -> None:
    run, call, child = asked(family)
    born, parent, one = family.run(child), family.run(run), family.call(call)
    assert (one.state, one.owner, one.attempts) == ("DISPATCHING", None, 1)
    assert (born.parent, born.parent_call, born.root, born.depth) == (run, call, run, 1)
    assert (born.principal, born.status, born.run_key) == (parent.principal, "QUEUED", f"child:{call}")
    assert born.deadline == born.created_at + 20 * SECOND < parent.deadline
    assert due(family, child)
    assert not due(family, call)
    assert family.finish(child) == c.Done("COMPLETED")
    assert due(family, call)
    assert heard(family, run, call) == c.Done("SUCCEEDED")
    settled = family.call(call)
    assert (settled.receipt, settled.result) == (str(child), family.run(child).result)
    assert family.kinds(run, call)[-2:] == ["LeaseAcquired", "ChildRunSettled"]
    assert family.kinds(child)[0] == "RunCreated"
    assert family.finish(run) == c.Done("COMPLETED")


def test_a_run_that_stops_without_effects_is_a_failure_and_one_with_some_a_report(family: Bench) -> None:
    run, call, child = asked(family)
    stopped(family, child)
    assert heard(family, run, call) == c.Done("FAILED")
    assert family.call(call).error == "its run stopped: cancelled: no longer wanted"
    run, call, child = asked(family)
    (debit,) = family.plan(child, ("wallet.tip", {"order": family.order()}))
    family.succeed(child, debit)
    family.cancel(child)
    claim = family.claim_stopped(child)
    assert family.one(claim) == c.Done("STOPPED")  # its tool declares no compensation
    assert heard(family, run, call) == c.Done("SUCCEEDED")
    data = family.sql("SELECT data FROM fencepost.payloads WHERE digest = %s", family.call(call).result)
    said = json.loads(bytes(data[0][0]))
    assert (said["status"], said["stop_reason"], said["effects"]) == ("STOPPED", "cancelled", 1)
    assert [left["why"] for left in said["not_offset"]] == ["its tool declares no compensation"]


def test_a_required_run_that_fails_stops_its_parent(family: Bench) -> None:
    run, call, child = asked(family, "wallet.must")
    stopped(family, child)
    assert heard(family, run, call) == c.Done("FAILED")
    assert (family.run(run).status, family.run(run).stop_reason) == ("STOPPED", "tool_failed")


def test_a_stopping_run_has_its_children_stop_and_ends_after_them(family: Bench) -> None:
    run, call, child = asked(family)
    family.cancel(run)
    assert family.status(run) == "STOPPING"
    assert due(family, call)
    told(family, run, call, child)
    assert family.status(child) == "STOPPED"
    assert due(family, call)
    assert heard(family, run, call) == c.Done("FAILED")
    assert family.status(run) == "STOPPED"


def test_a_child_offsets_its_own_effects_when_the_tree_is_stopped(family: Bench) -> None:
    run, call, child = asked(family)
    debit = family.debit(child, family.order())
    family.succeed(child, debit)
    family.cancel(run)
    told(family, run, call, child)
    assert family.status(child) == "COMPENSATING"
    assert not due(family, call)
    _, refund = family.offset(child)
    family.ahead(4)  # what was sent is quiet
    family.succeed(child, refund)
    assert family.one(family.claim_stopped(child)) == c.Done("STOPPED")
    assert heard(family, run, call) == c.Done("FAILED")  # nothing of it is left
    assert family.status(run) == "STOPPED"


def test_a_run_that_never_answers_is_unknown_with_an_owner_then_a_persons(family: Bench) -> None:
    run, call, child = asked(family, deadline_s=300)
    note = family.debit(child, family.order(), "wallet.note")
    send, term = family.dispatch(child, note)  # and its worker is frozen
    family.ahead(21.5)
    told(family, run, call, child)
    one = family.call(call)
    assert (one.state, one.doubt, family.status(child)) == ("UNKNOWN", True, "STOPPING")
    assert one.reconcile_until is not None
    assert "did not end by" in (one.error or "")
    family.ahead(31)
    assert heard(family, run, call) == c.Done("NEEDS_REPAIR")
    assert family.record(send, term, Refused("http_402", "no", retryable=False)) == c.Done("FAILED")
    assert family.status(child) == "STOPPED"
    # Whoever looks has it asked again, and by now there is an answer.
    assert family.repair(call, "UNKNOWN") == c.Done("UNKNOWN")
    assert heard(family, run, call) == c.Done("FAILED")


def test_what_the_budget_does_not_allow_is_refused_and_comes_back_once_a_child_ends(family: Bench) -> None:
    run = family.start(budget='{"turns": 12, "children": 2}')
    topics = [("wallet.ask", {"topic": family.order()}) for _ in range(3)]
    first, second, third = family.plan(run, *topics)
    child = begin(family, run, first)
    begin(family, run, second)
    below = slices.amounts(family.run(run).below)
    assert (below["turns"], below["children"]) == (8, 2)
    refused = replace(family.claim_call(run, third), child=uuid7())
    assert family.one(refused) == c.Done("REJECTED")
    assert family.call(third).error == "budget: turns: the child may use 4, and 3 are left of 12"
    family.finish(child)
    heard(family, run, first)
    assert slices.amounts(family.run(run).below)["turns"] == 5  # one used, four held


def test_depth_and_the_number_of_runs_are_limits_of_their_own(family: Bench) -> None:
    run, _, child = asked(family, "wallet.deep")
    (inner,) = family.plan(child, ("wallet.ask", {"topic": family.order()}))
    grandchild = begin(family, child, inner)
    born = family.run(grandchild)
    assert (born.depth, born.root, born.parent) == (2, run, child)
    (deeper,) = family.plan(grandchild, ("wallet.ask", {"topic": family.order()}))
    assert family.one(replace(family.claim_call(grandchild, deeper), child=uuid7())) == c.Done("REJECTED")
    assert family.call(deeper).error == "budget: depth: the run's budget allows no run below it"
    run = family.start(budget='{"children": 1}')
    one, two = family.plan(run, *(("wallet.ask", {"topic": family.order()}) for _ in range(2)))
    begin(family, run, one)
    assert family.one(replace(family.claim_call(run, two), child=uuid7())) == c.Done("REJECTED")
    assert "children: the child may use 1, and 0 are left of 1" in (family.call(two).error or "")


def test_a_child_uses_only_what_it_was_handed(family: Bench) -> None:
    _, _, child = asked(family, "wallet.only")
    read, debit = family.plan(
        child, ("wallet.balance", {"order": family.order()}), ("wallet.note", {"order": family.order()})
    )
    assert (family.state(read), family.state(debit)) == ("INTENT_RECORDED", "REJECTED")
    assert "not_handed_down" in (family.call(debit).error or "")
    _, _, child = asked(family, "wallet.look")
    (note,) = family.plan(child, ("wallet.note", {"order": family.order()}))
    assert family.state(note) == "REJECTED"
    assert "was started to read" in (family.call(note).error or "")


def test_nobody_waits_for_a_key_that_a_run_above_holds(family: Bench) -> None:
    run = family.start()
    order, topic = family.order(), family.order()
    debit, call = family.plan(run, ("wallet.note", {"order": order}), ("wallet.ask", {"topic": topic}))
    child = begin(family, run, call)
    (same,) = family.plan(child, ("wallet.note", {"order": order}))
    assert family.state(same) == "REJECTED"
    assert "key_held_above" in (family.call(same).error or "")
    assert family.state(debit) == "INTENT_RECORDED"
    (again,) = family.plan(child, ("wallet.ask", {"topic": topic}))
    assert family.state(again) == "REJECTED"


def test_a_quorum_goes_on_with_its_answers_and_has_the_others_stop(family: Bench) -> None:
    run, calls, children = fan(family, 4, Join.quorum(2))
    for n in (0, 1):
        assert not due(family, run)
        family.finish(children[n])
        assert heard(family, run, calls[n]) == c.Done("SUCCEEDED")
    one = family.run(run)
    assert (one.open, one.detached) == (2, 2)
    assert due(family, run)
    assert [family.call(call).detached for call in calls] == [False, False, True, True]
    for n in (2, 3):
        assert due(family, calls[n])
        told(family, run, calls[n], children[n])
    claim = family.claim_run(run)
    assert isinstance(family.one(claim), c.Plan)
    assert heard(family, run, calls[2]) == c.Done("FAILED")
    assert family.status(run) == "PLANNING"  # what ends late plans nothing
    # Done means that nothing is open (I7): the end waits for the fourth.
    assert family.one(family.finish_with(family.turn(run, claim))) == c.Done("ACTING")
    assert not due(family, run)
    assert not family.call(calls[3]).detached
    assert heard(family, run, calls[3]) == c.Done("FAILED")
    assert family.finish(run) == c.Done("COMPLETED")
    assert family.kinds(run).count("ModelRequestStarted") == 3


def test_a_join_until_an_instant_goes_on_with_what_there_is(family: Bench) -> None:
    run, calls, children = fan(family, 3, Join.within(timedelta(seconds=5), rest="leave"))
    family.finish(children[0])
    heard(family, run, calls[0])
    stopped(family, children[1])
    assert heard(family, run, calls[1]) == c.Done("FAILED")
    assert family.status(run) == "ACTING"
    assert not due(family, run)
    family.ahead(5)
    assert due(family, run)
    assert isinstance(family.one(family.claim_run(run)), c.Plan)
    assert family.call(calls[2]).detached  # it works on
    assert not due(family, calls[2])
    family.finish(children[2])
    assert heard(family, run, calls[2]) == c.Done("SUCCEEDED")
    assert (family.run(run).open, family.run(run).detached) == (0, 0)


def test_people_see_who_started_whom_and_how_long_each_took(family: Bench, no_settings: None) -> None:
    run, calls, children = fan(family, 3, tool="wallet.deep")
    (inner,) = family.plan(children[0], ("wallet.ask", {"topic": family.order()}))
    grandchild = begin(family, children[0], inner)
    for n in (1, 2):
        family.finish(children[n])
        heard(family, run, calls[n])
    shell = Shell(family.database, {"COLUMNS": "240"})
    tree = shell.json("show", str(grandchild), "--tree")
    assert [one["run_id"] for one in tree] == [
        str(one) for one in (run, children[0], grandchild, *children[1:])
    ]
    assert [one["depth"] for one in tree] == [0, 1, 2, 1, 1]
    told = shell.ok("show", str(run))
    assert "of 4 runs below it 2 have ended: p50" in told
    assert f"    {grandchild}" in told
    assert f"of run {run} · depth 1" in shell.ok("show", str(children[0]))
    listed = shell.ok("runs", "--tree").splitlines()
    place = [
        next(n for n, line in enumerate(listed) if str(one) in line) for one in (run, *children, grandchild)
    ]
    assert place[0] < place[1] < place[4] < place[2] < place[3]
