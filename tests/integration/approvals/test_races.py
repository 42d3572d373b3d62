"""Two who decide at one instant, in sessions of their own: one wins, and the other is told what was said."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fencepost import commands as c
from tests.integration.approvals.desk import REFUND, Desk, asking

ROUNDS = 4


def at_once(*tasks: Callable[[], Any]) -> list[Any]:
    """What each says, all begun at one instant."""
    line, said = threading.Barrier(len(tasks)), [None] * len(tasks)

    def take(place: int, task: Callable[[], Any]) -> None:
        line.wait(30)
        said[place] = task()

    threads = [threading.Thread(target=take, args=pair) for pair in enumerate(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return said


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_of_one_who_approves_and_one_who_denies_one_wins(desk: Desk, round_: int) -> None:
    run, call = desk.asked()
    ann, bob = at_once(lambda: desk.say(call), lambda: desk.say(call, "bob", approve=False))
    won = [answer for answer in (ann, bob) if isinstance(answer, c.Done)]
    assert len(won) == 1, (ann, bob)
    lost = bob if won[0] is ann else ann
    assert isinstance(lost, c.Denied)
    assert ("ann (login" if won[0] is ann else "bob (login") in lost.why
    assert desk.bench.kinds(run).count("ApprovalDecided") == 1
    assert won[0].state == desk.bench.state(call)
    assert desk.attempts(run) == 0


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_two_persons_who_approve_at_one_instant_are_both_counted(desk: Desk, round_: int) -> None:
    desk.policy.grants = (asking("wallet.debit", count=2), REFUND)
    run, call = desk.asked()
    said = at_once(lambda: desk.say(call), lambda: desk.say(call, "bob"))
    assert sorted(answer.state for answer in said) == ["AWAITING_APPROVAL", "INTENT_RECORDED"]
    assert desk.bench.kinds(run).count("DispatchIntentRecorded") == 1
    assert isinstance(desk.honest_claim(run, call), c.Send)


def test_one_login_that_approves_twice_at_one_instant_counts_once(desk: Desk) -> None:
    desk.policy.grants = (asking("wallet.debit", count=2), REFUND)
    _, call = desk.asked()
    desk.principal("carol", '["boss"]')
    said = at_once(lambda: desk.say(call), lambda: desk.say(call, "carol"))
    assert desk.bench.state(call) == "AWAITING_APPROVAL"
    assert sorted(type(answer).__name__ for answer in said) == ["Denied", "Done"]


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_of_an_approval_and_a_cancel_nothing_is_sent_unless_it_came_first(desk: Desk, round_: int) -> None:
    run, call = desk.asked()
    at_once(lambda: desk.say(call), lambda: desk.bench.cancel(run))
    assert desk.bench.state(call) == "CANCELLED"
    assert desk.bench.status(run) == "STOPPED"
    assert isinstance(desk.honest_claim(run, call), c.Gone)


def test_two_decisions_of_one_batch_are_decided_one_after_the_other(desk: Desk) -> None:
    """One login decides for two of its persons, and one call is approved and denied: in one transaction."""
    run, call = desk.asked()
    approve, deny = desk.command(call), replace(desk.command(call), approve=False)
    first, second = desk.ledgers["ann"].apply([approve, deny])
    assert first == c.Done("INTENT_RECORDED")
    assert isinstance(second, c.Denied)
    assert desk.bench.kinds(run).count("ApprovalDecided") == 1


def test_decisions_on_several_calls_share_a_transaction(desk: Desk) -> None:
    _, call = desk.asked()
    _, other = desk.asked()
    answers = desk.ledgers["ann"].apply([desk.command(call), desk.command(other, approve=False)])
    assert answers == [c.Done("INTENT_RECORDED"), c.Done("REJECTED")]
