"""`fencepost chaos` asks for a trial of each seed and answers with all of them and its exit code."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fencepost_ops import chaos as module
from fencepost_ops.chaos import ChaosResult, chaos
from fencepost_ops.chaos_plan import ChaosPlan
from fencepost_ops.checker import PROMISES, Report, Totals, Verdict
from fencepost_ops.trial import Outcome

UNSETTLED = 8


def trial(plan: ChaosPlan, folder: Path, *, err: bool) -> ChaosResult:
    """One that goes well for every seed but one."""
    assert folder.is_dir()
    assert err, "what is said meanwhile is no JSON"
    runs = len(plan.orders)
    totals = Totals(
        runs, completed=runs, stopped=0, calls=runs, attempts=runs, events=9, evidence=0, effects=runs
    )
    report = Report(tuple(Verdict(name, 1) for name in PROMISES), totals)
    settled = plan.seed != UNSETTLED
    return ChaosResult(
        plan, Outcome(report, {}, {}, {}), settled, 0, 0, {"kills": 1}, (), {"kill": [0.5]}, 1.0
    )


@pytest.mark.parametrize(("seeds", "code", "ok"), [(1, 0, [True]), (3, 1, [True, False, True])])
def test_every_seed_is_told_and_one_that_failed_is_the_exit_code(
    seeds: int, code: int, ok: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_run", trial)
    done = CliRunner().invoke(chaos, ["--json", "--runs", "12", "--seed", "7", "--seeds", str(seeds)])
    assert done.exit_code == code, done.output
    told = json.loads(done.stdout)
    assert [one["seed"] for one in told] == list(range(7, 7 + seeds))
    assert [one["ok"] for one in told] == ok
    for one in told:
        assert one["runs"] == one["completed"] == 12
        assert (one["strikes"], one["takeover_seconds"]) == ({"kills": 1}, {"kill": [0.5]})
        assert {name: v["verdict"] for name, v in one["invariants"].items()} == dict.fromkeys(
            PROMISES, "holds"
        )
    again = "the same plan again: fencepost chaos --seed 8 --runs 12 --keep"
    assert (again in done.stderr) is (code == 1)
