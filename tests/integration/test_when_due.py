"""What a claim does follows from state and clock alone, however its row was lowered."""

from datetime import timedelta

from fencepost import commands as c
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.proposals import Rejected
from tests.integration.ledger_bench import Bench


def lower(bench: Bench, subject: object) -> None:
    bench.sql("UPDATE fencepost.outbox SET due_at = fencepost.now() WHERE subject = %s", subject)


def test_a_lowered_row_does_not_send_a_compensation_before_its_effect_is_quiet(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.one(bench.outcome(send, term, Applied("{}", "d-1")))
    bench.one(c.RequestCancel(**bench.base(run), by="ann"))
    _, undo = bench.offset(run)
    lower(bench, undo)
    assert bench.one(bench.claim_call(run, undo)) == c.Moved()
    row = bench.row(undo)
    assert row is not None
    assert row.due_at == bench.call(undo).ready_at
    bench.ahead(4)
    assert isinstance(bench.one(bench.claim_call(run, undo)), c.Send)


def test_a_lowered_row_does_not_skip_a_retry_after(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    wait = Refused("429", "busy", retryable=True, retry_after=timedelta(seconds=5), final_answer_stored=False)
    bench.one(bench.outcome(send, term, wait))
    lower(bench, call)
    assert bench.one(bench.claim_call(run, call)) == c.Moved()
    bench.ahead(6)
    assert isinstance(bench.one(bench.claim_call(run, call)), c.Send)


def test_no_retry_after_puts_a_doubt_off_beyond_its_reconciliation_deadline(bench: Bench) -> None:
    run = bench.start(deadline_s=9000)
    call = bench.debit(run, bench.order(), "wallet.hold")
    send, term = bench.dispatch(run, call)
    bench.one(bench.outcome(send, term, Unsure("timeout", "lost")))
    repeat, again = bench.reconcile(run, call)
    assert isinstance(repeat, c.Send)
    hour = Refused("429", "busy", retryable=True, retry_after=timedelta(hours=1), final_answer_stored=False)
    assert bench.one(bench.outcome(repeat, again, hour)) == c.Done("UNKNOWN")
    asked = bench.call(call)
    assert asked.reconcile_until is not None
    assert asked.ready_at <= asked.reconcile_until


def test_a_turn_with_too_many_proposals_is_no_turn(bench: Bench) -> None:
    run = bench.start()
    claim = bench.claim_run(run)
    bench.one(claim)
    turn = bench.turn(run, claim)
    many = tuple(Rejected(1, "schema", "no", "wallet.debit", str(n), "{}") for n in range(257))
    too_many = c.RecordTurn(
        **bench.base(run), term=claim.term, turn=1, seen=0, proposals=many, call_ids=turn.call_ids
    )
    assert bench.one(too_many) == c.Done("PLANNING")
    lost = bench.events(run)[-1]
    assert (lost.type, lost.data["code"]) == ("ModelOutcomeUnknown", "too_many_proposals")
