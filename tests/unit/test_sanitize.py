"""A text made safe to store and show is bounded, hides nothing, and can be read back unless it was cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.canonical import sanitize


def unsanitized(shown: str) -> str:
    """What `sanitize` was given, if it cut nothing."""

    def restore(match: re.Match[str]) -> str:
        slashes, code = match.groups(default="")
        kept = "\\" * (len(slashes) // 2)
        return kept + (chr(int(code, 16)) if len(slashes) % 2 else "u" + code)

    return re.sub(r"(\\+)u([0-9a-f]{4})?", restore, shown)


hidden = st.text(st.sampled_from("\\\\u0a\0\ud800\x1b\u202e\n\u00e9") | st.characters(), max_size=30)
UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@given(text=hidden, limit=st.integers(-1, 40))
def test_a_preview_is_bounded_and_can_be_stored_and_shown_anywhere(text: str, limit: int) -> None:
    shown = sanitize(text, limit)
    assert len(shown) <= max(limit, 0)
    assert not UNSAFE.search(shown)


@given(hidden)
def test_an_uncut_preview_can_be_read_back(text: str) -> None:
    assert unsanitized(sanitize(text, 1000)) == text


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("a\0b", 20, "a\\u0000b"),
        ("a\\u0000b", 20, "a\\\\u0000b"),
        ("\x1b[31mred", 20, "\\u001b[31mred"),
        ("one\ttwo\n", 20, "one\ttwo\n"),
        ('{"path": "C:\\\\temp"}', 30, '{"path": "C:\\\\temp"}'),
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcde\u2026"),
        ("abc\0\0", 9, "abc\u2026"),
        ("abc\0\0", 10, "abc\\u0000\u2026"),
        ("abc", 0, ""),
        (b"ok\xff", 20, "ok\\udcff"),
        (ValueError("no"), 20, "no"),
        (None, 20, "None"),
    ],
)
def test_a_preview_shows_what_would_hide(text: object, limit: int, shown: str) -> None:
    assert sanitize(text, limit) == shown


def test_a_preview_of_what_has_no_text_is_its_type() -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError

    assert sanitize(Mute(), 200).endswith("Mute without a text>")


_HIDDEN = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff"


def plainly_sanitized(text: str, limit: int) -> str:
    """The rule as it reads; takes the square of a run of backslashes."""

    def visible(match: re.Match[str]) -> str:
        return match[0] * 2 if match[1] else f"\\u{ord(match[0]):04x}"

    safe = re.sub(rf"(\\+)(?=[u{_HIDDEN}])|[{_HIDDEN}]", visible, text[: limit + 1])
    if len(safe) <= limit:
        return safe
    return re.sub(r"\\+(?:u[0-9a-f]{0,3})?\Z", "", safe[: limit - 1]) + "…"


@given(st.text("\\\\\\u0a\0\x1b\u202e\ud800\nz", max_size=60), st.integers(1, 70))
def test_backslashes_are_read_as_the_plain_rule_reads_them(text: str, limit: int) -> None:
    assert sanitize(text, limit) == plainly_sanitized(text, limit)


def test_a_long_run_of_backslashes_takes_no_time() -> None:
    run = "\\" * 1_000_000  # by its square, hours
    assert sanitize(run, len(run)) == run
    assert sanitize(f"{run}u", 2_000_100) == f"{run}{run}u"
    assert sanitize(f"{run}z\0", len(run) + 2) == f"{run}z…"
