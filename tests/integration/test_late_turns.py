"""An answer of a model whose term is over: it is not recorded, and gives back the place it had."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.breaker import Health, State
from fencepost.ledger.load import Loaded
from tests.integration.ledger_bench import TENANT, Bench
from tests.integration.test_gate import known
from tests.integration.test_provider_gate import BUSY, ONE, OTHER, Fleet, model
from tests.integration.test_repin import repin


def repinned(bench: Bench, run: UUID) -> None:
    assert isinstance(repin(bench, run), c.Done)


def cancelled(bench: Bench, run: UUID) -> None:
    assert bench.cancel(run) == c.Done("STOPPED")


@pytest.mark.parametrize("ends", [cancelled, repinned])
@pytest.mark.parametrize("answered", [True, False])
def test_an_answer_whose_term_is_over_gives_its_place_back(
    bench: Bench, ends: Callable[[Bench, UUID], None], answered: bool
) -> None:
    fleet = Fleet(bench, model("one", concurrency=1))
    late, waits = bench.start(), bench.start()
    term = fleet.asked(late)
    ends(bench, late)
    assert isinstance(fleet.claim(waits)[0], c.Full), "it is still being asked"
    before = bench.kinds(late)
    assert fleet.late(late, term, answered) == c.Fenced()
    assert bench.kinds(late) == before
    fleet.asked(waits)


@pytest.mark.parametrize("scope", [ONE, OTHER])
def test_who_tried_a_provider_and_was_cancelled_lets_the_next_one_try(bench: Bench, scope: str) -> None:
    fleet = Fleet(bench, model("one"))
    fleet.fail(BUSY, 1)
    bench.ahead(9)
    late, waits = bench.start(), bench.start()
    term = fleet.asked(late)
    cancelled(bench, late)
    named = Fleet(bench, model("one"))
    named.scope = scope
    assert named.late(late, term, True) == c.Fenced()
    assert known(bench, ONE).state == State.HALF_OPEN, "whoever was fenced teaches nothing"
    assert isinstance(fleet.claim(waits)[0], c.Plan if scope == ONE else c.Done)


def test_the_place_of_a_run_that_is_asked_once_more_is_not_given_back(bench: Bench) -> None:
    fleet = Fleet(bench, model("one", concurrency=1))
    run, waits = bench.start(), bench.start()
    term = fleet.asked(run)
    repinned(bench, run)
    fleet.asked(run)
    assert fleet.late(run, term, True) == c.Fenced()
    assert isinstance(fleet.claim(waits)[0], c.Full)


def test_a_row_that_holds_places_is_locked_though_its_run_asks_elsewhere_by_now(bench: Bench) -> None:
    run = bench.start()
    loaded = Loaded(now=datetime(2026, 1, 1, tzinfo=UTC), read=frozenset({ONE, OTHER}))
    loaded.runs[TENANT, run] = bench.run(run)
    loaded.dependencies = {scope: Health(scope, state=State.HALF_OPEN) for scope in (ONE, OTHER)}
    late = c.RecordTurn(**bench.base(run), term=bench.term(), turn=1, seen=0, scope=ONE)
    assert loaded.unlocked([late], replace(bench.known, providers=frozenset({ONE, OTHER}))) == {ONE}
