"""Credentials that come back are hidden, in whatever form they come back; nothing else is touched."""

import base64
import html
import json
import time
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.dependencies import DependencySpec
from fencepost.outcomes import Answered, Applied, Lost, Refused, Unsure
from fencepost.tools import Response
from fencepost_workers.tools import credentials as module
from fencepost_workers.tools.credentials import WITHHELD, Credentials
from fencepost_workers.tools.spellings import Sought

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
@example("000000 0", quote_plus, "")
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


def of(*secrets: str) -> Credentials:
    return Credentials.of(DependencySpec("d"), secrets)


def in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


SPELL: Any = [
    in_json,
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1].replace("/", "\\/"),
    lambda text: quote(text, safe=""),
    quote_plus,
    html.escape,
    lambda text: "".join(f"&#{ord(c)};" if not c.isalnum() else c for c in text),
    lambda text: "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in text),
]


@given(
    st.lists(st.sampled_from(SPELL), min_size=1, max_size=4),
    st.sampled_from([ODD, SECRET, "hunter2hunter2", "a b+c%41d\\n&lt;e", "correct+horse/battery=staple"]),
    st.booleans(),
)
def test_up_to_four_spellings_one_in_the_other_are_read_in_any_order(
    spell: list[Any], value: str, as_answer: bool
) -> None:
    echo = value
    for one in spell:
        echo = one(echo)
    text = f"before; {echo} ;after"
    hiding = of(value)
    hidden = hiding.hide_bytes(text.encode()).decode() if as_answer else hiding.hide(text)
    assert hidden == "before; *** ;after"


@pytest.mark.parametrize(
    "echo",
    [
        quote(quote(ODD)),
        quote(json.dumps({"p": ODD})),
        html.escape(json.dumps({"p": ODD})),
        html.escape(html.escape(ODD)),
        json.dumps(json.dumps(json.dumps(json.dumps(json.dumps({"p": ODD}))))),
        repr(ODD.encode()),
        base64.encodebytes(b"u" * 50 + ODD.encode()).decode(),
        json.dumps(base64.encodebytes(b"u" * 50 + ODD.encode()).decode()),
        quote(base64.b64encode(b"user:" + ODD.encode()).decode(), safe=""),
    ],
)
def test_spellings_within_others_are_hidden_and_what_stands_around_stays(echo: str) -> None:
    hidden = of(ODD).hide(f"before; {echo} ;after")
    assert hidden.startswith("before; ")
    assert hidden.endswith(" ;after")
    assert "***" in hidden
    assert "ss" not in hidden
    assert "3NzQ" not in hidden.replace("\n", "")  # of its base64


@given(st.text("\\nu061é", min_size=6, max_size=10), *[st.text('\\nu061é"/\n', max_size=6)] * 2)
def test_what_was_json_stays_json(value: str, before: str, after: str) -> None:
    for ascii_only in (True, False):
        text = json.dumps({"a": f"{before}{value}{after}", "b": 1}, ensure_ascii=ascii_only)
        assert json.loads(of(value).hide(text))["b"] == 1
        assert "***" in of(value).hide(text)


FRAGMENTS = ["\\", "\\u", "\\ud83d", "\\ude00", "\\x", "%", "%4", "%41", "&#", "&#x", "&#1", ";", "&amp"]
FRAGMENTS += ["0", "1", "9" * 30, "f", "+", " ", "\n", "\r", '"', "é", "\xff", "€", "😀", "\ud83d", "hunter2"]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join), st.binary(max_size=40))
def test_nothing_an_outside_text_holds_makes_hiding_raise_or_changes_it(text: str, data: bytes) -> None:
    hiding = of("c0rrect-horse", ODD)
    assert hiding.hide(text) == text
    assert hiding.hide_bytes(data) == data
    assert hiding.hide(f"{text} - c0rrect-horse - {text}") == f"{text} - *** - {text}"


@pytest.mark.parametrize("text", ["&#" + "1" * 5000 + ";", "&#x" + "f" * 5000 + ";", "&#0;&#1114112;&bogus;"])
def test_numbers_no_character_has_lose_no_answer(text: str) -> None:
    answered = Answered(Response(200, {"x": text}, f'{{"page": "{text} {SECRET}"}}'.encode()), 1)
    hidden = of(SECRET).hide_sent(answered)
    assert hidden == Answered(Response(200, {"x": text}, f'{{"page": "{text} ***"}}'.encode()), 1)


def test_what_cannot_be_searched_is_withheld_and_its_outcome_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_data: bytes) -> Any:
        raise RecursionError(SECRET)

    hiding = of(SECRET)
    monkeypatch.setattr(module, "readings", broken)
    answered = hiding.hide_sent(Answered(Response(200, {"x": SECRET}, SECRET.encode()), 2))
    assert answered == Answered(Response(200, {"x": WITHHELD}, WITHHELD.encode()), 2)
    assert hiding.hide_sent(Lost("c", SECRET, 1)) == Lost("c", WITHHELD, 1)
    applied = hiding.hide_outcome(Applied(json.dumps(SECRET), None))
    assert isinstance(applied, Applied)
    assert json.loads(applied.result_json_text) == WITHHELD[1:-1]


def lines(count: int, start: str = "") -> str:
    return "\n".join(f"{start}{base64.b64encode(str(n).encode() * 12).decode():.60}" for n in range(count))


HARD: Any = {
    "backslashes": lambda n: "\\" * n,
    "units": lambda n: "\\ud83d\\\\" * (n // 8),
    "digits": lambda n: "&#" + "1" * n,
    "zeros": lambda n: "&#" + "0" * n,
    "hashes": lambda n: "&#" * (n // 2),
    "names": lambda n: "&" + "a" * n,
    "percents": lambda n: "%25" * (n // 3),
    "deep": lambda n: "%" + "25" * (n // 2),
    "mixed": lambda n: "\\u0026#37;41%5c" * (n // 15),
    "ends": lambda n: "A\n" * (n // 2),
    "same": lambda n: "A" * n,
}


@pytest.mark.parametrize(
    ("secret", "hard"),
    [(secret, hard) for secret in ("hunter2hunter2", "p@ss/word+1234") for hard in HARD]
    + [(lines(600, "A" * 12), hard) for hard in ("same", "ends", "mixed")],
)
def test_time_grows_with_the_text_and_not_with_its_square(secret: str, hard: str) -> None:
    """Eight times the text takes some eight times as long; by its square it would be 64 times."""
    hiding = of(secret)

    def seconds(size: int) -> float:
        text = f"{secret.splitlines()[0]}{HARD[hard](size)}"
        begun = time.thread_time()
        assert "***" in hiding.hide(text)
        return time.thread_time() - begun

    least = max(min(seconds(4_000) for _ in range(3)), 0.004)
    assert min(seconds(32_000) for _ in range(2)) < 24 * least


def test_a_secret_of_64_kb_is_hidden_whole_by_lines_and_in_base64() -> None:
    key = lines(1280)
    assert 60_000 < len(key) < 65_536
    hiding = of(key)
    assert hiding.hide(f"it is {key}.") == "it is ***."
    assert hiding.hide(json.dumps({"key": key})) == '{"key": "***"}'
    assert hiding.hide(f"<{key.splitlines()[700]}>") == "<***>"
    assert hiding.hide(key.replace("\n", "\r\n")) == "***"
    assert len(hiding.hide(base64.encodebytes(key.encode()).decode())) < 16


@given(
    st.lists(st.text("ab", min_size=6, max_size=12), min_size=18, max_size=60, unique=True),
    st.text("ab", max_size=80),
)
def test_many_are_found_as_one_by_one(told: list[str], text: str) -> None:
    sought = Sought(one.encode() for one in told)
    spans = sought.spans(text.encode())
    assert all(text[start:end] in told for start, end in spans)
    left = "".join("-" if any(start <= at < end for start, end in spans) else c for at, c in enumerate(text))
    assert not any(one in left for one in told)


@pytest.mark.parametrize(
    ("value", "text"),
    [("nabcdef", "\nabcdef"), ("61bcdef", "\x61\x01bcdef \u0661bcdef"), ("abcdef\\", 'abcdef"')],
)
def test_an_escape_that_only_looks_like_a_part_of_it_goes_whole(value: str, text: str) -> None:
    hidden = of(value).hide(json.dumps({"a": text}))
    assert "***" in json.loads(hidden)["a"]
