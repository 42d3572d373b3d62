"""Runs read from a file: all of it is judged, with line numbers, before any of it is used."""

import json
from datetime import timedelta
from typing import Any

import pytest

from fencepost import Budget, NotFound, RunRequest, UsageError
from fencepost_ops.commands.requests import BadFile, Defaults, read_requests

GOOD = {"run_key": "o-1", "input": {"order": 1}}


def read(text: str | bytes, **changes: Any) -> list[RunRequest]:
    given: dict[str, Any] = {
        "planner": "fulfil",
        "tenant": "shop",
        "principal": "svc:checkout",
        "deadline": timedelta(minutes=5),
        "version_of": lambda planner, version: version or 1,
    }
    data = text if isinstance(text, bytes) else text.encode()
    return read_requests(data, "orders.jsonl", Defaults(**{**given, **changes}))


def problems(text: str | bytes, **changes: Any) -> list[tuple[int, str]]:
    with pytest.raises(BadFile) as caught:
        read(text, **changes)
    return [(problem.line, problem.message) for problem in caught.value.problems]


def problems_or_none(text: str) -> list[tuple[int, str]]:
    try:
        read(text)
    except BadFile as bad:
        return [(problem.line, problem.message) for problem in bad.problems]
    return []


def lines(*items: Any) -> str:
    return "\n".join(item if isinstance(item, str) else json.dumps(item) for item in items)


@pytest.mark.parametrize(
    "text",
    [
        lines(GOOD, {**GOOD, "run_key": "o-2"}),
        lines(GOOD, "", "  ", {**GOOD, "run_key": "o-2"}, ""),
        json.dumps([GOOD, {**GOOD, "run_key": "o-2"}], indent=2),
        "\ufeff" + lines(GOOD, {**GOOD, "run_key": "o-2"}).replace("\n", "\r\n"),
        " \n[" + lines(GOOD) + "\n,\n" + json.dumps({**GOOD, "run_key": "o-2"}) + "]\n",
    ],
)
def test_an_array_and_json_lines_are_the_same_runs(text: str) -> None:
    assert [request.run_key for request in read(text)] == ["o-1", "o-2"]


def test_one_object_may_span_lines() -> None:
    (request,) = read(json.dumps(GOOD, indent=4))
    assert request.input == {"order": 1}
    assert (request.planner, request.version, request.tenant) == ("fulfil", 1, "shop")


def test_a_run_may_say_everything_itself() -> None:
    item = {
        **GOOD,
        "planner": "other",
        "version": 3,
        "tenant": "t",
        "principal": "p",
        "deadline": "90s",
        "budget": {"turns": 2},
        "on_stop": "leave",
        "tainted": True,
    }
    (request,) = read(json.dumps(item), planner=None, tenant=None, principal=None)
    assert (request.planner, request.version, request.tenant, request.principal) == ("other", 3, "t", "p")
    assert request.tainted
    assert (request.deadline, request.budget, request.on_stop) == (
        timedelta(seconds=90),
        Budget(turns=2),
        "leave",
    )


def test_with_a_key_field_each_object_is_an_input() -> None:
    text = lines({"order_id": "o-1", "total": 3}, {"order_id": 7})
    first, second = read(text, key_field="order_id")
    assert (first.run_key, first.input) == ("o-1", {"order_id": "o-1", "total": 3})
    assert second.run_key == "7"
    assert problems(lines({"order_id": True}, {}), key_field="order_id") == [
        (1, "the run key in field 'order_id' is true or false, not a text or whole number"),
        (2, "no field 'order_id', which --key-field says is the run key"),
    ]


def test_every_bad_line_is_told_and_the_good_ones_are_not_used() -> None:
    text = lines(
        GOOD,
        '{"run_key": "o-2", "input": {}',
        [1],
        {"run_key": "o-3", "inputs": {}},
        {"run_key": "o-4", "input": {}, "deadline": "-5m"},
        {"run_key": "", "input": {}},
        '{"run_key": "o-5", "run_key": "o-6", "input": {}}',
        '{"run_key": "o-7", "input": NaN}',
        {"run_key": "o-8", "input": {}, "deadline": 300},
        {"run_key": "o-9", "input": {}, "budget": {"turn": 1}},
        {"run_key": "o-10", "input": {}, "on_stop": "explode"},
        {"run_key": "o-11"},
        {"run_key": "o-12", "input": 1e999}.__repr__().replace("'", '"').replace("inf", "1e999"),
        {**GOOD, "input": {"order": 2}},
    )
    told = problems(text)
    assert [line for line, _ in told] == list(range(2, 15))
    expected = [
        "not JSON: expecting ',' delimiter at column 31",
        "a run is a JSON object, not an array",
        "unknown field 'inputs'; a run has budget, deadline, input",
        "the deadline lies in the past",
        "run_key is a text that is not empty, not ''",
        "the key 'run_key' appears twice in one object",
        "NaN is not JSON",
        'deadline is a duration from now, such as "5m", not a number',
        "budget: unknown turn; known are",
        "on_stop is compensate or compensate_at_once or leave, not 'explode'",
        "no input: a run has an input",
        "input is a number of more than 400 digits; pass it as text",
        "run key o-1 was used on line 1 for another request",
    ]
    for (_, message), beginning in zip(told, expected, strict=True):
        assert message.startswith(beginning)


def test_the_error_names_the_file_and_the_first_problems_only() -> None:
    with pytest.raises(BadFile) as caught:
        read("\n".join(["{}"] * 25))
    shown = str(caught.value).split("\n")
    assert shown[0] == "orders.jsonl has 25 problems, nothing was enqueued:"
    assert shown[1].startswith("  line 1: no input")
    assert shown[-1] == "  and 15 more"


def test_missing_names_say_how_to_give_them() -> None:
    text = lines(GOOD)
    assert problems(text, planner=None) == [(1, "no planner: give one in the run, or with --planner")]
    assert problems(text, tenant=None) == [(1, "no tenant: give one in the run, or with --tenant")]
    assert problems('{"input": {}}') == [(1, "no run_key: give one in the run")]


@pytest.mark.parametrize(
    ("text", "line", "beginning"),
    [
        ('[\n{"run_key": "o-1", "input": {}},\n{"run_key"}\n]', 3, "not JSON: expecting ':' delimiter"),
        ('[\n{"run_key": "o-1", "input": {}}\n{"a": 1}]', 3, "not JSON: expected , or ]"),
        ('[\n{"run_key": "o-1", "input": {}}\n', 2, "not JSON: expected , or ]"),
        ('{"run_key": "o-1", "input": {}\n', 1, "not JSON: expecting ',' delimiter at column 31"),
        ('{"run_key": "o-1", "input":\n\n', 1, "not JSON: expecting value at column 28"),
        ('\n{"run_key": "o-1"', 2, "not JSON: expecting ',' delimiter"),
        ('{"run_key": "o-1"} x\n', 1, "not JSON: extra data at column 20"),
        ('{"run_key": "o-1", "input": {}}\n{"run_key"\n', 2, "not JSON: expecting ':' delimiter"),
        ("[]\n\n{}", 1, "not JSON: there is more after the array"),
        ('[{"run_key": "o-1", "input": {}},\n]', 2, "not JSON: a run is missing after the last comma"),
        ('[\n\n{"run_key": "o-1", "input": {}}, \n\n7]', 5, "a run is a JSON object, not a number"),
        ('{\n"run_key": "o-1",\n"input": [}\n', 3, "not JSON: expecting value"),
        (b'{"run_key": "o-1", "input": {}}\n{"run_key": "\xff"}', 2, "is not UTF-8"),
        ('{"run_key": "o-1", "input": ' + "[" * 100_000, 1, "nested too deep"),
        ('{"run_key": "o-1", "input": 1' + "0" * 5000 + "}", 1, "an integer has thousands of digits"),
    ],
)
def test_malformed_files_are_told_with_the_line(text: str | bytes, line: int, beginning: str) -> None:
    told = problems(text)
    assert told[-1][0] == line
    assert told[-1][1].startswith(beginning)


@pytest.mark.parametrize("text", ["", "  \n ", "[]", "[ ]\n"])
def test_a_file_without_runs_is_told(text: str) -> None:
    with pytest.raises(UsageError, match=r"orders\.jsonl holds no runs"):
        read(text)


def test_an_oversize_input_is_told_with_its_line() -> None:
    big = {"run_key": "o-2", "input": "x" * 1024 * 1024}
    ((line, message),) = problems(lines(GOOD, big))
    assert line == 2
    assert "at most 1048576 are taken" in message


def test_a_planner_the_application_lacks_is_a_bad_line() -> None:
    def version_of(planner: str, version: int | None) -> int:
        raise NotFound(f"there is no planner {planner}")

    assert problems(lines(GOOD), version_of=version_of) == [(1, "there is no planner fulfil")]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a": 1, "b": 2}', '{"b": 2.0, "a": 1e0}', True),
        ("1e23", "1" + "0" * 23, True),
        ("0.1000000000000000055", "0.1", False),
        ("0.1000000000000000055", "0.10000000000000000550", True),
        ("1", "true", False),
        ('"\\u00e9"', '"é"', True),
        ("18446744073709551616", "18446744073709551617", False),
    ],
)
def test_a_key_used_twice_is_the_same_run_by_its_values(one: str, other: str, same: bool) -> None:
    told = problems_or_none(f'{{"run_key": "o-1", "input": {one}}}\n{{"run_key": "o-1", "input": {other}}}')
    said = "run key o-1 was used on line 1 for another request"
    assert told == ([] if same else [(2, said)])


def test_the_usual_budget_named_is_no_other_request() -> None:
    assert len(read(lines(GOOD, {**GOOD, "budget": {"turns": 16}}, {**GOOD, "budget": {}}))) == 3
    assert problems(lines(GOOD, {**GOOD, "budget": {"turns": 17}}))[0][0] == 2


def test_the_same_run_twice_is_sent_twice() -> None:
    assert len(read(lines(GOOD, GOOD))) == 2
