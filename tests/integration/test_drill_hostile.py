"""`fencepost drill --hostile`: everything that must never be sent is tried, and nothing is."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from fencepost_ops.cli import main
from fencepost_ops.drill.drill import Drill
from fencepost_ops.drill.hostile import app as tried
from fencepost_ops.drill.hostile import trial
from fencepost_ops.drill.hostile.table import BENIGN, HOSTILE, Hostile


@pytest.fixture(scope="module")
def drill() -> Iterator[Drill]:
    with Drill.opened() as opened:
        yield opened


def test_nothing_that_is_tried_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("approval_denied", "stale_term_is_never_sent")
    monkeypatch.setattr(trial, "_ALONE", {name: trial._ALONE[name] for name in few})
    result = CliRunner().invoke(main, ["drill", "--hostile", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["ok"], found["dispatched"], found["used_well"]) == (True, 0, 3)
    assert len(found["tried"]) > 130
    assert {one["step"] for one in found["tried"]} == {1, 2, 3, 4, 5, 6, 7, 8}
    assert all(one["told"] for one in found["tried"])


def test_what_should_have_been_refused_and_was_not_is_seen(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, text = BENIGN[0]
    slipped = Hostile("one that is fine", tool, text, 1, "syntax")
    for module in (tried, trial):
        monkeypatch.setattr(module, "HOSTILE", (*HOSTILE[:3], slipped))
    monkeypatch.setattr(trial, "_ALONE", {})
    monkeypatch.setattr(trial, "_BESIDE", {})
    found = trial.try_all(drill)
    assert not found.ok
    assert any("expected 0, there were 1" in problem for problem in found.problems)


def test_what_is_refused_for_another_reason_is_seen(drill: Drill, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tried, trial):
        monkeypatch.setattr(module, "HOSTILE", (HOSTILE[0]._replace(code="float"),))
    monkeypatch.setattr(
        trial, "_ALONE", {"approval_denied": (7, "approval_denied"), "receipt_check": (6, "x")}
    )
    monkeypatch.setattr(trial, "_BESIDE", {})
    found = trial.try_all(drill)
    assert not found.ok
    wrong = ["step 1 had to refuse it as float", "step 7 had to refuse it as approval_denied"]
    assert [one.wrong for one in found.tried] == wrong
    assert "receipt_check: nothing was refused" in found.problems


@pytest.mark.parametrize("other", [["--sweep"], ["--prove"], ["same_key_replay"]])
def test_it_goes_with_nothing_else(other: list[str]) -> None:
    assert CliRunner().invoke(main, ["drill", "--hostile", *other]).exit_code == 2
