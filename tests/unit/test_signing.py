"""The keys of one process: without one it does not start, and it follows their rotation."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fencepost import App
from fencepost.capabilities import read_keys, write_key
from fencepost.errors import UsageError
from fencepost.settings import Settings
from fencepost.states import Queue
from fencepost_workers import signing
from fencepost_workers.signing import Signer, signer_of
from fencepost_workers.worker import Worker


def asking_app() -> App:
    app = App("asking")
    app.dependency("plain", "https://plain.example")
    app.dependency("echo", "https://echo.example", capability=True)
    return app


def test_a_process_that_could_not_sign_does_not_start(tmp_path: Path) -> None:
    asking = asking_app().dependencies
    with pytest.raises(UsageError, match="echo asks for capabilities; set FENCEPOST_SIGNING_KEYS"):
        signer_of("", asking)
    with pytest.raises(UsageError, match="cannot be read"):
        signer_of(str(tmp_path / "none"), asking)
    with pytest.raises(UsageError, match="no signing key whose time has come"):
        signer_of(str(tmp_path), asking)
    write_key(tmp_path, datetime.now(UTC) + timedelta(days=1))
    with pytest.raises(UsageError, match="no signing key whose time has come"):
        signer_of(str(tmp_path), asking)
    assert signer_of("", App("plain").dependencies) is None


@pytest.mark.parametrize("role", [Queue.DISPATCHER, Queue.RECONCILER])
def test_a_worker_that_could_not_sign_says_so_before_it_opens_anything(
    role: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FENCEPOST_SIGNING_KEYS", raising=False)
    settings = Settings(
        dsn="postgresql://nobody@127.0.0.1:1/none", redis_url="redis://127.0.0.1:1", app="x:y"
    )
    with pytest.raises(UsageError, match="asks for capabilities; set FENCEPOST_SIGNING_KEYS"):
        Worker(settings, role, asking_app())


def test_a_new_key_is_used_and_lost_ones_still_are_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(signing, "boottime", lambda: now[0])
    first = write_key(tmp_path, datetime.now(UTC) - timedelta(hours=2))
    signer = Signer(lambda: read_keys(tmp_path))
    second = write_key(tmp_path, datetime.now(UTC) - timedelta(hours=1))
    assert signer._current().kid == first.kid
    now[0] += signing.LOOK_S
    assert signer._current().kid == second.kid
    (tmp_path / "broken.pem").write_text("?")
    now[0] += signing.LOOK_S
    assert signer._current().kid == second.kid
