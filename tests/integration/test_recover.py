"""A ledger restored to an earlier moment: what may have been sent since is in doubt, nothing is planned."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from fencepost import commands as c
from fencepost import machine, moves
from fencepost.decide.recover import FENCE_MARGIN
from fencepost.events import EventType
from fencepost.ledger import epochs
from fencepost.ledger.connect import connect
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.recovery import Answer
from tests.integration.ledger_bench import Bench
from tests.integration.recovering import (
    MINUTE,
    REQUEST,
    above,
    doubted,
    planned,
    release,
    released_afterwards,
    restore,
)


@pytest.fixture(autouse=True)
def released(bench: Bench) -> Iterator[None]:
    with released_afterwards(bench):
        yield


def test_what_is_unsent_here_may_have_been_sent_by_somebody_unknown(bench: Bench) -> None:
    run, call = planned(bench)
    epoch, _ = restore(bench)
    found, held, now = bench.call(call), bench.operation(call), bench.now()
    assert (found.state, found.doubt, found.lost, found.attempts) == ("UNKNOWN", True, True, 0)
    assert (found.owner, found.fence) == (None, FENCE_MARGIN)
    assert found.in_flight_until
    assert timedelta(seconds=1) < found.in_flight_until - now <= timedelta(seconds=2), "an attempt's time"
    assert found.quiet_at == found.in_flight_until + timedelta(seconds=1)
    assert found.reconcile_until == found.in_flight_until + timedelta(seconds=30)
    assert (held.first_sent_at, held.doubt, held.call) == (epoch.since, True, call)
    assert held.expires_at == epoch.since + timedelta(hours=1)
    last = bench.events(run)[-1]
    assert (last.type, last.attempt, last.principal) == ("ToolOutcomeMarkedUnknown", None, "ann")
    assert (last.data["code"], last.data["epoch"]) == ("ledger_restored", epoch.epoch)


def test_an_effect_of_the_lost_time_is_found(bench: Bench) -> None:
    run, call = planned(bench)
    restore(bench)
    ask, term = doubted(bench, run, call)
    assert isinstance(ask, c.Ask)
    assert bench.one(bench.looked_up(ask, term, Answer.FOUND, "r-9")) == c.Done("SUCCEEDED")
    assert (bench.call(call).receipt, bench.operation(call).status) == ("r-9", "completed")


def test_an_absence_proves_something_only_once_an_old_worker_can_no_longer_send(bench: Bench) -> None:
    run, call = planned(bench)
    restore(bench)
    ask, term = doubted(bench, run, call)
    assert bench.one(bench.looked_up(ask, term, Answer.ABSENT)) == c.Done("UNKNOWN")
    answer, _ = doubted(bench, run, call)
    assert answer == c.Moved(), "not before what may be under way is quiet"
    bench.ahead(4)
    ask, term = doubted(bench, run, call)
    assert isinstance(ask, c.Ask)
    bench.one(bench.looked_up(ask, term, Answer.ABSENT))
    send, term = doubted(bench, run, call)
    assert isinstance(send, c.Send)
    assert (send.attempt, send.repeat, bench.call(call).request) == (1, True, REQUEST)
    assert bench.call(call).doubt, "what a repeat is refused says nothing of the lost attempt"
    assert bench.record(send, term, Applied('{"id":"r-1"}', "r-1")) == c.Done("SUCCEEDED")


def test_what_dedupes_is_sent_once_more_while_its_key_may_be_known(bench: Bench) -> None:
    run, call = planned(bench, "wallet.tip")
    restore(bench, timedelta(minutes=50))
    bench.ahead(4)
    send, _ = doubted(bench, run, call)
    assert isinstance(send, c.Send)


def test_a_key_counts_from_the_moment_the_ledger_was_restored_to(bench: Bench) -> None:
    run, call = planned(bench, "wallet.tip")
    restore(bench, timedelta(minutes=61))
    answer, _ = doubted(bench, run, call)
    assert answer == c.Done("NEEDS_REPAIR")


def test_what_can_be_neither_asked_nor_repeated_goes_to_a_person(bench: Bench) -> None:
    run, call = planned(bench, "wallet.note")
    restore(bench)
    answer, _ = doubted(bench, run, call)
    assert answer == c.Done("NEEDS_REPAIR")
    assert "the ledger was restored to an earlier moment" in (bench.call(call).error or "")


def test_a_request_that_cannot_be_built_goes_to_a_person(bench: Bench) -> None:
    run, call = planned(bench, "wallet.tip")
    restore(bench)
    bench.ahead(4)
    claim = replace(bench.claim_doubt(run, call), request_error="no such field", term=above(bench, call))
    assert bench.one(claim) == c.Done("NEEDS_REPAIR")
    assert "no such field" in (bench.call(call).error or "")


def test_whoever_held_a_call_before_is_refused_and_still_heard(bench: Bench) -> None:
    run, call = planned(bench)
    send, term = bench.dispatch(run, call)
    restore(bench)
    assert bench.record(send, term, Applied('{"id":"r-2"}', "r-2")) == c.Fenced()
    assert bench.one(bench.evidence(send, term, Applied('{"id":"r-2"}', "r-2"))) == c.Done("UNKNOWN")
    assert doubted(bench, run, call)[0] == c.Done("SUCCEEDED")
    assert bench.call(call).receipt == "r-2"


def test_a_no_of_an_attempt_we_know_says_nothing_of_one_in_the_lost_time(bench: Bench) -> None:
    run, call = planned(bench)
    send, term = bench.dispatch(run, call)
    bench.record(send, term, Unsure("timeout", "lost"))
    bench.one(bench.evidence(send, term, Refused("not_sent", "it never left", retryable=True)))
    restore(bench)
    assert isinstance(doubted(bench, run, call)[0], c.Ask), "asked, and not sent again on that word"


def test_a_repeat_that_was_too_late_proves_nothing_of_the_lost_time(bench: Bench) -> None:
    run, call = planned(bench, "wallet.tip")
    restore(bench)
    bench.ahead(4)
    send, term = doubted(bench, run, call)
    assert isinstance(send, c.Send)
    bench.ahead(10)  # its worker is frozen
    bench.cancel(run)
    assert bench.one(bench.evidence(send, term, Refused("late", "nothing was sent", retryable=True)))
    doubted(bench, run, call)
    assert bench.state(call) != "FAILED"
    assert bench.operation(call).doubt
    assert bench.call(call).restored is not None


def test_postgres_lets_nobody_take_a_restores_mark_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, call = planned(bench)
    restore(bench)
    ask, term = doubted(bench, run, call)
    rule = moves.CALL_RULES[EventType.TOOL_EFFECT_RECONCILED]
    with monkeypatch.context() as wrong:
        forgets = {EventType.TOOL_EFFECT_RECONCILED: lambda c, f: {**rule(c, f), "restored": None}}
        wrong.setattr(machine, "CALL_RULES", {**moves.CALL_RULES, **forgets})
        refused = bench.one(bench.looked_up(ask, term, Answer.FOUND, "r-9"))
    assert isinstance(refused, c.Broken)
    assert "stays marked" in refused.why
    assert bench.one(bench.looked_up(ask, term, Answer.FOUND, "r-9")) == c.Done("SUCCEEDED")


def test_no_call_is_sent_for_the_first_time_while_the_ledger_is_held(bench: Bench) -> None:
    """A call that the recovery has not come to yet may have been sent as well."""
    run, call = planned(bench)
    with connect(bench.database.dsns["operator"], "recover", autocommit=True) as connection:
        epoch = epochs.open_epoch(connection, bench.now() - MINUTE, "ann", "restored")
    assert bench.one(bench.claim_call(run, call)) == c.OnHold(epoch.epoch)
    assert bench.call(call).attempts == 0


def test_a_doubt_of_before_forgets_what_was_asked_and_may_be_under_way_again(bench: Bench) -> None:
    run, call = planned(bench)
    bench.dispatch(run, call)
    bench.ahead(10)
    ask, term = bench.reconcile(run, call)
    bench.one(bench.looked_up(ask, term, Answer.UNCLEAR))
    before = bench.call(call)
    assert before.lookup
    assert before.in_flight_until
    restore(bench)
    after = bench.call(call)
    assert (after.state, after.lookup, after.asks, after.attempts) == ("UNKNOWN", None, 0, 1)
    assert after.in_flight_until
    assert after.in_flight_until > before.in_flight_until
    sent = next(e.recorded_at for e in bench.events(run) if e.type == "ToolAttemptStarted")
    assert bench.operation(call).first_sent_at == sent, "it was sent before"


def test_only_what_may_have_been_sent_is_in_doubt(bench: Bench) -> None:
    """Not what waits for a key, is to be given another's result, or only reads."""
    order = bench.order()
    run, _ = planned(bench, order=order)
    waiter = bench.debit(bench.start(), order)
    done = bench.order()
    other = bench.start()
    bench.succeed(other, bench.debit(other, done))
    reuses = bench.debit(bench.start(), done)
    (reads,) = bench.plan(bench.start(), ("wallet.balance", {"order": order}))
    restore(bench)
    assert {bench.state(call) for call in (waiter, reuses, reads)} == {"INTENT_RECORDED"}
    assert bench.call(waiter).waits
    assert bench.status(run) == "ACTING"


def test_a_waiter_that_may_have_taken_the_key_is_in_doubt(bench: Bench) -> None:
    order = bench.order()
    first = bench.start()
    holder = bench.debit(first, order)
    waiter = bench.debit(bench.start(), order)
    bench.cancel(first)
    assert bench.state(holder) == "CANCELLED"
    restore(bench)
    assert (bench.state(waiter), bench.operation(waiter).call) == ("UNKNOWN", waiter)


def test_nothing_is_planned_while_the_ledger_is_held(bench: Bench) -> None:
    run = bench.start()
    before = bench.row(run)
    epoch, _ = restore(bench)
    for _ in range(3):
        assert bench.one(bench.claim_run(run)) == c.OnHold(epoch.epoch)
    assert (bench.row(run), bench.events(run)) == (before, []), (
        "its row is left as it is, and nothing is counted"
    )
    release(bench)
    assert isinstance(bench.one(bench.claim_run(run)), c.Plan)


def test_a_planner_of_before_is_refused_and_its_run_planned_anew(bench: Bench) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    epoch, _ = restore(bench)
    assert bench.one(bench.turn(run, claim, ("wallet.note", {"order": "o"}))) == c.Fenced()
    held = bench.run(run)
    assert (held.status, held.owner, held.fence) == ("PLANNING", None, claim.term.fence + FENCE_MARGIN)
    assert held.failures == 0, "no failure of the planner"
    assert bench.kinds(run)[-1] == "LedgerRestored"
    again = replace(bench.claim_run(run), term=c.Term("next", held.fence + 1))
    assert bench.one(again) == c.OnHold(epoch.epoch)
    release(bench)
    assert isinstance(bench.one(again), c.Plan)


def test_a_compensation_that_may_have_been_sent_is_in_doubt_and_no_other_is_planned(bench: Bench) -> None:
    run, call = planned(bench)
    bench.succeed(run, call)
    bench.cancel(run)
    _, back = bench.offset(run)
    epoch, _ = restore(bench)
    assert (bench.state(back), bench.operation(call).status) == ("UNKNOWN", "compensating")
    bench.ahead(4)
    send, term = doubted(bench, run, back)
    assert isinstance(send, c.Send)
    bench.record(send, term, Applied('{"id":"b-1"}', "b-1"))
    assert bench.operation(call).status == "compensated"
    fence = bench.run(run).fence
    claim = replace(bench.claim_stopped(run), term=c.Term("next", fence + 1))
    assert bench.one(claim) == c.OnHold(epoch.epoch)
    release(bench)
    assert bench.one(claim) == c.Done("STOPPED")


def test_a_natural_tool_sets_again_what_it_may_have_set(bench: Bench) -> None:
    run, call = planned(bench, "shelf.price", sku=bench.order(), minor=5)
    restore(bench)
    assert bench.state(call) == "UNKNOWN"
    assert isinstance(doubted(bench, run, call)[0], c.Done), "not before an old worker can no longer set it"
    bench.ahead(4)
    assert isinstance(doubted(bench, run, call)[0], c.Send)


def test_recovering_again_opens_another_epoch_and_one_release_ends_both(bench: Bench) -> None:
    _, call = planned(bench)
    first, _ = restore(bench)
    fence = bench.call(call).fence
    second, _ = restore(bench)
    assert second.epoch == first.epoch + 1
    assert bench.call(call).fence == fence + FENCE_MARGIN
    release(bench)
    with connect(bench.database.dsns["reader"], "look", autocommit=True) as connection:
        assert epochs.held(connection) == []


def test_a_tool_that_nobody_here_knows_is_left_to_a_worker_that_does(bench: Bench) -> None:
    run, call = planned(bench, "wallet.tip")
    since: datetime
    with connect(bench.database.dsns["operator"], "recover", autocommit=True) as connection:
        epoch = epochs.open_epoch(connection, bench.now() - MINUTE, "ann", "restored")
        since = epoch.since
        ledger = bench.ledger_as("operator", tool=lambda _name, _version: None)
        pages = list(epochs.restore(connection, ledger.apply, epoch))
    assert sum(one.unfamiliar for page in pages for one in page) >= 1
    assert (bench.state(call), bench.operation(call).first_sent_at) == ("UNKNOWN", since)
    bench.ahead(61)
    assert isinstance(doubted(bench, run, call)[0], c.Send)
