"""Histories that lie consistently: chain, projections and rows agree, and still the lie is seen."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.events import Event, body_text
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.recovery import Answer
from fencepost_ops.checker import BookRequest, Origin
from fencepost_ops.local import LocalPostgres
from tests.integration.checker_world import World, built, changed, copy_of, forged, like, place, sentence
from tests.integration.test_checker_books import goes_red

Events = list[Event]
Edit = Callable[[Events], Events]


@pytest.fixture(scope="module")
def original(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[World]:
    with built(postgres, template) as world:
        yield world


@pytest.fixture
def world(original: World, postgres: LocalPostgres) -> Iterator[World]:
    with copy_of(original, postgres) as made:
        yield made


def test_a_forger_who_changes_nothing_is_not_noticed(world: World) -> None:
    for run in (world.completed, world.doubted, world.stopped):
        world.forge(run, lambda events: events)
    assert world.check().violated == []


# -- I4 --


def test_an_attempt_without_an_outcome_is_found(world: World) -> None:
    def forget(events: Events) -> Events:
        del events[place(events, "ToolOutcomeMarkedUnknown")]
        return events

    world.forge(world.waiting, forget)
    goes_red(world.check(), "I4", "attempt 1 has no outcome", world.unknown, world.waiting)


def test_an_attempt_with_two_outcomes_is_found(world: World) -> None:
    def twice(events: Events) -> Events:
        at = place(events, "ToolOutcomeMarkedUnknown")
        return [*events[: at + 1], like(events[at]), *events[at + 1 :]]

    world.forge(world.doubted, twice)
    goes_red(world.check(), "I4", "attempt 1 has 2 outcomes", world.found)


def test_an_outcome_of_an_attempt_that_was_never_started_is_found(world: World) -> None:
    def invent(events: Events) -> Events:
        at = place(events, "ToolOutcomeMarkedUnknown")
        return [*events[: at + 1], like(events[at], attempt=5), *events[at + 1 :]]

    world.forge(world.doubted, invent)
    goes_red(world.check(), "I4", "attempt 5", "never started", world.found)


@pytest.mark.parametrize("worker", [None, "zombie"])
def test_a_doubt_marked_after_a_restore_is_of_no_attempt_and_no_term(
    world: World, worker: str | None
) -> None:
    def mark(events: Events) -> Events:
        at = place(events, "ToolOutcomeMarkedUnknown")
        made = next(e for e in events if e.type == "ToolAttemptStarted" and e.call == events[at].call)
        until = {name: made.data[name] for name in ("in_flight_until", "quiet_at")}
        body = events[at].data | until | {"code": "ledger_restored", "epoch": 1, "fence": made.fence}
        doubt = like(events[at], attempt=None, worker=worker, fence=None, body=body)
        return [*events[: at + 1], doubt, *events[at + 1 :]]

    world.forge(world.doubted, mark)
    assert {"I4", "I5"} & set(world.check().violated) == ({"I4", "I5"} if worker else set())


def test_a_doubt_cleared_by_a_later_failure_is_found(world: World) -> None:
    def clear(events: Events) -> Events:
        at = place(events, "ToolOutcomeMarkedUnknown")
        no = {"code": "http_429", "message": "", "final": False, "ready_at": events[at].data["ready_at"]}
        refused = like(events[at], "ToolAttemptFailed", body=no)
        # The first attempt is in doubt; that the second one was refused says nothing about it.
        second = place(events, "ToolResultRecorded")
        lease = place(events, "LeaseAcquired", call=world.found, nth=6)
        third = [like(e, attempt=3 if e.attempt else None) for e in events[lease:second]]
        third = [changed(e, attempt=3) if e.type == "ToolAttemptStarted" else e for e in third]
        after = like(events[second], attempt=3)
        failed = like(refused, attempt=2, worker=events[second].worker, fence=events[second].fence)
        return [*events[:second], failed, *third, after, *events[second + 1 :]]

    origin = Origin(world.found, 3)
    asked = world.books.asked[-1]
    world.forge(world.doubted, clear)
    world.books.asked.append(BookRequest("wallet", "99", asked.key, asked.at, 201, origin))
    goes_red(world.check(), "I4", "left its doubt without a proof", world.found)


@pytest.mark.parametrize("stored", [True, False, None])
def test_a_doubt_cleared_by_a_final_failure_that_is_no_stored_answer_is_found(
    world: World, stored: bool | None
) -> None:
    bench = world.bench
    run = bench.enqueue("another")
    call = bench.debit(run, "another", "wallet.hold")
    bench.record(*bench.dispatch(run, call), Unsure("timeout", "no answer"))
    bench.ahead(4)
    replayed = Refused("http_402", "no funds", retryable=False, final_answer_stored=True)
    assert bench.record(*bench.reconcile(run, call), replayed) == c.Done("FAILED")

    def claim(events: Events) -> Events:
        at = place(events, "ToolAttemptFailed")
        return [*events[:at], changed(events[at], stored=stored), *events[at + 1 :]]

    world.forge(run, claim)
    report = world.check(settled=False, runs=[run])
    if stored:
        assert "I4" not in report.violated
    else:
        assert "left its doubt without a proof" in sentence(report, "I4")


def reconciled(world: World, answer: Answer) -> tuple[UUID, UUID]:
    """A run and its call, settled by this answer: while a run stops, what is absent is not repeated."""
    bench = world.bench
    run = bench.enqueue("another")
    call = bench.debit(run, "another")
    bench.record(*bench.dispatch(run, call), Unsure("timeout", "no answer"))
    bench.cancel(run)
    bench.ahead(10)
    ask, term = bench.reconcile(run, call)
    receipt = "r-late" if answer is Answer.FOUND else None
    state = bench.one(bench.looked_up(ask, term, answer, receipt))
    assert state == c.Done("SUCCEEDED" if receipt else "FAILED")
    return run, call


def on_lookup(**said: object) -> Edit:
    """What the lookup said, with other fields; no lookup at all without any."""

    def edit(events: Events) -> Events:
        at = place(events, "ToolLookupRecorded")
        told = body_text({**json.loads(events[at].data["lookup"]), **said})
        return [*events[:at], *([changed(events[at], lookup=told)] if said else []), *events[at + 1 :]]

    return edit


@pytest.mark.parametrize(
    ("answer", "edit"),
    [
        (Answer.FOUND, on_lookup()),
        (Answer.FOUND, on_lookup(answer="unclear")),
        (Answer.ABSENT, on_lookup()),
        (Answer.ABSENT, on_lookup(answer="unclear")),
        (Answer.ABSENT, on_lookup(asked_at="2026-01-01T00:00:00.000000Z")),
    ],
)
def test_a_doubt_that_was_reconciled_without_what_proves_it_is_found(
    world: World, answer: Answer, edit: Edit
) -> None:
    run, call = reconciled(world, answer)
    assert "I4" not in world.check(settled=False, runs=[run]).violated
    world.forge(run, edit)
    report = world.check(settled=False, runs=[run])
    assert "left its doubt without a proof" in sentence(report, "I4")
    assert str(call) in sentence(report, "I4")


@pytest.mark.parametrize("applied", [True, False])
def test_evidence_of_every_attempt_is_a_proof_and_a_word_alone_is_none(world: World, applied: bool) -> None:
    bench = world.bench
    run = bench.enqueue("another")
    call = bench.debit(run, "another")
    send, term = bench.dispatch(run, call)
    bench.record(send, term, Unsure("timeout", "no answer"))
    said = Applied('{"id":"r-1"}', "r-1") if applied else Refused("http_402", "no funds", retryable=False)
    bench.one(bench.evidence(send, term, said))
    bench.ahead(1)
    settled, _ = bench.reconcile(run, call)
    assert settled == c.Done("SUCCEEDED" if applied else "FAILED")
    assert "I4" not in world.check(settled=False, runs=[run]).violated

    def forget(events: Events) -> Events:
        del events[place(events, "EvidenceFiled")]
        return events

    world.forge(run, forget)
    assert "without a proof" in sentence(world.check(settled=False, runs=[run]), "I4")


# -- I5 --


def test_a_fence_that_falls_is_found(world: World) -> None:
    def lower(events: Events) -> Events:
        at = place(events, "LeaseAcquired", call=world.found, nth=2)
        owner = events[at].worker
        return [
            changed(like(e, fence=1), **({"fence": 1} if "fence" in e.data else {}))
            if e.worker == owner
            else e
            for e in events
        ]

    world.forge(world.doubted, lower)
    goes_red(world.check(), "I5", "fence 1 was accepted although", world.found)


def test_an_outcome_recorded_by_one_who_does_not_hold_the_term_is_found(world: World) -> None:
    def zombie(events: Events) -> Events:
        at = place(events, "ToolResultRecorded")
        events[at] = like(events[at], worker="zombie")
        return events

    world.forge(world.completed, zombie)
    goes_red(world.check(), "I5", "zombie", world.paid)


def test_a_turn_recorded_by_one_who_does_not_hold_the_run_is_found(world: World) -> None:
    def zombie(events: Events) -> Events:
        at = place(events, "RunCompleted")
        events[at] = like(events[at], worker="zombie")
        return events

    world.forge(world.completed, zombie)
    goes_red(world.check(), "I5", "zombie", world.completed)


def test_evidence_from_a_term_that_made_no_attempt_is_found(world: World) -> None:
    def invent(events: Events) -> Events:
        said = {"attempt": 1, "applied": True, "receipt": "r-paid", "result": None, "code": "applied"}
        made = events[place(events, "ToolResultRecorded")]
        return [*events, like(made, "EvidenceFiled", body=said, worker="zombie")]

    world.forge(world.completed, invent)
    goes_red(world.check(), "I5", "a term that did not make it", world.paid)


def test_a_row_whose_fence_was_lowered_is_found(world: World) -> None:
    world.sql("UPDATE fencepost.calls SET fence = 0 WHERE id = %s", world.paid)
    report = world.check()
    assert report.violated == ["I5", "I6.replay"]
    assert f"call {world.paid} (wallet.debit): its fence is 0" in report.verdict("I5").violations[0].message


# -- I7 --


def test_a_run_that_completed_with_a_doubtful_call_is_found(world: World) -> None:
    def doubt(events: Events) -> Events:
        at = place(events, "ToolResultRecorded")
        soon = events[at].recorded_at + timedelta(seconds=60)
        when = soon.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {"code": "x", "message": "x", "lost": False, "ready_at": when, "reconcile_until": when}
        events[at] = like(events[at], "ToolOutcomeMarkedUnknown", body=body)
        return events

    world.forge(world.completed, doubt)
    report = world.check(settled=False)
    goes_red(report, "I7", world.paid, world.completed, "UNKNOWN, in doubt")
    assert world.check().violated == ["I7", "I12"]


# -- I8 --


def test_an_event_after_the_end_of_its_run_is_found(world: World) -> None:
    def go_on(events: Events) -> Events:
        return [*events, like(events[-1], "CancelRequested", body={"reason": "too late"})]

    world.forge(world.completed, go_on)
    goes_red(world.check(), "I8", "after the run had ended", "CancelRequested", world.completed)


def test_a_plan_after_a_stop_is_found(world: World) -> None:
    def replan(events: Events) -> Events:
        again = events[place(events, "ModelRequestStarted")]
        fence = max(e.fence or 0 for e in events) + 1
        lease = like(again, "LeaseAcquired", body={"owner": again.worker, "fence": fence}, fence=fence)
        return [*events, lease, like(again, fence=fence)]

    world.forge(world.stopped, replan)
    goes_red(world.check(settled=False), "I8", "ModelRequestStarted", world.stopped)


def test_an_attempt_of_a_call_that_had_ended_is_found(world: World) -> None:
    def resend(events: Events) -> Events:
        done = place(events, "ToolResultRecorded", call=world.paid)
        fence = max(e.fence or 0 for e in events) + 1
        lease = {"owner": "late", "fence": fence}
        header = {"worker": "late", "fence": fence, "attempt": None}
        leased = like(events[done], "LeaseAcquired", body=lease, **header)
        return [*events[: done + 1], leased, *events[done + 1 :]]

    world.forge(world.completed, resend)
    goes_red(world.check(), "I8", "had already ended SUCCEEDED", world.paid)


def test_a_run_that_completed_is_never_reopened(world: World) -> None:
    """A stopped one is, by a person; what is done with it then is another matter."""

    def reopen(events: Events) -> Events:
        fence = max(e.fence or 0 for e in events) + 1
        return [*events, like(events[-1], "RepairDecided", body={"reason": "x", "fence": fence})]

    for run, wrong in ((world.completed, True), (world.stopped, False)):
        with forged(world, run, reopen):
            said = sentence(world.check(settled=False), "I8")
            assert (f"run {run}, event" in said and "(RepairDecided)" in said) == wrong


# -- I9 --


def test_attempts_beyond_the_runs_budget_are_found(world: World) -> None:
    bench = world.bench
    run = bench.enqueue("another", budget='{"attempts": 1}')
    call = bench.debit(run, "another")
    bench.succeed(run, call, "r-small")

    def again(events: Events) -> Events:
        done, lease = place(events, "ToolResultRecorded"), place(events, "LeaseAcquired", call=call)
        body = {"code": "x", "message": "x", "final": False, "ready_at": events[0].data["deadline"]}
        failed = like(events[done], "ToolAttemptFailed", body=body)
        second = [like(e, attempt=2 if e.attempt else None) for e in events[lease:done]]
        second = [changed(e, attempt=2) if e.type == "ToolAttemptStarted" else e for e in second]
        ended = [like(e, attempt=2) for e in events[done : done + 1]]
        return [*events[:done], failed, *second, *ended, *events[done + 1 :]]

    world.forge(run, again)
    world.completed = run
    world.write_books()
    report = world.check(settled=False, runs=[run])
    goes_red(report, "I9", "attempt 2 of a run whose budget is 1 attempts", run)


# -- I11 --


def test_a_compensation_without_authority_of_its_own_is_found(world: World) -> None:
    def unasked(events: Events) -> Events:
        del events[place(events, "AuthorizationAllowed", call=world.refund, nth=2)]
        return events

    world.forge(world.stopped, unasked)
    goes_red(world.check(), "I11", "without an authority of its own", world.refund)


def test_an_end_that_does_not_list_an_effect_is_found(world: World) -> None:
    def hide(events: Events) -> Events:
        events[-1] = changed(events[-1], offset=[], not_offset=[])
        return events

    world.forge(world.stopped, hide)
    goes_red(world.check(), "I11", "does not say whether", world.offset)


def test_an_end_that_denies_an_offset_is_found(world: World) -> None:
    def deny(events: Events) -> Events:
        entry = {"call": str(world.offset), "tool": "wallet.debit", "why": "not planned"}
        events[-1] = changed(events[-1], offset=[], not_offset=[entry])
        return events

    world.forge(world.stopped, deny)
    goes_red(world.check(), "I11", "listed as not offset, which is not so", world.offset)


def test_two_effects_offset_under_one_key_are_found(world: World) -> None:
    """An effect may be offset once more under the same key, but no other one may."""
    key = "SELECT operation FROM fencepost.calls WHERE id = %s"
    world.sql(f"UPDATE fencepost.calls SET operation = ({key}), compensates = %s WHERE id = %s",
              world.refund, "00" * 32, world.refused)  # fmt: skip
    assert "one key for compensations of several effects" in sentence(world.check(), "I11")
    world.sql(f"UPDATE fencepost.calls SET compensates = ({key}) WHERE id = %s", world.offset, world.refused)
    assert "one key for compensations" not in sentence(world.check(), "I11")


def test_what_did_not_happen_is_not_offset(world: World) -> None:
    key = world.bench.call(world.refused).operation

    def instead(events: Events) -> Events:
        at = place(events, "ToolProposalRecorded", call=world.refund)
        return [*events[:at], changed(events[at], compensates=key), *events[at + 1 :]]

    world.forge(world.stopped, instead)
    said = sentence(world.check(), "I11")
    assert "it was planned to offset what had not succeeded" in said
    assert str(world.refund) in said
