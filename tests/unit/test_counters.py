"""Which values of arguments only count: a table, and what a planner was told."""

import itertools
import json
import re
import string
import time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.counters import MOST_BYTES, MOST_CHARS, MOST_SEARCHED, Heard, counting, unmoving

IDS = [str(UUID(int=2**64 * n + 2**90 + 99 * n)) for n in range(1, 6)]
NONCES = ["9f3a1c0b", "1b7e22d4", "c04d9a1f", "77a0b3ce", "deadbeef"]
COUNT: dict[str, list[Any]] = {
    "pages": [1, 2, 3, 4],
    "downwards": [9, 8, 7],
    "offsets": [0, 50, 100, 150],
    "tries": ["try 1", "try 2", "try 3"],
    "tries of so many": ["try 9 of 20", "try 10 of 20", "try 11 of 20"],
    "labels": ["a-1", "a-2", "a-3"],
    "seconds since 1970": [1764516000, 1764516007, 1764516009],
    "the same as text": ["t=1764516000", "t=1764516007", "t=1764516009"],
    "with a fraction": [1764516000.25, 1764516007.5, 1764516009.75],
    "by chance": [0.8444218515250481, 0.7579544029403025, 0.420571580830845],
    "UUIDs": IDS,
    "an id in a text": [f"id {one}, again" for one in IDS],
    "nonces": NONCES,
    "times": ["2026-11-30T15:42:20Z", "2026-11-30T15:42:31Z", "2026-11-30T15:43:02.5Z"],
    "times of a zone": ["2026-11-30 15:42:20+01:00", "2026-11-30 15:42:31+01:00"],
    "clocks": ["at 15:42:20", "at 15:42:31"],
    "a try and a time": ["try 1 at 15:42:20", "try 2 at 15:42:31"],
}
MEANS: dict[str, list[Any]] = {
    "numbers in no order": [3, 1, 4, 1, 5],
    "half as much each time": [64, 32, 16, 8],
    "words": ["refund policy", "return policy", "money back"],
    "long words of one length": ["delivery", "shipping", "products"],
    "articles in no order": ["SKU-10042", "SKU-20017", "SKU-10777"],
    "days": ["2026-11-28", "2026-11-29", "2026-11-30"],
    "full minutes": ["2026-11-30T09:00:00Z", "2026-11-30T09:30:00Z", "2026-11-30T10:00:00Z"],
    "hours": ["09:00", "10:00", "11:00"],
    "a try and a word": ["try 1 gate", "try 2 pole", "try 3 wire"],
    "texts of other lengths": ["a", "a b", "a b c"],
    "numbers and texts": [1, "2", 3],
    "long texts": [f"{'x ' * MOST_CHARS} {n}" for n in range(3)],
    "flags": [True, False, True],
    "nothing and something": [None, 1],
    "prices": [1.5, 2.5, 3.5],
    "a number too long to be one": ["1" * 50, "1" * 49 + "2", "1" * 49 + "3a"],
}


@pytest.mark.parametrize("values", COUNT.values(), ids=COUNT)
def test_what_only_counts(values: list[Any]) -> None:
    assert counting(values) is not None


CODE_COUNTS = {"pages", "downwards", "offsets", "tries", "tries of so many", "labels"}
CODE_COUNTS |= {"times", "times of a zone", "clocks", "a try and a time"}


@pytest.mark.parametrize("name", COUNT)
def test_ids_mean_something_to_whoever_knows_more_than_it_was_told(name: str) -> None:
    assert (counting(COUNT[name], ids=False) is not None) == (name in CODE_COUNTS)


@pytest.mark.parametrize("values", MEANS.values(), ids=MEANS)
def test_what_means_something(values: list[Any]) -> None:
    assert counting(values) is None


@given(st.lists(st.text() | st.integers() | st.floats() | st.none(), min_size=2, max_size=6))
def test_every_value_is_judged(values: list[Any]) -> None:
    columns = counting(values) or []
    assert all(len(column) == len(values) for column in columns)
    assert all(isinstance(Heard([b"a 1 b"]).half(column), bool) for column in columns)


@pytest.mark.parametrize(
    ("words", "text", "found"),
    [
        (["7", "8", "9"], "[7, 8, 9]", True),
        (["7", "8", "9"], "[17, 81, 99]", False),
        (["7", "8", "9"], "-7 8x a_9", False),
        (["101", "102", "103"], "rooms 101-120", True),
        (["101", "102", "103"], "rooms 1010 to 1200", False),
        (["11", "12", "13"], "pages 10 to 20", False),
        (["x9", "x10"], json.dumps("x9\tx10\u00e9x"), True),
        (["123"], json.dumps("\u00e9123"), True),
        (["AB-123"], " " * (2**16 - 3) + "AB-123", True),
        (["AB-123"], " " * (2**16 - 6) + "AB-1234", False),
        (["x1", "x2", "x3", "x4"], "x1 x4", True),
        (["x1", "x2", "x3", "x4", "x5"], "x1 x4", False),
        (IDS, IDS[0].upper(), False),
        (IDS, ",".join(IDS), True),
    ],
)
def test_what_a_planner_was_told(words: list[str], text: str, found: bool) -> None:
    assert Heard([b"", text.encode()]).half(words) is found


def test_how_much_is_searched_is_bounded() -> None:
    far = b"1" * MOST_BYTES + b" x1 x2"
    begun = time.perf_counter()
    assert Heard([far]).half(["x1", "x2"]) is False
    assert Heard([far]).half(["1", "2"]) is False
    assert Heard([far[-8:], far]).half(["x1", "x2"]) is True
    assert time.perf_counter() - begun < 5


def test_no_more_is_searched_than_settles_it() -> None:
    absent, there = [f"x{n}y{n}z{n}" for n in range(10)], b"x0y0z0 x1y1z1 x2y2z2 x3y3z3 x4y4z4 " * 9
    one = Heard([there])
    one.half(absent[:1])
    heard = Heard([there])
    assert heard.half(absent) is True
    assert heard.searched == 5 * one.searched
    assert heard.half(absent[::-1]) is True, "of what was searched for once"
    assert heard.searched == 10 * one.searched
    heard = Heard([there])
    assert heard.half(absent[5:]) is False
    assert heard.searched == 3 * one.searched


@pytest.mark.parametrize("shape", ["k{n}x{n}y", "page-{n:04}x{n}", "{n:09}", "a{n:012}"])
def test_how_much_is_searched_for_is_bounded(shape: str) -> None:
    """Once nobody can tell any more, what only counts is taken for something that means something."""
    heard = Heard([b"1 2 3 " * (MOST_BYTES // 64)])
    columns = [[shape.format(n=n * 10**m) for n in range(1, 11)] for m in range(1, 64)]
    before, answers = 0, []
    for words in itertools.chain(
        columns, [[f"{letter}{word}" for word in columns[0]] for letter in string.ascii_letters]
    ):
        answers.append(heard.half(words))
        assert heard.searched - before < MOST_SEARCHED / 2
        before = heard.searched
    assert answers[0] is False
    assert answers[-1] is True
    assert heard.searched < 1.5 * MOST_SEARCHED


def test_among_more_numbers_than_are_looked_at_every_number_is() -> None:
    few, many = b"3001 3005 ", b"7000 " * 200_000
    assert Heard([few, many[:1000]]).half(["8001", "8002"]) is False
    assert Heard([few, many]).half(["8001", "8002"]) is True


@given(st.text('0123456789-AB "\\nu', max_size=60), st.from_regex(r"\A(A-|AB|-)?[0-9]{3}B?\Z"))
def test_a_number_is_heard_where_it_stands_or_between_two_that_do(text: str, word: str) -> None:
    before, number, after = re.split(r"(\d+)", word)
    plainly = Heard([text.encode()])
    stand = [n for n in range(1000) if plainly._has(f"{before}{n:03}{after}".encode())]
    expected = bool(stand) and min(stand) <= int(number) <= max(stand)
    assert Heard([text.encode()]).half([word]) is expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("busy (request 9f3a1c0b)", "busy (request 1b7e22d4)"),
        (f"no {IDS[0]}", f"no {IDS[1]}"),
        ("failed at 2026-11-30T15:42:20Z", "failed at 2026-11-30T15:49:01.5Z"),
        ("failed, 1764516000123", "failed, 1764516009999"),
    ],
)
def test_errors_that_differ_in_ids_and_times_alone_are_one(one: str, other: str) -> None:
    assert unmoving(one) == unmoving(other)


def test_errors_that_say_something_else_are_two() -> None:
    assert unmoving("40 % done") != unmoving("50 % done")
    assert unmoving("busy until 09:00") != unmoving("busy until 10:00")
