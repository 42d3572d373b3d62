"""`fencepost grounding`: what an answer rests on, with the runs that fed it, and nothing left out unsaid."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from fencepost.clock import uuid7
from fencepost.ledger import memories
from fencepost.outcomes import Applied, Unsure
from fencepost.recovery import Answer
from fencepost.retrieval import ground
from tests.integration.family import begin, fan, grown, heard
from tests.integration.ledger_bench import TENANT, Bench
from tests.integration.shell import Shell
from tests.integration.test_signals import nodes


@pytest.fixture
def family(bench: Bench) -> Bench:
    return grown(bench)


@pytest.fixture
def shown(bench: Bench, no_settings: None) -> Shell:
    return Shell(bench.database, {"COLUMNS": "400"})


def read(bench: Bench, run: UUID, *names: str, **more: Any) -> UUID:
    """A call of the run whose result rests on these documents."""
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    grounds = tuple(ground("docs", name, "r1", None) for name in names)
    bench.one(replace(bench.outcome(send, term, Applied("{}", "d")), grounds=grounds, **more))
    return call


def told(shell: Shell, run: UUID, *args: str) -> list[tuple[str, int, str]]:
    found = shell.json("grounding", str(run), *args, role="reader")
    return [(one["id"], one["depth"], one["run"]) for one in found["grounds"]]


def test_the_runs_that_fed_a_run_are_among_it_and_whose_call_it_was_is_marked(
    family: Bench, shown: Shell
) -> None:
    run, calls, (fed, stopped, open_) = fan(family, 3, tool="wallet.deep")
    read(family, fed, "page")
    (inner,) = family.plan(fed, ("wallet.ask", {"topic": family.order()}))
    grandchild = begin(family, fed, inner)
    read(family, grandchild, "deep")
    for above, call, child in ((fed, inner, grandchild), (run, calls[0], fed)):
        family.finish(child)
        heard(family, above, call)
    read(family, stopped, "not told")
    read(family, open_, "not yet")
    expected = [("page", 1, str(fed)), ("deep", 2, str(grandchild))]
    assert told(shown, run) == expected
    assert told(shown, run, "--own") == []
    assert told(shown, fed) == [("page", 0, str(fed)), ("deep", 1, str(grandchild))]
    labels = [family.call(call).label for call in (calls[0], inner)]
    text = shown.ok("grounding", str(run), role="reader")
    assert f"run {grandchild} by {' › '.join(labels)}" in text
    assert "itself rests on no document" in shown.ok("grounding", str(run), "--own")
    assert f"run {run} has started it" in shown.ok("grounding", str(fed))
    assert shown.json("grounding", str(fed))["parent"] == str(run)


def test_a_result_that_is_taken_over_rests_on_what_it_rested_on(family: Bench, shown: Shell) -> None:
    first, order, topic = family.start(), family.order(), family.order()
    (call,) = family.plan(first, ("wallet.debit", {"order": order}))
    send, term = family.dispatch(first, call)
    record = family.outcome(send, term, Applied("{}", "d"))
    family.one(replace(record, grounds=(ground("docs", "direct", "r1", None),)))
    (asking,) = family.plan(first, ("wallet.ask", {"topic": topic}))
    child = begin(family, first, asking)
    read(family, child, "below")
    family.finish(child)
    heard(family, first, asking)
    later = family.start()
    family.succeed_by_reuse(later, order)
    (again,) = family.plan(later, ("wallet.ask", {"topic": topic}))
    family.one(replace(family.claim_call(later, again), child=uuid7(), request=None))
    assert family.call(again).reused
    assert told(shown, later) == [("direct", 1, str(first)), ("below", 1, str(child))]


def again(bench: Bench, run: UUID, topic: str) -> None:
    """The run takes the result of what was asked before."""
    (call,) = bench.plan(run, ("wallet.ask", {"topic": topic}))
    bench.one(replace(bench.claim_call(run, call), child=uuid7(), request=None))
    assert bench.call(call).reused


def test_what_was_taken_over_more_than_once_is_told_once_by_its_shortest_way(
    family: Bench, shown: Shell
) -> None:
    topics = [family.order() for _ in range(3)]
    runs: list[UUID] = []
    for before, topic in zip([None, *topics[:2]], topics, strict=True):
        above = family.start()
        (asking,) = family.plan(above, ("wallet.ask", {"topic": topic}))
        runs.append(begin(family, above, asking))
        if before is None:
            read(family, runs[-1], "deepest")
        else:
            for _ in range(2):
                again(family, runs[-1], before)
        family.finish(runs[-1])
        heard(family, above, asking)
    last = family.start()
    for topic in (topics[2], topics[2], topics[1]):
        again(family, last, topic)
    assert told(shown, last) == [("deepest", 2, str(runs[0]))]
    found = shown.json("grounding", str(last), role="reader")
    assert len(found["grounds"][0]["labels"]) == 2
    assert steps(family, last) == 10, "by way it would be 18, and twice as many with each level"


def test_of_ways_as_short_as_each_other_the_one_that_begins_first_is_told(
    family: Bench, shown: Shell
) -> None:
    """Not the one whose last step came first in its own run."""
    shared, *topics = (family.order() for _ in range(3))
    above = family.start()
    (asking,) = family.plan(above, ("wallet.ask", {"topic": shared}))
    source = begin(family, above, asking)
    read(family, source, "shared")
    family.finish(source)
    heard(family, above, asking)
    last = family.start()
    ways = []
    for topic, before in zip(topics, (2, 0), strict=True):
        (asking,) = family.plan(last, ("wallet.ask", {"topic": topic}))
        child = begin(family, last, asking)
        for _ in range(before):
            read(family, child)
        again(family, child, shared)
        family.finish(child)
        heard(family, last, asking)
        ways.append(family.call(asking).label)
    (found,) = shown.json("grounding", str(last), role="reader")["grounds"]
    assert (found["run"], found["depth"], found["labels"][:1]) == (str(source), 2, ways[:1])


def steps(bench: Bench, run: UUID) -> int:
    """How many rows are gone through, from run to run."""
    asked = {"tenant": TENANT, "run": run, "tree": True}
    with bench.owner.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {memories._GROUNDING}".encode(), asked)
        ((plan,),) = cursor.fetchall()
    (fed,) = (one for one in nodes(plan[0]["Plan"]) if one["Node Type"] == "Recursive Union")
    return int(fed["Actual Rows"])


def test_what_was_left_out_or_could_not_be_told_is_said(bench: Bench, shown: Shell) -> None:
    run = bench.start()
    read(bench, run, "a", "b", ungrounded={"left_out": 23})
    said = shown.json("grounding", str(run))
    assert ([one["id"] for one in said["grounds"]], said["left_out"], said["unread"]) == (["a", "b"], 23, 0)
    assert "23 more were left out" in shown.ok("grounding", str(run))
    other = bench.start()
    read(bench, other, ungrounded={"unread": "KeyError: 'documents'"})
    said = shown.json("grounding", str(other))
    assert ([one["unread"] for one in said["grounds"]], said["unread"]) == (["KeyError: 'documents'"], 1)
    assert "NOT KNOWN" in shown.ok("grounding", str(other))
    assert bench.sql("SELECT sum(left_out) FROM fencepost.grounding WHERE run = %s", other) == [(0,)]


def test_an_outcome_that_something_else_has_settled_cannot_tell_its_grounds(
    bench: Bench, shown: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = bench.app.registry["wallet.debit", 1]
    monkeypatch.setitem(bench.app.registry, ("wallet.debit", 1), replace(tool, grounds=lambda _found: ()))
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.record(send, term, Unsure("timeout", "no answer"))
    bench.ahead(3)
    ask, asking = bench.reconcile(run, call)
    bench.one(bench.looked_up(ask, asking, Answer.FOUND, "d-1"))
    (only,) = shown.json("grounding", str(run))["grounds"]
    assert only["unread"].startswith("it was settled by ")
