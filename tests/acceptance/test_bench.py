"""The bench runs, and says what it measured; the figures themselves are nobody's test."""

import json
import re
import sys

import pytest
from click.testing import CliRunner

from fencepost_ops.bench import MEASURES, bench
from tests.acceptance.weather import long_only

PLANNERS = ("planner-1", "planner-2")


@long_only
@pytest.mark.slow
def test_the_bench_measures_everything_and_says_so_in_json() -> None:
    names = [argument for name in MEASURES for argument in ("--only", name)]
    done = CliRunner().invoke(bench, ["--runs", "20", *names, "--finished", "100", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(MEASURES) < set(found)
    assert found["python"]["runs"] == found["http"]["runs"] == found["latency"]["runs"] == 20
    assert found["python"]["per_second"] > 0
    assert 0 < found["latency"]["p50_ms"] <= found["latency"]["p99_ms"]
    assert found["models"]["seconds"] >= found["models"]["each_s"]
    assert found["history"]["last"] > found["history"]["first"]
    assert found["finished"]["added"] >= 100
    assert found["finished"]["mib"]["events"] > 1
    assert found["finished"]["throughput_after"]["runs"] == 20
    if sys.platform == "linux":
        assert all(found["python"]["cpu_ms"][planner] > 0 for planner in PLANNERS)
    assert set(found["memory_mib"]) >= {*PLANNERS, "relay", "dispatcher", "postgres", "valkey", "sandbox"}


@long_only
@pytest.mark.slow
def test_a_measure_is_printed_with_what_it_cost() -> None:
    done = CliRunner().invoke(bench, ["--runs", "20", "--only", "python"])
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(MEASURES["python"][0])]
    assert re.search(r"[1-9]\d* runs/s +20 runs in \d+\.\d\d s", line)


def test_an_unknown_measure_is_refused() -> None:
    refused = CliRunner().invoke(bench, ["--only", "luck"])
    assert refused.exit_code == 2
