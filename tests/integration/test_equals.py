"""Eight equal intents at once, each in a session of its own: one is sent, whatever becomes of it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.recovery import Answer
from tests.integration.ledger_bench import Bench

EIGHT = 8
APPLIED = Applied('{"id":"r-1"}', "r-1")
LOST = Unsure("timeout", "the answer was lost")
REFUSED = Refused("http_402", "no money", retryable=False)
Pair = tuple[UUID, UUID]


def at_once(bench: Bench, commands: Sequence[c.Command]) -> list[Any]:
    """Apply each of these in a session of its own, at the same moment."""
    with ThreadPoolExecutor(len(commands)) as sessions:
        return list(sessions.map(bench.one, commands))


def planned(bench: Bench, tool: str, arguments: Callable[[int], dict[str, Any]]) -> list[Pair]:
    """Eight runs that propose a call each, at the same moment."""
    runs = [bench.start(deadline_s=7200) for _ in range(EIGHT)]
    claims = [bench.claim_run(run) for run in runs]
    assert all(isinstance(answer, c.Plan) for answer in at_once(bench, claims))
    turns = [
        bench.turn(r, k, (tool, arguments(n))) for n, (r, k) in enumerate(zip(runs, claims, strict=True))
    ]
    assert set(at_once(bench, turns)) <= {c.Done("ACTING"), c.Done("STOPPED")}
    return [(run, turn.call_ids[0]) for run, turn in zip(runs, turns, strict=True)]


def equals(bench: Bench, tool: str = "wallet.debit") -> tuple[Pair, list[Pair]]:
    """One that holds the key and seven that wait for it."""
    order = bench.order()
    made = planned(bench, tool, lambda _n: {"order": order})
    (holder,) = [pair for pair in made if not bench.call(pair[1]).waits]
    waiters = [pair for pair in made if pair != holder]
    assert bench.operation(holder[1]).call == holder[1]
    assert {bench.state(call) for _, call in waiters} == {"INTENT_RECORDED"}
    return holder, waiters


def claimed(bench: Bench, pairs: Sequence[Pair]) -> tuple[list[c.Send], list[Any], list[c.ClaimCall]]:
    """All of them claimed at once, due or not: the orders to send, the other answers, the claims."""
    bench.sql(
        "UPDATE fencepost.outbox SET due_at = fencepost.now()"
        " WHERE subject = ANY(%s) AND due_at > fencepost.now()",
        [call for _, call in pairs],
    )
    claims = [bench.claim_call(run, call) for run, call in pairs]
    answers = at_once(bench, claims)
    sends = [answer for answer in answers if isinstance(answer, c.Send)]
    return sends, [a for a in answers if not isinstance(a, c.Send)], claims


def term_of(send: c.Send, claims: Sequence[c.ClaimCall]) -> c.Term:
    return next(claim.term for claim in claims if claim.subject == send.call.id)


def test_one_is_sent_and_seven_take_its_result(bench: Bench) -> None:
    holder, waiters = equals(bench)
    (send,), others, claims = claimed(bench, [holder, *waiters])
    assert send.call.id == holder[1]
    assert others == [c.Done("INTENT_RECORDED")] * 7
    bench.record(send, term_of(send, claims), APPLIED)
    sends, others, _ = claimed(bench, waiters)
    assert (sends, others) == ([], [c.Done("SUCCEEDED")] * 7)
    assert {bench.call(call).receipt for _, call in waiters} == {"r-1"}
    assert bench.operation(holder[1]).reused == 7
    later = bench.start()
    order = bench.sql("SELECT arguments::json->>'order' FROM fencepost.calls WHERE id = %s", holder[1])[0][0]
    assert bench.call(bench.succeed_by_reuse(later, order)).receipt == "r-1", (
        "a run that comes much later too"
    )


def test_of_eight_with_other_arguments_one_is_taken_and_seven_are_refused(bench: Bench) -> None:
    order = bench.order()
    made = planned(bench, "wallet.debit", lambda n: {"order": order, "minor": 100 + n})
    taken = [call for _, call in made if bench.state(call) == "INTENT_RECORDED"]
    assert len(taken) == 1
    errors = {bench.call(call).error for _, call in made if call not in taken}
    assert errors == {"key_arguments_differ: a call of the same key has other arguments"}


@pytest.mark.parametrize("found", [True, False], ids=["it had its effect", "it had none"])
def test_an_owner_that_died_keeps_its_key_until_the_truth_is_known(bench: Bench, found: bool) -> None:
    holder, waiters = equals(bench)
    sends, _, _ = claimed(bench, [holder])
    assert len(sends) == 1
    bench.ahead(4)  # nobody answered for it
    ask, asking = bench.reconcile(*holder)
    assert isinstance(ask, c.Ask)
    assert claimed(bench, waiters)[:2] == ([], [c.Done("INTENT_RECORDED")] * 7), (
        "a key in doubt is waited for"
    )
    if found:
        assert bench.one(bench.looked_up(ask, asking, Answer.FOUND, "r-1")) == c.Done("SUCCEEDED")
        assert claimed(bench, waiters)[:2] == ([], [c.Done("SUCCEEDED")] * 7)
        return
    bench.cancel(holder[0])  # so that the absence is not followed by a repeat
    assert bench.one(bench.looked_up(ask, asking, Answer.ABSENT)) == c.Done("FAILED")
    sends, others, claims = claimed(bench, waiters)
    assert (len(sends), others) == (1, [c.Done("INTENT_RECORDED")] * 6), "the downstream forgets failures"
    bench.record(sends[0], term_of(sends[0], claims), APPLIED)


@pytest.mark.parametrize("end", ["CANCELLED", "REJECTED"])
def test_an_owner_that_ends_unsent_releases_its_key_to_one_of_the_others(bench: Bench, end: str) -> None:
    holder, waiters = equals(bench)
    if end == "CANCELLED":
        bench.cancel(holder[0])
    else:
        bench.gate.closed.add(("wallet.debit", "claim"))
        bench.one(bench.claim_call(*holder))
        bench.gate.closed.clear()
    assert bench.state(holder[1]) == end
    woken = bench.sql(
        "SELECT count(*) FROM fencepost.outbox WHERE subject = ANY(%s) AND due_at <= fencepost.now()",
        [call for _, call in waiters],
    )
    assert woken == [(7,)]
    sends, others, claims = claimed(bench, waiters)
    assert (len(sends), others) == (1, [c.Done("INTENT_RECORDED")] * 6)
    bench.record(sends[0], term_of(sends[0], claims), APPLIED)
    left = [pair for pair in waiters if pair[1] != sends[0].call.id]
    assert claimed(bench, left)[:2] == ([], [c.Done("SUCCEEDED")] * 6)


def test_the_window_counts_from_the_first_send_of_all_calls(bench: Bench) -> None:
    """The downstream forgets the key an hour after the first call's request, not after the second's."""
    (first, held), waiters = equals(bench, "wallet.tip")
    send, term = bench.dispatch(first, held)
    assert bench.record(send, term, REFUSED) == c.Done("FAILED")
    sent_at = bench.operation(held).first_sent_at
    bench.ahead(3600 - 60)
    (second,), _, claims = claimed(bench, waiters)
    assert bench.operation(second.call.id).first_sent_at == sent_at
    bench.record(second, term_of(second, claims), LOST)
    answer, again = bench.reconcile(second.call.run, second.call.id)
    assert isinstance(answer, c.Send), "still well inside"
    bench.record(answer, again, LOST)
    bench.ahead(60)
    assert bench.reconcile(second.call.run, second.call.id)[0] == c.Done("NEEDS_REPAIR")
    assert bench.call(second.call.id).error == "the reconciliation deadline has passed"
    assert sent_at is not None
    assert bench.operation(held).expires_at == sent_at + timedelta(hours=1)


def test_past_the_window_of_an_earlier_call_nothing_is_repeated(bench: Bench) -> None:
    (first, held), waiters = equals(bench, "wallet.tip")
    send, term = bench.dispatch(first, held)
    bench.record(send, term, REFUSED)
    bench.ahead(3600)
    (second,), _, claims = claimed(bench, waiters)
    bench.record(second, term_of(second, claims), LOST)
    assert bench.reconcile(second.call.run, second.call.id)[0] == c.Done("NEEDS_REPAIR")
    assert bench.call(second.call.id).error == "the downstream may no longer know the key"
