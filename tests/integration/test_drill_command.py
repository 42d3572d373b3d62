"""`fencepost drill` as whoever types it meets it: in a process and on a Postgres of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fencepost_ops.cli import main
from fencepost_ops.drill.protocol import Protocol
from fencepost_ops.drill.shipped import shipped_protocol

PATIENCE_S = 200


def started(*arguments: str, hash_seed: str = "random", **others: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fencepost_ops.cli", "drill", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, **others},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    with process:
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    return process.returncode, out, err


@pytest.mark.timeout(2 * PATIENCE_S)
def test_the_same_protocol_gives_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    one = started("undo_overtakes", "--json", "--report", str(report), hash_seed="1")
    other = started("undo_overtakes", "--json", hash_seed="2", TZ="Asia/Tokyo", FENCEPOST_SLOTS="3")
    (code, first, _), (same_code, again, _) = ended(one), ended(other)
    assert (code, same_code) == (0, 0)
    assert first == again
    told = json.loads(first)
    assert told["ok"]
    assert told["faults"][0]["left"]["owner"] == "reconciler"
    assert told["faults"][0]["replayed"] == told["faults"][0]["left"]["projection"]
    assert report.read_text().startswith("# Drill `undo_overtakes`: as predicted\n")


@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_prediction_that_is_wrong_is_exit_code_1_and_a_sentence(tmp_path: Path) -> None:
    right = shipped_protocol("receipt_check")
    (fault,) = right.faults
    assert fault.predict is not None
    wrong = fault.model_copy(update={"predict": fault.predict.model_copy(update={"owner": "dispatcher"})})
    path = tmp_path / "wrong.json"
    path.write_text(Protocol.model_validate(dict(right) | {"faults": [wrong]}).to_text())
    code, out, _ = ended(started(str(path)))
    assert code == 1
    assert (
        "not as it should be: crash at dispatch.after_effect, passage 1: owner: predicted dispatcher, "
        "it was reconciler"
    ) in out
    assert "the lookup by key found receipt lookup-1" in out
    assert "I1         holds" in out


def test_a_server_that_does_not_start_is_exit_code_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    result = CliRunner().invoke(main, ["drill", "receipt_check"])
    assert result.exit_code == 3, result.output
    assert result.stderr.startswith("fencepost: ")
