"""A dependency that is closed, failing or full: what the claim does about it, for the whole fleet."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.breaker import Health, State
from fencepost.ledger import rows
from fencepost.ledger.apply import Ledger
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.recovery import Answer
from tests.integration.ledger_app import SECOND
from tests.integration.ledger_bench import Bench

WALLET = "wallet/default"
CLOSES = Refused("http_429", "not now", retryable=True, retry_after=7 * SECOND)
BUSY = Refused("http_429", "not now", retryable=True)
LOST = Unsure("timeout", "no answer")
DONE = Applied('{"id":"r-1"}', "r-1")


def health(bench: Bench, scope: str = WALLET) -> Health | None:
    columns = rows.select("dependencies", rows.HEALTH_COLUMNS)
    found = bench.sql(f"SELECT {columns} FROM fencepost.dependencies WHERE scope = %s", scope)
    return Health(*found[0]) if found else None


def known(bench: Bench, scope: str = WALLET) -> Health:
    found = health(bench, scope)
    assert found is not None
    return found


def waiting(bench: Bench, tool: str = "wallet.debit", **how: Any) -> tuple[UUID, UUID]:
    """A run with one call that is due."""
    run = bench.start(**how)
    return run, bench.debit(run, bench.order(), tool)


def close(bench: Bench) -> None:
    """Have one attempt answered by a 429 with Retry-After 7 s."""
    run, call = waiting(bench)
    send, term = bench.dispatch(run, call)
    bench.record(send, term, CLOSES)


def fail(bench: Bench, times: int) -> None:
    for _ in range(times):
        run, call = waiting(bench)
        bench.record(*bench.dispatch(run, call), LOST)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `apply` executes from now on."""
    said: list[str] = []
    real = psycopg.Connection.execute

    def noted(self: Any, query: Any, *args: Any, **how: Any) -> Any:
        said.append(str(query))
        return real(self, query, *args, **how)

    monkeypatch.setattr(psycopg.Connection, "execute", noted)
    return said


def about_dependencies(statements: list[str]) -> list[str]:
    return [one.split()[0] for one in statements if "fencepost.dependencies" in one]


def test_a_dependency_that_is_well_is_read_once_per_batch_and_neither_locked_nor_written(
    bench: Bench, statements: list[str]
) -> None:
    due = [waiting(bench) for _ in range(5)]
    statements.clear()
    terms = [bench.term() for _ in due]
    claims = [bench.claim_call(run, call, term) for (run, call), term in zip(due, terms, strict=True)]
    statements.clear()
    sends = bench.ledger.apply(claims)
    assert about_dependencies(statements) == ["SELECT"]
    assert not any("FOR NO KEY UPDATE" in one for one in statements if "fencepost.dependencies" in one)
    statements.clear()
    bench.ledger.apply([bench.outcome(s, t, DONE) for s, t in zip(sends, terms, strict=True)])  # type: ignore[arg-type]
    assert about_dependencies(statements) == ["SELECT"]
    assert health(bench) is None


def test_a_retry_after_closes_the_dependency_for_every_run(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        close(bench)
    assert "dependency wallet/default is left alone until 2" in caplog.text
    held = known(bench)
    assert (held.state, held.reason) == (State.OPEN, "http_429, Retry-After 7 s")
    assert held.closed_until is not None
    assert held.updated_at is not None
    assert held.closed_until - held.updated_at == 7 * SECOND
    run, call = waiting(bench)
    assert bench.one(bench.claim_call(run, call)) == c.Done("INTENT_RECORDED")
    put_off, row = bench.call(call), bench.row(call)
    assert (put_off.attempts, put_off.owner) == (0, None)
    assert row is not None
    assert held.closed_until < row.due_at < held.closed_until + SECOND
    event = bench.events(run)[-1]
    assert event.type == "DispatchDeferred"
    assert event.data["reason"] == f"dependency {WALLET} is open: http_429, Retry-After 7 s"
    assert event.data["breaker"] == "open"
    bench.ahead(10)
    assert isinstance(bench.dispatch(run, call)[0], c.Send)


def test_another_dependency_goes_on_in_the_same_batch(bench: Bench) -> None:
    close(bench)
    closed, well = waiting(bench), waiting(bench, "slow.pay")
    answers = bench.ledger.apply([bench.claim_call(*closed), bench.claim_call(*well)])
    assert answers[0] == c.Done("INTENT_RECORDED")
    assert isinstance(answers[1], c.Send)


def test_a_closed_dependency_is_tried_by_one_call_and_opened_by_its_answer(bench: Bench) -> None:
    close(bench)
    due = [waiting(bench) for _ in range(4)]
    bench.ahead(7.1)
    terms = [bench.term() for _ in due]
    answers = bench.ledger.apply([bench.claim_call(*one, term) for one, term in zip(due, terms, strict=True)])
    assert [type(answer) for answer in answers] == [c.Send, c.Done, c.Done, c.Done]
    assert known(bench).state == State.HALF_OPEN
    assert bench.record(answers[0], terms[0], DONE) == c.Done("SUCCEEDED")  # type: ignore[arg-type]
    held = known(bench)
    assert (held.state, held.failures, held.opened_at) == (State.CLOSED, 0, None)
    bench.ahead(4)
    assert all(isinstance(bench.dispatch(*one)[0], c.Send) for one in due[1:])


def test_failures_in_a_row_open_it_and_a_failed_probe_opens_it_for_longer(bench: Bench) -> None:
    fail(bench, 19)
    assert (known(bench).state, known(bench).failures) == (State.CLOSED, 19)
    fail(bench, 1)
    held = known(bench)
    assert (held.state, held.reason) == (State.OPEN, "20 failures in a row, the last timeout")
    due = waiting(bench)
    assert bench.one(bench.claim_call(*due)) == c.Done("INTENT_RECORDED")
    bench.ahead(2)
    bench.record(*bench.dispatch(*due), LOST)
    again = known(bench)
    assert (again.state, again.opens, again.opened_at) == (State.OPEN, 2, held.opened_at)


def test_one_answer_between_failures_counts_them_anew(bench: Bench) -> None:
    fail(bench, 19)
    run, call = waiting(bench)
    bench.record(*bench.dispatch(run, call), Refused("http_402", "no funds", retryable=False))
    assert known(bench).failures == 0
    fail(bench, 1)
    assert (known(bench).state, known(bench).failures) == (State.CLOSED, 1)


def test_no_call_is_put_off_beyond_its_last_start(bench: Bench) -> None:
    run, call = waiting(bench, deadline_s=5)
    close(bench)
    assert bench.one(bench.claim_call(run, call)) == c.Late()
    row = bench.row(call)
    assert row is not None
    assert row.due_at == bench.run(run).deadline, "its planner stops it there"
    bench.ahead(6)
    assert bench.one(bench.claim_run(run)) == c.Done("STOPPED")


def test_questions_wait_too_and_the_time_counts_for_nobody(bench: Bench) -> None:
    run, call = waiting(bench)
    bench.record(*bench.dispatch(run, call), LOST)
    before = bench.call(call)
    close(bench)
    answer, _ = bench.reconcile(run, call)
    assert answer == c.Done("UNKNOWN")
    put_off, event = bench.call(call), bench.events(run)[-1]
    assert event.type == "ReconciliationDeferred"
    waits = put_off.ready_at - event.recorded_at
    assert 6 * SECOND < waits < 8 * SECOND
    assert before.reconcile_until is not None
    assert put_off.reconcile_until == before.reconcile_until + waits
    assert (put_off.asks, put_off.attempts) == (0, 1)
    bench.ahead(8)
    asked, term = bench.reconcile(run, call)
    assert isinstance(asked, c.Ask)
    assert known(bench).state == State.HALF_OPEN
    bench.one(replace(bench.looked_up(asked, term, Answer.FOUND, "r-1"), code="http_200"))
    assert known(bench).state == State.CLOSED, "a question that is answered is a probe as well"


def test_a_question_without_an_answer_counts_against_the_dependency(bench: Bench) -> None:
    run, call = waiting(bench)
    bench.record(*bench.dispatch(run, call), LOST)
    asked, term = bench.reconcile(run, call)
    bench.one(replace(bench.looked_up(asked, term, Answer.UNCLEAR), code="timeout"))
    assert known(bench).failures == 2


def test_a_question_is_told_by_its_answer_to_come_later_as_well(bench: Bench) -> None:
    run, call = waiting(bench)
    bench.record(*bench.dispatch(run, call), LOST)
    asked, term = bench.reconcile(run, call)
    busy = bench.looked_up(asked, term, Answer.UNCLEAR)
    bench.one(replace(busy, code="http_503", retry_after=7 * SECOND))
    assert (known(bench).state, known(bench).reason) == (State.OPEN, "http_503, Retry-After 7 s")


def test_a_compensation_waits_and_so_does_its_deadline(bench: Bench) -> None:
    run, call = waiting(bench)
    bench.succeed(run, call)
    bench.ahead(5)
    assert isinstance(bench.cancel(run), c.Done)
    _, offset = bench.offset(run)
    before = bench.call(offset).reconcile_until
    assert before is not None
    close(bench)
    assert bench.one(bench.claim_call(run, offset)) == c.Done("INTENT_RECORDED")
    put_off = bench.call(offset)
    assert put_off.reconcile_until is not None
    assert 6 * SECOND < put_off.reconcile_until - before < 8 * SECOND
    bench.ahead(9)
    assert isinstance(bench.dispatch(run, offset)[0], c.Send)


def test_a_lost_probe_makes_room_for_another_once_it_counts_no_more(bench: Bench) -> None:
    close(bench)
    lost, other = waiting(bench), waiting(bench)
    bench.ahead(7.1)
    bench.dispatch(*lost)
    assert bench.one(bench.claim_call(*other)) == c.Done("INTENT_RECORDED")
    bench.ahead(4)
    bench.dispatch(*other)


def test_concurrency_holds_for_the_fleet_and_who_finds_no_room_writes_nothing(bench: Bench) -> None:
    due = [waiting(bench, "narrow.pay") for _ in range(3)]
    first = bench.dispatch(*due[0])
    bench.dispatch(*due[1])
    before = len(bench.events(due[2][0]))
    answer = bench.one(bench.claim_call(*due[2]))
    assert isinstance(answer, c.Full)
    assert (answer.scope, answer.limit) == ("narrow/default", "concurrency")
    assert timedelta(0) < answer.wait <= 3 * SECOND
    assert len(bench.events(due[2][0])) == before
    bench.record(*first, DONE)
    bench.dispatch(*due[2])


def claimed_at_once(bench: Bench, tool: str, count: int) -> list[Any]:
    """What so many processes are answered that claim a call each, at one moment."""
    due = [waiting(bench, tool) for _ in range(count)]
    bench.ahead(7.1)
    claims = [bench.claim_call(*one) for one in due]
    ledgers = [bench.ledger_as("worker") for _ in due]
    together = threading.Barrier(count)

    def claim(ledger: Ledger, command: c.ClaimCall) -> Any:
        together.wait()
        return ledger.apply([command])[0]

    with ThreadPoolExecutor(count) as executor:
        return list(executor.map(claim, ledgers, claims))


def test_of_many_processes_one_tries_a_closed_dependency(bench: Bench) -> None:
    close(bench)
    answers = claimed_at_once(bench, "wallet.debit", 8)
    assert sum(isinstance(one, c.Send) for one in answers) == 1
    assert sum(one == c.Done("INTENT_RECORDED") for one in answers) == 7


def test_many_processes_together_keep_to_a_limit(bench: Bench) -> None:
    answers = claimed_at_once(bench, "narrow.pay", 8)
    assert sum(isinstance(one, c.Send) for one in answers) == 2
    assert sum(isinstance(one, c.Full) for one in answers) == 6


def test_failures_counted_by_many_processes_at_once_all_count(bench: Bench) -> None:
    due = [waiting(bench, "slow.pay") for _ in range(8)]
    taken = [bench.dispatch(*one) for one in due]
    ledgers = [bench.ledger_as("worker") for _ in due]
    lost = [bench.outcome(send, term, LOST) for send, term in taken]
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(lambda ledger, command: ledger.apply([command]), ledgers, lost))
    assert known(bench, "slow/default").failures == 8


def test_a_repeat_waits_for_room_without_an_event(bench: Bench) -> None:
    run, call = waiting(bench, "narrow.pay")
    bench.record(*bench.dispatch(run, call), LOST)
    first = bench.dispatch(*waiting(bench, "narrow.pay"))
    bench.dispatch(*waiting(bench, "narrow.pay"))
    before = len(bench.events(run))
    answer, _ = bench.reconcile(run, call)
    assert isinstance(answer, c.Full)
    assert len(bench.events(run)) == before
    bench.record(*first, DONE)
    assert isinstance(bench.reconcile(run, call)[0], c.Send), "a repeat, as it has no lookup"


def test_whoever_takes_a_lost_attempt_over_waits_for_room_to_ask(bench: Bench) -> None:
    lost = waiting(bench, "narrow.pay")
    bench.dispatch(*lost)
    bench.ahead(3.1)  # attempt and grace are over
    bench.dispatch(*waiting(bench, "narrow.pay"))
    bench.dispatch(*waiting(bench, "narrow.pay"))
    before = bench.call(lost[1])
    assert bench.reconcile(*lost)[0] == c.Done("UNKNOWN")
    assert bench.kinds(*lost)[-1] == "ReconciliationDeferred"
    assert bench.events(lost[0])[-1].data["reason"] == "dependency narrow/default: its concurrency is used up"
    assert bench.call(lost[1]).ready_at > before.ready_at


def test_concurrency_is_counted_within_one_batch(bench: Bench) -> None:
    due = [waiting(bench, "narrow.pay") for _ in range(4)]
    answers = bench.ledger.apply([bench.claim_call(*one) for one in due])
    assert [type(answer) for answer in answers] == [c.Send, c.Send, c.Full, c.Full]


def test_a_rate_holds_for_the_fleet(bench: Bench) -> None:
    due = [waiting(bench, "paced.pay") for _ in range(2)]
    answers = bench.ledger.apply([bench.claim_call(*one) for one in due])
    assert isinstance(answers[0], c.Send)
    assert isinstance(answers[1], c.Full)
    assert (answers[1].limit, answers[1].wait) == ("rate", 2 * SECOND)
    bench.ahead(2)
    bench.dispatch(*due[1])


def test_a_retry_decision_says_what_it_was_made_of(bench: Bench) -> None:
    run, call = waiting(bench)
    bench.record(*bench.dispatch(run, call), CLOSES)
    failed = bench.events(run)[-1].data
    assert (failed["class"], failed["attempts_left"], failed["breaker"]) == ("throttled", 2, "open")
    assert failed["delay_ms"] == 7000
    assert 0 < failed["run_left_ms"] <= 60_000
    other, unsure = waiting(bench, "slow.pay")
    bench.record(*bench.dispatch(other, unsure), LOST)
    unknown = bench.events(other)[-1].data
    assert (unknown["class"], unknown["attempts_left"], unknown["breaker"]) == ("timeout", 3, "closed")
    assert unknown["delay_ms"] == 0


def test_a_second_request_in_one_attempt_becomes_an_event_of_its_own(bench: Bench) -> None:
    run, call = waiting(bench)
    send, term = bench.dispatch(run, call)
    bench.one(replace(bench.outcome(send, term, DONE), requests=3))
    kinds = bench.kinds(run, call)
    assert kinds[-2:] == ["HiddenRetrySeen", "ToolResultRecorded"]
    seen = next(e for e in bench.events(run) if e.type == "HiddenRetrySeen")
    assert (seen.data, seen.attempt) == ({"requests": 3}, 1)
