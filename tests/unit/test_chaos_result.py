"""What chaos says of a seed: nothing that went wrong is left out, and nothing else is called a problem."""

import json
from typing import Any

import pytest

from fencepost_ops.chaos import ChaosResult, print_result
from fencepost_ops.chaos_plan import make_chaos
from fencepost_ops.checker import PROMISES, Report, Totals, Verdict, Violation
from fencepost_ops.trial import Outcome

TOTALS = Totals(runs=3, completed=2, stopped=1, calls=8, attempts=9, events=90, evidence=1, effects=8)


def result(report: Report | None = None, **changes: Any) -> ChaosResult:
    held = report or Report(tuple(Verdict(name, 1) for name in PROMISES), TOTALS)
    base: dict[str, Any] = {
        "plan": make_chaos(7, 3),
        "outcome": Outcome(held, {"tool_failed": 1}, {"debit": 8}, {"delay_before": 1}),
        "settled": True,
        "repaired": 0,
        "fenced_writes": 2,
        "strikes": {"kills": 10},
        "fired": ("planner: planner.after_claim.crash.1",),
        "takeovers": {"kill": [0.25, 0.5]},
        "seconds": 12.34,
    }
    return ChaosResult(**base | changes)


BROKEN = Report((Verdict("I1", 3, (Violation("2 effects of one intent"),)),), TOTALS)


def test_a_good_seed_has_no_problems_and_says_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(result())
    said = capsys.readouterr().out
    assert "FAILED" not in said
    assert "p50 0.5 s, max 0.5 s, of 2" in said
    told = json.loads(json.dumps(result().to_json()))
    assert (told["ok"], told["problems"], told["seed"], told["runs"]) == (True, [], 7, 3)
    assert told["takeover_seconds"] == {"kill": [0.25, 0.5]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"settled": False}, "not everything settled within 120 s of the last strike"),
        ({"report": BROKEN}, "violated: I1"),
        ({"plan": make_chaos(7, 4)}, "4 runs were enqueued, 3 are there, 3 have ended"),
    ],
)
def test_whatever_went_wrong_is_a_problem(
    changes: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = result(**changes)
    assert bad.problems == [says]
    assert bad.to_json()["ok"] is False
    print_result(bad)
    assert f"FAILED: {says}" in capsys.readouterr().out
