"""The options for many histories, and what is printed of them, without any history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner

from fencepost_ops.drill import many
from fencepost_ops.drill.command import drill
from fencepost_ops.drill.explore import explored
from fencepost_ops.drill.jobs import HUNG, Told
from fencepost_ops.drill.protocol import Protocol, parse_protocol, read_protocol
from fencepost_ops.drill.races import asked

BAD = Told(3, Protocol(name="bad"), ("I1",), ("violated: I1", "I1: two effects"))


@pytest.mark.parametrize(
    "words",
    [
        ["--sweep", "--explore", "3"],
        ["--sweep", "receipt_check"],
        ["--explore", "3", "--list"],
        ["--explore-one", "3", "--races", "2"],
        ["--sweep", "--sabotage", "blind_retry"],
        ["--quick"],
        ["--explore", "0"],
    ],
)
def test_what_does_not_go_together_is_a_usage_error(words: list[str]) -> None:
    found = CliRunner().invoke(drill, words)
    assert found.exit_code == 2, found.output


def test_the_protocol_of_any_random_history_can_be_had() -> None:
    found = CliRunner().invoke(drill, ["--explore-one", "17", "--seed", "4"])
    assert found.exit_code == 0
    assert parse_protocol(found.stdout, "it") == explored(4, 17)


def test_a_failure_becomes_a_file_that_says_what_it_shows(tmp_path: Path) -> None:
    file = many.keep(tmp_path / "made", BAD.protocol, "Fails: I1: two effects")
    assert file.name == "bad.json"
    assert read_protocol(file).about == "Fails: I1: two effects"
    assert json.loads(file.read_text())["name"] == "bad"


class Interrupted:
    """A crew that finds one failure, and then its user has had enough."""

    def __init__(self, _jobs: int = 1) -> None:
        self.ran = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def run(self, _histories: object) -> Iterator[Told]:
        self.ran += 1
        yield BAD
        raise KeyboardInterrupt


def test_what_failed_before_an_interrupt_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "Crew", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        many.explore_all(9, seed=1, jobs=1, failures=tmp_path, as_json=True)
    assert read_protocol(tmp_path / "bad.json").about == "Fails: violated: I1; I1: two effects"


def test_a_history_that_hangs_is_kept_as_it_is() -> None:
    crew = Interrupted()
    protocol, about = many.shortened(crew, Told(1, BAD.protocol, (HUNG,), ("it took more than 180 s",)))
    assert (protocol, crew.ran) == (BAD.protocol, 0)
    assert about == "Not shrunk, as each try would hang for minutes. Fails: it took more than 180 s"


def test_the_runs_of_a_race_are_the_seeds_and_collide() -> None:
    assert asked(3) == asked(3) != asked(4)
    for seed in range(20):
        meant = [(run.input["contract"], run.input["reference"]) for run in asked(seed)]
        assert len(set(meant)) <= 6 < len(meant), "most mean what another means too"
