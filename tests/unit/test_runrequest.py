"""A request for a run is checked before anything is sent."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from fencepost import Budget, OnStop, RunRequest, UsageError
from fencepost.runrequest import MAX_INPUT_BYTES, input_text


def request(**changes: Any) -> RunRequest:
    given = {
        "planner": "fulfil",
        "input": {},
        "run_key": "o-1",
        "tenant": "shop",
        "principal": "svc:checkout",
        "deadline": timedelta(minutes=5),
    }
    return RunRequest(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"run_key": ""}, "run_key is a text that is not empty"),
        ({"run_key": 7}, "run_key is a text that is not empty, not 7"),
        ({"run_key": "k" * 201}, "run_key has 201 characters, at most 200"),
        ({"run_key": "child:7"}, "run keys that begin with child: are those of runs that calls start"),
        ({"tenant": "t" * 101}, f"tenant {ascii('t' * 101)[:80]} has 101 characters, at most 100"),
        ({"principal": "a\0b"}, "principal 'a\\x00b' is no name"),
        ({"planner": "p\ud800"}, "planner holds half a character"),
        ({"version": 0}, "version is a whole number from 1 on, not 0"),
        ({"version": True}, "version is a whole number from 1 on, not True"),
        ({"deadline": timedelta(0)}, "the deadline lies in the past"),
        ({"deadline": timedelta(seconds=-1)}, "the deadline lies in the past"),
        ({"deadline": timedelta(days=4000)}, "the deadline lies 4000 days ahead, at most 3650"),
        ({"deadline": 300}, "deadline is a timedelta from now, not 300"),
        ({"budget": {"turns": 3}}, "budget is a fencepost.Budget"),
        ({"on_stop": "explode"}, "on_stop is compensate or compensate_at_once or leave, not 'explode'"),
        ({"on_stop": []}, "on_stop is compensate or compensate_at_once or leave, not []"),
    ],
)
def test_what_the_ledger_would_refuse_is_one_sentence(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        request(**changes)
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"a": [1, float("nan")]}, "input.a[1] is nan, which is not JSON"),
        ([float("-inf")], "input[0] is -inf, which is not JSON"),
        ({"a": {1: 2}}, "input.a has a key that is no text: 1"),
        ({"a": b"x"}, "input.a is a bytes, which is not JSON"),
        ({"a": {"b": {1, 2}}}, "input.a.b is a set, which is not JSON"),
        ({"a": "x\0"}, "input.a holds a NUL"),
        ({"x\0": 1}, "a key of input holds a NUL"),
        (["\udc00"], "input[0] holds half a character"),
        ([10**5000], "input[0] is a number of more than 400 digits; pass it as text"),
        ([-(10**400)], "input[0] is a number of more than 400 digits"),
        ([Decimal("1e400")], "input[0] is a number of more than 400 digits"),
        ([Decimal("1e-400")], "input[0] is a number of more than 400 digits"),
        ([Decimal("1e999999")], "input[0] is a number of more than 400 digits"),
        ([Decimal("NaN")], "input[0] is NaN, which is not JSON"),
        ([1e300] * 4000, "the input is 1212000 bytes of JSON"),
        (
            "x" * MAX_INPUT_BYTES,
            f"the input is {MAX_INPUT_BYTES + 2} bytes of JSON, at most {MAX_INPUT_BYTES}",
        ),
    ],
)
def test_an_input_that_is_no_json_is_refused_with_the_place(value: Any, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        input_text(value)
    assert str(caught.value).startswith(complaint)


def test_an_input_nested_without_end_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UsageError, match="deeper than 64 levels"):
        input_text(value)


def test_any_other_json_is_taken_as_it_is() -> None:
    value = {"total": 1.5, "big": 2**64, "names": ["é", None, True], "nested": {"empty": {}}, "pair": (1, 2)}
    assert input_text(value) == (
        '{"total": 1.5, "big": 18446744073709551616, "names": ["é", null, true],'
        ' "nested": {"empty": {}}, "pair": [1, 2]}'
    )


def test_a_decimal_is_a_number_of_exactly_its_digits() -> None:
    value = {"é": [Decimal("0.1000000000000000055"), Decimal("1E+399"), 10**400 - 1, True, "x"], "e": {}}
    exact = "9" * 400
    assert input_text(value) == f'{{"é": [0.1000000000000000055, 1E+399, {exact}, true, "x"], "e": {{}}}}'


def test_no_budget_and_an_empty_one_are_sent_as_they_are() -> None:
    assert request().budget_text == "{}"
    assert request(budget=Budget(turns=3)).budget_text.startswith('{"turns": 3,')
    assert request(on_stop=OnStop.LEAVE).on_stop == "leave"
