"""What chaos says of itself: nothing that went wrong is left out, and nothing else is called a problem."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from fencepost_ops.chaos_figures import Figures, Unknowns
from fencepost_ops.chaos_plan import make_chaos
from fencepost_ops.chaos_result import ChaosResult, print_result
from fencepost_ops.checker import PROMISES, Report, Totals, Verdict, Violation
from fencepost_ops.trial import Outcome

TOTALS = Totals(runs=3, completed=2, stopped=1, calls=8, attempts=9, events=90, evidence=1, effects=8)
FIGURES = Figures(3, 2, 1, 8, 9, 8, duplicates=0, lost=0, unknowns=Unknowns(4, 5, 3, 1, 0))
PLAN = make_chaos(7, 3, 30, ["kill", "freeze"])
GOOD = Report(tuple(Verdict(name, 1) for name in PROMISES), TOTALS)
BROKEN = Report((Verdict("I1", 3, (Violation("2 effects of one intent"),)),), TOTALS)


def result(report: Report = GOOD, **changes: Any) -> ChaosResult:
    base: dict[str, Any] = {
        "plan": PLAN,
        "found": False,
        "figures": FIGURES,
        "outcome": Outcome(report, {"tool_failed": 1}, {"debit": 8}, {"delay_before": 1}),
        "others": None,
        "settled": True,
        "settle_within_s": 180.0,
        "repaired": 1,
        "fenced_writes": 2,
        "injected": PLAN.counts,
        "armed": 2,
        "in_hand": {"kill": 4, "host-death": 9},
        "fired": ("planner: planner.after_claim.crash.1",),
        "waits": (0.5, 1.5, 2.5),
        "takeovers": {"kill": [0.25, 0.5]},
        "in_calm": {"kill": [0.25]},
        "never_claimed": 0,
        "ended_unclaimed": 5,
        "tolerance_s": 1.0,
        "seconds": 42.34,
    }
    return ChaosResult(**base | changes)


def test_a_good_chaos_has_no_problems_and_says_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(result())
    said = capsys.readouterr().out
    assert "FAILED" not in said
    assert "p50 0.5 s, p99 0.5 s, max 0.5 s, of 2" in said
    assert "4 calls, 5 times; 3 resolved automatically, 1 by a person, 0 open" in said
    told = json.loads(json.dumps(result().to_json()))
    assert (told["ok"], told["problems"], told["seed"], told["runs"]) == (True, [], 7, 3)
    assert told["injected"] == told["planned"] == PLAN.counts
    assert told["recovery_seconds"]["kill"] == {"count": 2, "p50": 0.5, "p99": 0.5, "max": 0.5}
    assert told["settle_seconds"]["count"] == 3
    assert told["injected_with_work"] == {"kill": 4, "freeze": 0}
    assert (told["never_claimed"], told["ended_unclaimed"]) == (0, 5)
    assert re.search(r"with work in hand +0 freeze, 4 kill", said)
    assert "0; 5 had ended by then" in said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"settled": False}, "not everything settled within 180 s of the last strike"),
        ({"report": BROKEN}, "violated: I1"),
        ({"others": BROKEN}, "violated, by whatever is in this ledger: I1"),
        ({"figures": replace(FIGURES, stopped=0)}, "3 runs were enqueued, 3 are there, 2 have ended"),
        ({"figures": replace(FIGURES, duplicates=2)}, "2 effects too many in the services' own books"),
        ({"figures": replace(FIGURES, lost=1)}, "1 effects or runs are lost"),
        ({"never_claimed": 2}, "2 things that a struck process held were never claimed again"),
        (
            {"injected": {**PLAN.counts, "kill": 3}},
            f"kill could be injected 3 times of {PLAN.counts['kill']}",
        ),
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
    assert bad.to_markdown().startswith("# Chaos, seed 7: failed\n")
    assert says in bad.to_markdown()


def test_a_tolerance_that_is_wider_than_a_checks_own_is_told_everywhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wide = result(tolerance_s=8.7)
    note = "8.7 s between the clocks of the ledger, which jumps, and of the services, for every effect"
    print_result(wide)
    assert note in capsys.readouterr().out
    assert f"| tolerance | {note} |" in wide.to_markdown()
    assert wide.to_json()["tolerance_seconds"] == 8.7
    assert "tolerance" not in dict(result().rows())


def test_fault_points_count_as_injected_when_they_fired_and_half_of_them_must() -> None:
    plan = make_chaos(7, 3, 60, ["kill", "fault-point"])
    armed, names = plan.counts["fault-point"], tuple(f"planner: {n}" for n in range(9))
    assert armed == 6

    def tried(fired: int, armed: int = armed) -> ChaosResult:
        injected = {"kill": plan.counts["kill"], "fault-point": fired}
        return result(plan=plan, armed=armed, fired=names[:fired], injected=injected)

    assert tried(3).problems == []
    assert tried(3).to_json()["injected"]["fault-point"] == 3
    assert tried(3).to_json()["fault_points_armed"] == 6
    assert ("fault points fired", "3 of 6 armed") in tried(3).rows()
    assert tried(2).problems == ["only 2 of 6 fault points that were armed have fired"]
    assert tried(5, armed=5).problems == ["fault-point could be injected 5 times of 6"]


def test_the_document_has_every_number_every_fault_and_every_verdict() -> None:
    text = result().to_markdown()
    assert text.startswith("# Chaos, seed 7: passed\n")
    for what, how_many in result().rows():
        assert f"| {what.strip()} | {how_many} |" in text
    for fault, count in PLAN.counts.items():
        assert f"| {fault} | {count} | {count} |" in text
    assert all(f"| {name} | holds |" in text for name in PROMISES)
    assert "- I1 is violated: 2 effects of one intent" in result(BROKEN).to_markdown()
