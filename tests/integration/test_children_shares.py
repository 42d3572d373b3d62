"""What several runs of one turn share, and what is left to others when they have ended."""

from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest

from fencepost import commands as c
from fencepost import slices
from fencepost.budgets import budget_of
from fencepost.children import USUAL
from fencepost.clock import uuid7
from fencepost.joins import Join
from fencepost.outcomes import Refused
from fencepost_ops.checker.facts import EventRow
from fencepost_ops.checker.story import RunStory
from tests.integration.family import asked, begin, declare, due, fan, grown, heard, stopped, told
from tests.integration.ledger_bench import Bench


@pytest.fixture
def family(bench: Bench) -> Bench:
    return grown(bench)


def test_a_join_counts_runs_that_completed_and_not_the_reports_of_those_that_stopped(family: Bench) -> None:
    run, calls, children = fan(family, 3, Join.first())
    (tip,) = family.plan(children[0], ("wallet.tip", {"order": family.order()}))
    family.succeed(children[0], tip)
    family.cancel(children[0])
    assert family.one(family.claim_stopped(children[0])) == c.Done("STOPPED")
    assert heard(family, run, calls[0]) == c.Done("SUCCEEDED")  # a report
    assert [family.call(call).detached for call in calls[1:]] == [False, False]
    assert not due(family, run)
    family.finish(children[1])
    assert heard(family, run, calls[1]) == c.Done("SUCCEEDED")
    assert family.call(calls[2]).detached
    assert due(family, run)


def test_a_turn_may_start_several_runs_that_say_nothing_of_their_own_and_each_may_begin(
    family: Bench,
) -> None:
    if ("wallet.usual", 1) not in family.app.registry:
        declare(family.app, "wallet.usual", required=True, budget=None)
    run = family.start(budget='{"tokens": 1000}')
    topics = [("wallet.usual", {"topic": family.order()}) for _ in range(5)]
    for call in family.plan(run, *topics):
        born = budget_of(family.run(begin(family, run, call)).request)
        assert born.turns >= 2
        assert born.tokens in (166, 167)  # a sixth of all stays with the run
    assert family.status(run) == "ACTING"
    assert slices.amounts(family.run(run).below)["tokens"] <= 1000 - 166


def test_a_budget_that_was_named_is_given_whole_or_refused_be_it_as_the_usual_one(family: Bench) -> None:
    declare(family.app, "wallet.named", budget=replace(USUAL))
    run = family.start(budget='{"turns": 4}')
    (call,) = family.plan(run, ("wallet.named", {"topic": family.order()}))
    refused = replace(family.claim_call(run, call), child=uuid7(), request=None)
    assert family.one(refused) == c.Done("REJECTED")
    assert family.call(call).error == "budget: turns: the child may use 4, and 3 are left of 4"


def test_with_nothing_left_to_share_a_run_is_refused_by_the_limits_name(family: Bench) -> None:
    run = family.start(budget='{"tokens": 1}')
    one, two = family.plan(run, *(("wallet.ask", {"topic": family.order()}) for _ in range(2)))
    begin(family, run, one)
    refused = replace(family.claim_call(run, two), child=uuid7(), request=None)
    assert family.one(refused) == c.Done("REJECTED")
    assert family.call(two).error == "budget: tokens: the child may use a share, and 0 are left of 1"


@pytest.mark.parametrize("ended", [True, False])
def test_a_call_that_a_person_settles_holds_no_slice_any_more(family: Bench, *, ended: bool) -> None:
    run, call, child = asked(family, deadline_s=300)
    note = family.debit(child, family.order(), "wallet.note")
    send, term = family.dispatch(child, note)
    family.ahead(21.5)
    told(family, run, call, child)
    family.ahead(31)
    assert heard(family, run, call) == c.Done("NEEDS_REPAIR")
    assert slices.read(family.run(run).below).held
    if ended:
        family.record(send, term, Refused("http_402", "no", retryable=False))
        assert family.status(child) == "STOPPED"
    decision = ("FAILED", None) if ended else ("SUCCEEDED", "seen in its book")
    assert family.repair(call, *decision) == c.Done(decision[0])
    below = slices.read(family.run(run).below)
    assert below.held == {}
    # What it used where that is known; all that it was let go with where it may still use it.
    assert (below.used["turns"], below.used["calls"], below.used["children"]) == (
        (1, 1, 1) if ended else (4, 4, 1)
    )
    story = RunStory()
    for event in family.events(run):
        story.tell(cast("EventRow", event), event.data)
    told_of = {name: story.beneath(name) for name in slices.SHARED}
    assert told_of == slices.amounts(family.run(run).below), "the checker counts as the kernel does"


def test_a_required_run_that_the_budget_refuses_stops_its_parent_by_the_limits_name(family: Bench) -> None:
    run = family.start(budget='{"turns": 4}')
    (call,) = family.plan(run, ("wallet.must", {"topic": family.order()}))
    refused = replace(family.claim_call(run, call), child=uuid7(), request=None)
    assert family.one(refused) == c.Done("REJECTED")
    one = family.run(run)
    assert (one.status, one.stop_reason, one.stop_detail) == ("STOPPED", "budget_exhausted", "turns")
    assert family.call(call).error == "budget: turns: the child may use 4, and 3 are left of 4"


def test_a_run_that_stopped_without_effects_lets_its_key_go(family: Bench) -> None:
    topic = family.order()
    run = family.start()
    (call,) = family.plan(run, ("wallet.ask", {"topic": topic}))
    stopped(family, begin(family, run, call))
    assert heard(family, run, call) == c.Done("FAILED")
    for asking in (run, family.start()):  # nothing has happened: the same may be asked anew
        (again,) = family.plan(asking, ("wallet.ask", {"topic": topic}))
        child = begin(family, asking, again)
        stopped(family, child)
        assert heard(family, asking, again) == c.Done("FAILED")


def test_the_report_of_a_run_that_stopped_is_nobodys_result(family: Bench) -> None:
    topic = family.order()
    run = family.start()
    (call,) = family.plan(run, ("wallet.hire", {"topic": topic}))
    child = begin(family, run, call)
    (tip,) = family.plan(child, ("wallet.tip", {"order": family.order()}))
    family.succeed(child, tip)
    family.cancel(child)
    other = family.start()
    (waits,) = family.plan(other, ("wallet.hire", {"topic": topic}))  # while nobody knows how it ends
    family.one(family.claim_stopped(child))
    assert heard(family, run, call) == c.Done("SUCCEEDED")
    assert family.call(call).receipt is None
    refused = replace(family.claim_call(other, waits), child=uuid7(), request=None)
    assert family.one(refused) == c.Done("REJECTED")
    (later,) = family.plan(family.start(), ("wallet.hire", {"topic": topic}))
    for one in (waits, later):
        assert (family.state(one), family.call(one).reused) == ("REJECTED", False)
        assert (family.call(one).error or "").startswith("key_stopped_before: ")
    # What it left is an effect all the same, and is offset as any other.
    family.cancel(run)
    assert family.status(run) == "COMPENSATING"
    forward, offset = family.offset(run)
    assert forward == call
    family.finish(begin(family, run, offset))
    assert heard(family, run, offset) == c.Done("SUCCEEDED")
    assert family.one(family.claim_stopped(run)) == c.Done("STOPPED")
    assert family.operation(call).status == "compensated"


def test_a_child_ends_within_its_parents_wall_clock(family: Bench) -> None:
    run, _, child = asked(family, deadline_s=600, budget='{"wall_clock_ms": 8000}')
    assert family.run(child).deadline <= family.run(run).created_at + timedelta(seconds=8)
    family.ahead(10)
    assert family.one(family.claim_run(child)) == c.Done("STOPPED")
    assert family.run(child).stop_reason == "deadline_exceeded"
