"""A service throttles under many runs, and Redis forgets everything meanwhile: few requests, none starved."""

from dataclasses import replace
from pathlib import Path

import redis

from fencepost_ops.bench_outage import Outage, measure
from fencepost_ops.fleet import Fleet
from tests.acceptance.weather import long_only

RUNS = 60
BORNE = Outage(
    runs=1000,
    outage_s=20.0,
    retry_after_s=1,
    calls=1000,
    attempts=1080,
    succeeded=1000,
    requests=1080,
    effects=1000,
    first_s=1.0,
    all_s=9.0,
    deferrals=4000,
    most_deferrals=6,
    beside_before=40,
    beside_before_p99_s=0.3,
    beside=200,
    beside_p50_s=0.1,
    beside_p99_s=0.5,
    beside_left=0,
)


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
    assert found.beside_left == 0
    assert found.first_s > 0, "nothing succeeds while the service throttles"
    assert found.most_deferrals <= 12


def test_an_outage_is_judged_by_its_books() -> None:
    assert BORNE.problems == []
    assert replace(BORNE, succeeded=999).problems[0] == "1 of 1000 calls did not succeed"
    assert replace(BORNE, attempts=1101, requests=1101).problems == ["1101 attempts for 1000 calls: 1.101"]
    assert replace(BORNE, requests=1090).problems == ["the service counts 1090 requests and 1000 effects"]
    assert replace(BORNE, beside_left=3).problems == ["3 runs of the other service did not end"]
    slow = "the other service took 2.1 s for a run; at most 2.0 s are due"
    assert replace(BORNE, beside_p99_s=2.1).problems == [slow]
