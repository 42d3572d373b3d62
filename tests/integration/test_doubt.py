"""Outcomes that are not known: what doubt survives, who may settle it, what is never done again blindly."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fencepost import commands as c
from fencepost.clock import NEVER
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.recovery import Answer
from tests.integration.ledger_app import SECOND
from tests.integration.ledger_bench import Bench

APPLIED = Applied('{"id":"r-1"}', "r-1")
LOST = Unsure("timeout", "the answer was lost")
BUSY = Refused("http_429", "not now", retryable=True)
HOUR_LATER = Refused("http_429", "later", retryable=True, retry_after=timedelta(hours=1))
NOT_NOW = Refused("not_now", "not now", retryable=True)
REFUSED = Refused("http_402", "no money", retryable=False)
STORED = Refused("http_409", "failed before", retryable=False, final_answer_stored=True)


def lost(bench: Bench, tool: str = "wallet.debit") -> tuple[Any, Any]:
    """A call whose first attempt was applied downstream, but its answer never came."""
    run = bench.start()
    call = bench.debit(run, bench.order(), tool)
    send, term = bench.dispatch(run, call)
    assert bench.record(send, term, LOST) == c.Done("UNKNOWN")
    return run, call


def repeat(bench: Bench, run: Any, call: Any) -> tuple[c.Send, c.Term]:
    """The reconciler's own repeat under the same key."""
    answer, term = bench.reconcile(run, call)
    if isinstance(answer, c.Ask):
        assert bench.one(bench.looked_up(answer, term, Answer.ABSENT)) == c.Done("UNKNOWN")
        bench.ahead(4)  # quiet: the absence can be proved
        answer, term = bench.reconcile(run, call)
        assert isinstance(answer, c.Ask), answer
        assert bench.one(bench.looked_up(answer, term, Answer.ABSENT)) == c.Done("UNKNOWN")
        answer, term = bench.reconcile(run, call)
    assert isinstance(answer, c.Send), answer
    return answer, term


def test_a_lost_answer_is_unknown_and_stays_with_its_key(bench: Bench) -> None:
    run, call = lost(bench)
    held = bench.call(call)
    assert (held.state, held.doubt, held.owner) == ("UNKNOWN", True, None)
    key = bench.operation(call)
    assert (key.status, key.doubt, key.call) == ("open", True, call)
    assert bench.status(run) == "ACTING"


@pytest.mark.parametrize("answer", [BUSY, REFUSED], ids=["429", "refusal"])
def test_committed_then_lost_then_refused_stays_unknown_until_a_lookup_finds_it(
    bench: Bench, answer: Refused
) -> None:
    run, call = lost(bench)
    send, term = repeat(bench, run, call)
    assert (send.repeat, send.attempt, send.key) == (True, 2, bench.call(call).operation)
    assert bench.record(send, term, answer) == c.Done("UNKNOWN")
    assert bench.call(call).doubt
    assert "ToolAttemptFailed" not in bench.kinds(run, call)
    bench.ahead(5)
    ask, asking = bench.reconcile(run, call)
    assert isinstance(ask, c.Ask)
    assert bench.one(bench.looked_up(ask, asking, Answer.FOUND, "r-1")) == c.Done("SUCCEEDED")
    settled = bench.call(call)
    assert (settled.doubt, settled.receipt) == (False, "r-1")
    proof = next(e for e in bench.events(run) if e.id == settled.proof)
    assert proof.type == "ToolEffectReconciled"
    assert bench.operation(call).status == "completed"


def test_a_repeat_that_is_denied_fails_where_the_lookup_proved_the_key_absent(bench: Bench) -> None:
    run, call = lost(bench)
    ask, asking = bench.reconcile(run, call)
    assert bench.one(bench.looked_up(ask, asking, Answer.ABSENT)) == c.Done("UNKNOWN")
    bench.ahead(4)
    ask, asking = bench.reconcile(run, call)
    bench.one(bench.looked_up(ask, asking, Answer.ABSENT))
    bench.gate.closed.add(("wallet.debit", "claim"))
    answer, _ = bench.reconcile(run, call)
    assert answer == c.Done("FAILED")
    held = bench.call(call)
    assert (held.doubt, held.owner, held.attempts) == (False, None, 1)
    proof = next(e for e in bench.events(run) if e.id == held.proof)
    assert proof.type == "ToolEffectReconciled"


def test_a_repeat_that_is_denied_leaves_a_key_in_doubt_that_nothing_speaks_for(bench: Bench) -> None:
    run, call = lost(bench, "wallet.hold")
    bench.gate.closed.add(("wallet.hold", "claim"))
    bench.ahead(4)
    answer, _ = bench.reconcile(run, call)
    assert answer == c.Done("UNKNOWN")
    held = bench.call(call)
    assert (held.doubt, held.owner, held.attempts) == (True, None, 1)
    assert held.ready_at > bench.events(run)[-1].recorded_at, "it is tried again later, not at once"


def test_a_service_that_is_away_for_longer_than_reconciliation_is_asked_once_more_when_it_is_back(
    bench: Bench,
) -> None:
    run, call = lost(bench)
    first = bench.call(call).reconcile_until
    assert first is not None
    while bench.now() < first + timedelta(minutes=1):
        ask, asking = bench.reconcile(run, call)
        if isinstance(ask, c.Ask):  # else its dependency is left alone meanwhile
            away = replace(bench.looked_up(ask, asking, Answer.UNCLEAR), code="connect_failed")
            assert bench.one(away) == c.Done("UNKNOWN")
        bench.ahead((bench.call(call).ready_at - bench.now()).total_seconds() + 1)
    ask, asking = bench.reconcile(run, call)
    assert isinstance(ask, c.Ask), "it is still asked"
    assert bench.one(bench.looked_up(ask, asking, Answer.FOUND, "r-1")) == c.Done("SUCCEEDED")


def test_a_failure_that_the_downstream_stored_for_the_key_speaks_for_the_key(bench: Bench) -> None:
    run, call = lost(bench, "wallet.hold")
    send, term = repeat(bench, run, call)
    assert bench.record(send, term, STORED) == c.Done("FAILED")
    failed = bench.call(call)
    proof = next(e for e in bench.events(run) if e.id == failed.proof)
    assert (failed.doubt, proof.type) == (False, "ToolAttemptFailed")


def test_an_ordinary_refusal_of_the_same_tool_does_not(bench: Bench) -> None:
    run, call = lost(bench, "wallet.hold")
    send, term = repeat(bench, run, call)
    assert bench.record(send, term, REFUSED) == c.Done("UNKNOWN")
    assert run == bench.call(call).run


def test_an_answer_to_a_repeat_that_was_for_another_request_goes_to_a_person(bench: Bench) -> None:
    run, call = lost(bench, "wallet.hold")
    send, term = repeat(bench, run, call)
    other = Unsure("other_request", "answered for another request", repair=True)
    assert bench.record(send, term, other) == c.Done("NEEDS_REPAIR")
    held = bench.call(call)
    assert (held.doubt, held.error) == (True, "other_request: answered for another request")
    assert bench.kinds(run, call)[-2:] == ["ToolOutcomeMarkedUnknown", "RepairRequested"]
    assert bench.repair(call, "SUCCEEDED", "r-1") == c.Done("SUCCEEDED")


def test_a_first_attempt_that_is_refused_leaves_no_doubt(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    assert bench.record(send, term, BUSY) == c.Done("INTENT_RECORDED")
    assert not bench.call(call).doubt
    bench.ahead(0.1)
    send, term = bench.dispatch(run, call)
    assert (send.attempt, send.repeat) == (2, False)
    assert bench.record(send, term, REFUSED) == c.Done("FAILED")
    assert bench.status(run) == "STOPPED"
    assert bench.run(run).stop_reason == "tool_failed"


def test_retry_after_is_a_floor_of_the_next_attempt(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    refused = Refused("http_429", "not now", retryable=True, retry_after=7 * SECOND)
    assert bench.record(send, term, refused) == c.Done("INTENT_RECORDED")
    row = bench.row(call)
    assert row is not None
    assert row.due_at == bench.events(run)[-1].recorded_at + 7 * SECOND
    assert bench.one(bench.claim_call(run, call)) == c.Moved()


def test_attempts_are_bounded_by_the_dependency(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    for state in ("INTENT_RECORDED", "INTENT_RECORDED", "FAILED"):
        bench.ahead(0.1)
        send, term = bench.dispatch(run, call)
        assert bench.record(send, term, NOT_NOW) == c.Done(state)
    assert bench.call(call).attempts == 3


def test_an_attempt_that_was_throttled_is_not_counted_and_the_deadline_ends_it(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    for _ in range(6):
        send, term = bench.dispatch(run, call)
        assert bench.record(send, term, BUSY) == c.Done("INTENT_RECORDED")
        bench.ahead(2.5)
    for state in ("INTENT_RECORDED", "INTENT_RECORDED", "FAILED"):
        send, term = bench.dispatch(run, call)
        assert bench.record(send, term, NOT_NOW) == c.Done(state)
        bench.ahead(0.1)
    held = bench.call(call)
    assert (held.attempts, held.throttled) == (9, 6)
    late = bench.start()
    call = bench.debit(late, bench.order())
    send, term = bench.dispatch(late, call)
    assert bench.record(send, term, HOUR_LATER) == c.Done("FAILED")


# -- workers that die --------------------------------------------------------------------------------


def test_the_death_of_a_dispatcher_makes_its_call_unknown_and_executes_nothing(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    bench.dispatch(run, call)
    bench.ahead(3.1)  # attempt and grace are over
    answer, _ = bench.reconcile(run, call)
    assert isinstance(answer, c.Ask), "it asks before it does anything"
    held = bench.call(call)
    assert (held.state, held.doubt, held.lost, held.attempts) == ("UNKNOWN", True, True, 1)
    assert bench.kinds(run, call)[-3:] == ["LeaseAcquired", "ToolOutcomeMarkedUnknown", "LeaseAcquired"]


def test_the_death_of_a_dispatcher_of_a_tool_that_offers_nothing_goes_to_a_person(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order(), "mail.send")
    bench.dispatch(run, call)
    bench.ahead(3.1)
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    row = bench.row(call)
    assert row is not None
    assert row.due_at == NEVER


def test_a_lost_request_may_still_land_so_a_repeat_by_key_waits_for_it(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order(), "wallet.hold")
    bench.dispatch(run, call)
    bench.sql(
        "UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", call
    )  # its pulse ended
    assert bench.reconcile(run, call)[0] == c.Done("UNKNOWN")
    held = bench.call(call)
    assert held.quiet_at is not None
    assert abs(held.ready_at - held.quiet_at) < timedelta(milliseconds=1)
    bench.ahead(4)
    assert isinstance(bench.reconcile(run, call)[0], c.Send)


def test_the_death_of_a_reader_is_no_doubt_and_is_read_again(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order(), "wallet.balance")
    bench.dispatch(run, call)
    bench.ahead(3.1)
    assert bench.reconcile(run, call)[0] == c.Done("INTENT_RECORDED")
    bench.ahead(0.1)
    send, term = bench.dispatch(run, call)
    assert (send.attempt, send.key) == (2, None)
    assert bench.record(send, term, APPLIED) == c.Done("SUCCEEDED")
    assert bench.run(run).effects == 0


def test_five_workers_lost_in_a_row_are_enough(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    call = bench.debit(run, bench.order())
    bench.dispatch(run, call)
    for _ in range(4):
        bench.ahead(4)
        assert isinstance(bench.reconcile(run, call)[0], c.Ask)
    bench.ahead(4)
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    assert "5 times in a row" in (bench.call(call).error or "")


def test_a_recorded_answer_starts_the_count_anew(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    call = bench.debit(run, bench.order())
    bench.dispatch(run, call)
    for _ in range(3):
        bench.ahead(4)
        bench.reconcile(run, call)
    bench.ahead(4)
    ask, asking = bench.reconcile(run, call)
    assert bench.one(bench.looked_up(ask, asking, Answer.UNCLEAR)) == c.Done("UNKNOWN")
    row = bench.row(call)
    assert row is not None
    assert row.takeovers == 0


# -- asking ------------------------------------------------------------------------------------------


def test_an_unclear_answer_is_waited_out_and_then_the_question_is_put_again(bench: Bench) -> None:
    run, call = lost(bench, "slow.pay")
    for asks in (1, 2, 3, 4):
        # The pause was chosen with one random number; the next claim draws the highest, and still asks.
        ask = bench.one(replace(bench.claim_doubt(run, call, term := bench.term()), rand=0.999))
        assert isinstance(ask, c.Ask), f"question {asks}"
        unclear = replace(bench.looked_up(ask, term, Answer.UNCLEAR), rand=0.9)
        assert bench.one(unclear) == c.Done("UNKNOWN")
        waiting = bench.call(call)
        assert (waiting.asks, waiting.owner) == (asks, None)
        pause = (waiting.ready_at - ask.asked_at).total_seconds()
        assert pause == max(10.0, 0.9 * min(30, 10 * 2 ** (asks - 1)))
        bench.ahead(pause)


def test_a_lookup_that_stays_unclear_ends_at_the_reconciliation_deadline(bench: Bench) -> None:
    run, call = lost(bench)
    ask, asking = bench.reconcile(run, call)
    bench.one(bench.looked_up(ask, asking, Answer.UNCLEAR))
    bench.ahead(31)
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    assert bench.operation(call).doubt


def test_the_key_known_for_another_request_goes_to_a_person(bench: Bench) -> None:
    run, call = lost(bench)
    ask, asking = bench.reconcile(run, call)
    assert bench.one(bench.looked_up(ask, asking, Answer.FOUND_OTHER)) == c.Done("NEEDS_REPAIR")


def test_an_absence_proves_nothing_before_what_was_sent_is_quiet(bench: Bench) -> None:
    run, call = lost(bench)
    ask, asking = bench.reconcile(run, call)
    assert bench.one(bench.looked_up(ask, asking, Answer.ABSENT)) == c.Done("UNKNOWN")
    held = bench.call(call)
    assert held.quiet_at is not None
    assert held.ready_at >= held.quiet_at


def test_an_answer_is_recorded_only_by_whoever_asked(bench: Bench) -> None:
    run, call = lost(bench)
    ask, asking = bench.reconcile(run, call)
    bench.ahead(4)
    bench.reconcile(run, call)
    assert bench.one(bench.looked_up(ask, asking, Answer.FOUND, "r-1")) == c.Fenced()


def test_a_reconciler_needs_a_lease_above_the_accepted_fence(bench: Bench) -> None:
    run, call = lost(bench)
    fence = bench.call(call).fence
    for granted in (fence, fence - 1):
        assert bench.one(bench.claim_doubt(run, call, c.Term("another", granted))) == c.Fenced()
    assert isinstance(bench.one(bench.claim_doubt(run, call, c.Term("another", fence + 1))), c.Ask)


def test_a_dispatcher_needs_a_lease_above_the_accepted_fence(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    assert bench.record(send, term, BUSY) == c.Done("INTENT_RECORDED")
    bench.ahead(0.1)
    assert bench.one(bench.claim_call(run, call, c.Term("another", term.fence))) == c.Fenced()


def test_a_repeat_does_not_exceed_the_runs_budget_of_attempts(bench: Bench) -> None:
    run = bench.start(budget='{"attempts": 1}')
    call = bench.debit(run, bench.order(), "wallet.hold")
    send, term = bench.dispatch(run, call)
    bench.record(send, term, LOST)
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    assert bench.run(run).attempts == 1


def test_a_stopping_run_repeats_to_learn_the_truth_where_the_effect_can_be_offset(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order(), "wallet.hold")
    send, term = bench.dispatch(run, call)
    bench.record(send, term, LOST)
    assert bench.cancel(run) == c.Done("STOPPING")
    answer, term = bench.reconcile(run, call)
    assert isinstance(answer, c.Send)
    assert bench.record(answer, term, APPLIED) == c.Done("SUCCEEDED")
    assert bench.status(run) == "COMPENSATING"


def test_a_stopping_run_does_not_repeat_what_nothing_could_offset(bench: Bench) -> None:
    run, call = lost(bench, "mail.send")
    bench.cancel(run)
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    assert bench.call(call).attempts == 1


def test_an_outage_longer_than_the_downstreams_memory_ends_with_a_person_and_no_resend(bench: Bench) -> None:
    """The key is forgotten there, and never here: an equal intent waits for as long as it takes."""
    run = bench.start(deadline_s=7200)
    call = bench.debit(run, order := bench.order(), "wallet.tip")
    send, term = bench.dispatch(run, call)
    bench.record(send, term, LOST)
    bench.ahead(3600)  # nobody was there for as long as the key lives
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    assert bench.call(call).attempts == 1
    bench.ahead(24 * 3600)
    later = bench.start()
    assert bench.call(bench.debit(later, order, "wallet.tip")).waits
    assert (bench.operation(call).doubt, bench.operation(call).call) == (True, call)


def test_an_outage_longer_than_the_downstreams_memory_is_followed_by_a_question_where_one_can_be_asked(
    bench: Bench,
) -> None:
    run, call = lost(bench)
    bench.ahead(3600)
    ask, term = bench.reconcile(run, call)
    assert isinstance(ask, c.Ask)
    assert bench.one(bench.looked_up(ask, term, Answer.FOUND, "r-1")) == c.Done("SUCCEEDED")
