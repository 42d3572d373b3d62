"""Trees of runs that would wait for each other's keys: the last to begin is refused, and nobody else."""

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Literal
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.clock import uuid7
from fencepost.joins import Join
from fencepost.ledger import circles
from tests.awaiting import until
from tests.integration.family import LARGE, NESTED, begin, declare, grown, heard, wrong
from tests.integration.ledger_bench import TENANT, Bench

WIDE = replace(NESTED, depth=3, children=6, turns=16, calls=16, attempts=32)
HOLD = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 7))"
IN_CIRCLE = "key_in_circle: whoever holds the key waits for this call: "


@pytest.fixture
def bench(bench: Bench) -> Bench:
    if ("wallet.chain", 1) not in bench.app.registry:
        declare(bench.app, "wallet.chain", budget=WIDE)
    return grown(bench)


def start(bench: Bench, topic: str) -> tuple[UUID, UUID, UUID]:
    """A run that holds a key, its call, and the run it waits for."""
    run = bench.start(budget=LARGE, deadline_s=600)
    (call,) = ask(bench, run, topic)
    return run, call, begin(bench, run, call)


def ask(bench: Bench, run: UUID, *topics: str) -> list[UUID]:
    return bench.plan(run, *[("wallet.chain", {"topic": topic}) for topic in topics])


def claim(bench: Bench, run: UUID, call: UUID) -> c.Answer:
    if (row := bench.row(call)) is not None and row.due_at > bench.now():
        bench.sql("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", call)
    answer: c.Answer = bench.one(replace(bench.claim_call(run, call), child=uuid7(), request=None))
    return answer


def test_two_trees_do_not_wait_for_each_others_keys(bench: Bench) -> None:
    one, other = bench.order(), bench.order()
    first, held, below = start(bench, one)
    second, too, under = start(bench, other)
    (waits,) = ask(bench, below, other)
    assert (bench.state(waits), bench.call(waits).waits) == ("INTENT_RECORDED", True)
    (refused,) = ask(bench, under, one)
    assert bench.state(refused) == "REJECTED"
    way = f"wallet.chain of run {first}, which waits for wallet.chain of run {second}"
    assert bench.call(refused).error == IN_CIRCLE + way
    assert bench.state(waits) == "INTENT_RECORDED", "the other one waits on"
    bench.finish(under)
    assert bench.one(replace(bench.claim_doubt(second, too), starts=True)) == c.Done("SUCCEEDED")
    assert claim(bench, below, waits) == c.Done("SUCCEEDED"), "it has taken the result"
    bench.finish(below)
    assert bench.one(replace(bench.claim_doubt(first, held), starts=True)) == c.Done("SUCCEEDED")
    assert wrong(bench) == []


def test_a_circle_of_three_trees_through_runs_further_below_is_found(bench: Bench) -> None:
    keys = [bench.order() for _ in range(3)]
    lowest = []
    for key in keys:
        _, _, below = start(bench, key)
        (call,) = bench.plan(below, ("wallet.ask", {"topic": bench.order()}))
        lowest.append(begin(bench, below, call))
    (one,) = ask(bench, lowest[0], keys[1])
    (two,) = ask(bench, lowest[1], keys[2])
    (three,) = ask(bench, lowest[2], keys[0])
    assert [bench.state(call) for call in (one, two, three)] == ["INTENT_RECORDED"] * 2 + ["REJECTED"]
    assert (bench.call(three).error or "").count("which waits for") == 4


def test_whoever_waits_for_a_tree_that_goes_on_waits(bench: Bench) -> None:
    one, other = bench.order(), bench.order()
    start(bench, one)
    start(bench, other)
    _, _, third = start(bench, bench.order())
    assert [bench.state(call) for call in ask(bench, third, one, other)] == ["INTENT_RECORDED"] * 2


MINUTE = timedelta(minutes=1)


def joining(bench: Bench, run: UUID, join: Join, *asked: tuple[str, str]) -> list[UUID]:
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    turn = bench.turn(run, claim, *[(tool, {"topic": topic}) for tool, topic in asked])
    assert bench.one(replace(turn, join=join)) == c.Done("ACTING")
    return list(turn.call_ids)


def fresh(bench: Bench, count: int = 1) -> list[tuple[str, str]]:
    return [("wallet.ask", bench.order()) for _ in range(count)]


@pytest.mark.parametrize(
    ("join", "closed"),
    [
        (Join.first(), False),
        (Join.quorum(2), True),
        (Join.quorum(3), True),
        (Join.quorum(2, rest="leave"), True),
        (Join.quorum(2, by=MINUTE), False),
        (Join.within(MINUTE), False),
        (Join.within(MINUTE, rest="leave"), False),  # what has not begun by then is cancelled
    ],
)
def test_a_call_under_a_join_closes_a_circle_if_the_join_needs_it(
    bench: Bench, join: Join, closed: bool
) -> None:
    one, other = bench.order(), bench.order()
    _, _, below = start(bench, one)
    _, _, under = start(bench, other)
    joining(bench, below, join, ("wallet.chain", other), *fresh(bench))
    (waits,) = ask(bench, under, one)
    assert bench.state(waits) == ("REJECTED" if closed else "INTENT_RECORDED")


@pytest.mark.parametrize("failed", [True, False])
def test_a_join_needs_a_call_once_those_beside_it_are_too_few(bench: Bench, failed: bool) -> None:
    one, other = bench.order(), bench.order()
    _, _, below = start(bench, one)
    _, _, under = start(bench, other)
    asked = [("wallet.chain", other), *fresh(bench, 2)]
    _, good, bad = joining(bench, below, Join.quorum(2), *asked)
    bench.finish(begin(bench, below, good))
    assert heard(bench, below, good) == c.Done("SUCCEEDED")
    if failed:
        bench.cancel(begin(bench, below, bad))
        assert heard(bench, below, bad) == c.Done("FAILED")
    (closing,) = ask(bench, under, one)
    assert bench.state(closing) == ("REJECTED" if failed else "INTENT_RECORDED")


@pytest.mark.parametrize("gone_on", [False, True])
@pytest.mark.parametrize("rest", ["leave", "cancel"])
def test_what_works_on_after_its_join_is_waited_for_at_the_end(
    bench: Bench, rest: Literal["leave", "cancel"], gone_on: bool
) -> None:
    one, other = bench.order(), bench.order()
    _, _, below = start(bench, one)
    _, _, under = start(bench, other)
    calls = joining(bench, below, Join.first(rest=rest), *fresh(bench, 2))
    long, quick = (begin(bench, below, call) for call in calls)
    assert [bench.state(call) for call in ask(bench, long, other)] == ["INTENT_RECORDED"]
    if gone_on:
        bench.finish(quick)
        assert heard(bench, below, calls[1]) == c.Done("SUCCEEDED")
        assert isinstance(bench.one(bench.claim_run(below)), c.Plan)
        assert bench.call(calls[0]).detached
    (closing,) = ask(bench, under, one)
    assert bench.state(closing) == ("REJECTED" if rest == "leave" else "INTENT_RECORDED")


def test_a_key_that_passes_on_takes_its_waiters_with_it(bench: Bench) -> None:
    one, other = bench.order(), bench.order()
    holder, held, gone = start(bench, one)
    _, _, under = start(bench, other)
    (waits,) = ask(bench, under, one)
    second = bench.start(budget=LARGE, deadline_s=600)
    (following,) = ask(bench, second, one)
    bench.cancel(gone)
    assert bench.one(replace(bench.claim_doubt(holder, held), starts=True)) == c.Done("FAILED")
    (closing,) = ask(bench, begin(bench, second, following), other)
    assert [bench.state(call) for call in (waits, closing)] == ["INTENT_RECORDED", "REJECTED"]


def test_a_call_that_waits_already_is_not_judged_again(bench: Bench) -> None:
    """Nor one that waits beside another that begins to, whose circle is looked for."""
    one, other = bench.order(), bench.order()
    _, _, below = start(bench, one)
    _, _, under = start(bench, other)
    waits, spare = joining(bench, below, Join.first(), ("wallet.chain", other), *fresh(bench))
    (closing,) = ask(bench, under, one)
    bench.cancel(begin(bench, below, spare))
    assert heard(bench, below, spare) == c.Done("FAILED")  # so that the join needs the other one
    bench.sql("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", closing)
    claims = replace(bench.claim_call(under, closing), child=uuid7(), request=None)
    (third,) = turned(bench, (start(bench, bench.order())[2], one))
    assert bench.ledger.apply([claims, third]) == [c.Done("INTENT_RECORDED"), c.Done("ACTING")]
    assert [bench.state(call) for call in (waits, closing)] == ["INTENT_RECORDED"] * 2


def turned(bench: Bench, *asked: tuple[UUID, str]) -> list[c.RecordTurn]:
    """Turns that are not recorded yet."""
    turns = []
    for run, topic in asked:
        plan = bench.claim_run(run)
        assert isinstance(bench.one(plan), c.Plan)
        turns.append(bench.turn(run, plan, ("wallet.chain", {"topic": topic})))
    return turns


def test_of_those_that_begin_in_one_batch_the_last_is_refused(bench: Bench) -> None:
    keys = [bench.order() for _ in range(3)]
    below = [start(bench, key)[2] for key in keys]
    turns = turned(bench, *zip(below, [*keys[1:], keys[0]], strict=True))
    assert bench.ledger.apply(turns) == [c.Done("ACTING")] * 3
    states = [bench.state(turn.call_ids[0]) for turn in turns]
    assert states == ["INTENT_RECORDED", "INTENT_RECORDED", "REJECTED"]


def test_what_is_looked_at_is_bounded_for_each_key(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circles, "MOST", 2)
    topics = [bench.order() for _ in range(2)]
    started = [start(bench, topic) for topic in topics]
    # The key that is looked at first, of a tree that fills the bound, and that of the circle.
    (_, wide, topic), (_, below, one) = sorted(
        (str(bench.call(call).operation), child, topic)
        for (_, call, child), topic in zip(started, topics, strict=True)
    )
    other = bench.order()
    _, _, under = start(bench, other)
    ask(bench, wide, other)
    ask(bench, below, other)
    turns = turned(bench, (start(bench, bench.order())[2], topic), (under, one))
    assert bench.ledger.apply(turns) == [c.Done("ACTING")] * 2
    assert [bench.state(turn.call_ids[0]) for turn in turns] == ["INTENT_RECORDED", "REJECTED"]


def test_only_who_may_close_a_circle_by_beginning_waits_for_others_that_do(bench: Bench) -> None:
    one, other, unsent = (bench.order() for _ in range(3))
    _, _, below = start(bench, one)
    start(bench, other)
    ask(bench, bench.start(budget=LARGE, deadline_s=600), unsent)
    (waits,) = ask(bench, below, other)
    _, _, third = start(bench, bench.order())
    with psycopg.connect(bench.database.owner) as holding:
        holding.execute(HOLD, [TENANT])
        assert claim(bench, below, waits) == c.Done("INTENT_RECORDED"), "it waits already"
        assert bench.state(ask(bench, third, unsent)[0]) == "INTENT_RECORDED", "its holder waits for nobody"


def test_of_two_that_begin_at_once_the_second_sees_the_first(bench: Bench) -> None:
    one, other = bench.order(), bench.order()
    _, _, below = start(bench, one)
    _, _, under = start(bench, other)
    turns = turned(bench, (below, other), (under, one))
    gate = threading.Barrier(2)

    def record(turn: c.RecordTurn) -> None:
        gate.wait()
        bench.one(turn)

    with psycopg.connect(bench.database.owner) as holding:
        # Both have their locks, and neither has looked yet.
        holding.execute(HOLD, [TENANT])
        threads = [threading.Thread(target=record, args=(turn,)) for turn in turns]
        for thread in threads:
            thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        until("both are about to look", lambda: holding.execute(waiting).fetchone() == (2,), 20)
        holding.rollback()
        for thread in threads:
            thread.join()
    states = sorted(bench.state(turn.call_ids[0]) for turn in turns)
    assert states == ["INTENT_RECORDED", "REJECTED"]
