"""The protocol file: its published schema, what it refuses and in which words, and those that come along."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fencepost.errors import UsageError
from fencepost_ops.cli import main
from fencepost_ops.drill import protocol as module
from fencepost_ops.drill.protocol import Protocol, json_schema, parse_protocol, read_protocol
from fencepost_ops.drill.shipped import find_protocol, shipped_names, shipped_protocol

SCHEMA = Path(module.__file__).with_name("protocol.schema.json")
FAULT = {"at": "dispatch.after_effect", "do": "crash"}


def refused(**fields: Any) -> str:
    with pytest.raises(UsageError) as caught:
        parse_protocol(json.dumps({"name": "p", **fields}), "p.json")
    return str(caught.value)


def test_the_published_schema_is_what_protocols_are_read_by() -> None:
    assert SCHEMA.read_text() == json.dumps(json_schema(), indent=2) + "\n"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"faults": [{"at": "nowhere", "do": "crash"}]},
            "faults[0]: unknown fault point 'nowhere'; known are",
        ),
        ({"faults": [FAULT, {"at": "dispatch.after_effect"}]}, "faults[1].do: it is missing"),
        ({"faults": [{**FAULT, "do": "explode"}]}, "faults[0].do: should be 'crash', 'pause', 'error'"),
        (
            {"faults": [{**FAULT, "do": "lost"}]},
            "faults[0]: nothing can be lost at dispatch.after_effect; only at",
        ),
        ({"faults": [{**FAULT, "do": "delay"}]}, "faults[0]: a delay says for how many seconds: for_s"),
        ({"faults": [{**FAULT, "answers": 504}]}, "faults[0]: answers goes with lost or delay at"),
        ({"faults": [{**FAULT, "nth": 0}]}, "faults[0].nth: should be greater than or equal to 1"),
        ({"colour": "red"}, "colour: there is nothing of this name here"),
        ({"expect": {"efects": {}}}, "expect.efects: there is nothing of this name here"),
        ({"seed": "1"}, "seed: should be a valid integer"),
        ({"runs": []}, "runs: list should have at least 1 item"),
        (
            {"services": {"lookup": {"refuses": [200]}}},
            "services.lookup.refuses[0]: should be greater than or",
        ),
        ({"version": 2}, "version: should be 1"),
        ({"name": "no spaces"}, "name: string should match pattern"),
    ],
)
def test_every_problem_is_told_with_its_place(fields: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(**fields)


def test_all_problems_of_a_file_are_told_at_once() -> None:
    said = refused(seed=-1, faults=[{"at": "nowhere", "do": "crash"}])
    assert said.startswith("the protocol p.json is none: ")
    assert "seed: " in said
    assert "faults[0]: " in said


def test_what_is_no_json_or_no_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the protocol p\.json is not JSON: "):
        parse_protocol("{", "p.json")
    with pytest.raises(UsageError, match=r"the protocol p\.json is none: the whole: "):
        parse_protocol("[]", "p.json")
    with pytest.raises(UsageError, match="cannot be read"):
        read_protocol(tmp_path / "absent.json")


def test_a_protocol_written_and_read_again_is_the_same() -> None:
    for name in shipped_names():
        one = shipped_protocol(name)
        assert parse_protocol(one.to_text(), name) == one


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_protocol_says_what_it_shows_and_predicts_every_fault(name: str) -> None:
    one = shipped_protocol(name)
    assert one.name == name
    assert one.about.endswith(".")
    assert all(fault.predict is not None for fault in one.faults)
    assert one.expect.effects
    assert one.expect.dispatches is not None


def test_a_name_is_a_file_before_it_is_a_shipped_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_protocol("receipt_check") == shipped_protocol("receipt_check")
    Path("receipt_check").write_text(Protocol(name="mine").to_text())
    assert find_protocol("receipt_check").name == "mine"
    with pytest.raises(UsageError, match=r"there is no file absent\.json"):
        find_protocol("absent.json")
    with pytest.raises(UsageError, match="no protocol is called 'absent'"):
        find_protocol("absent")


def test_the_command_lists_what_there_is_and_prints_the_schema() -> None:
    listed = CliRunner().invoke(main, ["drill", "--list", "--json"])
    assert listed.exit_code == 0
    assert [one["name"] for one in json.loads(listed.stdout)] == shipped_names()
    assert CliRunner().invoke(main, ["drill", "--schema"]).stdout == SCHEMA.read_text()


@pytest.mark.parametrize("arguments", [[], ["receipt_check", "--list"], ["--list", "--schema"]])
def test_the_command_does_one_thing_at_a_time(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, ["drill", *arguments]).exit_code == 2


def test_a_file_that_is_no_protocol_is_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"name": "p", "faults": [{"at": "nowhere", "do": "crash"}]}')
    result = CliRunner().invoke(main, ["drill", str(path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("fencepost: the protocol ")
    assert "faults[0]: unknown fault point 'nowhere'" in result.stderr


@pytest.mark.parametrize(
    "name",
    [
        "invalid_arguments_are_never_sent",
        "truncated_arguments_are_never_sent",
        "values_refused_in_arguments",
        "unauthorised_is_never_sent",
        "grant_revoked_before_dispatch",
        "expired_is_never_sent",
        "deadline_ends_what_was_not_sent",
        "stale_term_is_never_sent",
    ],
)
def test_what_must_not_be_sent_is_expected_to_reach_nobody(name: str) -> None:
    expect = shipped_protocol(name).expect
    assert expect.dispatches == 0
    assert set(expect.effects.values()) == {0}
    assert not expect.violated


def test_the_opening_failure_is_one_crash_and_three_ways_on() -> None:
    three = [shipped_protocol(name) for name in ("blind_retry", "receipt_check", "same_key_replay")]
    assert len({one.faults[0].model_dump_json() for one in three}) == 1
    wrong, asked, repeated = (one.expect for one in three)
    assert (wrong.effects, wrong.violated) == ({"lookup": 2}, ["I1"])
    assert (asked.effects, asked.violated, asked.dispatches) == ({"lookup": 1}, [], 1)
    assert (repeated.effects, repeated.violated) == ({"dedupes": 1}, [])
    assert (repeated.attempts_at_least, repeated.dispatches) == (2, 2)
