"""Credentials that come back are hidden, in whatever form they come back; nothing else is touched."""

import base64
import html
import json
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.dependencies import DependencySpec
from fencepost.outcomes import Answered, Applied, Lost, Refused, Unsure
from fencepost.tools import Response
from fencepost_workers.tools.credentials import Credentials

SECRET = 'c4n/ry"+<x>=='


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> Credentials:
    monkeypatch.setenv("TOKEN", f"Bearer {SECRET}")
    return Credentials.of(DependencySpec("d", headers=(("Authorization", "env:TOKEN"),)))


@pytest.mark.parametrize(
    "echo",
    [
        f"you sent Bearer {SECRET}",
        SECRET,
        json.dumps({"seen": SECRET}),
        json.dumps({"seen": SECRET}).replace("/", "\\/"),
        json.dumps({"seen": SECRET}).replace("<", "\\u003c").replace(">", "\\u003E"),
        "".join(f"\\u{ord(c):04x}" for c in SECRET),
        quote(SECRET, safe=""),
        f"{SECRET}{SECRET}",
    ],
)
def test_a_credential_is_hidden_in_every_form(credentials: Credentials, echo: str) -> None:
    hidden = credentials.hide(echo)
    assert "***" in hidden
    assert "ry" not in hidden
    assert "003" not in hidden
    assert "%" not in hidden


def test_only_the_credential_is_hidden(credentials: Credentials) -> None:
    text = f'{{"id": "d-1", "path": "a\\/b", "share": "5%", "auth": "Bearer {SECRET.replace(chr(34), "")}"}}'
    assert credentials.hide(text) == text
    assert credentials.hide(f"before {SECRET} after") == "before *** after"


def test_the_parts_of_a_credential_are_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = base64.b64encode(b"clerk:geheim-geheim").decode()
    spec = DependencySpec(
        "d", headers=(("Authorization", f"Basic {pair}"), ("Cookie", "a=kekskeks; b=zwieback"))
    )
    hidden = Credentials.of(spec).hide(f"{pair} clerk:geheim-geheim geheim-geheim kekskeks zwieback clerk")
    assert hidden == "*** *** *** *** *** clerk"


def test_what_a_header_says_openly_is_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHO", "from-the-environment")
    given = (
        ("Accept", "application/json"),
        ("X-Version", "2026-01-02"),
        ("X-Api-Key", "abc"),
        ("X-Who", "env:WHO"),
    )
    credentials = Credentials.of(DependencySpec("d", headers=given))
    text = "application/json 2026-01-02 abc from-the-environment"
    assert credentials.hide(text) == "application/json 2026-01-02 abc ***"
    assert Credentials.of(DependencySpec("d")).hide(text) == text


def test_answers_and_outcomes_are_cleaned_whole(credentials: Credentials) -> None:
    body = b"\xff\x00" + SECRET.encode() + b"\xfe"
    answered = credentials.hide_sent(Answered(Response(402, {"x-echo": SECRET}, body), 2))
    assert answered == Answered(Response(402, {"x-echo": "***"}, b"\xff\x00***\xfe"), 2)
    assert credentials.hide_sent(Lost("c", SECRET, 1)) == Lost("c", "***", 1)
    applied = credentials.hide_outcome(Applied(json.dumps({"id": SECRET}), SECRET))
    assert applied == Applied('{"id": "***"}', "***")
    assert credentials.hide_outcome(Applied("1", None)) == Applied("1", None)
    assert credentials.hide_outcome(Unsure("c", SECRET)) == Unsure("c", "***")
    refused = Refused("c", SECRET, retryable=True, final_answer_stored=True)
    assert credentials.hide_outcome(refused) == Refused("c", "***", retryable=True, final_answer_stored=True)


def test_a_secret_of_the_arguments_is_hidden_in_base64_too_wherever_it_begins() -> None:
    hiding = Credentials.of(DependencySpec("d"), (SECRET,))
    for before in ("", "a", "ab", "clerk:"):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            echo = encode(f"{before}{SECRET} and more".encode()).decode()
            assert "***" in hiding.hide(f"Basic {echo}")
            assert "***" in hiding.hide(json.dumps(echo).replace("/", "\\/"))
            left = hiding.hide(echo).split("***")
            assert all(part in echo for part in left)
            assert sum(map(len, left)) < 32  # of what stands around it, and an edge of it
    assert hiding.hide("nothing of it") == "nothing of it"
    assert SECRET not in repr(hiding)


def test_the_lines_of_a_key_are_hidden_by_themselves() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nBAQEFAASCBKcwggSj\n-----END KEY-----\n"
    hiding = Credentials.of(DependencySpec("d"), (key,))
    assert hiding.hide("it holds BAQEFAASCBKcwggSj in a line") == "it holds *** in a line"
    assert hiding.hide(json.dumps({"key": key})) == '{"key": "***"}'


ODD = "pä\\ss€ 😀&\"w'<ö>%2Fr+d"


@pytest.mark.parametrize(
    "echo",
    [
        ODD,
        ODD.encode().decode("latin-1"),
        json.dumps(ODD),
        json.dumps(ODD, ensure_ascii=False),
        json.dumps(json.dumps(ODD)),
        json.dumps(json.dumps({"a": json.dumps({"b": ODD})})),
        quote(ODD, safe=""),
        quote(ODD, safe="").replace("%C3", "%c3"),
        quote_plus(ODD),
        html.escape(ODD),
        html.escape(ODD).encode("ascii", "xmlcharrefreplace").decode(),
        f"a=%41&b={quote_plus(ODD)}&c=\\u0041",
    ],
)
def test_every_character_is_found_however_it_is_spelled(echo: str) -> None:
    hidden = Credentials.of(DependencySpec("d"), (ODD,)).hide(f"before {echo} after")
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")
    assert "***" in hidden
    assert "ss" not in hidden


def test_an_answers_bytes_are_searched_as_utf_8() -> None:
    hiding = Credentials.of(DependencySpec("d"), (ODD,))
    answered = hiding.hide_sent(Answered(Response(422, {}, f'{{"you": "{ODD}", "ü": 1}}'.encode()), 1))
    assert isinstance(answered, Answered)
    assert answered.response.body == '{"you": "***", "ü": 1}'.encode()


@given(
    st.text(min_size=8, max_size=20), st.sampled_from([str, json.dumps, quote_plus, html.escape]), st.text()
)
def test_no_value_survives(value: str, spell: Any, around: str) -> None:
    value, around = (part.encode("utf-8", "ignore").decode() for part in (value, around))
    if len(value) < 8:
        return
    hiding = Credentials.of(DependencySpec("d"), (value,))
    hidden = hiding.hide(around + spell(value) + around)
    assert (
        spell(value).strip('"') not in hidden.replace("***", "") or spell(value).strip('"') in around + around
    )
    assert hiding.hide("nothing at all") == "nothing at all" or value in "nothing at all"
