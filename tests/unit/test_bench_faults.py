"""How what a fault has cost is judged: by the books of the services, and by the runs beside it."""

from dataclasses import replace

from fencepost_ops.bench_beside import Beside
from fencepost_ops.bench_models_measures import Faulty, Waiting
from fencepost_ops.bench_outage import Outage

BESIDE = Beside(before=40, before_p50_s=0.1, before_p99_s=0.3, meanwhile=200, p50_s=0.1, p99_s=0.5, left=0)
STARVED = replace(BESIDE, left=3)
OUTAGE = Outage(
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
    beside=BESIDE,
)
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
FAULT = Faulty(
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
    beside=BESIDE,
)


def test_runs_beside_a_fault_fare_as_they_did_before() -> None:
    assert BESIDE.problems == []
    assert STARVED.problems == ["3 of the runs beside it did not end"]
    slow = "a run beside it took 2.1 s; at most 2.0 s are due"
    assert replace(BESIDE, p99_s=2.1).problems == [slow]
    assert replace(BESIDE, p99_s=2.1, before_p99_s=1.1).problems == [], "as slow as twice before"


def test_an_outage_is_judged_by_its_books() -> None:
    assert OUTAGE.problems == []
    assert replace(OUTAGE, succeeded=999).problems[0] == "1 of 1000 calls did not succeed"
    assert replace(OUTAGE, attempts=1101, requests=1101).problems == ["1101 attempts for 1000 calls: 1.101"]
    assert replace(OUTAGE, requests=1090).problems == ["the service counts 1090 requests and 1000 effects"]
    assert replace(OUTAGE, beside=STARVED).problems == STARVED.problems


def test_how_a_fleet_waits_is_judged() -> None:
    assert WAITED.problems == []
    assert replace(WAITED, seconds=6.1).problems == ["1000 runs took 6.1 s, each of which waits 4 s"]
    assert replace(WAITED, fleet_mib=1100).problems == ["the fleet took 1100 MiB; at most 1024 are due"]
    inside = "a session was in a transaction for 2.5 s while models thought"
    assert replace(WAITED, transaction_s=2.5).problems == [inside]
    assert replace(WAITED, open=400).problems == ["400 of 1000 requests were open at once"]


def test_a_fault_is_judged_by_the_providers_book() -> None:
    assert FAULT.problems == []
    assert replace(FAULT, completed=998).problems == ["2 of 1000 runs did not complete"]
    assert replace(FAULT, requests=2300).problems == ["2300 requests for 2000 turns: 1.150"]
    assert replace(FAULT, beside=STARVED).problems == STARVED.problems
