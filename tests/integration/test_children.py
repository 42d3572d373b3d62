"""Runs that calls start, on real Postgres with the real `apply`: one per call, and its end is the proof."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost import slices
from fencepost.clock import uuid7
from fencepost.joins import Join
from fencepost.outcomes import Refused
from tests.integration.family import asked, begin, due, fan, grown, heard, stopped, told
from tests.integration.ledger_app import SECOND
from tests.integration.ledger_bench import Bench
from tests.integration.recovering import above, released_afterwards, restore
from tests.integration.shell import Shell


@pytest.fixture
def family(bench: Bench) -> Bench:
    return grown(bench)


def test_a_claim_starts_one_run_that_inherits_and_whose_result_is_the_calls(family: Bench) -> None:
    run, call, child = asked(family)
    born, parent, one = family.run(child), family.run(run), family.call(call)
    assert (one.state, one.owner, one.attempts) == ("DISPATCHING", None, 1)
    assert (born.parent, born.parent_call, born.root, born.depth) == (run, call, run, 1)
    assert (born.principal, born.status, born.run_key) == (parent.principal, "QUEUED", f"child:{call}")
    logins = "SELECT count(DISTINCT login), min(login) <> %s FROM fencepost.runs WHERE id = ANY(%s)"
    assert family.sql(logins, "fencepost_worker_login", [run, child]) == [
        (1, True)
    ]  # who asked, not who started it
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


def test_what_a_completed_child_did_is_offset_by_what_its_tool_declares_another_run_if_need_be(
    family: Bench,
) -> None:
    run, call, child = asked(family, "wallet.hire", deadline_s=30, budget='{"turns": 5}')
    family.finish(child)
    assert heard(family, run, call) == c.Done("SUCCEEDED")
    family.cancel(run)
    assert family.status(run) == "COMPENSATING"
    forward, offset = family.offset(run)
    assert forward == call
    other = begin(family, run, offset)  # nothing is left of the budget for it, and it needs nothing
    born, parent = family.run(other), family.run(run)
    assert (born.parent, born.depth, "held" in (parent.below or "")) == (run, 1, False)
    assert born.deadline > parent.deadline
    family.finish(other)
    assert heard(family, run, offset) == c.Done("SUCCEEDED")
    claim = family.claim_stopped(run)
    assert family.one(claim) == c.Done("STOPPED")
    (end,) = [e.data for e in family.events(run) if e.type == "RunStopped"]
    assert (end["offset"], end["not_offset"], family.run(run).effects) == ([str(call)], [], 0)


def test_what_was_not_begun_is_cancelled_and_what_other_tools_do_is_waited_for(family: Bench) -> None:
    run = family.start()
    claim = family.claim_run(run)
    assert isinstance(family.one(claim), c.Plan)
    topics = [("wallet.ask", {"topic": family.order()}) for _ in range(3)]
    turn = family.turn(run, claim, *topics, ("wallet.note", {"order": family.order()}))
    family.one(replace(turn, join=Join.quorum(1, by=timedelta(seconds=5))))
    asked_first, asked_second, unsent, note = turn.call_ids
    first = begin(family, run, asked_first)
    begin(family, run, asked_second)
    family.ahead(6)
    assert not due(family, run)  # its time is over, but the note is not
    family.finish(first)
    assert heard(family, run, asked_first) == c.Done("SUCCEEDED")
    assert [family.state(call) for call in (asked_second, unsent)] == ["DISPATCHING", "CANCELLED"]
    assert family.call(asked_second).detached
    assert not due(family, run)
    family.succeed(run, note)
    assert due(family, run)
    assert family.status(run) == "ACTING"  # none of them was required


def test_a_child_is_born_of_what_its_parent_has_read_and_what_it_reads_taints_its_parent(
    family: Bench,
) -> None:
    _, _, child = asked(family, budget='{"tainted": true}')
    family.claim_run(child)
    assert isinstance(family.one(family.claim_run(child)), c.Plan)
    assert family.run(child).tainted == 1
    run, call, child = asked(family)
    (look,) = family.plan(child, ("wallet.balance", {"order": family.order()}))
    family.succeed(child, look)
    family.finish(child)
    assert family.run(run).tainted is None
    heard(family, run, call)
    assert family.run(run).tainted is not None


def test_after_a_restore_a_call_is_settled_by_its_run_and_one_that_has_none_by_a_person(
    family: Bench,
) -> None:
    run, call, child = asked(family, deadline_s=300)
    other = family.start(deadline_s=300)
    (unsent,) = family.plan(other, ("wallet.ask", {"topic": family.order()}))

    def taken(of: UUID, one: UUID) -> Any:
        claim = replace(family.claim_doubt(of, one, above(family, one)), starts=True)
        return family.one(claim)

    with released_afterwards(family):
        restore(family)
        assert [family.state(one) for one in (call, unsent)] == ["UNKNOWN", "UNKNOWN"]
        assert taken(run, call) == c.Done("UNKNOWN")  # it is still at work
        assert taken(other, unsent) == c.Done("NEEDS_REPAIR")
        assert "whether it had started a run is not known" in (family.call(unsent).error or "")
    family.finish(child)
    assert taken(run, call) == c.Done("SUCCEEDED")
