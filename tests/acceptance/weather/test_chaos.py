"""`fencepost chaos` as anybody runs it: what it says, and that nothing of it is left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost_ops.chaos_plan import SERVERS, described, make_chaos
from fencepost_ops.checker import PROMISES
from tests.acceptance.weather import long_only

RUNS, SEED = 12, 7
PLANNED = described(make_chaos(SEED, RUNS).strikes)


@long_only
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_seed_of_chaos_tells_what_it_did_and_every_invariant_holds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fencepost_ops.cli", "chaos", "--json"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*command, "--runs", str(RUNS), "--seed", str(SEED)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)
    assert (told["seed"], told["ok"], told["problems"], told["waiting"]) == (SEED, True, [], [])
    assert told["runs"] == told["completed"] + told["stopped"] == RUNS
    assert sum(told["stop_reasons"].values()) == told["stopped"]
    assert told["attempts"] >= told["calls"] >= RUNS
    strikes = told["strikes"]  # whoever was asleep could not be struck
    assert (strikes["armed"], strikes["weather"]) == (PLANNED["armed"], len(SERVERS))
    assert 0 < strikes["kills"] <= PLANNED["kills"]
    assert 0 < strikes["freezes"] <= PLANNED["freezes"]
    assert told["fired"]
    verdicts = {name: one["verdict"] for name, one in told["invariants"].items()}
    assert verdicts == dict.fromkeys(PROMISES, "holds")
    assert f"seed {SEED}: " in done.stderr
    assert list(tmp_path.iterdir()) == []
