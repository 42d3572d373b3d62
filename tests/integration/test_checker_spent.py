"""What a run has used: its row against its history, and that against its budget, planted and named (I13)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from fencepost.outcomes import Unsure
from fencepost_ops.local import LocalPostgres
from tests.integration.checker_world import World, built, changed, copy_of, culprit, forged, place
from tests.integration.test_checker_books import goes_red


@pytest.fixture(scope="module")
def original(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[World]:
    with built(postgres, template) as world:
        yield world


@pytest.fixture(scope="module")
def world(original: World, postgres: LocalPostgres) -> Iterator[World]:
    """One world for all: whoever forges a history in it forges it back."""
    with copy_of(original, postgres) as made:
        yield made


@contextmanager
def budgeted(world: World, run: UUID, budget: dict[str, int]) -> Iterator[None]:
    """The run as if its producer had asked for less: row and history agree."""
    request = world.bench.run(run).request
    put = "UPDATE fencepost.runs SET request = %s::jsonb WHERE id = %s"
    world.sql(put, json.dumps(json.loads(request) | {"budget": budget}), run)
    now = world.bench.run(run).request
    try:
        with forged(world, run, lambda events: [changed(events[0], request=now), *events[1:]]):
            yield
    finally:
        world.sql(put, request, run)


@pytest.mark.parametrize(
    ("budget", "kind", "nth", "says"),
    [
        ({"turns": 1}, "ModelRequestStarted", 2, "turn 2 of a run whose budget is 1 turns"),
        ({"calls": 0}, "ToolProposalRecorded", 1, "call 1 of a run whose budget is 0 calls"),
        ({"wall_clock_ms": 3000}, "ModelRequestStarted", 2, "whose budget is 0:00:03 of wall clock"),
    ],
)
def test_what_was_used_beyond_the_budget_is_found(
    world: World, budget: dict[str, int], kind: str, nth: int, says: str
) -> None:
    run = world.doubted
    with budgeted(world, run, {name: n + 1 for name, n in budget.items() if name != "wall_clock_ms"}):
        assert world.check().ok
    with budgeted(world, run, budget):
        report = world.check()
        goes_red(report, "I13", says, run)
        events = world.bench.events(run)
        assert culprit(report, "I13").event == events[place(events, kind, nth)].seq


def test_what_a_run_uses_to_offset_and_to_settle_is_not_held_against_its_budget(world: World) -> None:
    with budgeted(world, world.stopped, {"calls": 2, "attempts": 2}):  # two forward, and one that offsets
        assert world.check().ok
    with budgeted(world, world.doubted, {"attempts": 1}):
        assert world.check().ok


@pytest.mark.parametrize(
    "name",
    [
        "turn",
        "requests",
        "calls",
        "attempts",
        "open",
        "unsettled",
        "repairs",
        "awaiting",
        "effects",
        "failures",
        "tokens",
        "cost",
        "held_tokens",
        "held_cost",
        "bytes",
        "fruitless",
    ],
)
def test_a_counter_that_is_not_what_its_history_tells_is_found(world: World, name: str) -> None:
    change = f"UPDATE fencepost.runs SET {name} = {name} + %s WHERE id = %s"
    world.sql(change, 1, world.stopped)
    report = world.check()
    world.sql(change, -1, world.stopped)
    assert report.violated == ["I6.replay", "I13"]  # the kernel's own replay sees every column
    assert culprit(report, "I13").run == world.stopped


def test_a_history_of_every_kind_is_counted_as_the_kernel_counts_it(
    original: World, postgres: LocalPostgres
) -> None:
    with copy_of(original, postgres) as world:
        bench = world.bench
        acts, lost, doubts = (bench.enqueue(name) for name in ("acts", "lost", "doubts"))
        bench.debit(acts, "acts")
        bench.one(bench.claim_run(lost))
        paying = bench.debit(doubts, "doubts")
        bench.ahead(5)
        bench.one(bench.claim_run(lost))  # its planner's worker was lost
        bench.record(*bench.dispatch(doubts, paying), Unsure("timeout", "no answer"))
        assert world.check(settled=False).ok
        rows = [bench.run(run) for run in (acts, lost, doubts)]
        assert [(r.open, r.unsettled, r.failures) for r in rows] == [(1, 0, 0), (0, 0, 1), (1, 1, 0)]
