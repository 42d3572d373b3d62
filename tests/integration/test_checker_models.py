"""What models used and what was held for them, planted wrong and named (I13)."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.events import Event, body_text
from fencepost.models import AgentSpec, ModelSpec, Price, Spent, Wire
from fencepost_ops.local import LocalPostgres
from tests.integration.checker_world import World, culprit, forged, place
from tests.integration.conftest import copied
from tests.integration.ledger_bench import open_bench
from tests.integration.test_checker_books import goes_red

Edit = Callable[[dict[str, Any]], dict[str, Any]]
BUDGET = '{"tokens": 1000, "cost": 100000}'


@pytest.fixture(scope="module")
def world(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[World]:
    with copied(postgres, template) as database, open_bench(database) as bench:
        spec = ModelSpec(
            name="gpt",
            wire=Wire.CHAT,
            model="m",
            dependency=bench.app.dependencies[0],
            max_output=100,
            prices=(Price(date(2020, 1, 1), input=1_000_000, output=1_000_000),),
        )
        agent = AgentSpec(models=(spec,), instructions="", window=200)
        bench.ledger = bench.ledger_as("worker", agent=lambda _name, _version: agent)
        yield World(bench)


@pytest.fixture(scope="module")
def run(world: World) -> UUID:
    """A run whose model was asked three times: an answer, a lost one, the end."""
    bench = world.bench
    run = bench.start(budget=BUDGET)
    call = _answered(world, run, ("wallet.balance", {"order": "o"}))[0]
    bench.succeed(run, call, "r")
    claim = bench.claim_run(run)
    assert isinstance(bench.one(claim), c.Plan)
    bench.one(c.RecordPlanLost(**bench.base(run), term=claim.term, code="timeout", message="no answer"))
    bench.ahead(11)
    claim = bench.claim_run(run)
    bench.one(claim)
    done = bench.finish_with(bench.turn(run, claim))
    assert bench.one(replace(done, spent=Spent(250, 250))) == c.Done("COMPLETED")
    row = bench.run(run)
    assert (row.tokens, row.cost) == (800, 800)
    world.write_books()
    return run


def _answered(world: World, run: UUID, *calls: Any) -> tuple[UUID, ...]:
    claim = world.bench.claim_run(run)
    assert isinstance(world.bench.one(claim), c.Plan)
    turn = replace(world.bench.turn(run, claim, *calls), spent=Spent(250, 250))
    world.bench.one(turn)
    return turn.call_ids


def without(name: str) -> Edit:
    return lambda body: {key: value for key, value in body.items() if key != name}


def told(**said: Any) -> Edit:
    return lambda body: body | said


def edited(kind: str, nth: int, edit: Edit) -> Callable[[list[Event]], list[Event]]:
    """A history in which one event says something else."""

    def forge(events: list[Event]) -> list[Event]:
        at = place(events, kind, nth)
        events[at] = replace(events[at], body=body_text(edit(events[at].data)))
        return events

    return forge


def test_a_history_of_models_is_counted_as_the_kernel_counts_it(world: World, run: UUID) -> None:
    report = world.check(runs=[run])
    assert report.ok, report.violated


ASKED, ANSWERED, LOST = "ModelRequestStarted", "ModelResponseRecorded", "ModelOutcomeUnknown"


@pytest.mark.parametrize(
    ("kind", "nth", "edit", "says"),
    [
        (ASKED, 2, without("held"), "model gpt was asked, and nothing is held for what it may use"),
        (
            ASKED,
            3,
            told(held={"tokens": 500, "cost": 1}),
            "550 tokens were used and 500 more held, of a budget",
        ),
        (ASKED, 3, told(held={"tokens": 1, "cost": 99999}), "550 cost were used and 99999 more held"),
        (ANSWERED, 1, without("spent"), "300 tokens were held for what ends here, and are not accounted for"),
        (LOST, 1, without("spent"), "300 tokens were held for what ends here, and are not accounted for"),
        (LOST, 1, told(spent={"tokens": 7, "cost": 300, "known": False}), "7 of 300 tokens are charged"),
        (LOST, 1, told(spent={"tokens": 300, "cost": 7, "known": False}), "7 of 300 cost are charged"),
    ],
)
def test_what_was_not_held_or_not_charged_is_found(
    world: World, run: UUID, kind: str, nth: int, edit: Edit, says: str
) -> None:
    with forged(world, run, edited(kind, nth, edit)):
        report = world.check(runs=[run])
        goes_red(report, "I13", says, run)
        events = world.bench.events(run)
        assert culprit(report, "I13").event == events[place(events, kind, nth)].seq


def test_an_answer_that_used_more_than_was_held_is_the_stated_overshoot(world: World, run: UUID) -> None:
    with forged(world, run, edited("RunCompleted", 1, told(spent={"tokens": 2000, "cost": 9}))):
        report = world.check(runs=[run])
        assert report.ok, report.violated


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ({"events": 5}, "an attempt was begun in a history of 8 events, whose limit is 5"),
        ({"bytes": 100}, "bytes, whose limit is 100"),
        ({"tokens": 300}, "250 tokens were used and 300 more held, of a budget of 300"),
    ],
)
def test_what_went_beyond_a_budget_is_found(
    world: World, run: UUID, budget: dict[str, int], says: str
) -> None:
    put = "UPDATE fencepost.runs SET request = %s::jsonb WHERE id = %s"
    request = world.bench.run(run).request
    world.sql(put, json.dumps(json.loads(request) | {"budget": budget}), run)
    now = world.bench.run(run).request
    try:
        with forged(world, run, edited("RunCreated", 1, told(request=now))):
            goes_red(world.check(runs=[run]), "I13", says, run)
    finally:
        world.sql(put, request, run)


def test_turns_in_vain_beyond_the_limit_are_found(world: World) -> None:
    run = world.bench.start(budget='{"fruitless": 3}')
    for _ in range(3):
        _answered(world, run)
    assert world.check(runs=[run], settled=False).ok
    put = "UPDATE fencepost.runs SET request = jsonb_set(request, '{budget,fruitless}', '2') WHERE id = %s"
    world.sql(put, run)
    now = world.bench.run(run).request
    with forged(world, run, edited("RunCreated", 1, told(request=now))):
        report = world.check(runs=[run], settled=False)
        goes_red(report, "I13", "a turn after 2 in a row without an intent; 2 are let go", run)
