import json
import os
import pickle
import random
import subprocess
import sys
import time
from collections import OrderedDict
from enum import IntEnum, StrEnum
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from fencepost import canonical
from fencepost.canonical import CanonicalError, admit, arguments_hash, digest, encode, parse

ORDER: dict[str, Any] = {
    "order_id": "o-1",
    "amount": {"minor": 1200, "currency": "EUR", "scale": 2},
    "lines": [{"sku": "a", "n": 1}],
}

# Text and hash are pinned: whoever changes one changes HASH_VERSION, and keeps the old rule for old hashes.
GOLDEN: list[tuple[Any, str, str]] = [
    ({}, "{}", "368d1cecb3263d7efb2a1a6a16bac5ade99263e900bc1a0b3b43332963c0c4fa"),
    ([], "[]", "d7e1f9d94d2522d5ba81cc7265ff29d1143a3fa80c329023cb35e9bd50c661a8"),
    (None, "null", "b86cabe61b7365e3bdeaad84d5f7691c8d00d897285f8e565cc92509b41ff70a"),
    ("", '""', "05104f1514e493ddb02121ddd48e18064a2a2aa6c8c83a07d77b4bf5eff087c8"),
    (
        [True, False, 0, 1, -1],
        "[true,false,0,1,-1]",
        "c004124ef43a294192cbd70578a99d0709078046977deb99f4af804ffcbe50a6",
    ),
    (
        [2**53 - 1, 1 - 2**53],
        "[9007199254740991,-9007199254740991]",
        "78abb5570ece1af2d65aec75b62b02b3e5e568c43310f1d0b1eeabb76e4a3883",
    ),
    (
        ORDER,
        '{"amount":{"currency":"EUR","minor":1200,"scale":2},"lines":[{"n":1,"sku":"a"}],"order_id":"o-1"}',
        "0eaaa8ff240367c9e6164b6c0be83b186d3345695ee84471def55d11bccaca7a",
    ),
    (
        {"\u00e9": "e\u0301", "e": "\u2028/\x7f"},
        '{"e":"\u2028/\x7f","\u00e9":"e\u0301"}',
        "8e6555ba3348e57e1ada92a2d16215400a06c688419dd47cec600bdb7eef4809",
    ),
    (
        '\b\t\n\f\r"\\\x1f',
        '"\\b\\t\\n\\f\\r\\"\\\\\\u001f"',
        "9fee688f3bc289d20cd8c0546db0ee99dec25f351688a984d4ec6bf7024950f2",
    ),
    # Keys sort by UTF-16 units: U+1F600, a pair led by U+D83D, comes before U+FB33.
    (
        {"\ufb33": 1, "\U0001f600": 2, "\u00f6": 3, "1": 4, "\r": 5},
        '{"\\r":5,"1":4,"\u00f6":3,"\U0001f600":2,"\ufb33":1}',
        "a79b794ea29b9af1805e19d876b1c7e9c185a03aca6f4300f77bfb3dcbcd4959",
    ),
]

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
# Both orders of keys agree up to U+D7FF; what lies beyond is drawn often, or they would never be told apart.
keys = texts | st.text(st.sampled_from("aZ\u00e9\ud7ff\ue000\ufb33\uffff\U00010000\U0001f600"), max_size=3)
scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | texts | st.just("\\u0000")
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=25,
)


def shuffled(value: Any, rng: random.Random) -> Any:
    """The same JSON value with every object's keys in another order, and tuples for lists."""
    if isinstance(value, dict):
        items = [(key, shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    return tuple(shuffled(item, rng) for item in value) if isinstance(value, list) else value


def as_jsonb(value: Any) -> str:
    """The text a binary JSON column gives back: keys by length and then bytes, blanks after separators."""
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: (len(item[0].encode()), item[0].encode()))
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {as_jsonb(v)}" for k, v in items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_jsonb, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize(("value", "text", "hexdigest"), GOLDEN)
def test_texts_and_hashes_are_what_they_always_were(value: Any, text: str, hexdigest: str) -> None:
    assert encode(value).decode() == text
    assert arguments_hash(value) == f"1:{hexdigest}"


def test_an_operations_key_is_what_it_always_was() -> None:
    parts = ["shop", "wallet/default", "wallet.debit", "order", "o-1"]
    assert digest("fencepost.operation.v1", parts) == (
        "a72fd2107d21ccd69484c8aa9bcdb99c751ea078167dd21fb1ccad5aedc3f252"
    )


@given(values)
def test_the_text_of_every_admitted_value_is_its_rfc_8785_text(value: Any) -> None:
    assert encode(value) == rfc8785.dumps(value)


@given(value=values, seed=st.integers())
def test_the_hash_does_not_depend_on_the_order_of_keys(value: Any, seed: int) -> None:
    assert arguments_hash(shuffled(value, random.Random(seed))) == arguments_hash(value)


@given(values)
def test_the_hash_survives_a_trip_through_a_binary_json_column(value: Any) -> None:
    assert arguments_hash(parse(as_jsonb(value))) == arguments_hash(value)


@given(values)
def test_the_text_reads_back_as_the_same_value(value: Any) -> None:
    again = parse(encode(value))
    assert again == value
    assert json.dumps(again, sort_keys=True) == json.dumps(value, sort_keys=True)  # True is not 1


@given(values, values)
def test_different_values_have_different_texts(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (encode(one) == encode(other)) is same


def test_the_hash_is_the_same_in_another_process_with_another_hash_seed() -> None:
    program = (
        "import sys\n"
        "from fencepost.canonical import arguments_hash, parse\n"
        "for line in sys.stdin.buffer: print(arguments_hash(parse(line)), hash('seed'))\n"
    )
    lines = "\n".join(json.dumps(value) for value, _, _ in GOLDEN)
    expected = [arguments_hash(value) for value, _, _ in GOLDEN]
    seeds = set()
    for seed in ("1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=lines,
            capture_output=True,
            text=True,
            check=True,
            encoding="utf-8",
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        answers = [line.split() for line in done.stdout.splitlines()]
        assert [answer[0] for answer in answers] == expected
        seeds.add(answers[0][1])
    assert len(seeds) == 2


def test_domains_keep_equal_values_apart() -> None:
    assert digest("fencepost.a.v1", ORDER) != digest("fencepost.b.v1", ORDER)
    with pytest.raises(CanonicalError, match="NUL"):
        digest("fencepost\0[", 1)


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        ('{"amount": 1, "amount": 1000}', "duplicate_key", "$"),
        ('{"a": [0, {"b": {"x": 1, "\\u0078": 2}}]}', "duplicate_key", "$.a[1].b"),
        ('{"a": 1.0}', "float", "$.a"),
        ('{"a": 1e0}', "float", "$.a"),
        ("[1E400]", "float", "$[0]"),
        ("-0.0", "float", "$"),
        ("[NaN]", "not_finite", "$[0]"),
        ("-Infinity", "not_finite", "$"),
        ('{"n": 9007199254740992}', "number_range", "$.n"),
        ("-9007199254740992", "number_range", "$"),
        ("1" * 5000, "number_range", "$"),
        ('"\\ud83d"', "surrogate", "$"),
        ('{"\\udc00": 1}', "surrogate", "$.\\udc00"),
        ('["\\u0000"]', "nul", "$[0]"),
        ('{"a\\u0000": 1}', "nul", "$.a\\u0000"),
        ('"\x01"', "syntax", "$"),
        ("{} {}", "syntax", "$"),
        ("1,", "syntax", "$"),
        ("", "syntax", "$"),
        ("{'a': 1}", "syntax", "$"),
        ("[1,]", "syntax", "$"),
        ("\ufeff{}", "syntax", "$"),
        (b"\xef\xbb\xbf{}", "syntax", "$"),
        (b'"\xff"', "encoding", "$"),
        (b'"\xed\xa0\x80"', "encoding", "$"),
        ("[" * 33 + "]" * 33, "too_deep", "$"),
        ('{"a":' * 33 + "1" + "}" * 33, "too_deep", "$"),
        ("[" * 60_000, "too_deep", "$"),
        ('"' + "x" * 65_535 + '"', "too_large", "$"),
        ('"' + "\u00e9" * 40_000 + '"', "too_large", "$"),
        (b"x" * 65_537, "too_large", "$"),
    ],
)
def test_a_text_with_more_or_less_than_one_meaning_is_refused(
    text: str | bytes, code: str, path: str
) -> None:
    with pytest.raises(CanonicalError) as caught:
        parse(text)
    assert (caught.value.code, caught.value.path) == (code, path)
    assert str(caught.value) == caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[" * 32 + "]" * 32, None),
        ('["' + "[" * 100 + '\\"{{", "[[["]', ["[" * 100 + '"{{', "[[["]),
        ("[" + ",".join(["[]"] * 1000) + "]", [[]] * 1000),
        (" -0 ", 0),
        ("9007199254740991", 2**53 - 1),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\xc3\xa9"', "\u00e9"),
        ('"' + "x" * 65_534 + '"', "x" * 65_534),
    ],
)
def test_a_text_within_the_limits_is_read_exactly(text: str | bytes, value: Any) -> None:
    read = parse(text)
    assert value is None or read == value


def test_limits_are_the_callers() -> None:
    assert parse("[[1]]", max_bytes=5, max_depth=2) == [[1]]
    with pytest.raises(CanonicalError, match="at most 4 are accepted"):
        parse("[[1]]", max_bytes=4)
    with pytest.raises(CanonicalError, match="deeper than 1 levels"):
        parse("[[1]]", max_depth=1)


@pytest.mark.parametrize("text", ['"' + '\\"' * 32_000, "[]" * 33 + '"' + '\\"' * 32_000, '["' * 21_000])
def test_a_hostile_text_is_refused_in_linear_time(text: str) -> None:
    started = time.process_time()
    with pytest.raises(CanonicalError):
        parse(text)
    assert (
        time.process_time() - started < 1
    )  # milliseconds; many seconds if the scan starts anew at each quote


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "code", "path"),
    [
        (1.0, "float", "$"),
        ({"a": [float("nan")]}, "not_finite", "$.a[0]"),
        (float("-inf"), "not_finite", "$"),
        (2**53, "number_range", "$"),
        ([-(2**53)], "number_range", "$[0]"),
        ({"a": "\0"}, "nul", "$.a"),
        (("\ud800",), "surrogate", "$[0]"),
        ({"\udfff": 1}, "surrogate", "$.\\udfff"),
        ({1: 1}, "key_type", "$"),
        ({"a": {None: 1}}, "key_type", "$.a"),
        ({True: 1}, "key_type", "$"),
        (b"x", "type", "$"),
        ({1}, "type", "$"),
        (object(), "type", "$"),
        (Number.ONE, "type", "$"),
        (OrderedDict(a=1), "type", "$"),
    ],
)
def test_a_value_without_an_exact_text_is_refused_and_says_where(value: Any, code: str, path: str) -> None:
    for refuse in (admit, encode):
        with pytest.raises(CanonicalError) as caught:
            refuse(value)
        assert (caught.value.code, caught.value.path) == (code, path)


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CanonicalError) as caught:
        encode(endless)
    assert caught.value.code == "too_deep"


def test_values_of_our_own_may_wrap_the_deepest_arguments() -> None:
    deepest = parse("[" * canonical.MAX_DEPTH + "]" * canonical.MAX_DEPTH)
    assert encode({"body": {"arguments": deepest}}).startswith(b'{"body"')
    with pytest.raises(CanonicalError, match="too deep"):
        admit(deepest, max_depth=canonical.MAX_DEPTH - 1)


def test_an_admitted_value_is_returned_as_it_is() -> None:
    assert admit(ORDER) is ORDER


def test_a_text_enumeration_stands_for_its_text() -> None:
    assert encode({Colour.RED: [Colour.RED, Text("\u00e9")]}) == '{"red":["red","\u00e9"]}'.encode()


def test_ordinary_values_take_the_fast_path_and_doubtful_ones_do_not() -> None:
    assert canonical._plain(ORDER, canonical.ENCODE_DEPTH)
    doubtful: Any
    for doubtful in (1.0, {"\ue000": 1}, {1: 1}, 2**53, Number.ONE, Text("x"), {"a": {"b": OrderedDict()}}):
        assert not canonical._plain(doubtful, canonical.ENCODE_DEPTH)


def test_an_error_survives_pickling() -> None:
    error = CanonicalError("nul", "$.a", "NUL cannot be stored as text")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (again.code, again.path, again.message, str(again)) == ("nul", "$.a", error.message, error.message)
