"""One fleet for most tests; after each of them the checker may have nothing against its runs."""

import itertools
import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.acceptance.stage import Stage, staged
from tests.acceptance.weather.resets import connections_reset
from tests.awaiting import until

_numbers = itertools.count(1)
HOSTILE = {name: os.environ[name] for name in ("FENCEPOST_HOSTILE",) if name in os.environ}
"""With FENCEPOST_HOSTILE=true in their own environment the tests run with late acks and redeliveries, and
every half second all connections to the broker are cut.
"""
SCALE = {"relay": 2, "planner": 2, "dispatcher": 2, "reconciler": 2, "compensator": 1}


@pytest.fixture(scope="package")  # an idle fleet costs a tenth of a core: it ends with the last of its tests
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("fleet"), env=HOSTILE, scale=SCALE, movable_clock=True) as stage:
        with connections_reset(stage, every_s=0.5) if HOSTILE else nullcontext():
            yield stage
        assert stage.verdict(whole=True) == []


@pytest.fixture
def stage(shared: Stage) -> Iterator[Stage]:
    """The shared fleet with a tenant of this test's own; calmed and checked afterwards."""
    yield from checked(shared)


def checked(stage: Stage) -> Iterator[Stage]:
    """A stage for one test: a worker for every queue before, nothing wrong with its runs after it."""
    stage.tenant, stage.sent = f"t{next(_numbers)}", []
    until("a worker for every queue", stage.works)
    yield stage
    stage.calm()
    assert stage.verdict() == []
