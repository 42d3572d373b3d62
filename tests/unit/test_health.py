"""The health file: touched by a process that is well, judged by a program that starts in no time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fencepost.health import HealthFile, main, verdict


@pytest.mark.parametrize(
    ("path", "touched", "healthy", "said"),
    [
        ("f", 100.0, True, "healthy: f was touched 0.0 s ago"),
        ("f", 85.0, True, "healthy: f was touched 15.0 s ago"),
        ("f", 84.0, False, "unhealthy: f was touched 16 s ago, not within 15 s"),
        ("f", 114.0, True, "healthy: f was touched 14.0 s ago"),
        ("f", 3700.0, False, "unhealthy: f was touched 3600 s ago, not within 15 s"),
        ("f", None, False, "unhealthy: there is no f; the process has not been healthy yet"),
        ("", None, False, "unhealthy: set FENCEPOST_HEALTH_FILE to the file that the process touches"),
    ],
)
def test_a_file_is_judged_by_its_age(path: str, touched: float | None, healthy: bool, said: str) -> None:
    assert verdict(path, touched, 100.0, 15.0) == (healthy, said)


def test_a_touch_makes_the_file_and_then_moves_its_time(tmp_path: Path) -> None:
    path = tmp_path / "healthy"
    file = HealthFile(str(path))
    assert file.touch()
    os.utime(path, (1, 1))
    assert file.touch()
    assert abs(time.time() - path.stat().st_mtime) < 60


def test_a_file_that_cannot_be_touched_is_said_once(tmp_path: Path) -> None:
    file = HealthFile(str(tmp_path / "missing" / "healthy"))
    assert [file.touch(), file.touch()] == [False, True]
    assert "FENCEPOST_HEALTH_FILE" in file.error
    (tmp_path / "missing").mkdir()
    assert file.touch()
    assert file.error == ""


def test_without_a_path_nothing_is_touched() -> None:
    assert HealthFile("").touch()


@pytest.mark.parametrize("given", [["--within"], ["--within", "x"], ["--within", "0"], ["--in", "3"], ["3"]])
def test_wrong_usage_is_said(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 2
    assert capsys.readouterr().err == "usage: python -m fencepost.health [--within SECONDS]\n"


def test_the_program_answers_by_its_exit_code_and_loads_no_library(tmp_path: Path) -> None:
    path = tmp_path / "healthy"
    env = {**os.environ, "FENCEPOST_HEALTH_FILE": str(path)}

    def ask(*given: str) -> tuple[int, str]:
        command = [sys.executable, "-X", "importtime", "-m", "fencepost.health", *given]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert not {"pydantic", "psycopg", "redis", "asyncio"} & set(done.stderr.replace("|", " ").split())
        return done.returncode, done.stdout

    code, said = ask()
    assert (code, said.partition(":")[0]) == (1, "unhealthy")
    path.touch()
    code, said = ask("--within", "60")
    assert (code, said.partition(":")[0]) == (0, "healthy")
