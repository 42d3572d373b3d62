"""Versions no worker knows any more: another process may; after its patience a person is asked."""

from typing import Any
from uuid import UUID

from fencepost import commands as c
from fencepost.outcomes import Applied, Unsure
from tests.integration.ledger_bench import Bench


def nothing(_name: str, _version: int) -> Any:
    return None


def test_an_unknown_outcome_of_a_withdrawn_tool_goes_to_a_person_at_its_deadline(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.record(send, term, Unsure("timeout", "lost"))
    strangers = bench.ledger_as("worker", tool=nothing)
    (answer,) = strangers.apply([bench.claim_doubt(run, call)])
    assert isinstance(answer, c.Unfamiliar)
    assert bench.state(call) == "UNKNOWN"
    bench.ahead(31)
    (answer,) = strangers.apply([bench.claim_doubt(run, call)])
    assert answer == c.Done("NEEDS_REPAIR")
    assert "wallet.debit" in (bench.call(call).error or "")


def test_a_lost_attempt_of_a_withdrawn_tool_is_never_forgotten(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    call = bench.debit(run, bench.order())
    bench.dispatch(run, call)
    strangers = bench.ledger_as("worker", tool=nothing)
    bench.ahead(4)
    (answer,) = strangers.apply([bench.claim_doubt(run, call)])
    assert isinstance(answer, c.Unfamiliar)
    bench.ahead(601)
    (answer,) = strangers.apply([bench.claim_doubt(run, call)])
    assert answer == c.Done("NEEDS_REPAIR")
    assert bench.call(call).doubt


def compensating(bench: Bench) -> tuple[UUID, UUID]:
    """A stopped run with one effect to be offset."""
    run = bench.start(deadline_s=600)
    call = bench.debit(run, bench.order())
    send, term = bench.dispatch(run, call)
    bench.one(bench.outcome(send, term, Applied("{}", "d-1")))
    bench.one(c.RequestCancel(**bench.base(run), by="ann"))
    assert bench.status(run) == "COMPENSATING"
    return run, call


def test_an_effect_nobody_can_offset_any_more_is_listed_in_the_end(bench: Bench) -> None:
    run, call = compensating(bench)
    strangers = bench.ledger_as("worker", tool=nothing)
    (answer,) = strangers.apply([bench.claim_stopped(run)])
    assert isinstance(answer, c.Unfamiliar)
    bench.ahead(601)
    (answer,) = strangers.apply([bench.claim_stopped(run)])
    assert answer == c.Done("STOPPED")
    (left,) = bench.events(run)[-1].data["not_offset"]
    assert left["call"] == str(call)
    assert "not known" in left["why"]


def test_a_compensation_nobody_can_send_is_given_up_at_its_own_deadline(bench: Bench) -> None:
    run, _ = compensating(bench)
    _, undo = bench.offset(run)
    bench.ahead(5)
    strangers = bench.ledger_as("worker", tool=nothing)
    (answer,) = strangers.apply([bench.claim_call(run, undo)])
    assert isinstance(answer, c.Unfamiliar)
    bench.ahead(31)
    (answer,) = strangers.apply([bench.claim_call(run, undo)])
    assert answer == c.Done("REJECTED")
    assert bench.row(run) is not None
