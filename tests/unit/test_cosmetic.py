"""What of a call's arguments only counts: by what its tool declares, else by names; and of an error."""

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.cosmetic import MOST_CHARS, meant, unmoving

IDS = [str(UUID(int=2**64 * n + 2**90 + 99 * n)) for n in range(1, 3)]
SAME: dict[str, tuple[Any, Any]] = {
    "a try": ({"q": "x", "attempt": 1}, {"q": "x", "attempt": 2}),
    "in whatever spelling": ({"retryCount": 1}, {"retryCount": 2}),
    "with a dash": ({"cache-buster": "a"}, {"cache-buster": "b"}),
    "a number of it": ({"iteration_no": 1}, {"iteration_no": 2}),
    "one that is missing": ({"q": "x"}, {"q": "x", "nonce": "9f3a"}),
    "a number and a text": ({"tick": 1}, {"tick": "2"}),
    "a text, within": ({"a": [{"b": "try 1"}]}, {"a": [{"b": "try 2"}]}),
    "behind its word in a text": ({"q": "the list, try 1"}, {"q": "the list, try 22"}),
    "behind its word and a sign": ({"q": "Attempt #1: gates"}, {"q": "Attempt #2: gates"}),
    "in another order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
}
OTHER: dict[str, tuple[Any, Any]] = {
    "pages": ({"page": 1}, {"page": 2}),
    "traces": ({"trace_id": "a"}, {"trace_id": "b"}),
    "a place of a log": ({"q": "builds/9/attempt/3/log"}, {"q": "builds/9/attempt/4/log"}),
    "a file": ({"q": "logs/iteration 3"}, {"q": "logs/iteration 4"}),
    "a name of a file": ({"q": "attempt-3.log"}, {"q": "attempt-4.log"}),
    "racks": ({"rack": 1}, {"rack": 2}),
    "hours": ({"hour": 9}, {"hour": 10}),
    "a list of what is bought": ({"sku": "AB-1040"}, {"sku": "AB-1041"}),
    "ids": ({"order": IDS[0]}, {"order": IDS[1]}),
    "a number in a text": ({"q": "rack 1"}, {"q": "rack 2"}),
    "a word behind a try": ({"q": "try gates"}, {"q": "try poles"}),
    "within a word": ({"q": "poetry1"}, {"q": "poetry2"}),
    "a number within": ({"a": {"tick": 1}}, {"a": {"tick": 2}}),
    "a word instead of a number": ({"loop": "home"}, {"loop": "news"}),
    "a share": ({"tries": 0.5}, {"tries": 0.7}),
    "an amount": ({"q": "TRY 100"}, {"q": "TRY 200"}),
    "a flag": ({"retry": False}, {"retry": True}),
    "what is more than a value": ({"page": {"of": "a"}}, {"page": {"of": "b"}}),
    "none and one": ({"tries": None}, {"tries": 1}),
    "letters": ({"n": 1, "i": 1}, {"n": 2, "i": 2}),
    "a part of work": ({"q": "retrospective of Iteration 7"}, {"q": "retrospective of Iteration 8"}),
    "no object": ([1], [2]),
    "more than is looked into": ({"tries": 1, "x": "y" * MOST_CHARS}, {"tries": 2, "x": "y" * MOST_CHARS}),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_what_only_counts(one: Any, other: Any) -> None:
    assert meant(json.dumps(one)).arguments == meant(json.dumps(other)).arguments


@pytest.mark.parametrize(("one", "other"), OTHER.values(), ids=OTHER)
def test_what_means_something(one: Any, other: Any) -> None:
    assert meant(json.dumps(one)).arguments != meant(json.dumps(other)).arguments


def test_what_a_tool_declares_is_all_that_counts() -> None:
    one, other = json.dumps({"rack": 1, "n": 1}), json.dumps({"rack": 2, "n": 1})
    assert meant(one, ("rack",)) == meant(other, ("rack", "none_there"))._replace(counts={"rack": 1})
    assert meant(one, ("rack",)).arguments != meant(json.dumps({"rack": 1, "n": 2}), ("rack",)).arguments
    assert meant(one, ()).arguments != meant(json.dumps({"rack": 1, "n": 2}), ()).arguments


def test_what_is_declared_is_left_out_of_long_arguments_too() -> None:
    one, other = (json.dumps({"hint": n, "x": "y" * MOST_CHARS}) for n in range(2))
    assert meant(one, ("hint",)).arguments == meant(other, ("hint",)).arguments


def test_what_counts_is_told_by_where_it_stood() -> None:
    said = {"tick": 1, "a": {"b": [{"c": "Try 2"}, "try 3"]}}
    assert meant(json.dumps(said)).counts == {"tick": 1, "a.b[0].c": "Try 2", "a.b[1]": "try 3"}


@pytest.mark.parametrize("text", ["", "{", "[" * 5000, '{"a":' * 1500 + '{"n":1}' + "}" * 1500])
def test_what_cannot_be_read_means_what_it_is(text: str) -> None:
    assert meant(text).arguments == text
    assert meant(text, ("a",)).arguments == text


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["tries", "x", "try"]), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["tries", "try", "a", "Try 2"]), _JSON))
def test_whatever_means_something_stays(value: dict[str, Any]) -> None:
    found = meant(json.dumps(value))
    assert meant(found.arguments).arguments == found.arguments
    assert found.counts or json.loads(found.arguments) == value


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
