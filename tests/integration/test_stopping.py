"""Why and how runs stop: deadline, budgets, planners that fail, cancel at every moment, required calls."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.decide.planning import MAX_DETAIL
from fencepost.outcomes import Applied, Refused, Unsure
from tests.integration.ledger_bench import Bench

APPLIED = Applied('{"id":"r-1"}', "r-1")
LOST = Unsure("timeout", "the answer was lost")
REFUSED = Refused("http_402", "no money", retryable=False)


def why(bench: Bench, run: UUID) -> tuple[str | None, str | None]:
    found = bench.run(run)
    return found.stop_reason, found.stop_detail


# -- deadline ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["queued", "planning", "acting", "in flight"])
def test_a_run_past_its_deadline_stops(bench: Bench, moment: str) -> None:
    run = bench.start(deadline_s=10)
    call = None
    if moment == "planning":
        bench.one(bench.claim_run(run))
    if moment in {"acting", "in flight"}:
        call = bench.debit(run, bench.order())
    if moment == "in flight" and call:
        bench.dispatch(run, call)
    bench.ahead(10.1)
    expected = "STOPPING" if moment == "in flight" else "STOPPED"
    assert bench.one(bench.claim_run(run)) == c.Done(expected)
    assert why(bench, run)[0] == "deadline_exceeded"
    if call:
        assert bench.state(call) == ("DISPATCHING" if moment == "in flight" else "CANCELLED")


def test_an_attempt_in_flight_at_the_deadline_settles_before_the_run_ends(bench: Bench) -> None:
    run = bench.start(deadline_s=10)
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.ahead(10.1)
    bench.one(bench.claim_run(run))
    assert bench.record(send, term, REFUSED) == c.Done("FAILED")
    assert bench.status(run) == "STOPPED"
    assert why(bench, run)[0] == "deadline_exceeded", "the first reason stays"


def test_a_planner_gets_no_more_time_than_the_run_has(bench: Bench) -> None:
    run = bench.start(deadline_s=20)
    order = bench.one(replace(bench.claim_run(run), cap=timedelta(minutes=1)))
    assert isinstance(order, c.Plan)
    assert order.timeout <= timedelta(seconds=20)


# -- budgets -----------------------------------------------------------------------------------------


def test_turns_are_counted_when_the_model_is_asked(bench: Bench) -> None:
    run = bench.start(budget='{"turns": 2}')
    for _ in range(2):
        bench.plan(run)
    assert bench.one(bench.claim_run(run)) == c.Done("STOPPED")
    assert why(bench, run) == ("budget_exhausted", "turns")
    assert bench.run(run).requests == 2


def test_a_turn_that_proposes_more_calls_than_are_left_is_not_begun(bench: Bench) -> None:
    run = bench.start(budget='{"calls": 1}')
    calls = bench.plan(run, *[("wallet.debit", {"order": bench.order()}) for _ in range(2)])
    assert why(bench, run) == ("budget_exhausted", "calls")
    assert bench.sql("SELECT count(*) FROM fencepost.calls WHERE id = ANY(%s)", calls) == [(0,)]


def test_attempts_are_counted_over_all_calls(bench: Bench) -> None:
    run = bench.start(budget='{"attempts": 1}')
    first, second = bench.plan(run, *[("wallet.debit", {"order": bench.order()}) for _ in range(2)])
    bench.succeed(run, first)
    assert bench.one(bench.claim_call(run, second)) == c.Done("REJECTED")
    assert why(bench, run) == ("budget_exhausted", "attempts")
    assert bench.status(run) == "COMPENSATING"


def test_the_wall_clock_is_a_budget_of_its_own(bench: Bench) -> None:
    run = bench.start(budget='{"wall_clock_ms": 30000}')
    call = bench.debit(run, bench.order())
    bench.ahead(30)
    assert bench.one(bench.claim_call(run, call)) == c.Done("REJECTED")
    assert why(bench, run) == ("budget_exhausted", "wall_clock")


# -- planners that fail ------------------------------------------------------------------------------


def lose_planner(bench: Bench, run: UUID) -> Any:
    claim = bench.claim_run(run)
    answer = bench.one(claim)
    if isinstance(answer, c.Plan):
        lost = c.RecordPlanLost(**bench.base(run), term=claim.term, code="planner_error", message="boom")
        status = bench.one(lost)
        assert status == c.Done(bench.status(run))
        bench.ahead(11)
    return answer


def test_a_planner_that_fails_is_asked_again_later_and_five_failures_stop_the_run(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    for _ in range(5):
        assert bench.status(run) != "STOPPED"
        assert isinstance(lose_planner(bench, run), c.Plan)
    assert bench.status(run) == "STOPPED"
    told = "the planner failed 5 times in a row; the last time: planner_error: boom"
    assert why(bench, run) == ("planner_failed", told)


def test_a_stop_tells_that_the_last_failure_was_a_lost_worker(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    for _ in range(4):
        lose_planner(bench, run)
    bench.one(bench.claim_run(run))
    bench.ahead(4)
    assert bench.one(bench.claim_run(run)) == c.Done("STOPPED")
    told = "the planner failed 5 times in a row; the last time its worker was lost"
    assert why(bench, run) == ("planner_failed", told)


def test_what_a_planner_raises_is_told_in_bounds(bench: Bench) -> None:
    run, said = bench.start(deadline_s=600), "x\0\u202e" * 5000
    for _ in range(5):
        claim = bench.claim_run(run)
        assert isinstance(bench.one(claim), c.Plan)
        bench.one(c.RecordPlanLost(**bench.base(run), term=claim.term, code="planner_error", message=said))
        bench.ahead(11)
    detail = why(bench, run)[1] or ""
    assert len(detail) <= MAX_DETAIL
    assert "\0" not in detail


# -- workers that are told to end ------------------------------------------------------------------------


def drain(bench: Bench, run: UUID) -> float:
    """Have its worker give it up; how many seconds it is left alone."""
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    how: dict[str, Any] = {"term": claim.term, "code": c.DRAINED, "message": "told to end"}
    assert bench.one(c.RecordPlanLost(**bench.base(run) | {"rand": 0.5}, **how)) == c.Done("PLANNING")
    return (bench.run(run).ready_at - bench.events(run)[-1].recorded_at).total_seconds()


def test_workers_that_end_one_after_the_other_use_up_nothing_and_are_told(bench: Bench) -> None:
    run = bench.start(deadline_s=20_000)
    pauses = []
    for _ in range(40):
        pauses.append(drain(bench, run))
        bench.ahead(61)
    row = bench.run(run)
    assert (row.status, row.requests, row.failures, row.turn) == ("PLANNING", 0, 0, 0)
    assert pauses[:3] == [0, 0, 0], "a rolling restart costs no time"
    assert max(pauses) == 30, "whoever is never let finish is asked every minute at most, and not for nothing"
    lost = [event.data for event in bench.events(run) if event.type == "ModelOutcomeUnknown"]
    assert [one["drained"] for one in lost] == list(range(1, 41))
    assert lost[-1]["message"] == "told to end, 40 times in a row"
    bench.plan(run)
    assert drain(bench, run) == 0, "an answer begins the count anew"
    lose_planner(bench, run)
    assert drain(bench, run) == 0, "and so does a failure"


def test_an_answer_starts_the_count_of_failures_anew(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    for _ in range(4):
        lose_planner(bench, run)
    bench.plan(run)
    assert bench.run(run).failures == 0
    assert isinstance(lose_planner(bench, run), c.Plan)


def test_five_planners_lost_in_a_row_stop_the_run(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    for _ in range(5):
        assert isinstance(bench.one(bench.claim_run(run)), c.Plan)
        bench.ahead(4)
    assert bench.one(bench.claim_run(run)) == c.Done("STOPPED")
    assert why(bench, run)[0] == "planner_failed"
    assert bench.kinds(run).count("ModelOutcomeUnknown") == 5


def test_a_turn_with_nothing_in_it_is_asked_for_again_within_the_budget(bench: Bench) -> None:
    run = bench.start(budget='{"turns": 3}')
    for _ in range(3):
        bench.plan(run)
    assert bench.one(bench.claim_run(run)) == c.Done("STOPPED")


def test_an_objection_of_the_verify_function_refuses_a_completion(bench: Bench) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    bench.one(claim)
    done = bench.finish_with(bench.turn(run, claim))
    assert bench.one(replace(done, objection="the books do not balance")) == c.Done("ACTING")
    assert bench.finish(run) == c.Done("COMPLETED")


# -- cancel ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "status"),
    [
        ("queued", "STOPPED"),
        ("planning", "STOPPED"),
        ("acting", "STOPPED"),
        ("in flight", "STOPPING"),
        ("unknown", "STOPPING"),
        ("repair", "COMPENSATING"),
        ("succeeded", "COMPENSATING"),
    ],
)
def test_a_run_can_be_cancelled_at_every_moment(bench: Bench, moment: str, status: str) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    if moment == "planning":
        bench.one(claim)
    elif moment != "queued":
        call = bench.debit(run, bench.order(), "mail.send")
        if moment != "acting":
            send, term = bench.dispatch(run, call)
            if moment in {"unknown", "repair"}:
                bench.record(send, term, LOST)
            if moment == "repair":
                bench.reconcile(run, call)
            if moment == "succeeded":
                bench.record(send, term, APPLIED)
    assert bench.cancel(run) == c.Done(status)
    assert why(bench, run) == ("cancelled", "no longer wanted")
    by = [e.principal for e in bench.events(run) if e.type in {"CancelRequested", "RunStopping"}]
    assert by == ["ann", "ann"]
    if moment == "planning":
        assert bench.one(bench.turn(run, claim)) == c.Fenced(), "its planner's answer comes too late"
        assert "ModelOutcomeUnknown" in bench.kinds(run)


def test_a_run_that_ended_cannot_be_cancelled(bench: Bench) -> None:
    run = bench.start()
    bench.finish(run)
    assert bench.cancel(run) == c.Gone()


def test_a_waiter_of_a_cancelled_run_lets_go_of_nothing_it_does_not_hold(bench: Bench) -> None:
    order, first, second = bench.order(), bench.start(), bench.start()
    held, waiter = bench.debit(first, order), bench.debit(second, order)
    assert bench.cancel(second) == c.Done("STOPPED")
    assert bench.state(waiter) == "CANCELLED"
    assert (bench.operation(held).call, bench.operation(held).status) == (held, "open")
    bench.succeed(first, held)


# -- required calls ----------------------------------------------------------------------------------


def test_a_required_call_that_fails_stops_the_run_and_cancels_what_is_unsent(bench: Bench) -> None:
    run = bench.start()
    first, second = bench.plan(run, *[("wallet.debit", {"order": bench.order()}) for _ in range(2)])
    send, term = bench.dispatch(run, first)
    assert bench.record(send, term, REFUSED) == c.Done("FAILED")
    assert [bench.state(call) for call in (first, second)] == ["FAILED", "CANCELLED"]
    assert why(bench, run) == ("tool_failed", "wallet.debit: no money")
    assert bench.status(run) == "STOPPED"


def test_a_call_that_is_not_required_may_fail(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order(), "wallet.note")
    send, term = bench.dispatch(run, call)
    assert bench.record(send, term, REFUSED) == c.Done("FAILED")
    assert bench.status(run) == "ACTING"
    assert bench.finish(run) == c.Done("COMPLETED")


def test_a_proposal_that_is_no_intent_is_told_to_the_planner_and_stops_nothing(bench: Bench) -> None:
    run = bench.start()
    unknown, wrong = bench.plan(run, ("wallet.nothing", {}), ("wallet.debit", {"order": 7}))
    assert [bench.state(call) for call in (unknown, wrong)] == ["REJECTED", "REJECTED"]
    assert bench.status(run) == "ACTING"
    assert bench.finish(run) == c.Done("COMPLETED")


@pytest.mark.parametrize("phase", ["recording", "claim"])
def test_a_denied_required_call_stops_the_run(bench: Bench, phase: str) -> None:
    bench.gate.closed.add(("wallet.debit", phase))
    run = bench.start()
    call = bench.debit(run, bench.order())
    if phase == "claim":
        assert bench.one(bench.claim_call(run, call)) == c.Done("REJECTED")
    assert bench.state(call) == "REJECTED"
    assert why(bench, run)[0] == "authorization_denied"
    denied = next(e for e in bench.events(run) if e.type == "AuthorizationDenied")
    assert (denied.policy, denied.data["phase"]) == ("gate-1", phase)
    assert bench.call(call).attempts == 0


def test_a_request_that_cannot_be_built_is_never_sent(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    claim = replace(bench.claim_call(run, call), request=None, request_error="KeyError: 'x'")
    assert bench.one(claim) == c.Done("REJECTED")
    assert (bench.call(call).error, bench.call(call).attempts) == ("request_failed: KeyError: 'x'", 0)


def test_the_stored_request_is_what_a_retry_sends(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.record(send, term, Refused("http_429", "not now", retryable=True))
    bench.ahead(0.1)
    again = bench.one(replace(bench.claim_call(run, call), request="another request"))
    assert isinstance(again, c.Send)
    assert again.call.request == send.call.request
