"""A run is done on what its planner and its verify function have seen, and on nothing that came later."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from fencepost import App, Context, Turn
from fencepost import commands as c
from fencepost.joins import Join
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.planner import Planner
from fencepost_workers.step import Step
from tests.integration.family import fan, grown, heard, stopped
from tests.integration.ledger_bench import Bench
from tests.integration.step_shop import Deed, noting_app, opened


@pytest.fixture
def family(bench: Bench) -> Bench:
    return grown(bench)


def left(bench: Bench) -> tuple[UUID, UUID, UUID]:
    """A run that goes on with the first of two answers; the other call, and the run it has started."""
    run, calls, children = fan(bench, 2, Join.first(rest="leave"))
    bench.finish(children[0])
    heard(bench, run, calls[0])
    assert bench.call(calls[1]).detached
    return run, calls[1], children[1]


def asked(bench: Bench, run: UUID) -> tuple[c.ClaimRun, c.Plan]:
    claim = bench.claim_run(run)
    plan = bench.one(claim)
    assert isinstance(plan, c.Plan)
    return claim, plan


def test_a_call_that_moves_while_the_planner_is_asked_keeps_its_run_from_being_done(family: Bench) -> None:
    run, call, child = left(family)
    claim, plan = asked(family, run)  # it is told that the call is still open
    stopped(family, child)
    assert heard(family, run, call) == c.Done("FAILED")
    blind = replace(family.finish_with(family.turn(run, claim)), seen=plan.run.seq)
    assert family.one(blind) == c.Done("ACTING")
    said = family.events(run)[-1]
    assert said.type == "ModelResponseRecorded"
    assert said.data["objection"] == ("a call has moved since it was asked: it is done once it knows")
    claim, plan = asked(family, run)  # asked again at once: nothing is open
    done = replace(family.finish_with(family.turn(run, claim)), seen=plan.run.seq)
    assert family.one(done) == c.Done("COMPLETED")


def test_what_moved_before_its_context_was_read_is_known_and_keeps_nobody(family: Bench) -> None:
    run, call, child = left(family)
    claim, _ = asked(family, run)
    stopped(family, child)
    heard(family, run, call)
    done = replace(family.finish_with(family.turn(run, claim)), seen=family.call(call).version)
    assert family.one(done) == c.Done("COMPLETED")


def test_what_its_verify_function_says_comes_first(family: Bench) -> None:
    run, call, child = left(family)
    claim, plan = asked(family, run)
    stopped(family, child)
    heard(family, run, call)
    turn = replace(family.finish_with(family.turn(run, claim)), seen=plan.run.seq, objection="not paid")
    assert family.one(turn) == c.Done("ACTING")
    assert family.events(run)[-1].data["objection"] == "not paid"


def test_a_planner_says_up_to_which_change_it_was_told(
    database: LedgerDatabase, valkey: LocalValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[c.RecordTurn] = []
    act = Planner.act

    async def watched(self: Planner, *of: Any) -> c.Command | None:
        turn = await act(self, *of)
        if isinstance(turn, c.RecordTurn):
            told.append(turn)
        return turn

    monkeypatch.setattr(Planner, "act", watched)
    with opened(database, valkey, 4, noting_app(Deed())) as shop:
        (run,) = shop.enqueue("a")
        assert Step(shop.worker, Planner(shop.worker)).handle(shop.due(Queue.PLANNER)) == 1
        assert shop.idle()
        ((asked,),) = shop.sql(
            "SELECT seq FROM fencepost.events WHERE run = %s AND type = 'ModelRequestStarted'", run
        )
    assert [turn.seen for turn in told] == [asked]


def test_a_turn_that_cannot_be_recorded_is_lost_and_asked_for_again(database: LedgerDatabase) -> None:
    app = App("spoilt")

    @app.planner("note", version=1)
    def spoilt(context: Context) -> Turn:
        usage: Any = 5  # no mapping: nothing of it can be kept
        return Turn(finish={}, usage=usage)

    with LocalValkey.start() as valkey, opened(database, valkey, slots=4, app=app) as shop:
        (run,) = shop.enqueue("spoilt")
        Step(shop.worker, Planner(shop.worker)).handle(shop.due(Queue.PLANNER))
        assert shop.idle()
        lost = "SELECT body ->> 'code' FROM fencepost.events WHERE run = %s AND type = 'ModelOutcomeUnknown'"
        assert shop.sql(lost, run) == [("planner_error",)]
