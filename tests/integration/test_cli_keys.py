"""`fencepost keys`, and what the doctor says of them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fencepost.authority.capabilities import Capability
from fencepost.capabilities import read_keys, sign, verify, write_key
from fencepost.dependencies import DependencySpec
from fencepost_ops import cli
from fencepost_ops.doctor.findings import Level
from fencepost_ops.doctor.signing import judge_signing

NOW = datetime.now(UTC)
ASKS = DependencySpec("pay", "https://pay.example", capability=True)
PLAIN = DependencySpec("shop", "https://shop.example")


def said(*args: str, code: int = 0, **env: str) -> str:
    result = CliRunner(env=env).invoke(cli.main, ["keys", *args])
    assert result.exit_code == code, result.output
    assert "PRIVATE" not in result.output
    return result.stdout if code != 2 else result.stderr


@pytest.fixture
def folder(tmp_path: Path, no_settings: None) -> str:
    return str(tmp_path / "keys")


def test_keys_are_made_listed_exported_and_rotated(folder: str) -> None:
    assert "signs from now on" in said("new", FENCEPOST_SIGNING_KEYS=folder)
    (alone,) = read_keys(folder)
    (Path(folder) / alone.file).unlink()
    write_key(folder, NOW - timedelta(hours=1))
    made = json.loads(said("new", "--folder", folder, "--json"))
    assert made["state"] == "will sign"
    assert [row["state"] for row in json.loads(said("list", "--folder", folder, "--json"))] == [
        "signs",
        "will sign",
    ]
    first, second = read_keys(folder)
    assert timedelta(hours=24) < second.since - first.since < timedelta(hours=26)
    jwks = json.loads(said("export", "--folder", folder))
    assert {key["kid"] for key in jwks["keys"]} == {first.kid, second.kid}
    assert not any("d" in key for key in jwks["keys"])
    told = Capability(
        "i", "t", "p", "a@1", None, None, "h", None, "r", "c", 1, 1, NOW, NOW + timedelta(minutes=1)
    )
    where: dict[str, Any] = {"audience": "x", "method": "POST", "url": "https://a.example/", "body": b""}
    for key in (first, second):
        assert verify(sign(told, key, **where), jwks, **where, now=NOW).id == "i"
    third = json.loads(said("new", "--folder", folder, "--at-once", "--json"))
    assert third["state"] == "signs"
    table = said("list", "--folder", folder)
    assert sorted(line.rstrip().rpartition("  ")[2] for line in table.splitlines()[1:]) == [
        "signs",
        "verifies",
        "will sign",
    ]


def test_a_folder_that_is_none_is_named_in_a_sentence(folder: str) -> None:
    assert "name the folder of the keys" in said("list", code=2)
    assert "cannot be read" in said("list", "--folder", folder, code=2)
    assert "keep one of them" in said("new", "--folder", folder, "--in", "1h", "--at-once", code=2)
    said("new", "--folder", folder, "--in", "2h")
    assert "will sign" in said("list", "--folder", folder, code=1)


def found(folder: str, *dependencies: DependencySpec) -> list[tuple[Level, str]]:
    return [(one.level, one.says) for one in judge_signing(folder, dependencies, datetime.now(UTC))]


def test_the_doctor_says_what_keeps_capabilities_from_being_signed(folder: str) -> None:
    assert found("", PLAIN) == []
    ((level, says),) = found("", PLAIN, ASKS)
    assert level is Level.PROBLEM
    assert "dependency pay asks for capabilities, and there are no keys" in says
    ((level, says),) = found(folder, ASKS)
    assert (level, "cannot be read" in says) == (Level.PROBLEM, True)
    said("new", "--folder", folder, "--in", "1h")
    levels = [level for level, _ in found(folder, ASKS)]
    assert levels == [Level.PROBLEM, Level.NOTE]
    said("new", "--folder", folder, "--at-once")
    assert [level for level, _ in found(folder)] == [Level.OK, Level.NOTE]
    (Path(folder) / read_keys(folder)[0].file).chmod(0o644)
    assert [level for level, _ in found(folder)] == [Level.OK, Level.WARNING, Level.NOTE]


APP = """
from pydantic import BaseModel
from fencepost import App, Effect, Request

app = App("outgoing")
inside = ("10.1.0.0/16",)
web = app.dependency("web", "env:WEB_URL", hosts=("*.example.com",), private=inside, capability=True)


class Page(BaseModel):
    url: str
    retryCount: int = 0
    hint: str = ""


@web.http("web.fetch", effect=Effect.READ)
def fetch(args: Page) -> Request:
    return Request.get(args.url)


@web.http("web.guess", effect=Effect.READ, cosmetic=("hint",))
def guess(args: Page) -> Request:
    return Request.get(args.url)


app.allow("svc:*", tools=["web.*"])
"""


def test_tools_are_listed_with_where_they_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outgoing_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    args = ["tools", "--app", "outgoing_app:app"]
    told = CliRunner().invoke(cli.main, args)
    assert "  goes to env:WEB_URL, *.example.com, with a capability in Fencepost-Capability\n" in told.stdout
    assert "  counts  retryCount (by name; cosmetic=() if they mean something)\n" in told.stdout
    assert "  counts  hint\n" in told.stdout
    listed, guess = json.loads(CliRunner().invoke(cli.main, [*args, "--json"]).stdout)
    assert (listed["cosmetic"], listed["cosmetic_declared"]) == (["retryCount"], False)
    assert (guess["cosmetic"], guess["cosmetic_declared"]) == (["hint"], True)
    assert listed["goes_to"] == ["env:WEB_URL", "*.example.com"]
    assert listed["private"] == ["10.1.0.0/16"]
