"""A service throttles under many runs, and Redis forgets everything meanwhile: few requests, none starved."""

from pathlib import Path

import redis

from fencepost_ops.bench_outage import measure
from fencepost_ops.fleet import Fleet
from tests.acceptance.weather import long_only

RUNS = 60


def forget_everything(fleet: Fleet) -> None:
    with redis.Redis.from_url(fleet.valkey.url()) as client:
        client.flushall()


@long_only
def test_a_throttled_service_meets_few_requests_also_after_redis_has_forgotten_all(tmp_path: Path) -> None:
    env = {"FENCEPOST_REPUBLISH_S": "1"}
    with (tmp_path / "fleet.log").open("w") as log:
        found = measure(RUNS, 2.0, 1, 2, 60.0, env=env, out=log, meanwhile=forget_everything)
    assert (found.calls, found.succeeded, found.effects) == (RUNS, RUNS, RUNS)
    assert found.requests == found.attempts <= 1.1 * RUNS
    assert found.beside.left == 0
    assert found.first_s > 0, "nothing succeeds while the service throttles"
    assert found.most_deferrals <= 12
