"""Real answers of fenced-out workers (R9): they settle an unknown call, or reopen an end they contradict."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.clock import token
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.recovery import Answer
from tests.integration.ledger_bench import Bench

APPLIED = Applied('{"id":"r-1"}', "r-1")
OTHER = Applied('{"id":"r-2"}', "r-2")
LOST = Unsure("timeout", "the answer was lost")
REFUSED = Refused("http_402", "no money", retryable=False)


def fenced_out(bench: Bench, tool: str = "wallet.debit") -> tuple[UUID, UUID, c.Send, c.Term]:
    """A call whose first attempt was taken over; its worker wakes up and holds an answer."""
    run = bench.start()
    call = bench.debit(run, bench.order(), tool)
    send, term = bench.dispatch(run, call)
    bench.ahead(4)
    bench.reconcile(run, call)
    assert bench.record(send, term, APPLIED) == c.Fenced()
    return run, call, send, term


def test_an_applied_answer_settles_the_unknown_call_at_the_next_claim(bench: Bench) -> None:
    run, call, send, term = fenced_out(bench)
    assert bench.one(bench.evidence(send, term, APPLIED)) == c.Done("UNKNOWN")
    bench.ahead(4)
    assert bench.reconcile(run, call)[0] == c.Done("SUCCEEDED")
    settled = bench.call(call)
    assert (settled.receipt, settled.doubt) == ("r-1", False)
    told = bench.events(run)[-1].data
    assert told["proof"] == "evidence of attempt 1"


def test_evidence_wakes_the_reconciler_of_a_call_nobody_holds(bench: Bench) -> None:
    run, call, send, term = fenced_out(bench, "slow.pay")
    ask_term = bench.term()
    bench.ahead(4)
    ask = bench.one(bench.claim_doubt(run, call, ask_term))
    unclear = replace(bench.looked_up(ask, ask_term, Answer.UNCLEAR), rand=0.9)
    assert bench.one(unclear) == c.Done("UNKNOWN")
    assert bench.one(bench.claim_doubt(run, call)) == c.Moved(), "it waits before it asks again"
    assert bench.one(bench.evidence(send, term, APPLIED)) == c.Done("UNKNOWN")
    assert bench.reconcile(run, call)[0] == c.Done("SUCCEEDED")


def test_the_holder_of_the_call_reads_evidence_that_came_meanwhile(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.ahead(4)
    ask, asking = bench.reconcile(run, call)
    bench.one(bench.evidence(send, term, APPLIED))
    unclear = bench.looked_up(ask, asking, Answer.UNCLEAR)
    assert bench.one(unclear) == c.Done("SUCCEEDED")
    assert run == bench.call(call).run


def test_a_lookup_and_evidence_that_contradict_each_other_go_to_a_person(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.ahead(4)
    ask, asking = bench.reconcile(run, call)
    bench.one(bench.evidence(send, term, APPLIED))
    assert bench.one(bench.looked_up(ask, asking, Answer.FOUND, "r-2")) == c.Done("NEEDS_REPAIR")


def test_negative_evidence_speaks_for_its_own_attempt_only(bench: Bench) -> None:
    run, call, send, term = fenced_out(bench, "wallet.hold")
    assert bench.call(call).attempts == 2, "it was repeated under its key"
    bench.one(bench.evidence(send, term, REFUSED))
    bench.ahead(4)
    answer, _ = bench.reconcile(run, call)
    assert isinstance(answer, c.Send), "one of two attempts is still unaccounted for"


def test_negative_evidence_of_every_attempt_is_proof(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order(), "wallet.hold")
    send, term = bench.dispatch(run, call)
    bench.sql(
        "UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", call
    )  # presumed dead
    assert bench.reconcile(run, call)[0] == c.Done("UNKNOWN")
    assert bench.one(bench.evidence(send, term, REFUSED)) == c.Done("UNKNOWN")
    assert bench.reconcile(run, call)[0] == c.Done("FAILED")
    assert bench.status(run) == "STOPPED"


def test_a_refusal_that_may_pass_is_tried_again_once_every_attempt_is_proved_without_effect(
    bench: Bench,
) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order(), "wallet.hold")
    send, term = bench.dispatch(run, call)
    bench.sql("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", call)
    bench.reconcile(run, call)
    bench.one(bench.evidence(send, term, Refused("not_sent", "no connection", retryable=True)))
    answer, term = bench.reconcile(run, call)
    assert isinstance(answer, c.Send)
    assert bench.record(answer, term, APPLIED) == c.Done("SUCCEEDED")


def test_a_lost_answer_is_no_evidence(bench: Bench) -> None:
    run, call, send, term = fenced_out(bench)
    before = len(bench.events(run))
    assert bench.one(bench.evidence(send, term, LOST)) == c.Done("UNKNOWN")
    assert len(bench.events(run)) == before
    assert bench.sql("SELECT count(*) FROM fencepost.evidence WHERE call = %s", call) == [(0,)]


def test_only_whoever_made_the_attempt_can_speak_for_it(bench: Bench) -> None:
    _, call, send, term = fenced_out(bench)
    for forged in (replace(term, owner=token()), replace(term, fence=term.fence + 1)):
        assert isinstance(bench.one(bench.evidence(send, forged, APPLIED)), c.Broken)
    assert isinstance(bench.one(bench.evidence(replace(send, attempt=2), term, APPLIED)), c.Broken)
    assert bench.sql("SELECT count(*) FROM fencepost.evidence WHERE call = %s", call) == [(0,)]


def failed(bench: Bench) -> tuple[UUID, UUID, c.Send, c.Term]:
    run, call, send, term = fenced_out(bench)
    bench.ahead(4)
    ask, asking = bench.reconcile(run, call)
    assert bench.one(bench.looked_up(ask, asking, Answer.ABSENT)) == c.Done("UNKNOWN")
    bench.cancel(run)
    answer, _ = bench.reconcile(run, call)
    assert answer == c.Done("FAILED"), "a stopping run does not repeat what is proved absent"
    return run, call, send, term


def refused_but_open(bench: Bench, tool: str = "wallet.debit") -> tuple[UUID, UUID, c.Send, c.Term]:
    """A call whose attempt was refused for now: it is to be tried again."""
    run = bench.start()
    call = bench.debit(run, bench.order(), tool)
    send, term = bench.dispatch(run, call)
    busy = Refused("http_429", "not now", retryable=True)
    assert bench.record(send, term, busy) == c.Done("INTENT_RECORDED")
    return run, call, send, term


def ended_as(bench: Bench, state: str) -> tuple[UUID, UUID, c.Send, c.Term]:
    """A call that was sent once and stands in this state, all the same."""
    if state == "FAILED":
        return failed(bench)
    if state == "ACCEPTED_UNKNOWN":
        run = bench.start()
        call = bench.debit(run, bench.order(), "mail.send")
        send, term = bench.dispatch(run, call)
        bench.ahead(4)
        assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
        bench.repair(call, "ACCEPTED_UNKNOWN")
        return run, call, send, term
    run, call, send, term = refused_but_open(bench)
    if state == "CANCELLED":
        bench.cancel(run)
    if state == "REJECTED":
        bench.gate.closed.add(("wallet.debit", "claim"))
        bench.ahead(1)
        bench.one(bench.claim_call(run, call))
        bench.gate.closed.clear()
    return run, call, send, term


REOPENED = ["INTENT_RECORDED", "FAILED", "CANCELLED", "REJECTED", "ACCEPTED_UNKNOWN"]


@pytest.mark.parametrize("state", REOPENED)
def test_an_applied_answer_reopens_whatever_says_that_nothing_is_known_to_have_happened(
    bench: Bench, state: str
) -> None:
    run, call, send, term = ended_as(bench, state)
    assert bench.state(call) == state
    assert bench.one(bench.evidence(send, term, APPLIED)) == c.Done("NEEDS_REPAIR")
    held = bench.call(call)
    assert (held.doubt, held.waits, held.owner) == (True, False, None)
    assert held.error == f"the call is {state}, yet an attempt was applied (receipt r-1)"
    assert bench.kinds(run, call)[-2:] == ["EvidenceFiled", "RepairRequested"]
    key = bench.operation(call)
    assert (key.doubt, key.call, key.status) == (True, call, "open"), "and its key is given to nobody"
    row = bench.row(call)
    assert row is not None
    assert row.queue == "reconciler"
    assert bench.one(bench.claim_call(run, call)) == c.Moved(), "it is not sent again"
    assert bench.repair(call, "SUCCEEDED", "r-1") == c.Done("SUCCEEDED")
    assert (bench.operation(call).status, bench.operation(call).receipt) == ("completed", "r-1")


@pytest.mark.parametrize("state", REOPENED)
def test_a_refusal_reopens_nothing(bench: Bench, state: str) -> None:
    _, _, send, term = ended_as(bench, state)
    assert bench.one(bench.evidence(send, term, REFUSED)) == c.Done(state)


def test_evidence_for_an_ended_call_whose_key_has_gone_to_another_is_found_by_a_person(bench: Bench) -> None:
    """The first was cancelled, the second sent under the same key: both may have had the effect."""
    run, call, send, term = refused_but_open(bench)
    order = bench.sql("SELECT arguments::json->>'order' FROM fencepost.calls WHERE id = %s", call)[0][0]
    bench.cancel(run)
    other = bench.start()
    second = bench.debit(other, order)
    bench.succeed(other, second, "r-2")
    assert bench.one(bench.evidence(send, term, APPLIED)) == c.Done("NEEDS_REPAIR")
    assert bench.operation(call).call == second, "the key stays with the call that completed it"
    assert bench.operation(call).receipt == "r-2"


def test_partial_evidence_proves_the_effect_without_a_receipt_or_a_result(bench: Bench) -> None:
    run, call, send, term = fenced_out(bench)
    bench.one(bench.evidence(send, term, Applied("{}", None)))
    bench.ahead(4)
    assert bench.reconcile(run, call)[0] == c.Done("SUCCEEDED")
    assert (bench.call(call).receipt, bench.call(call).doubt) == (None, False)
    assert bench.one(bench.evidence(send, term, APPLIED)) == c.Done("SUCCEEDED"), "more of the same"
    assert bench.one(bench.evidence(send, term, OTHER)) == c.Done("SUCCEEDED"), "it has none to differ from"


def test_evidence_that_contradicts_itself_goes_to_a_person_and_no_repeat_is_made(bench: Bench) -> None:
    run, call, send, term = fenced_out(bench, "wallet.hold")
    assert bench.call(call).attempts == 2
    bench.one(bench.evidence(send, term, REFUSED))
    bench.one(bench.evidence(send, term, APPLIED))
    bench.ahead(4)
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    assert "attempt 1 is said to have been applied and not applied" in (bench.call(call).error or "")
    assert bench.call(call).attempts == 2


def test_an_applied_answer_reopens_a_call_that_failed(bench: Bench) -> None:
    run, call, send, term = failed(bench)
    assert bench.status(run) == "STOPPED"
    assert bench.one(bench.evidence(send, term, APPLIED)) == c.Done("NEEDS_REPAIR")
    reopened = bench.call(call)
    assert (reopened.doubt, reopened.owner) == (True, None)
    assert (bench.operation(call).status, bench.operation(call).doubt) == ("open", True)
    assert bench.row(call) is not None, "an open call has its row again"
    assert bench.status(run) == "STOPPED", "it waits for a person, not for a planner"
    waiting = bench.start()
    order = bench.sql("SELECT arguments::json->>'order' FROM fencepost.calls WHERE id = %s", call)[0][0]
    assert bench.call(bench.debit(waiting, order)).waits, "nobody does it again meanwhile"


def test_a_negative_answer_does_not_reopen_what_failed(bench: Bench) -> None:
    _, _, send, term = failed(bench)
    assert bench.one(bench.evidence(send, term, REFUSED)) == c.Done("FAILED")


@pytest.mark.parametrize(("answer", "state"), [(OTHER, "NEEDS_REPAIR"), (APPLIED, "SUCCEEDED")])
def test_a_success_is_reopened_by_another_receipt_and_not_by_its_own(
    bench: Bench, answer: Applied, state: str
) -> None:
    run, call, send, term = fenced_out(bench)
    bench.ahead(4)
    ask, asking = bench.reconcile(run, call)
    assert bench.one(bench.looked_up(ask, asking, Answer.FOUND, "r-1")) == c.Done("SUCCEEDED")
    assert bench.one(bench.evidence(send, term, answer)) == c.Done(state)
    assert bench.run(run).effects == (0 if state == "NEEDS_REPAIR" else 1)


def test_a_call_of_a_completed_run_is_reopened_and_repaired_without_moving_the_run(bench: Bench) -> None:
    run, call, send, term = fenced_out(bench)
    bench.ahead(4)
    ask, asking = bench.reconcile(run, call)
    bench.one(bench.looked_up(ask, asking, Answer.FOUND, "r-1"))
    assert bench.finish(run) == c.Done("COMPLETED")
    assert bench.one(bench.evidence(send, term, OTHER)) == c.Done("NEEDS_REPAIR")
    assert bench.status(run) == "COMPLETED"
    assert bench.repair(call, "SUCCEEDED", "r-1") == c.Done("SUCCEEDED")
    assert bench.status(run) == "COMPLETED"
    assert bench.kinds(run)[-3:] == ["EvidenceFiled", "RepairRequested", "RepairDecided"]


def test_a_run_that_plans_does_not_complete_while_evidence_waits_for_a_person(bench: Bench) -> None:
    run, call, send, term = fenced_out(bench)
    bench.ahead(4)
    ask, asking = bench.reconcile(run, call)
    bench.one(bench.looked_up(ask, asking, Answer.FOUND, "r-1"))
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    assert bench.one(bench.evidence(send, term, OTHER)) == c.Done("NEEDS_REPAIR")
    turn = bench.turn(run, claim)
    done = bench.finish_with(turn)
    assert bench.one(done) == c.Done("ACTING"), "completion is a claim, and it is not believed"
    assert bench.repair(call, "SUCCEEDED", "r-1") == c.Done("SUCCEEDED")
    assert bench.finish(run) == c.Done("COMPLETED")


def test_a_second_success_with_another_receipt_is_not_recorded_as_one(bench: Bench) -> None:
    run, call, send, term = fenced_out(bench, "wallet.hold")
    bench.ahead(4)
    repeat, again = bench.reconcile(run, call)
    assert isinstance(repeat, c.Send)
    bench.one(bench.evidence(send, term, APPLIED))
    assert bench.record(repeat, again, OTHER) == c.Done("NEEDS_REPAIR")
    assert "several receipts" in (bench.call(call).error or "")


def test_a_final_refusal_after_an_applied_attempt_is_not_believed(bench: Bench) -> None:
    run, call, send, term = fenced_out(bench, "wallet.hold")
    bench.ahead(4)
    repeat, again = bench.reconcile(run, call)
    assert isinstance(repeat, c.Send)
    bench.one(bench.evidence(send, term, APPLIED))
    stored = Refused("http_409", "failed before", retryable=False, final_answer_stored=True)
    assert bench.record(repeat, again, stored) == c.Done("UNKNOWN")
    bench.ahead(1)
    assert bench.reconcile(run, call)[0] == c.Done("SUCCEEDED")


def test_what_a_reader_saw_late_concerns_nobody(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order(), "wallet.balance")
    send, term = bench.dispatch(run, call)
    bench.ahead(4)
    bench.reconcile(run, call)
    assert bench.record(send, term, APPLIED) == c.Fenced()
    assert bench.one(bench.evidence(send, term, APPLIED)) == c.Done("INTENT_RECORDED")
    bench.succeed(run, call)
    answer: Any = bench.one(bench.evidence(send, term, OTHER))
    assert answer == c.Done("SUCCEEDED")


SENT_LATE = Unsure("sent_late", "bytes left after the attempt's time")


@pytest.mark.parametrize("state", REOPENED)
def test_bytes_that_left_late_reopen_whatever_says_that_nothing_happened(bench: Bench, state: str) -> None:
    _, call, send, term = ended_as(bench, state)
    assert bench.one(bench.evidence(send, term, SENT_LATE)) == c.Done("NEEDS_REPAIR")
    assert bench.sql("SELECT applied, code FROM fencepost.evidence WHERE call = %s", call) == [
        (False, "sent_late")
    ]
