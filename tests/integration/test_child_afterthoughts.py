"""What comes to light of a run after it has ended goes up to the calls that its end has settled."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost import testing
from fencepost.ledger import apply
from fencepost.outcomes import Applied, Refused
from tests.awaiting import until
from tests.integration.family import asked, begin, due, grown, heard, wrong
from tests.integration.ledger_bench import Bench, kept

WITHIN_S = 30
SETTLES = "settles"
STUCK = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%%outbox%%'"
)


@pytest.fixture
def family(bench: Bench) -> Iterator[Bench]:
    yield grown(bench)
    assert wrong(bench) == []


def _evidence(family: Bench, child: UUID, note: UUID, term: c.Term, receipt: str) -> c.FileEvidence:
    base = {**family.base(child), "call": note, "term": term, "attempt": 1}
    return c.FileEvidence(**base, outcome=Applied("{}", receipt), result=kept("{}"), payloads=(kept("{}"),))


def test_evidence_after_the_end_goes_up_to_every_call_that_was_settled_by_it(family: Bench) -> None:
    run, call, child = asked(family, "wallet.deep")
    (inner,) = family.plan(child, ("wallet.ask", {"topic": family.order()}))
    grandchild = begin(family, child, inner)
    note = family.debit(grandchild, family.order(), "wallet.debit")
    send, term = family.dispatch(grandchild, note)
    family.record(send, term, Refused("http_402", "no", retryable=False))
    assert family.status(grandchild) == "STOPPED"
    assert heard(family, child, inner) == c.Done("FAILED")
    family.cancel(child)
    assert heard(family, run, call) == c.Done("FAILED")
    assert family.finish(run) == c.Done("COMPLETED")
    assert family.row(inner) is None
    family.one(_evidence(family, grandchild, note, term, "r1"))
    assert due(family, inner)
    assert wrong(family) == []  # somebody is about to look at it
    assert heard(family, child, inner) == c.Done("NEEDS_REPAIR")
    assert str(grandchild) in (family.call(inner).error or "")
    assert family.operation(inner).doubt
    assert due(family, call)
    assert heard(family, run, call) == c.Done("NEEDS_REPAIR")
    assert family.repair(note, "SUCCEEDED", receipt="r1") == c.Done("SUCCEEDED")
    assert isinstance(family.repair(inner, "FAILED"), c.Denied)
    assert family.repair(inner, "SUCCEEDED", receipt=str(grandchild)) == c.Done("SUCCEEDED")
    assert family.repair(call, "SUCCEEDED", receipt=str(child)) == c.Done("SUCCEEDED")


def test_what_came_to_light_and_was_offset_by_the_run_itself_leaves_no_row_behind(family: Bench) -> None:
    run, call, child = asked(family)
    debit = family.debit(child, family.order())
    send, term = family.dispatch(child, debit)
    family.record(send, term, Refused("http_402", "no", retryable=False))
    assert family.status(child) == "STOPPED"
    assert heard(family, run, call) == c.Done("FAILED")
    family.one(_evidence(family, child, debit, term, "r1"))
    assert family.repair(debit, "SUCCEEDED", receipt="r1") == c.Done("SUCCEEDED")
    assert family.status(child) == "COMPENSATING"
    _, refund = family.offset(child)
    family.ahead(4)  # what was sent is quiet
    family.succeed(child, refund)
    assert family.one(family.claim_stopped(child)) == c.Done("STOPPED")
    assert family.run(child).effects == 0
    assert due(family, call)
    assert isinstance(heard(family, run, call), c.Moved)
    assert (family.state(call), family.row(call)) == ("FAILED", None)


def test_evidence_that_meets_the_settling_of_the_call_goes_up_all_the_same(
    family: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, call, child = asked(family)
    debit = family.debit(child, family.order())
    send, term = family.dispatch(child, debit)
    family.record(send, term, Refused("http_402", "no", retryable=False))
    assert family.status(child) == "STOPPED"
    settle = replace(family.claim_doubt(run, call), starts=True)
    evidence = _evidence(family, child, debit, term, "r1")
    inside, go_on = threading.Event(), threading.Event()
    point = testing.fault

    def held(name: str) -> Any:
        if name == "ledger.in_transaction" and threading.current_thread().name == SETTLES:
            inside.set()
            assert go_on.wait(WITHIN_S)
        return point(name)

    monkeypatch.setattr(apply, "fault", held)
    answers: dict[str, Any] = {}

    def apply_as(name: str, command: c.Command) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.update({name: family.one(command)}), name=name)
        thread.start()
        return thread

    settling = apply_as(SETTLES, settle)
    try:
        assert inside.wait(WITHIN_S)  # it has read the run as one without effects
        filing = apply_as("files", evidence)
        until("it waits or is told", lambda: "files" in answers or family.sql(STUCK) != [(0,)], WITHIN_S)
    finally:
        go_on.set()
        settling.join(WITHIN_S)
    filing.join(WITHIN_S)
    assert answers[SETTLES] == c.Done("FAILED")
    assert due(family, call)
    assert heard(family, run, call) == c.Done("NEEDS_REPAIR")
