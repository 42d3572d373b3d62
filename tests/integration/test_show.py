"""`fencepost show`, `runs` and `doctor`: why a run stands still, who is below it; in words and JSON."""

import re
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost import commands as c
from fencepost.knowledge import knows
from tests.integration.family import fan, grown, heard
from tests.integration.ledger_bench import Bench
from tests.integration.shell import Shell
from tests.integration.test_blocked import stamp
from tests.integration.test_provider_gate import BUSY, DRAINED, ONE, Fleet, model


@pytest.fixture
def shown(bench: Bench, no_settings: None) -> Shell:
    return Shell(bench.database, {"COLUMNS": "400"})


def test_a_blocked_step_is_the_same_for_machines_as_for_people(bench: Bench, shown: Shell) -> None:
    run = bench.start()
    assert shown.json("show", str(run))["blocked"] is None
    stamp(bench, "another", "planner", knows([("q", 1)], ()))
    bench.ahead(5)
    said, told = shown.json("show", str(run))["blocked"], shown.ok("show", str(run))
    assert (said["subject"], said["queue"], said["missing"]) == (str(run), "planner", "planner:p@1")
    assert f": {said['reason']}; {said['way_out']}" in told
    assert re.search(r"\nblocked for \d", told)
    assert datetime.fromisoformat(said["since"]) == bench.run(run).ready_at
    again = shown.json("repin", str(run), "--to", "2", "--reason", "mended")
    assert (again["planner_version"], again["blocked"]["missing"]) == (2, "planner:p@2")
    assert shown.json("blocked", str(run), exit_code=1)[0]["way_out"] == said["way_out"]
    bench.sql("UPDATE fencepost.workers SET ended_at = fencepost.now() WHERE token = 'another'")


def test_children_are_told_by_call_with_their_states_and_how_long_they_took(
    bench: Bench, shown: Shell
) -> None:
    run, calls, children = fan(grown(bench), 3)
    assert shown.json("show", str(run))["latency"] is None
    bench.ahead(4)
    for n in (0, 1):
        bench.finish(children[n])
        heard(bench, run, calls[n])
        bench.ahead(2)
    said = shown.json("show", str(run))
    assert [(one["call"], one["run_id"]) for one in said["children"]] == [
        (str(call), str(child)) for call, child in zip(calls, children, strict=True)
    ]
    assert [(one["call_state"], one["status"]) for one in said["children"]] == [
        *[("SUCCEEDED", "COMPLETED")] * 2,
        ("DISPATCHING", "QUEUED"),
    ]
    slow = said["latency"]
    assert (slow["runs"], slow["ended"], slow["slowest"]) == (3, 2, str(children[1]))
    assert 6 <= slow["p90_s"] == slow["slowest_s"]
    told = shown.ok("show", str(run))
    assert f"2 have ended: p50 {slow['p50_s']:.2f} s, p90 {slow['p90_s']:.2f} s" in told
    assert said["children_cut"] is False


def waits(shown: Shell, *of: UUID) -> dict[str, Any]:
    listed = shown.json("runs", "--waiting")
    return {one["run_id"]: one["waits_for"] for one in listed if UUID(one["run_id"]) in of}


def doctor(shown: Shell) -> list[str]:
    told = shown.json("doctor", exit_code=3)  # there is no Redis here
    return [one["says"] for one in told["findings"] if "provider" in one["says"]]


def test_runs_that_wait_for_the_provider_of_their_model_are_told_with_why_and_until_when(
    bench: Bench, shown: Shell
) -> None:
    fleet, plain, since = Fleet(bench, model("one")), bench.start(), bench.now()
    lost, put_off = bench.start(), bench.start()
    assert waits(shown, lost, put_off, plain) == {}
    assert doctor(shown) == []
    fleet.lose(lost, fleet.asked(lost), BUSY)
    assert fleet.claim(put_off)[0] == c.Done("QUEUED")
    bench.ahead(4)
    assert fleet.claim(put_off)[0] == c.Moved(), "it is not due yet"
    found = waits(shown, lost, put_off, plain)
    assert set(found) == {str(lost), str(put_off)}
    assert [one["provider"] for one in found.values()] == [ONE, ONE]
    assert found[str(lost)]["why"] == "http_429: gone"
    assert found[str(put_off)]["why"] == f"dependency {ONE} is open: http_429, Retry-After 7 s"
    for run in (lost, put_off):
        assert datetime.fromisoformat(found[str(run)]["until"]) == bench.run(run).ready_at
        assert since <= datetime.fromisoformat(found[str(run)]["since"]) <= bench.now() - timedelta(seconds=4)
        assert shown.json("show", str(run))["waits_for"] == found[str(run)]
    line = rf"waits for provider {ONE} for [^(]+ \(dependency {ONE} is open.+; asked again in "
    assert re.search(line, shown.ok("runs"))
    assert re.search(line, shown.ok("show", str(put_off)))
    (says,) = doctor(shown)
    assert re.match(rf"2 runs wait for provider {ONE}, the first for [^(]+ \(.+\); asked again in ", says)
    assert shown.ok("runs", "--status", "QUEUED", role="producer")  # who may not look is told less


def test_a_wait_lasts_from_its_first_day_and_ends_with_an_answer(bench: Bench, shown: Shell) -> None:
    fleet = Fleet(bench, model("one"))
    run = bench.start(deadline_s=900)
    fleet.lose(run, fleet.asked(run), BUSY)
    first = waits(shown, run)[str(run)]
    bench.ahead(20)
    term = fleet.asked(run)
    assert waits(shown, run) == {}, "it is being asked"
    fleet.lose(run, term, BUSY)
    later = waits(shown, run)[str(run)]
    assert later["since"] == first["since"]
    assert later["until"] > first["until"]
    bench.ahead(60)
    fleet.answer(run, fleet.asked(run))
    assert waits(shown, run) == {}
    fleet.lose(run, fleet.asked(run), DRAINED)
    assert waits(shown, run) == {}, "that was nobody's failure"
    fleet.lose(run, fleet.asked(run), BUSY)
    assert waits(shown, run)[str(run)]["since"] > later["until"], "this is another wait"
