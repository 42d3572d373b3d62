"""What has succeeded is offset for reasons of the business, and not while another call is in doubt: a planner
that cannot go on waits for a person, until its run's deadline.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from fencepost import commands as c
from fencepost.clock import NEVER
from fencepost.ledger import connect, listings, providers
from fencepost.ledger.providers import Waiting
from fencepost.ledger.verify import verify_run
from fencepost.models import Price, Spent
from fencepost.outcomes import Unsure
from fencepost.states import StopReason
from fencepost_ops.checker import check
from fencepost_ops.commands.waiting import told
from tests.integration.ledger_bench import TENANT, Bench
from tests.integration.test_provider_gate import ONE, Fleet, model
from tests.integration.test_repin import repin

LOST = Unsure("timeout", "the answer was lost")
UNFIT = "model one: its provider does not take the request (http_400): messages.3: a call without its thought"


def begun(bench: Bench, **how: Any) -> UUID:
    """A run that has had one effect."""
    run = bench.start(**{"deadline_s": 600} | how)
    bench.succeed(run, bench.debit(run, bench.order()))
    return run


def waiting(bench: Bench, run: UUID) -> Waiting | None:
    connection = connect.connect(bench.database.dsns["reader"], "test")
    try:
        runs = [info.run_id for info in listings.list_runs(connection, waiting=True)]
        found = providers.waiting(connection, [run])
        assert (run in runs) == bool(found)
        return found[0] if found else None
    finally:
        connection.close()


def holds(bench: Bench, run: UUID) -> bool:
    """Nothing is wrong with its history, by the replay and by the checker."""
    with bench.ledger._pool.reading() as connection:
        replayed = verify_run(connection, TENANT, run).fault is None
    with psycopg.connect(bench.database.dsns["reader"], autocommit=True) as reader:
        report = check(reader, None, settled=False, runs=[run])
    assert report.ok, report
    return replayed


def refused(bench: Bench, run: UUID) -> None:
    """Its model's provider does not take what it is told, and the last model of its agent was asked."""
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    how: dict[str, Any] = {"code": "http_400", "message": UNFIT, "stop": StopReason.PLANNER_FAILED}
    bench.one(c.RecordPlanLost(**bench.base(run), term=claim.term, spent=Spent(), **how))


def malformed(bench: Bench, run: UUID) -> None:
    """Five answers in a row, each paid for, that nobody can read."""
    for _ in range(5):
        claim = bench.claim_run(run)
        assert isinstance(bench.one(claim), c.Plan)
        how: dict[str, Any] = {"code": "malformed_turn", "message": "no JSON", "spent": Spent(7)}
        bench.one(c.RecordPlanLost(**bench.base(run), term=claim.term, **how))
        if bench.run(run).ready_at < bench.run(run).deadline:
            bench.ahead(11)


def raising(bench: Bench, run: UUID) -> None:
    """A function that raises whenever it is asked."""
    for _ in range(5):
        claim = bench.claim_run(run)
        assert isinstance(bench.one(claim), c.Plan)
        how: dict[str, Any] = {"code": "planner_error", "message": "KeyError: 'a'"}
        bench.one(c.RecordPlanLost(**bench.base(run), term=claim.term, **how))
        bench.ahead(11)


def deadly(bench: Bench, run: UUID) -> None:
    """A planner that kills its workers."""
    for _ in range(5):
        assert isinstance(bench.one(bench.claim_run(run)), c.Plan)
        bench.ahead(4)
    bench.one(bench.claim_run(run))


Breaking = Callable[[Bench, UUID], None]
BROKEN: dict[str, tuple[Breaking, str]] = {
    "a request its provider never takes": (refused, "http_400: " + UNFIT),
    "answers nobody can read": (malformed, "malformed_turn: no JSON"),
    "a function that raises": (raising, "planner_error: KeyError: 'a'"),
    "a planner that kills its workers": (deadly, "the planner's worker was lost 5 times in a row"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_planner_that_cannot_go_on_after_an_effect_waits_for_a_person_until_the_deadline(
    bench: Bench, what: str
) -> None:
    fails, why = BROKEN[what]
    run = begun(bench)
    fails(bench, run)
    stands = bench.run(run)
    assert (stands.status, stands.owner, stands.stop_reason) == ("PLANNING", None, None)
    assert "CompensationRequested" not in bench.kinds(run)
    found = waiting(bench, run)
    assert found is not None
    assert (found.person, found.why) == (True, why)
    assert f"fencepost repin {run} --to 1" in told(found, bench.now())
    assert holds(bench, run)
    bench.ahead(601)
    assert bench.one(bench.claim_run(run)) == c.Done("COMPENSATING")
    assert bench.run(run).stop_reason == "deadline_exceeded"
    _, undo = bench.offset(run)
    bench.ahead(4)
    bench.succeed(run, undo)
    assert bench.one(bench.claim_stopped(run)) == c.Done("STOPPED")
    assert holds(bench, run)


@pytest.mark.parametrize("what", BROKEN)
def test_a_person_has_it_asked_at_once_and_it_goes_on(bench: Bench, what: str) -> None:
    run = begun(bench)
    BROKEN[what][0](bench, run)
    assert bench.run(run).ready_at > bench.now()
    if what == "a planner that kills its workers":  # of this no answer was lost but by its workers
        assert bench.run(run).failures > 0
    assert repin(bench, run, to=1) == c.Done("PLANNING")
    assert waiting(bench, run) is None
    assert bench.finish(run) == c.Done("COMPLETED")
    assert holds(bench, run)


@pytest.mark.parametrize("on_stop", ["leave", "compensate_at_once"])
@pytest.mark.parametrize("what", BROKEN)
def test_a_run_that_says_otherwise_stops_for_it(bench: Bench, what: str, on_stop: str) -> None:
    run = begun(bench, on_stop=on_stop)
    BROKEN[what][0](bench, run)
    ended = bench.run(run)
    assert ended.stop_reason == "planner_failed"
    assert ended.status == ("STOPPED" if on_stop == "leave" else "COMPENSATING")
    assert holds(bench, run)


def test_who_waits_is_asked_now_and_then_where_that_costs_nothing_and_uses_up_no_turn(bench: Bench) -> None:
    run = begun(bench, deadline_s=86_400, budget='{"turns": 3}')
    for _ in range(6):
        refused(bench, run)
        before, at = bench.run(run), bench.now()
        assert (before.requests, before.status) == (1, "PLANNING")
        pause = before.ready_at - at
        assert timedelta(minutes=20) < pause < timedelta(minutes=23), "its history does not fill"
        bench.ahead(pause.total_seconds() + 1)
    assert bench.finish(run) == c.Done("COMPLETED")  # mended meanwhile
    paid = begun(bench)
    malformed(bench, paid)
    assert bench.run(paid).ready_at == bench.run(paid).deadline, "what is charged is a person's to ask for"


def test_a_run_without_an_effect_stops_at_once(bench: Bench) -> None:
    run = bench.start(deadline_s=600)
    raising(bench, run)
    assert (bench.status(run), bench.run(run).stop_reason) == ("STOPPED", "planner_failed")


def test_a_model_without_a_price_is_waited_for(bench: Bench) -> None:
    run = begun(bench, budget='{"cost": 1000000}')
    fleet = Fleet(bench, model("one"))
    assert fleet.claim(run)[0] == c.Done("ACTING")
    found = waiting(bench, run)
    assert found is not None
    assert found.person
    assert "model one has no price for today" in found.why
    bench.ahead(61)
    priced = replace(model("one"), prices=(Price(since=bench.now().date(), input=0, output=0),))
    answer, _ = Fleet(bench, priced).claim(run, scope=ONE)
    assert isinstance(answer, c.Plan)


# -- calls in doubt --------------------------------------------------------------------------------------


def doubted(bench: Bench, **how: Any) -> tuple[UUID, UUID, UUID]:
    """A run past its deadline with an effect, and a mail of which a person has to say whether it went out."""
    run = bench.start(**{"deadline_s": 60} | how)
    room, mail = bench.plan(
        run, ("wallet.debit", {"order": bench.order()}), ("mail.send", {"order": bench.order()})
    )
    bench.succeed(run, room)
    send, term = bench.dispatch(run, mail)
    bench.record(send, term, LOST)
    bench.ahead(31)
    assert bench.reconcile(run, mail)[0] == c.Done("NEEDS_REPAIR")
    bench.ahead(60)
    assert bench.one(bench.claim_run(run)) == c.Done("COMPENSATING" if how == {} else bench.status(run))
    return run, room, mail


def test_what_has_succeeded_is_offset_only_once_a_person_has_settled_the_rest(bench: Bench) -> None:
    run, room, mail = doubted(bench)
    assert bench.one(bench.claim_stopped(run)) == c.Done("COMPENSATING")
    row = bench.row(run)
    assert row is not None
    assert row.due_at == NEVER
    assert bench.repair(mail, "UNKNOWN") == c.Done("UNKNOWN")  # ask again
    assert bench.one(bench.claim_stopped(run)) in {c.Done("COMPENSATING"), c.Moved()}
    assert not any(one.compensates for one in [bench.call(room), bench.call(mail)])
    assert bench.reconcile(run, mail)[0] in {c.Done("NEEDS_REPAIR"), c.Done("UNKNOWN")}
    bench.ahead(700)
    if bench.call(mail).state == "UNKNOWN":
        assert bench.reconcile(run, mail)[0] == c.Done("NEEDS_REPAIR")
    assert bench.repair(mail, "SUCCEEDED", "m-1") == c.Done("SUCCEEDED")
    assert bench.offset(run)[0] == room
    assert holds(bench, run)


def test_a_run_may_say_that_it_is_offset_at_once(bench: Bench) -> None:
    run, room, _ = doubted(bench, on_stop="compensate_at_once")
    assert bench.offset(run)[0] == room
    assert holds(bench, run)
