"""What this process logs in with is shown by no text of it, however it is spelled."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from urllib.parse import quote, quote_plus

import pytest

from fencepost import redaction
from fencepost.canonical import sanitize
from fencepost.outcomes import storable_receipt
from fencepost.settings import load_settings, redact
from fencepost.states import StopReason
from fencepost_ops.api.problems import Problem

PASSWORD = "p@ss/w ord+é%'\"<&1"
ADDRESSES = {
    "URL": f"postgresql://me:{quote(PASSWORD, safe='')}@host:5432/db?sslmode=require",
    "in the query": f"postgresql://host/db?user=me&password={quote_plus(PASSWORD)}",
    "keywords": "host=h user=me password='p@ss/w ord+é%\\'\"<&1' dbname=db",
    "Redis": f"rediss://:{quote(PASSWORD, safe='')}@host:6379/0",
}
SPELLINGS = {
    "plain": PASSWORD,
    "percent": quote(PASSWORD, safe=""),
    "percent, small": quote(PASSWORD, safe="").replace("%2F", "%2f").replace("%C3%A9", "%c3%a9"),
    "percent, path": quote(PASSWORD),
    "percent, form": quote_plus(PASSWORD),
    "percent, whole": "".join(f"%{byte:02X}" for byte in PASSWORD.encode()),
    "JSON": json.dumps(PASSWORD),
    "JSON, as it is": json.dumps(PASSWORD, ensure_ascii=False),
    "Python": repr(PASSWORD),
    "HTML": html.escape(PASSWORD),
}


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_OWN", redaction._Own())


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_password_is_hidden_in_every_spelling(address: str, spelling: str) -> None:
    said = f"a {SPELLINGS[spelling]} z"
    assert redaction.hidden(said) == said
    redaction.own_address(ADDRESSES[address])
    hidden = redaction.hidden(said)
    assert "***" in hidden
    assert "ord" not in hidden.replace("%", "")
    assert redact(said) == hidden


@pytest.mark.parametrize("address", ["postgresql://me:s3cr@host/db", "host=h user=me password=s3cr"])
def test_a_short_password_is_hidden_in_an_address_only(address: str) -> None:
    redaction.own_address(address)
    assert "s3cr" not in redaction.hidden(f"cannot connect to {address} at all")
    assert redaction.hidden("the s3cr of it") == "the s3cr of it"


def test_what_is_cut_is_cut_after_it_was_hidden() -> None:
    redaction.own("a-long-password")
    for length in range(1, 60):
        assert "a-lo" not in sanitize(ValueError("a-long-password or a-long-password"), length)


def test_of_an_event_texts_are_hidden_and_data_is_not() -> None:
    redaction.own("a-long-password")
    said = "no login with a-long-password"
    body = {
        "message": said,
        "asked": {"reason": said, "arguments": said},
        "arguments": said,
        "n": [{"why": said}],
    }
    told = "no login with ***"
    assert redaction.hidden_body(body) == {
        "message": told,
        "asked": {"reason": told, "arguments": said},
        "arguments": said,
        "n": [{"why": told}],
    }
    plain = {"message": "nothing"}
    assert redaction.hidden_body(plain) is plain


def test_a_password_that_is_a_word_of_ours_hides_no_stop_reason() -> None:
    redaction.own("operator")
    body = {"reason": StopReason.OPERATOR}
    assert redaction.hidden_body(body) is body


def test_a_problem_that_is_answered_shows_no_password() -> None:
    redaction.own("a-long-password")
    answered = Problem("unavailable", "no a-long-password, nor postgresql://x:other@h/d", "/a").body("r")
    assert b"long" not in answered
    assert b"other" not in answered


def test_settings_say_what_is_to_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_SECRET_shop__mail", "a-secret-of-mail")
    load_settings(dsn=ADDRESSES["URL"], redis_url="redis://:of-the-broker@h/0")
    assert redaction.hidden(f"{PASSWORD} of-the-broker a-secret-of-mail") == "*** *** ***"


@pytest.mark.parametrize(("user", "shown"), [("me", "***"), ("of-the-environment", "of-the-environment")])
def test_the_password_of_libpqs_environment_is_hidden_too(
    monkeypatch: pytest.MonkeyPatch, user: str, shown: str
) -> None:
    monkeypatch.setenv("PGPASSWORD", "of-the-environment")
    load_settings(dsn=f"postgresql://{user}@host/db", redis_url="redis://h/0")
    assert redaction.hidden("of-the-environment") == shown


def test_a_name_that_is_its_own_password_hides_no_word() -> None:
    redaction.own_address("postgresql://postgres:postgres@host/db")
    assert redaction.hidden("postgres") == "postgres"


def test_an_error_nobody_caught_is_printed_without_it() -> None:
    program = (
        "import threading\n"
        "from fencepost.redaction import own\n"
        "from fencepost.telemetry.logs import setup\n"
        "own('a-long-password')\n"
        "setup('text', 'info')\n"
        "def fail(): raise ValueError('a-long-password')\n"
        "thread = threading.Thread(target=fail); thread.start(); thread.join()\n"
        "fail()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.count("ValueError: ***") == 2
    assert "ValueError: a-long" not in ended.stderr


def test_what_something_is_found_by_again_stays_what_it_is() -> None:
    redaction.own("second-best")
    assert sanitize("the second-best of them", 100) == "the *** of them"
    assert sanitize("second-best", 100, data=True) == "second-best"
    assert storable_receipt("second-best") == "second-best"
