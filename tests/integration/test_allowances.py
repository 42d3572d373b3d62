"""Allowances on the ledger: taken in the claim that sends a call, kept while it may have happened, given back
when it is known that it did not.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fencepost import commands as c
from fencepost.allowances import Allowance
from fencepost.ledger import allowances as counters
from fencepost.money import Money
from fencepost.recovery import Answer
from fencepost_workers.sweep import Sweeper
from tests.awaiting import until
from tests.integration.allowed import (
    DONE,
    NOBODY_KNOWS,
    NOT_DONE,
    NOT_YET,
    Allowed,
    euros,
    name,
    under,
)
from tests.integration.ledger_bench import Bench


def test_of_ten_claims_in_one_batch_as_many_are_sent_as_the_allowance_has_room_for(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=3)) as allowed:
        calls = allowed.calls(10)
        answers = bench.ledger.apply([allowed.claim(call) for call in calls])
        assert [isinstance(answer, c.Send) for answer in answers] == [True] * 3 + [False] * 7
        assert answers[3:] == [c.Done("REJECTED")] * 7
        assert allowed.used(few) == [(3, 0)]
        assert [allowed.held(call) for call in calls] == [[few]] * 3 + [[]] * 7
        assert allowed.code(calls[3]) == "allowance_exceeded"
        told = f"allowance {few} is used up: 3 of 3 calls; it has no window that ends"
        assert bench.call(calls[3]).error == f"not authorised (allowance_exceeded): {told}"
        assert bench.run(bench.call(calls[3]).run).stop_reason == "authorization_denied"


def test_ten_steps_of_thirty_cents_spend_no_more_than_a_euro(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, spend=euros(100))) as allowed:
        calls = allowed.calls(10, minor=30)
        answers = bench.ledger.apply([allowed.claim(call) for call in calls])
        assert sum(isinstance(answer, c.Send) for answer in answers) == 3
        assert allowed.used(few) == [(3, 90)]
        assert "has no room for 0.30 EUR: 0.90 EUR of 1.00 EUR are spent" in str(bench.call(calls[-1]).error)
        small = allowed.calls(1, minor=10)[0]
        allowed.sent(small)
        assert allowed.used(few) == [(4, 100)]


def test_what_a_sibling_used_up_while_a_call_waited_is_found_out_before_anything_is_sent(
    bench: Bench,
) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1)) as allowed:
        first, waiting = allowed.calls(2)
        assert bench.state(waiting) == "INTENT_RECORDED"  # both were authorised as they were proposed
        allowed.sent(first)
        assert "is used up: 1 of 1 calls" in allowed.refused(waiting)
        assert allowed.code(waiting) == "allowance_exceeded"


def test_a_call_that_is_not_required_is_refused_and_its_run_goes_on(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=0, tool="wallet.note")) as allowed:
        run = bench.start()
        note = allowed.planned_in(run, bench.order(), "wallet.note")
        allowed.refused(note)
        assert bench.status(run) == "ACTING"


@pytest.mark.parametrize(
    ("changes", "spend", "code"),
    [
        ({"amount": None}, euros(100), "allowance_no_amount"),
        ({"amount": lambda _args: None}, euros(100), "allowance_no_amount"),
        ({}, Money(currency="USD", amount_minor=100, scale=2), "allowance_currency"),
        ({"amount": lambda _args: euros(-1)}, euros(100), "allowance_negative"),
        ({"amount": lambda args: args.nothing}, euros(100), "policy_error"),
        ({"amount": lambda _args: 12}, euros(100), "policy_error"),
    ],
)
def test_a_spend_that_cannot_be_told_is_not_sent(
    bench: Bench, changes: dict[str, Any], spend: Money, code: str
) -> None:
    few = name()
    with under(bench, Allowance(id=few, spend=spend), **changes) as allowed:
        # As it is proposed no engine of this bench asks for amounts, but its functions are called.
        bench_call = _planned_without(bench, allowed)
        allowed.refused(bench_call)
        assert allowed.code(bench_call) == code
        assert allowed.used(few) == []


def _planned_without(bench: Bench, allowed: Allowed) -> Any:
    """A call proposed by a process whose tools say nothing of amounts, as of another release."""
    knowing, bench.ledger = bench.ledger, bench.ledger_as("worker")
    try:
        return allowed.calls(1)[0]
    finally:
        bench.ledger = knowing


def test_an_amount_beyond_every_limit_is_refused_and_does_not_overflow(bench: Bench) -> None:
    few = name()
    most = 2**53 - 1
    with under(bench, Allowance(id=few, spend=euros(most))) as allowed:
        first, second = allowed.calls(2, minor=most)
        allowed.sent(first)
        allowed.refused(second)
        assert allowed.used(few) == [(1, most)]


def test_each_resource_has_its_own_counter_where_the_allowance_says_so(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1, per=("resource",), resource="acc*")) as allowed:
        for call in allowed.calls(3):
            allowed.sent(call)
        assert allowed.used(few) == [(1, 0)] * 3


def test_several_allowances_are_taken_from_together_or_not_at_all(bench: Bench) -> None:
    wide, narrow = name(), name()
    rules = Allowance(id=wide, count=5), Allowance(id=narrow, count=1)
    with under(bench, *rules) as allowed:
        first, second = allowed.calls(2)
        allowed.sent(first)
        assert allowed.held(first) == [wide, narrow]
        assert narrow in allowed.refused(second)
        assert (allowed.used(wide), allowed.used(narrow)) == ([(1, 0)], [(1, 0)])


# -- what becomes of a share ---------------------------------------------------------------------------------

Step = Callable[[Allowed, c.Send, c.Term], None]


def _success(allowed: Allowed, send: c.Send, term: c.Term) -> None:
    assert allowed.bench.record(send, term, DONE) == c.Done("SUCCEEDED")


def _failure(allowed: Allowed, send: c.Send, term: c.Term) -> None:
    assert allowed.bench.record(send, term, NOT_DONE) == c.Done("FAILED")


def _retry(allowed: Allowed, send: c.Send, term: c.Term) -> None:
    assert allowed.bench.record(send, term, NOT_YET) == c.Done("INTENT_RECORDED")


def _unknown(allowed: Allowed, send: c.Send, term: c.Term) -> None:
    assert allowed.bench.record(send, term, NOBODY_KNOWS) == c.Done("UNKNOWN")


def _repair_needed(allowed: Allowed, send: c.Send, term: c.Term) -> None:
    doubt = replace(NOBODY_KNOWS, repair=True)
    assert allowed.bench.record(send, term, doubt) == c.Done("NEEDS_REPAIR")
    allowed.bench.ahead(10)  # nothing that was sent can land any more


def _found(allowed: Allowed, send: c.Send, term: c.Term) -> None:
    _unknown(allowed, send, term)
    ask, asking = allowed.bench.reconcile(send.call.run, send.call.id)
    found = allowed.bench.looked_up(ask, asking, Answer.FOUND, "r-1")
    assert allowed.bench.one(found) == c.Done("SUCCEEDED")


def _repaired(decision: str, receipt: str | None = None) -> Step:
    def step(allowed: Allowed, send: c.Send, term: c.Term) -> None:
        _repair_needed(allowed, send, term)
        assert allowed.bench.repair(send.call.id, decision, receipt) == c.Done(decision)

    return step


def _cancelled(allowed: Allowed, send: c.Send, term: c.Term) -> None:
    _retry(allowed, send, term)
    allowed.bench.cancel(send.call.run)
    assert allowed.bench.state(send.call.id) == "CANCELLED"


def _denied(allowed: Allowed, send: c.Send, term: c.Term) -> None:
    _retry(allowed, send, term)
    allowed.bench.gate.closed.add((send.call.tool, "claim"))
    allowed.bench.ahead(1)
    assert allowed.claimed(send.call.id) == c.Done("REJECTED")
    allowed.bench.gate.closed.clear()


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        (_success, True),
        (_found, True),
        (_unknown, True),
        (_retry, True),
        (_repair_needed, True),
        (_repaired("ACCEPTED_UNKNOWN"), True),
        (_repaired("SUCCEEDED", "r-9"), True),
        (_repaired("UNKNOWN"), True),
        (_failure, False),
        (_repaired("FAILED"), False),
        (_cancelled, False),
        (_denied, False),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_share_is_given_back_only_when_it_is_known_that_nothing_happened(
    bench: Bench, step: Step, kept: bool
) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1, spend=euros(100))) as allowed:
        call, other = allowed.calls(2)
        step(allowed, *allowed.sent(call))
        assert allowed.used(few) == ([(1, 100)] if kept else [(0, 0)])
        if kept:
            allowed.refused(other)
        else:
            allowed.sent(other)


def test_a_retry_and_a_repeat_keep_the_share_of_the_first_attempt(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1)) as allowed:
        call = allowed.calls(1)[0]
        _retry(allowed, *allowed.sent(call))
        bench.ahead(1)
        send, term = allowed.sent(call)
        assert send.attempt == 2
        _unknown(allowed, send, term)
        ask, asking = bench.reconcile(send.call.run, call)
        bench.ahead(20)  # nothing of ours can land any more: what is absent now stays so
        bench.one(bench.looked_up(replace(ask, asked_at=bench.now()), asking, Answer.ABSENT))
        again, term = bench.reconcile(send.call.run, call)
        assert isinstance(again, c.Send), again
        assert again.repeat
        assert allowed.used(few) == [(1, 0)]
        told = [e.data.get("reserved") for e in bench.events(send.call.run) if e.type == "ToolAttemptStarted"]
        assert [bool(shares) for shares in told] == [True, False, False]


def test_a_worker_that_dies_with_a_share_leaves_it_to_whoever_settles_the_call(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1)) as allowed:
        call, other = allowed.calls(2)
        send, _ = allowed.sent(call)
        bench.ahead(10)  # its worker is gone: nobody records what became of it
        ask, asking = bench.reconcile(send.call.run, call)
        assert (bench.state(call), allowed.used(few)) == ("UNKNOWN", [(1, 0)])
        allowed.refused(other)
        assert bench.one(bench.looked_up(ask, asking, Answer.FOUND, "r-1")) == c.Done("SUCCEEDED")
        assert allowed.used(few) == [(1, 0)]


def test_what_comes_to_light_counts_even_beyond_the_limit_and_until_it_is_settled(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1)) as allowed:
        call, other, third = allowed.calls(3)
        send, term = allowed.sent(call)
        _failure(allowed, send, term)
        allowed.sent(other)
        bench.one(bench.evidence(send, term, DONE))
        assert (bench.state(call), allowed.used(few)) == ("NEEDS_REPAIR", [(2, 0)])
        assert "is used up: 2 of 1 calls" in allowed.refused(third)
        bench.ahead(10)
        assert bench.repair(call, "SUCCEEDED", "r-1") == c.Done("SUCCEEDED")
        assert allowed.used(few) == [(2, 0)]


def test_a_reused_result_takes_nothing(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1)) as allowed:
        order = bench.order()
        call = allowed.planned([order])[0]
        _success(allowed, *allowed.sent(call))
        again = bench.succeed_by_reuse(bench.start(), order)
        assert (allowed.held(again), allowed.used(few)) == ([], [(1, 0)])


def test_a_compensation_takes_nothing_and_gives_nothing_back(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1, tool="wallet.*", spend=euros(100))) as allowed:
        call = allowed.calls(1)[0]
        run = bench.call(call).run
        _success(allowed, *allowed.sent(call))
        bench.cancel(run)
        _, back = bench.offset(run)
        bench.ahead(10)
        bench.succeed(run, back, "r-2")
        assert (allowed.held(back), allowed.used(few)) == ([], [(1, 100)])


def test_a_call_that_is_put_off_takes_nothing(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=5, tool="narrow.*")) as allowed:
        calls = allowed.calls(3, tool="narrow.pay")
        answers = [allowed.claimed(call) for call in calls]
        assert [type(answer) for answer in answers] == [c.Send, c.Send, c.Full]
        assert allowed.used(few) == [(2, 0)]


def test_a_call_that_is_refused_gives_back_its_place_at_the_dependency(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1, tool="narrow.*", principal="svc:*")) as allowed:
        first, refused = allowed.calls(2, tool="narrow.pay")
        allowed.sent(first)
        allowed.refused(refused)
    other = allowed.calls(1, tool="narrow.pay")[0]
    allowed.sent(other)  # of two places the refused call has taken none


# -- windows ----------------------------------------------------------------------------------------------


def test_a_new_window_has_a_new_counter_and_the_old_one_is_forgotten_a_day_later(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1, window=timedelta(minutes=1))) as allowed:
        first, second, third = allowed.calls(3)
        bench.ahead(60 - bench.now().timestamp() % 60)
        send, term = allowed.sent(first)
        why = allowed.refused(second)
        ends = bench.sql("SELECT until FROM fencepost.allowances WHERE allowance = %s", few)[0][0]
        assert why.endswith(f"its window ends at {ends.strftime('%Y-%m-%dT%H:%M:%S.%fZ')}")
        later = allowed.planned_in(bench.start(deadline_s=200000), bench.order())
        bench.ahead((ends - bench.now()).total_seconds())
        allowed.sent(later)
        assert allowed.used(few) == [(1, 0), (1, 0)]
        assert _forgotten(bench) == 0
        bench.ahead(86400)
        assert _forgotten(bench) == 1
        assert allowed.used(few) == [(1, 0)]
        assert bench.state(third) == "INTENT_RECORDED"
        # What is given back to a window that nobody counts any more is given back to nothing.
        assert bench.record(send, term, NOT_DONE) == c.Done("FAILED")
        assert allowed.used(few) == [(1, 0)]


def _forgotten(bench: Bench) -> int:
    with bench.pools[0].connection() as connection:
        return counters.forget(connection)


def test_the_sweep_forgets_counters_that_are_long_past(bench: Bench) -> None:
    few = name()
    with under(bench, Allowance(id=few, count=1, window=timedelta(minutes=1))) as allowed:
        allowed.sent(allowed.calls(1)[0])
        bench.ahead(86400 + 60)
        sweeper = Sweeper(bench.pools[0], bench.ledger, every_s=0.01)
        try:
            until("the counter is gone", lambda: allowed.used(few) == [])
        finally:
            sweeper.stop()
