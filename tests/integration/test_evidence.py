"""What a fenced-out worker's no is worth: a proof, and no reason to stop a run for a frozen process."""

from fencepost import commands as c
from fencepost.outcomes import Applied, Refused
from tests.integration.ledger_bench import Bench


def test_a_call_whose_frozen_worker_sent_nothing_is_sent_by_another(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order(), "wallet.hold")  # no lookup: only evidence can tell
    send, term = bench.dispatch(run, call)
    bench.ahead(4)
    bench.one(bench.evidence(send, term, Refused("late", "nothing was sent", retryable=True)))
    again, second = bench.reconcile(run, call)
    assert isinstance(again, c.Send), again
    assert (again.attempt, again.key) == (2, send.key)
    assert bench.record(again, second, Applied('{"id":"r-1"}', "r-1")) == c.Done("SUCCEEDED")
    assert bench.status(run) == "ACTING"


def test_a_call_whose_frozen_worker_was_refused_for_good_fails(bench: Bench) -> None:
    run = bench.start(on_stop="leave")
    call = bench.debit(run, bench.order(), "wallet.hold")
    send, term = bench.dispatch(run, call)
    bench.ahead(4)
    bench.one(bench.evidence(send, term, Refused("http_402", "no funds", retryable=False)))
    answer, _ = bench.reconcile(run, call)
    assert answer == c.Done("FAILED")
    assert bench.status(run) == "STOPPED"


def test_a_call_of_a_run_that_is_stopping_is_not_sent_again(bench: Bench) -> None:
    run = bench.start(on_stop="leave")
    call = bench.debit(run, bench.order(), "wallet.hold")
    send, term = bench.dispatch(run, call)
    bench.cancel(run)
    bench.ahead(4)
    bench.one(bench.evidence(send, term, Refused("late", "nothing was sent", retryable=True)))
    answer, _ = bench.reconcile(run, call)
    assert answer == c.Done("FAILED")
