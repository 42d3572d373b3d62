import pytest

from fencepost.errors import UsageError
from fencepost.settings import PREFIX, Settings, load_settings, redact


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)


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
        ("PLANNER_CAP_S", "inf"),
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
