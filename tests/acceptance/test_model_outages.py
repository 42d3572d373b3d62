"""A provider of models throttles under many runs: few requests, no run lost; those without a model go on."""

from dataclasses import replace
from pathlib import Path

from fencepost.models import Wire
from fencepost_ops.bench_models_measures import Faulty, Waiting, started, throttled, waiting
from tests.acceptance.weather import long_only

RUNS = 40
WAITED = Waiting(
    runs=1000,
    each_s=4.0,
    seconds=5.8,
    fleet_mib=740.0,
    provider_mib=30.0,
    open=1000,
    sessions=8,
    in_transaction=1,
    transaction_s=0.2,
    cpu_ms={"planner-1": 4.0},
)
BORNE = Faulty(
    fault="429",
    runs=1000,
    fault_s=20.0,
    completed=1000,
    turns=2000,
    requests=2060,
    refused=60,
    left=0,
    meanwhile=0,
    first_s=2.0,
    all_s=9.0,
    deferrals=4000,
    beside_before=100,
    beside_before_p50_s=0.1,
    beside_before_p99_s=0.3,
    beside=200,
    beside_p50_s=0.1,
    beside_p99_s=0.5,
    beside_left=0,
)


@long_only
def test_a_provider_that_throttles_meets_few_requests_and_ends_no_run(tmp_path: Path) -> None:
    with (tmp_path / "fleet.log").open("w") as log, started(10.0, str(Wire.MESSAGES), 2, log) as bench:
        waited = waiting(bench, RUNS, 1.0)
        found = throttled(bench, RUNS, 2.0, 60.0)
    assert waited.open == RUNS
    assert waited.transaction_s < 2
    assert (found.completed, found.turns, found.beside_left) == (RUNS, 2 * RUNS, 0)
    assert found.requests == found.turns + found.refused
    assert found.amplification <= 1.1
    assert found.meanwhile == 0, "nothing is answered while the provider throttles"
    assert found.beside > 0


def test_how_a_fleet_waits_is_judged() -> None:
    assert WAITED.problems == []
    assert replace(WAITED, seconds=6.1).problems == ["1000 runs took 6.1 s, each of which waits 4 s"]
    assert replace(WAITED, fleet_mib=1100).problems == ["the fleet took 1100 MiB; at most 1024 are due"]
    inside = "a session was in a transaction for 2.5 s while models thought"
    assert replace(WAITED, transaction_s=2.5).problems == [inside]
    assert replace(WAITED, open=400).problems == ["400 of 1000 requests were open at once"]


def test_a_fault_is_judged_by_the_providers_book() -> None:
    assert BORNE.problems == []
    assert replace(BORNE, completed=998).problems == ["2 of 1000 runs did not complete"]
    assert replace(BORNE, requests=2300).problems == ["2300 requests for 2000 turns: 1.150"]
    assert replace(BORNE, beside_left=3).problems == ["3 runs without a model did not end"]
    slow = "a run without a model took 2.1 s; at most 2.0 s are due"
    assert replace(BORNE, beside_p99_s=2.1).problems == [slow]
