"""It happened and is to be offset: whatever the run was to do, and wherever it stands."""

from contextlib import closing
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.ledger.connect import Pool
from fencepost.office import Office, Repair
from fencepost.outcomes import Applied, Unsure
from fencepost.recovery import Answer
from fencepost_ops.checker import check
from tests.integration.ledger_bench import Bench
from tests.integration.shell import Shell

LOST = Unsure("timeout", "the answer was lost")


def doubtful(bench: Bench, run: UUID, tool: str = "wallet.debit", order: str = "") -> UUID:
    """A call of this run that waits for a person: the downstream was asked and never said."""
    call = bench.debit(run, order or bench.order(), tool)
    send, term = bench.dispatch(run, call)
    bench.record(send, term, LOST)
    bench.ahead(31)
    answer, asking = bench.reconcile(run, call)
    if isinstance(answer, c.Ask):
        answer = bench.one(bench.looked_up(answer, asking, Answer.UNCLEAR))
    assert answer == c.Done("NEEDS_REPAIR")
    return call


def offset_by_fleet(bench: Bench, run: UUID) -> UUID:
    """What the compensator and the dispatcher then do; the effect that was offset."""
    forward, compensation = bench.offset(run)
    bench.succeed(run, compensation, "back-1")
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    return forward


@pytest.mark.parametrize("on_stop", ["compensate", "leave"])
def test_a_run_that_goes_on_is_stopped_and_its_effect_offset(bench: Bench, on_stop: str) -> None:
    run = bench.start(deadline_s=600, on_stop=on_stop)
    before = bench.debit(run, bench.order())
    bench.succeed(run, before)
    call = doubtful(bench, run)
    assert bench.repair(call, c.COMPENSATE, "d-9") == c.Done("SUCCEEDED")
    stopped = bench.run(run)
    assert (stopped.status, stopped.stop_reason, stopped.stop_detail) == (
        "COMPENSATING",
        "operator",
        "looked",
    )
    assert bench.call(call).offset_asked == bench.call(call).version
    forward, compensation = bench.offset(run)
    assert forward == call
    bench.succeed(run, compensation, "back-1")
    if on_stop == "compensate":  # what it did before is offset as well; else it stays, as was asked
        assert offset_by_fleet(bench, run) == before
    else:
        assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    end = bench.events(run)[-1].data
    assert end["offset"] == [str(call), str(before)] if on_stop == "compensate" else [str(call)]
    assert bench.run(run).effects == (0 if on_stop == "compensate" else 1)


@pytest.mark.parametrize("on_stop", ["compensate", "leave"])
def test_a_run_that_has_stopped_takes_it_up(bench: Bench, on_stop: str) -> None:
    run = bench.start(deadline_s=600, on_stop=on_stop)
    call = doubtful(bench, run)
    bench.cancel(run)
    if on_stop == "leave":
        assert bench.status(run) == "STOPPED"
    assert bench.repair(call, c.COMPENSATE, "d-9") == c.Done("SUCCEEDED")
    assert bench.status(run) == "COMPENSATING"
    assert offset_by_fleet(bench, run) == call
    assert bench.events(run)[-1].data["offset"] == [str(call)]
    assert bench.operation(call).status == "compensated"


def test_that_it_happened_alone_leaves_a_run_as_it_was_to_be(bench: Bench) -> None:
    """The difference: without asking for it nothing is offset, and a run goes on."""
    run = bench.start(deadline_s=600, on_stop="leave")
    call = doubtful(bench, run)
    assert bench.repair(call, "SUCCEEDED", "d-9") == c.Done("SUCCEEDED")
    assert bench.status(run) == "ACTING"
    assert bench.call(call).offset_asked is None
    assert bench.finish(run) == c.Done("COMPLETED")


def test_what_is_in_flight_settles_before_the_effect_is_offset(bench: Bench) -> None:
    run = bench.start(deadline_s=600, on_stop="leave")
    first, second = bench.plan(run, *[("wallet.debit", {"order": bench.order()}) for _ in range(2)])
    send, term = bench.dispatch(run, first)
    bench.record(send, term, LOST)
    bench.ahead(31)
    ask, asking = bench.reconcile(run, first)
    bench.one(bench.looked_up(ask, asking, Answer.UNCLEAR))
    flying, term = bench.dispatch(run, second)
    assert bench.repair(first, c.COMPENSATE, "d-9") == c.Done("SUCCEEDED")
    assert bench.status(run) == "STOPPING"
    bench.record(flying, term, Applied('{"id":"d-2"}', "d-2"))
    assert bench.status(run) == "COMPENSATING"
    assert offset_by_fleet(bench, run) == first
    assert bench.run(run).effects == 1  # the second was not asked for


def test_where_nothing_can_offset_it_that_is_said(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    letter = bench.debit(run, bench.order(), "mail.send")
    send, term = bench.dispatch(run, letter)
    bench.record(send, term, LOST)
    bench.reconcile(run, letter)
    bench.ahead(4)
    denied = bench.repair(letter, c.COMPENSATE, "m-1")
    assert denied == c.Denied(
        "its tool is IRREVERSIBLE: nothing can offset it; say that it happened, and no more"
    )
    assert isinstance(bench.repair(letter, c.COMPENSATE), c.Denied)
    assert bench.state(letter) == "NEEDS_REPAIR"


def test_a_compensation_is_not_offset_again(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    call = bench.debit(run, bench.order())
    bench.succeed(run, call)
    bench.cancel(run)
    _, back = bench.offset(run)
    bench.ahead(4)  # not before the first is quiet
    send, term = bench.dispatch(run, back)
    bench.record(send, term, LOST)
    bench.ahead(31)
    ask, asking = bench.reconcile(run, back)
    if isinstance(ask, c.Ask):
        bench.one(bench.looked_up(ask, asking, Answer.UNCLEAR))
    assert bench.state(back) == "NEEDS_REPAIR"
    denied = bench.repair(back, c.COMPENSATE, "r-1")
    assert denied == c.Denied("it offsets an effect itself, and that is not offset again")


def test_the_command_line_compensates(bench: Bench, no_settings: None) -> None:
    shell = Shell(bench.database, {"COLUMNS": "240"})
    run = bench.start(deadline_s=600, on_stop="leave")
    call = doubtful(bench, run)
    reason = ("--reason", "charged in error", "--by", "pat")
    (listed,) = [one for one in shell.json("unresolved", exit_code=1) if one["call"] == str(call)]
    assert any(way.endswith("--compensate --receipt RECEIPT") for way in listed["next"])
    assert "go together" in shell.refused(2, "repair", str(call), "--compensate", *reason)
    told = shell.ok("repair", str(call), "--compensate", "--receipt", "d-9", *reason)
    assert told == f"call {call} is SUCCEEDED; its effect is to be offset; see fencepost show {run}\n"
    assert bench.status(run) == "COMPENSATING"


@pytest.mark.parametrize("on_stop", ["compensate", "leave"])
def test_the_checker_has_nothing_against_it(bench: Bench, on_stop: str) -> None:
    run = bench.start(deadline_s=600, on_stop=on_stop)
    call = doubtful(bench, run)
    bench.cancel(run)
    assert bench.repair(call, c.COMPENSATE, "d-9") == c.Done("SUCCEEDED")
    offset_by_fleet(bench, run)
    with psycopg.connect(bench.database.dsns["reader"], autocommit=True) as reader:
        report = check(reader, None, settled=True, runs=[run])
    assert [v.message for verdict in report.verdicts for v in verdict.violations] == []


def test_the_checker_has_nothing_against_a_word_on_what_was_left(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    call = bench.debit(run, bench.order(), "mail.send")
    bench.succeed(run, call, "m-1")
    bench.cancel(run)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    assert bench.repair(call, c.LEAVE) == c.Done("SUCCEEDED")
    with psycopg.connect(bench.database.dsns["reader"], autocommit=True) as reader:
        report = check(reader, None, settled=True, runs=[run])
    assert [v.message for verdict in report.verdicts for v in verdict.violations] == []


def test_an_effect_that_others_wait_to_share_is_not_offset_and_that_is_said_at_once(bench: Bench) -> None:
    order, run, other = bench.order(), bench.start(deadline_s=600), bench.start(deadline_s=600)
    call = doubtful(bench, run, order=order)
    bench.debit(other, order)
    with closing(Pool(bench.database.dsns["operator"], "office", 1)) as pool:
        office = Office(pool, "", lambda: None)
        (told,) = office.repair([Repair(call, c.COMPENSATE, "ann", "looked", "d-9")])
        assert (told.state, f"run {other} waits to take its result" in (told.why or "")) == (None, True)
        assert bench.state(call) == "NEEDS_REPAIR"
        bench.cancel(other)
        (told,) = office.repair([Repair(call, c.COMPENSATE, "ann", "looked", "d-9")])
    assert told.state == "SUCCEEDED"
    assert offset_by_fleet(bench, run) == call
