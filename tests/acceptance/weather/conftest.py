"""One fleet behind two wires for all of this folder; fair weather after each test."""

from collections.abc import Iterator

import pytest

from tests.acceptance.conftest import HOSTILE, checked
from tests.acceptance.stage import Stage, staged
from tests.acceptance.weather.resets import broker
from tests.acceptance.weather.routed import SCALE, SHORT, RoutedFleet, routed


@pytest.fixture(scope="package")
def weathered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("weather")
    with staged(folder, env={**SHORT, **HOSTILE}, kind=RoutedFleet, scale=SCALE) as stage:
        yield stage
        assert stage.verdict(whole=True) == []


@pytest.fixture
def stage(weathered: Stage) -> Iterator[Stage]:
    for one in checked(weathered):
        yield one
        clear(one)
    # `checked` goes on after the block and judges the runs.


def clear(stage: Stage) -> None:
    """Fair weather: wires work, Redis has room and forgets nothing."""
    fleet = routed(stage)
    fleet.redis.clear()
    fleet.ledger.clear()
    stage.wake_all()
    fleet.mend()
    with broker(stage) as server:
        server.config_set("maxmemory", 0)
        server.config_set("maxmemory-policy", "noeviction")
