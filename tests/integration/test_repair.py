"""What only a person can settle, when they may, and what follows from it."""

from contextlib import closing
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from fencepost import commands as c
from fencepost.clock import NEVER, rfc3339
from fencepost.decide.offices import ASK_AGAIN_FOR
from fencepost.ledger.connect import Pool
from fencepost.office import Office, Repair
from fencepost.outcomes import Applied, Refused, Unsure
from fencepost.recovery import Answer
from fencepost_ops.checker import check
from tests.integration.ledger_bench import Bench, Fields

LOST = Unsure("timeout", "the answer was lost")


def unknowable(
    bench: Bench, tool: str = "mail.send", *, finish: bool = True, **how: float | str
) -> tuple[UUID, UUID]:
    """A call in NEEDS_REPAIR: its tool offers nothing to find out with."""
    run = bench.start(**how)
    call = bench.debit(run, bench.order(), tool)
    send, term = bench.dispatch(run, call)
    bench.record(send, term, LOST)
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    if finish:
        bench.ahead(4)
    return run, call


def unanswered(bench: Bench) -> tuple[UUID, UUID]:
    """A call in NEEDS_REPAIR of which the downstream could be asked, but never answered."""
    run = bench.start(deadline_s=600)
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.record(send, term, LOST)
    bench.ahead(31)
    ask, asking = bench.reconcile(run, call)  # one last question, past the reconciliation deadline
    assert bench.one(bench.looked_up(ask, asking, Answer.UNCLEAR)) == c.Done("NEEDS_REPAIR")
    return run, call


def test_a_call_in_repair_is_due_never_and_holds_its_key(bench: Bench) -> None:
    run, call = unknowable(bench)
    row = bench.row(call)
    assert row is not None
    assert row.due_at == NEVER
    assert bench.operation(call).doubt
    assert (bench.status(run), bench.run(run).repairs) == ("ACTING", 1)


def test_it_happened(bench: Bench) -> None:
    run, call = unknowable(bench)
    assert bench.repair(call, "SUCCEEDED", "mail-7") == c.Done("SUCCEEDED")
    settled, decided = bench.call(call), bench.events(run)[-1]
    assert (settled.receipt, settled.doubt, settled.proof) == ("mail-7", False, decided.id)
    assert (decided.principal, decided.data["reason"]) == ("ann", "looked")
    assert bench.operation(call).status == "completed"
    assert bench.finish(run) == c.Done("COMPLETED")


@pytest.mark.parametrize(
    ("decision", "receipt", "says"),
    [
        ("SUCCEEDED", "mail-7", None),
        ("FAILED", None, "a person decided that it did not happen"),
        ("ACCEPTED_UNKNOWN", None, "a person decided that it will never be known whether it happened"),
    ],
)
def test_after_a_persons_word_nobody_blames_the_machine(
    bench: Bench, decision: str, receipt: str | None, says: str | None
) -> None:
    _, call = unknowable(bench)
    assert bench.call(call).error is not None
    bench.repair(call, decision, receipt)
    assert bench.call(call).error == says


def test_that_it_happened_has_to_be_known_from_something(bench: Bench) -> None:
    _, call = unknowable(bench)
    answer = bench.repair(call, "SUCCEEDED")
    assert isinstance(answer, c.Denied)
    assert "receipt" in answer.why
    assert bench.state(call) == "NEEDS_REPAIR"


def test_it_did_not_happen_is_refused_before_the_last_request_can_no_longer_land(bench: Bench) -> None:
    run, call = unknowable(bench, "slow.gift", finish=False)
    held = bench.call(call)
    assert held.quiet_at is not None
    refused = bench.repair(call, "FAILED")
    assert isinstance(refused, c.Denied)
    assert rfc3339(held.quiet_at) in refused.why
    bench.ahead((held.quiet_at - bench.now()).total_seconds() - 1)
    assert isinstance(bench.repair(call, "FAILED"), c.Denied)
    bench.ahead(1.1)
    assert bench.repair(call, "FAILED") == c.Done("FAILED")
    assert (bench.status(run), bench.run(run).stop_reason) == ("STOPPED", "tool_failed")


def test_where_settling_is_undocumented_the_last_deadline_has_to_have_passed(bench: Bench) -> None:
    _, call = unknowable(bench, finish=False)
    held = bench.call(call)
    assert held.quiet_at == NEVER
    assert isinstance(bench.repair(call, "FAILED"), c.Denied)
    bench.ahead(3)
    assert bench.repair(call, "FAILED") == c.Done("FAILED")


def test_ask_again(bench: Bench) -> None:
    run, call = unanswered(bench)
    assert bench.repair(call, "UNKNOWN") == c.Done("UNKNOWN")
    held = bench.call(call)
    assert (held.doubt, held.asks, held.lookup) == (True, 0, None)
    answer, _ = bench.reconcile(run, call)
    assert isinstance(answer, c.Ask)


def test_it_will_never_be_known(bench: Bench) -> None:
    run, call = unknowable(bench)
    assert bench.repair(call, "ACCEPTED_UNKNOWN") == c.Done("ACCEPTED_UNKNOWN")
    assert not bench.call(call).doubt
    assert bench.operation(call).status == "unknown"
    assert bench.run(run).stop_reason == "outcome_unknown"
    assert bench.row(call) is None


@pytest.mark.parametrize("decision", ["DISPATCHING", "CANCELLED", "nonsense", ""])
def test_a_person_cannot_decide_anything_else(bench: Bench, decision: str) -> None:
    _, call = unknowable(bench)
    assert isinstance(bench.repair(call, decision, "r"), c.Denied)


def test_only_a_call_in_repair_can_be_repaired(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    assert isinstance(bench.repair(call, "SUCCEEDED", "r"), c.Denied)
    bench.succeed(run, call)
    assert isinstance(bench.repair(call, "FAILED"), c.Denied)


def test_a_worker_cannot_repair(bench: Bench) -> None:
    run, call = unknowable(bench)
    said: Fields = {"decision": "SUCCEEDED", "by": "ann", "reason": "x", "receipt": "r"}
    command = c.DecideRepair(**bench.base(run), call=call, **said)
    answer = bench.one(command)
    assert isinstance(answer, c.Broken)
    assert "not an operator" in answer.why
    assert bench.state(call) == "NEEDS_REPAIR"


def test_a_call_in_repair_keeps_a_stopping_run_compensating_until_it_is_settled(bench: Bench) -> None:
    run, call = unknowable(bench, "wallet.note")
    assert bench.cancel(run) == c.Done("COMPENSATING")
    assert bench.one(bench.claim_stopped(run)) == c.Done("COMPENSATING")
    assert bench.repair(call, "FAILED") == c.Done("FAILED")
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")


def test_what_turns_out_to_have_happened_is_offset_before_a_stopping_run_ends(bench: Bench) -> None:
    run, call = unanswered(bench)
    assert bench.cancel(run) == c.Done("COMPENSATING")
    assert bench.one(bench.claim_stopped(run)) == c.Done("COMPENSATING")
    assert bench.repair(call, "SUCCEEDED", "r-1") == c.Done("SUCCEEDED")
    forward, undo = bench.offset(run)
    assert forward == call
    bench.succeed(run, undo)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")


def test_what_turns_out_to_have_happened_in_a_run_that_stopped_is_offset_as_well(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order(), "wallet.hold")
    send, term = bench.dispatch(run, call)
    bench.ahead(4)
    bench.reconcile(run, call)  # a repeat, of which nothing is heard either
    bench.cancel(run)
    bench.ahead(40)
    bench.reconcile(run, call)
    assert bench.state(call) == "NEEDS_REPAIR"
    assert bench.repair(call, "FAILED") == c.Done("FAILED")
    bench.one(bench.claim_stopped(run))
    assert bench.status(run) == "STOPPED"
    assert bench.one(bench.evidence(send, term, Applied("{}", "r-1"))) == c.Done("NEEDS_REPAIR")
    assert bench.status(run) == "STOPPED"
    assert bench.repair(call, "SUCCEEDED", "r-1") == c.Done("SUCCEEDED")
    assert bench.status(run) == "COMPENSATING"
    forward, undo = bench.offset(run)
    assert forward == call
    bench.succeed(run, undo)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")


def test_nobody_decides_against_a_workers_real_answer(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order(), "mail.send")
    send, term = bench.dispatch(run, call)
    bench.ahead(4)
    assert bench.reconcile(run, call)[0] == c.Done("NEEDS_REPAIR")
    bench.one(bench.evidence(send, term, Applied("{}", "mail-1")))
    bench.ahead(4)
    for decision, receipt in (("FAILED", None), ("ACCEPTED_UNKNOWN", None), ("SUCCEEDED", "mail-2")):
        answer = bench.repair(call, decision, receipt)
        assert isinstance(answer, c.Denied)
        assert "mail-1" in answer.why
    assert bench.repair(call, "SUCCEEDED", "mail-1") == c.Done("SUCCEEDED")


def test_a_decision_on_what_somebody_saw_is_refused_once_it_has_changed(bench: Bench) -> None:
    run, call = unknowable(bench)
    seen = bench.call(call).version
    assert bench.repair(call, "UNKNOWN") == c.Done("UNKNOWN")
    bench.reconcile(run, call)
    assert bench.state(call) == "NEEDS_REPAIR"
    stale: Fields = {"decision": "FAILED", "by": "ann", "reason": "looked", "seen": seen}
    (answer,) = bench.operator.apply([c.DecideRepair(**bench.base(run), call=call, **stale)])
    assert isinstance(answer, c.Denied)
    assert "changed" in answer.why


def test_of_several_decisions_on_one_call_each_has_its_own_outcome(bench: Bench) -> None:
    _, call = unknowable(bench)
    _, other = unknowable(bench)
    with closing(Pool(bench.database.dsns["operator"], "office", 2)) as pool:
        office = Office(pool, bench.database.dsns["operator"], ring=lambda: None)
        said = [(call, "ACCEPTED_UNKNOWN"), (uuid4(), "FAILED"), (call, "FAILED"), (other, "FAILED")]
        told = list(office.repair(Repair(one, decision, "ann", "looked") for one, decision in said))
    assert [outcome.state for outcome in told] == ["ACCEPTED_UNKNOWN", None, None, "FAILED"]
    assert "there is no call" in str(told[1].why)
    assert told[2].why == (
        "the call is ACCEPTED_UNKNOWN; only a call in NEEDS_REPAIR can be repaired, and of this one only be "
        "said that it happened after all, with its receipt"
    )


def test_what_is_found_after_the_run_stopped_waits_for_a_person_and_is_then_offset(bench: Bench) -> None:
    run = bench.start()
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.record(send, term, LOST)
    bench.ahead(4)
    ask, asking = bench.reconcile(run, call)
    assert bench.one(bench.looked_up(ask, asking, Answer.ABSENT)) == c.Done("UNKNOWN")  # to be repeated
    bench.one(c.RequestCancel(**bench.base(run), by="ann"))
    ask, asking = bench.reconcile(run, call)
    if isinstance(ask, c.Ask):
        bench.one(bench.looked_up(ask, asking, Answer.ABSENT))
    assert (bench.state(call), bench.status(run)) == ("FAILED", "STOPPED")
    bench.one(bench.evidence(send, term, Applied("{}", "d-1")))
    assert bench.repair(call, "UNKNOWN") == c.Done("UNKNOWN")
    found, term = bench.reconcile(run, call)
    assert found == c.Done("NEEDS_REPAIR")
    assert bench.status(run) == "STOPPED"
    assert bench.repair(call, "SUCCEEDED", "d-1") == c.Done("SUCCEEDED")
    assert bench.status(run) == "COMPENSATING"
    assert bench.offset(run)[0] == call


def test_a_run_past_its_deadline_stops_although_a_call_waits_for_a_person(bench: Bench) -> None:
    run, call = unknowable(bench, deadline_s=10)
    bench.ahead(10)
    assert bench.one(bench.claim_run(run)) == c.Done("COMPENSATING")
    assert bench.run(run).stop_reason == "deadline_exceeded"
    assert bench.repair(call, "SUCCEEDED", "mail-7") == c.Done("SUCCEEDED")
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")


def refused(bench: Bench) -> tuple[UUID, UUID, str]:
    """A call that FAILED for a wrong password, of a tool whose contract does not release its key."""
    order, run = bench.order(), bench.start()
    call = bench.debit(run, order, "mail.send")
    send, term = bench.dispatch(run, call)
    assert bench.record(send, term, Refused("http_401", "wrong password", retryable=False)) == c.Done(
        "FAILED"
    )
    return run, call, order


def test_an_operator_releases_the_key_of_a_failure_that_is_mended(bench: Bench) -> None:
    run, call, order = refused(bench)
    second = bench.start()
    assert bench.state(bench.debit(second, order, "mail.send")) == "REJECTED"
    before = bench.call(call)
    assert bench.repair(call, c.RELEASE) == c.Done("FAILED")
    decided, after = bench.events(run)[-1], bench.call(call)
    assert (decided.type, decided.principal, decided.data["reason"]) == ("RepairDecided", "ann", "looked")
    assert (after.state, after.proof, after.error) == ("FAILED", before.proof, before.error)
    assert bench.status(run) == "STOPPED"
    assert bench.operation(call).status == "released"
    assert isinstance(bench.repair(call, c.RELEASE), c.Denied), "it is free already"
    third = bench.start()
    again = bench.debit(third, order, "mail.send")
    assert bench.call(again).operation == bench.call(call).operation
    bench.succeed(third, again)
    assert bench.operation(again).status == "completed"
    assert isinstance(bench.repair(call, c.RELEASE), c.Denied), "another call has it now"
    with psycopg.connect(bench.database.dsns["reader"], autocommit=True) as reader:
        assert check(reader, None, settled=False).violated == []


@pytest.mark.parametrize("state", ["SUCCEEDED", "UNKNOWN", "NEEDS_REPAIR"])
def test_only_a_proved_failure_is_released(bench: Bench, state: str) -> None:
    if state == "NEEDS_REPAIR":
        _, call = unknowable(bench)
    else:
        run = bench.start()
        call = bench.debit(run, bench.order())
        send, term = bench.dispatch(run, call)
        bench.record(send, term, LOST if state == "UNKNOWN" else Applied('{"id": "r-1"}', "r-1"))
    assert bench.state(call) == state
    status = bench.operation(call).status
    assert isinstance(bench.repair(call, c.RELEASE), c.Denied)
    assert bench.operation(call).status == status


def test_postgres_frees_no_failed_key_without_a_persons_word(bench: Bench) -> None:
    _, call, _ = refused(bench)
    with pytest.raises(psycopg.errors.Error, match="it is not released"), bench.owner.transaction():
        bench.owner.execute(
            "UPDATE fencepost.operations SET status = 'released' WHERE key = %s", [bench.call(call).operation]
        )


def test_what_was_accepted_as_unknown_is_corrected_once_it_comes_to_light(bench: Bench) -> None:
    run, call = unknowable(bench)
    assert bench.repair(call, "ACCEPTED_UNKNOWN") == c.Done("ACCEPTED_UNKNOWN")
    assert (bench.run(run).unknowns, bench.run(run).effects) == (1, 0)
    for no in ("FAILED", "UNKNOWN"):
        assert isinstance(bench.repair(call, no), c.Denied)
    assert bench.repair(call, "SUCCEEDED", "mail-7") == c.Done("SUCCEEDED")
    assert (bench.run(run).unknowns, bench.run(run).effects) == (0, 1)
    assert (bench.call(call).receipt, bench.operation(call).status) == ("mail-7", "completed")
    with psycopg.connect(bench.database.dsns["reader"], autocommit=True) as reader:
        assert check(reader, None, settled=False).violated == []


def test_it_is_asked_again_for_as_long_as_its_tool_says(bench: Bench) -> None:
    for knows in (True, False):
        _, call = unanswered(bench)
        spec = bench.app.registry[bench.call(call).tool, bench.call(call).tool_version].dependency
        with closing(Pool(bench.database.dsns["operator"], "office", 1)) as pool:
            office = Office(pool, "", lambda: None, app=bench.app if knows else None)
            (done,) = office.repair([Repair(call, "UNKNOWN", "ann", "looked")])
        assert done.state == "UNKNOWN"
        until, now = bench.call(call).reconcile_until, bench.now()
        assert until is not None
        for_so_long = spec.reconcile_for if knows else ASK_AGAIN_FOR
        assert abs((until - now) - for_so_long) < timedelta(seconds=5)
