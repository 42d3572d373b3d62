"""What `fencepost up` refuses before it starts anything."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from click.testing import CliRunner

from fencepost import App
from fencepost.capabilities import write_key
from fencepost_ops import cli

_APP = "tests.unit.test_up:asking"

asking = App("asking")
asking.dependency("echo", "https://echo.example", capability=True)


def refused(data: Path, keys: str) -> str:
    """What it says, with nothing started."""
    said = CliRunner().invoke(
        cli.main,
        ["--app", _APP, "up", "--data", str(data), "--no-sandbox", "--no-flower"],
        env={"FENCEPOST_SIGNING_KEYS": keys},
    )
    assert (said.exit_code, data.exists()) == (2, False), said.output
    return said.stderr


def test_an_application_whose_capabilities_nobody_could_sign_is_refused_at_once(tmp_path: Path) -> None:
    said = refused(tmp_path / "data", "")
    assert "dependency echo asks for capabilities, and there are no keys: no dispatcher starts" in said
    assert "fencepost keys new --folder PATH, and set FENCEPOST_SIGNING_KEYS" in said
    keys = tmp_path / "keys"
    assert "cannot be read" in refused(tmp_path / "data", str(keys))
    keys.mkdir()
    write_key(keys, datetime.now(UTC) + timedelta(days=1))
    assert "signs yet; fencepost keys new --at-once" in refused(tmp_path / "data", str(keys))
