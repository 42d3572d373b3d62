import os
from pathlib import Path

import pytest

from fencepost.dependencies import DependencySpec
from fencepost.errors import UsageError
from fencepost.settings import FILE, PREFIX, Settings, load_settings, redact, variable


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)
        monkeypatch.delenv(PREFIX + name.upper() + FILE, raising=False)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://app:geheim@localhost:5/db", "postgresql://app:***@localhost:5/db"),
        ("redis://:geheim@localhost/0", "redis://:***@localhost/0"),
        ("postgresql://app:ge@heim@localhost/db", "postgresql://app:***@localhost/db"),
        ("postgresql://app:ge/heim@localhost/db", "postgresql://app:***@localhost/db"),
        ("host=x password=geheim user=app", "host=x password=*** user=app"),
        ("host=x PASSWORD = 'geheim it\\'s' user=app", "host=x PASSWORD=*** user=app"),
        (
            "postgresql://x/db?user=a&password=geheim&sslmode=require",
            "postgresql://x/db?user=a&password=***&sslmode=require",
        ),
        ("postgresql://x/db?sslpassword=geheim", "postgresql://x/db?sslpassword=***"),
        ("connection to postgresql://a:geheim@h/d failed", "connection to postgresql://a:***@h/d failed"),
        ("postgresql://app@localhost/db", "postgresql://app@localhost/db"),
        ("nothing secret", "nothing secret"),
        ("", ""),
    ],
)
def test_a_password_is_never_shown(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_DSN", "postgresql://app:geheim@h/d")
    monkeypatch.setenv("FENCEPOST_SLOTS", "7")
    monkeypatch.setenv("FENCEPOST_REPUBLISH_S", "")
    monkeypatch.setenv("FENCEPOST_HOSTILE", "1")
    settings = load_settings(poll_ms=20)
    assert (settings.slots, settings.republish_s, settings.poll_ms, settings.hostile) == (7, 15, 20, True)
    assert settings.dsn == "postgresql://app:geheim@h/d"


def test_settings_show_themselves_without_passwords() -> None:
    settings = load_settings(dsn="postgresql://app:geheim@h/d", redis_url="redis://:geheim@h/0")
    assert "geheim" not in f"{settings!r} {settings} {list(settings.described())}"
    rows = {name: (value, meaning) for name, value, meaning in settings.described()}
    assert rows["FENCEPOST_DSN"][0] == "postgresql://app:***@h/d"
    assert set(rows) == {PREFIX + name.upper() for name in Settings.model_fields}
    assert all(meaning for _, meaning in rows.values())


def test_a_bad_setting_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_SLOTS", "geheim")
    monkeypatch.setenv("FENCEPOST_POLL_MS", "0")
    with pytest.raises(UsageError, match=r"FENCEPOST_SLOTS: .*; FENCEPOST_POLL_MS: ") as caught:
        load_settings()
    assert "geheim" not in str(caught.value)


def test_a_missing_setting_is_asked_for_by_name() -> None:
    settings = load_settings(dsn="x")
    settings.need("dsn")
    with pytest.raises(UsageError, match=r"^set FENCEPOST_REDIS_URL and FENCEPOST_APP$"):
        settings.need("dsn", "redis_url", "app")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORKER_TTL_S", "inf"),
        ("WORKER_TTL_S", "1e30"),
        ("REPUBLISH_S", "inf"),
        ("COMPENSATION_S", "inf"),
        ("PLANNER_GRACE_S", "nan"),
        ("REDIS_URL", "http://127.0.0.1:1"),
    ],
)
def test_a_setting_nobody_can_mean_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"FENCEPOST_{name}", value)
    with pytest.raises(UsageError, match=f"FENCEPOST_{name}"):
        load_settings()


# --- From files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_every_setting_may_come_from_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    given = {"DSN": "postgresql://app:geheim@h/d", "SLOTS": "7", "HOSTILE": "true"}
    for name, text in given.items():
        (tmp_path / name).write_bytes(f"{text}{end}".encode())
        monkeypatch.setenv(f"FENCEPOST_{name}_FILE", str(tmp_path / name))
    settings = load_settings()
    assert (settings.dsn, settings.slots, settings.hostile) == (given["DSN"], 7, True)
    assert "geheim" not in f"{settings!r} {list(settings.described())}"


def test_what_is_given_directly_wins_over_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FENCEPOST_DSN_FILE", str(tmp_path / "missing"))
    assert load_settings(dsn="postgresql://other/d").dsn == "postgresql://other/d"


def test_an_empty_name_of_a_file_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_DSN_FILE", "")
    monkeypatch.setenv("FENCEPOST_DSN", "postgresql://h/d")
    assert load_settings().dsn == "postgresql://h/d"


def test_a_variable_and_its_file_at_once_are_one_too_many(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dsn").write_text("postgresql://app:geheim@h/d")
    monkeypatch.setenv("FENCEPOST_DSN", "postgresql://app:geheim@h/d")
    monkeypatch.setenv("FENCEPOST_DSN_FILE", str(tmp_path / "dsn"))
    with pytest.raises(UsageError, match=r"^FENCEPOST_DSN and FENCEPOST_DSN_FILE are both set") as caught:
        load_settings()
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\n", "is empty"),
        (b"geheim\xff", "is not a text in UTF-8"),
        (b"geheim\nundso\n", "holds more than one line"),
        (b"geheim" * 20_000, "is too long to be a setting"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, why: str
) -> None:
    file = tmp_path / "dsn"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("FENCEPOST_DSN_FILE", str(file))
    with pytest.raises(UsageError, match=r"^FENCEPOST_DSN_FILE names ") as caught:
        load_settings()
    assert str(caught.value).endswith(why)
    assert "geheim" not in str(caught.value)


def test_a_pipe_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dsn")
    monkeypatch.setenv("FENCEPOST_DSN_FILE", str(tmp_path / "dsn"))
    with pytest.raises(UsageError, match="which is no file"):
        load_settings()


def test_what_is_no_address_is_shown_to_nobody() -> None:
    described = {name: shown for name, shown, _ in Settings(dsn="geheim", redis_url="").described()}
    assert (described["FENCEPOST_DSN"], described["FENCEPOST_REDIS_URL"]) == ("***", "")
    whole = Settings(dsn="host=db password=geheim").described()
    assert next(shown for name, shown, _ in whole if name == "FENCEPOST_DSN") == "host=db password=***"


def test_a_bad_value_from_a_file_is_not_shown_either(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "slots").write_text("geheim")
    monkeypatch.setenv("FENCEPOST_SLOTS_FILE", str(tmp_path / "slots"))
    with pytest.raises(UsageError, match=r"^FENCEPOST_SLOTS: ") as caught:
        load_settings()
    assert "geheim" not in str(caught.value)


def test_a_credential_of_a_tool_may_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("geheim\n")
    assert variable("SHOP_TOKEN") is None
    monkeypatch.setenv("SHOP_TOKEN_FILE", str(tmp_path / "token"))
    assert variable("SHOP_TOKEN") == "geheim"
    spec = DependencySpec("shop", headers=(("authorization", "env:SHOP_TOKEN"),))
    assert spec.sent_headers() == (("authorization", "geheim"),)
