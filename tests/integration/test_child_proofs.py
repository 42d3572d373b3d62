"""What the end of a run proves of the call that started it, and what it does not: doubts, and halves."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.decide import child_ends, offices
from fencepost.outcomes import Refused, Unsure
from tests.integration.family import asked, begin, grown, heard, told, wrong
from tests.integration.ledger_bench import Bench


@pytest.fixture
def family(bench: Bench) -> Iterator[Bench]:
    yield grown(bench)
    assert wrong(bench) == []


def _in_doubt(family: Bench, child: UUID) -> UUID:
    """A call of which nobody knows what became: a person was asked."""
    note = family.debit(child, family.order(), "wallet.note")
    send, term = family.dispatch(child, note)
    family.record(send, term, Unsure("timeout", "no answer"))
    family.one(family.claim_doubt(child, note))
    family.ahead(3)
    return note


def _report(family: Bench, call: UUID) -> Any:
    data = family.sql("SELECT data FROM fencepost.payloads WHERE digest = %s", family.call(call).result)
    return json.loads(bytes(data[0][0]))


def test_what_was_accepted_as_unknown_below_is_no_failure(
    family: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, call, child = asked(family, "wallet.deep")
    (inner,) = family.plan(child, ("wallet.ask", {"topic": family.order()}))
    grandchild = begin(family, child, inner)
    assert family.repair(_in_doubt(family, grandchild), "ACCEPTED_UNKNOWN") == c.Done("ACCEPTED_UNKNOWN")
    family.cancel(grandchild)
    one = family.run(grandchild)
    assert (one.status, one.effects, one.unknowns) == ("STOPPED", 0, 1)
    with monkeypatch.context() as believing:
        believing.setattr(child_ends, "nothing_left", lambda _run: True)
        assert isinstance(heard(family, child, inner), c.Broken)
    assert heard(family, child, inner) == c.Done("SUCCEEDED")
    assert (_report(family, inner)["status"], _report(family, inner)["unknown"]) == ("STOPPED", 1)
    assert family.run(child).unknowns == 1
    family.cancel(child)
    family.one(family.claim_stopped(child))
    assert family.status(child) == "STOPPED"
    assert heard(family, run, call) == c.Done("SUCCEEDED")
    assert _report(family, call)["unknown"] == 1
    assert family.run(run).unknowns == 1


def _half_offset(family: Bench) -> tuple[UUID, UUID, UUID]:
    """A run whose compensation, a run itself, gave up half way."""
    run, call, child = asked(family, "wallet.hire")
    (tip,) = family.plan(child, ("wallet.tip", {"order": family.order()}))
    family.succeed(child, tip)
    family.finish(child)
    heard(family, run, call)
    family.cancel(run)
    _, fire = family.offset(run)
    family.ahead(1)
    firing = begin(family, run, fire)
    (tip,) = family.plan(firing, ("wallet.tip", {"order": family.order()}))
    family.succeed(firing, tip)
    family.cancel(firing)
    assert family.one(family.claim_stopped(firing)) == c.Done("STOPPED")
    return run, call, fire


def test_a_compensation_that_gave_up_half_way_offsets_nothing(
    family: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, call, fire = _half_offset(family)
    with monkeypatch.context() as believing:
        believing.setattr(child_ends, "_half_done", lambda _call, _run: None)
        assert isinstance(heard(family, run, fire), c.Broken)
    assert heard(family, run, fire) == c.Done("NEEDS_REPAIR")
    assert "gave up" in (family.call(fire).error or "")
    assert family.operation(call).status == "compensating"
    assert isinstance(family.repair(fire, "FAILED"), c.Denied)  # it would be offset a second time
    assert family.repair(fire, "ACCEPTED_UNKNOWN") == c.Done("ACCEPTED_UNKNOWN")
    assert family.one(family.claim_stopped(run)) == c.Done("STOPPED")
    assert family.run(run).effects == 1
    (end,) = [e.data for e in family.events(run) if e.type == "RunStopped"]
    assert [left["call"] for left in end["not_offset"]] == [str(call)]


def test_a_person_does_not_say_that_a_run_failed_which_is_at_work_or_left_effects(
    family: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, call, child = asked(family, deadline_s=300)
    (tip,) = family.plan(child, ("wallet.tip", {"order": family.order()}))
    family.succeed(child, tip)
    note = family.debit(child, family.order(), "wallet.note")
    send, term = family.dispatch(child, note)  # and its worker is frozen
    family.ahead(21.5)
    told(family, run, call, child)
    family.ahead(31)
    assert heard(family, run, call) == c.Done("NEEDS_REPAIR")
    for decision in ("FAILED", "ACCEPTED_UNKNOWN"):
        denied = family.repair(call, decision)
        assert isinstance(denied, c.Denied)
        assert f"run {child} is STOPPING" in denied.why
    assert family.record(send, term, Refused("http_402", "no", retryable=False)) == c.Done("FAILED")
    family.one(family.claim_stopped(child))
    assert family.status(child) == "STOPPED"
    denied = family.repair(call, "FAILED")
    assert isinstance(denied, c.Denied)
    assert "left 1 effect" in denied.why
    with monkeypatch.context() as believing:
        believing.setattr(offices, "_alive", lambda *_: None)
        for decision in ("FAILED", "ACCEPTED_UNKNOWN"):
            assert isinstance(family.repair(call, decision), c.Broken)
    assert family.repair(call, "SUCCEEDED", receipt=str(child)) == c.Done("SUCCEEDED")
