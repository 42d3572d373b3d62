import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from fencepost import App, Effect
from fencepost.secrets import SecretRef
from fencepost_ops import cli
from fencepost_ops.doctor.findings import Finding, Level
from fencepost_ops.doctor.secrets import judge_secrets

THIS = "tests.unit.test_doctor_secrets:app"


class Login(BaseModel):
    password: SecretRef


def logging_in(name: str) -> App:
    made = App(name)

    @made.python("mail.login", effect=Effect.READ, secrets=("mailbox/*", "shared/smtp"))
    def login(args: Login, attempt: Any) -> dict[str, str]:
        return {}

    made.allow("*", tools=["mail.*"])
    return made


app = logging_in("mailing")


def only(folder: str, of: App = app) -> Finding:
    (finding,) = judge_secrets(folder, of)
    return finding


def test_where_secrets_come_from_is_said_only_where_a_tool_may_name_them(tmp_path: Path) -> None:
    assert not list(judge_secrets(str(tmp_path), App("plain")))
    fine = only(str(tmp_path))
    assert (fine.level, str(tmp_path) in fine.says) == (Level.OK, True)
    assert "FENCEPOST_SECRET_*" in only("").says
    own = logging_in("own")
    own.secrets(lambda _tenant, _name: None)
    assert "resolves them itself" in only(str(tmp_path / "none"), own).says


def test_a_folder_that_cannot_be_read_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = only(str(tmp_path / "none"))
    assert (missing.level, "does not exist" in missing.says) == (Level.PROBLEM, True)
    monkeypatch.setattr(os, "access", lambda *_: False)  # whoever runs the tests may be root
    closed = only(str(tmp_path))
    assert (closed.level, "cannot be read by this login" in closed.says) == (Level.PROBLEM, True)


def test_tools_lists_what_secrets_a_tool_may_name() -> None:
    told = CliRunner().invoke(cli.main, ["tools", "--app", THIS])
    assert "  secrets mailbox/*, shared/smtp\n" in told.stdout
    listed = CliRunner().invoke(cli.main, ["tools", "--app", THIS, "--json"])
    assert '"mailbox/*"' in listed.stdout
