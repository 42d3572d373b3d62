"""What a demo says of itself: nothing that went wrong is left out, and a failure has its exit code."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fencepost_ops.checker import PROMISES, Report, Totals, Verdict, Violation
from fencepost_ops.demo_result import DemoResult, print_result
from fencepost_ops.demo_screen import FleetLog, Screen

TOTALS = Totals(runs=3, completed=2, stopped=1, calls=8, attempts=9, events=90, evidence=1, effects=8)


def result(**changes: Any) -> DemoResult:
    verdicts = tuple(Verdict(name, 1) for name in PROMISES)
    base: dict[str, Any] = {
        "seed": 7,
        "runs": 3,
        "settled": True,
        "killed": 10,
        "frozen": 2,
        "fenced_writes": 2,
        "repaired": 0,
        "seconds": 12.34,
        "reasons": {"tool_failed": 1},
        "effects": {"debit": 8},
        "faults": {"delay_before": 1},
        "missing_faults": (),
        "expected": (10, 2),
        "report": Report(verdicts, TOTALS),
    }
    return DemoResult(**base | changes)


def violated() -> Report:
    broken = Verdict("I1", 3, (Violation("2 effects of one intent"),))
    return Report((broken, *(Verdict(name, 1) for name in PROMISES if name != "I1")), TOTALS)


def test_a_good_demo_has_no_problems_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(result())
    assert result().problems == []
    assert "every invariant holds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"settled": False}, "not everything settled in time"),
        ({"report": violated()}, "violated: I1"),
        ({"runs": 4}, "4 runs were enqueued, 3 are there, 3 have ended"),
        ({"killed": 9}, "9 of 10 kills"),
        ({"frozen": 1}, "1 of 2 freezes"),
        ({"missing_faults": ("refuse",)}, "no order met the faults refuse"),
    ],
)
def test_whatever_went_wrong_is_a_problem(
    changes: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = result(**changes)
    (problem,) = bad.problems
    assert says in problem
    assert bad.to_json()["ok"] is False
    print_result(bad)
    said = capsys.readouterr().out
    assert f"FAILED: {problem}" in said
    assert "every invariant holds" not in said


def test_a_violation_is_named_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(result(report=violated()))
    assert "I1 is violated: 2 effects of one intent" in capsys.readouterr().out


def test_the_json_has_every_number_and_every_invariant() -> None:
    told = json.loads(json.dumps(result().to_json()))
    expected = {
        "runs": 3,
        "completed": 2,
        "stopped": 1,
        "calls": 8,
        "attempts": 9,
        "effects": 8,
        "killed": 10,
        "frozen": 2,
        "fenced_writes": 2,
        "evidence": 1,
        "seconds": 12.3,
        "seed": 7,
    }
    assert {name: told[name] for name in expected} == expected
    wanted = {"I1", "I2", "I4", "I5", "I6", "I7", "I8", "I9", "I11", "I12"}
    assert wanted <= told["invariants"].keys()
    assert all({"verdict", "count", "violations"} <= i.keys() for i in told["invariants"].values())


def test_a_repair_is_shown_and_never_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(replace(result(), repaired=2))
    assert "2 calls, by a person" in capsys.readouterr().out


def test_late_writes_are_counted_from_what_the_fleet_says(tmp_path: Path) -> None:
    with FleetLog(tmp_path / "fleet.log") as log:
        log.write("dispatcher | dispatcher: not recorded: Fenced()\n")
        log.write("dispatcher | fenced out; its answer is filed as evidence: Done(state='UNKNOWN')\n")
        log.write("dispatcher | not recorded: Broken(why='x')\n")
        assert log.fenced_writes == 2
    assert (tmp_path / "fleet.log").read_text().count("\n") == 3


def test_what_happens_is_said_in_plain_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Screen(10) as screen:
        screen.say("killed relay (pid 7)")
        screen.ended(3)
    said = capsys.readouterr().out
    assert "s  killed relay (pid 7)\n" in said
    assert "\x1b" not in said
