"""`fencepost chaos` asks for one trial of its plan, and answers with its report and its exit code."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fencepost.errors import Unreachable, UsageError
from fencepost_ops import chaos as module
from fencepost_ops.chaos import chaos, renamed
from fencepost_ops.chaos_plan import FAULTS, OWN_ONLY, SCALE, ChaosPlan, Doze, make_chaos
from fencepost_ops.chaos_result import ChaosResult
from fencepost_ops.local import LocalServerError
from fencepost_ops.sandbox.process import SandboxError
from tests.unit.test_chaos_result import FIGURES, GOOD, result


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What chaos was asked for; `settled` is what comes of it."""
    asked: dict[str, Any] = {"settled": True}

    def trial(plan: ChaosPlan, wanted: Any, folder: Path) -> ChaosResult:
        (folder / "chaos.log").write_text("a strike\n")
        asked.update(plan=plan, scale=wanted.scale, data=wanted.data, folder=folder)
        runs = len(plan.arrivals)
        figures = replace(FIGURES, runs=runs, completed=runs, stopped=0)
        return replace(
            result(GOOD),
            plan=plan,
            figures=figures,
            injected=plan.counts,
            armed=plan.counts.get("fault-point", 0),
            fired=("it",) * plan.counts.get("fault-point", 0),
            settled=asked["settled"],
        )

    monkeypatch.setattr(module, "_own", trial)
    monkeypatch.setattr(module, "_found", trial)
    return asked


def test_a_plan_is_tried_once_told_in_json_and_leaves_nothing(tried: dict[str, Any], tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    given = ["--json", "--runs", "12", "--seconds", "30", "--seed", "7", "--scale", "relay=1"]
    done = CliRunner().invoke(chaos, [*given, "--report", str(report)])
    assert done.exit_code == 0, done.output
    assert tried["plan"] == make_chaos(7, 12, 30.0)
    assert tried["scale"] == {**SCALE, "relay": 1}
    told = json.loads(done.stdout)
    assert (told["seed"], told["ok"], told["runs"], told["faults"], told["kept"]) == (
        7,
        True,
        12,
        list(FAULTS),
        None,
    )
    assert report.read_text().startswith("# Chaos, seed 7: passed")
    assert not tried["folder"].exists()


def test_one_that_failed_is_kept_and_says_how_to_try_it_again(tried: dict[str, Any]) -> None:
    tried["settled"] = False
    given = ["--json", "--runs", "12", "--seconds", "30", "--seed", "8", "--faults", "kill,clock"]
    done = CliRunner().invoke(chaos, [*given, "--scale", "relay=1"])
    assert done.exit_code == 1
    again = "again: fencepost chaos --seed 8 --runs 12 --seconds 30 --faults kill,clock --scale relay=1"
    assert again in done.stderr
    kept = Path(json.loads(done.stdout)["kept"])
    assert (kept / "chaos.log").read_text() == "a strike\n"
    (kept / "chaos.log").unlink()
    kept.rmdir()


@pytest.mark.parametrize(
    ("broke", "said"),
    [
        (SandboxError("the sandbox did not start: no port"), Unreachable),
        (LocalServerError("Postgres was killed and still runs after 30 s"), Unreachable),
        (TimeoutError("not ready after 60 s: planner"), Unreachable),
        (RuntimeError("dictionary changed size during iteration"), RuntimeError),
    ],
)
def test_only_what_cannot_be_reached_is_unreachable_and_a_bug_of_ours_is_a_bug(
    broke: Exception, said: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any) -> ChaosResult:
        raise broke

    monkeypatch.setattr(module, "_own", breaks)
    done = CliRunner().invoke(chaos, ["--runs", "5"])
    assert type(done.exception) is said
    assert str(done.exception) == str(broke)


def test_only_the_faults_asked_for_come(tried: dict[str, Any]) -> None:
    done = CliRunner().invoke(chaos, ["--runs", "5", "--faults", "freeze, kill"])
    assert done.exit_code == 0, done.output
    assert tried["plan"].faults == ("kill", "freeze")


@pytest.mark.parametrize("faults", ["", "kill,meteor"])
def test_a_fault_there_is_not_is_usage(faults: str, tried: dict[str, Any]) -> None:
    done = CliRunner().invoke(chaos, ["--faults", faults])
    assert done.exit_code == 2
    assert "is no fault; there are kill, freeze" in done.stderr
    assert "plan" not in tried


def test_a_fleet_that_was_found_meets_all_that_it_can_meet(tried: dict[str, Any], tmp_path: Path) -> None:
    done = CliRunner().invoke(chaos, ["--data", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert tried["data"] == tmp_path
    plan = tried["plan"]
    assert set(plan.faults) == set(FAULTS) - OWN_ONLY
    assert not any(isinstance(one, Doze) and (one.host or one.role == "relay") for _, one in plan.strikes)
    assert done.output.splitlines()[0].endswith("postgres-restart; no freezes of relays or of pulses")


def test_the_help_says_what_the_exit_code_means_and_whom_it_does_not_freeze() -> None:
    said = " ".join(CliRunner().invoke(chaos, ["--help"]).output.split())
    assert "if a strike of the plan could not be made" in said
    assert "if an order or an effect is missing" in said
    assert "neither a relay nor a worker with its pulse is frozen" in said


@pytest.mark.parametrize("fault", sorted(OWN_ONLY))
def test_what_a_found_fleet_cannot_meet_is_refused_if_asked_for(
    fault: str, tried: dict[str, Any], tmp_path: Path
) -> None:
    done = CliRunner().invoke(chaos, ["--data", str(tmp_path), "--faults", f"kill,{fault}"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(f"{fault}: only on a fleet that chaos starts itself")
    assert "plan" not in tried


def test_a_folder_on_which_nothing_runs_is_usage(tmp_path: Path) -> None:
    done = CliRunner().invoke(chaos, ["--data", str(tmp_path)])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(f"no `fencepost up` runs on {tmp_path}; start one there")


def test_a_report_that_cannot_be_written_is_said_before_anything_starts(
    tried: dict[str, Any], tmp_path: Path
) -> None:
    done = CliRunner().invoke(chaos, ["--report", str(tmp_path / "no" / "report.md")])
    assert isinstance(done.exception, UsageError)
    assert "plan" not in tried


def test_on_a_found_fleet_orders_accounts_and_goods_have_names_of_their_own() -> None:
    plan = make_chaos(3, 200, 60)
    other = renamed(plan, "c")
    assert other.counts == plan.counts
    assert all(
        order.id == order.input["order_id"] == f"c.{was.id}"
        for order, was in zip(other.orders, plan.orders, strict=True)
    )
    accounts = {order.input["account"] for order in other.orders}
    assert other.poor in accounts
    assert plan.poor not in accounts
    assert other.scarce[0] in {order.input["sku"] for order in other.orders}
