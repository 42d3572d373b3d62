"""One fleet for all tests that disturb single processes; after each test nothing may be wrong with its ledger."""

import itertools
from collections.abc import Iterator

import pytest

from tests.acceptance.stage import Stage, staged, until
from tests.acceptance.verdict import violations

_numbers = itertools.count(1)
SCALE = {"relay": 2, "planner": 2, "dispatcher": 2, "reconciler": 2, "compensator": 1}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("fleet"), scale=SCALE, movable_clock=True) as stage:
        yield stage


@pytest.fixture
def stage(shared: Stage) -> Iterator[Stage]:
    """The shared fleet with a tenant of this test's own; calmed and checked afterwards."""
    yield from checked(shared)


def checked(stage: Stage) -> Iterator[Stage]:
    stage.tenant, stage.sent = f"t{next(_numbers)}", []
    until("a worker for every queue", stage.works)
    yield stage
    stage.calm()
    assert verdict(stage) == []


def verdict(stage: Stage) -> list[str]:
    with stage.reader() as connection:
        return violations(connection, stage.book, [deed["key"] for deed in stage.deeds()])
