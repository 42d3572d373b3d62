"""What a producer may hand in: nothing so deep, or with numbers so long, that no worker could read it."""

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from fencepost import Budget
from fencepost.budgets import LIMITS, MAX_WALL_CLOCK
from tests.integration.ledger_bench import TENANT, Bench

ENQUEUE = "SELECT fencepost.enqueue_run(%s, %s, 'p', 1, 'svc', %s::jsonb, '1 h')"


def enqueue(bench: Bench, text: str) -> str | None:
    """Why an input is refused as a bad value; None where it is taken."""
    try:
        bench.producer.execute(ENQUEUE, [TENANT, bench.order(), text])
    except psycopg.Error as error:
        if error.sqlstate != "FP422":
            raise
        return str(error.diag.message_primary)
    return None


def nested(depth: int, leaf: str, kind: str) -> str:
    """A value inside `depth` containers."""
    if kind == "array":
        return "[" * depth + leaf + "]" * depth
    if kind == "object":
        return '{"a":' * depth + leaf + "}" * depth
    return '[{"a":' * (depth // 2) + leaf + "}]" * (depth // 2)


@pytest.mark.parametrize("kind", ["array", "object", "both"])
def test_an_input_is_nested_64_levels_deep_at_most(module_bench: Bench, kind: str) -> None:
    assert enqueue(module_bench, nested(64, "1", kind)) is None
    for leaf in ("[]", "{}", "[1]", '{"b":2}'):
        assert "64 levels" in (enqueue(module_bench, nested(64, leaf, kind)) or "taken")
    for depth in (66, 100, 1000, 3000):
        assert "64 levels" in (enqueue(module_bench, nested(depth, "1", kind)) or "taken")


def test_one_deep_value_among_many_shallow_ones_is_found(module_bench: Bench) -> None:
    wide = json.dumps({str(n): [n] for n in range(1000)})
    assert enqueue(module_bench, wide) is None
    assert "64 levels" in (enqueue(module_bench, wide[:-1] + f', "x": {nested(70, "1", "array")}}}') or "")


TOO_LONG = ["1e5000", "-1e400", "9" * 401, "1e-5000", "0." + "1" * 400, "9" * 201 + "." + "9" * 200]
LONG = ["9" * 400, "-" + "9" * 400, "1e399", "0." + "1" * 399]


@pytest.mark.parametrize("place", ["{}", '[1, {{"a": [2, {}]}}]', '{{"a": {}}}'])
@pytest.mark.parametrize("number", TOO_LONG)
def test_a_number_has_400_digits_at_most(module_bench: Bench, place: str, number: str) -> None:
    assert "400 digits" in (enqueue(module_bench, place.format(number)) or "taken")


@pytest.mark.parametrize(
    "text",
    [
        "9" * 400,
        "-" + "9" * 400,
        "1e399",
        "0." + "1" * 399,
        json.dumps("9" * 5000),
        json.dumps({"9" * 5000: 1}),
    ],
)
def test_long_text_is_no_long_number(module_bench: Bench, text: str) -> None:
    assert enqueue(module_bench, text) is None


def test_what_is_taken_can_be_read_and_started(bench: Bench) -> None:
    deepest: Any = nested(63, "9" * 400, "array")
    row = bench.producer.execute(
        "SELECT run FROM fencepost.enqueue_run(%s, %s, 'p', 1, 'svc:checkout', %s::jsonb, '1 h')",
        [TENANT, bench.order(), deepest],
    ).fetchone()
    assert row is not None
    bench.started.append(row[0])
    bench.debit(row[0], bench.order())
    assert json.loads(bench.run(row[0]).request)["input"] == json.loads(deepest)


def test_a_budgets_absent_limits_are_the_usual_ones(module_bench: Bench) -> None:
    def taken(budget: str) -> bool:
        try:
            module_bench.producer.execute(
                "SELECT fencepost.enqueue_run(%s, 'budget', 'p', 1, 'svc', '1', '1 h', %s::jsonb)",
                [TENANT, budget],
            )
        except psycopg.Error as error:
            if error.sqlstate != "FP409":
                raise
            return False
        return True

    assert taken("{}")
    assert taken('{"turns": 16}')
    assert taken(json.dumps(Budget().to_json()))
    assert not taken('{"turns": 17}')
    assert not taken('{"wall_clock_ms": 1000}')


def ends(least: int, most: int) -> list[str]:
    """What stands at the ends of a range and beyond them, and what is no number."""
    numbers = [least - 1, least, most, most + 1, 10**15, 10**16, 10**20]
    return [*map(str, numbers), "null", "true", '"3"', "1.5", "[1]"]


RANGES = {**LIMITS, "wall_clock_ms": (1, MAX_WALL_CLOCK // timedelta(milliseconds=1))}


@pytest.mark.parametrize("name", [*RANGES, "turn", "wall_clock"])
def test_the_ledger_takes_exactly_the_budgets_that_the_client_takes(module_bench: Bench, name: str) -> None:
    for value in ends(*RANGES.get(name, (0, 9))):
        text = f'{{"{name}": {value}}}'
        try:
            Budget.from_json(json.loads(text))
            fine = True
        except ValueError:
            fine = False
        try:
            module_bench.producer.execute(
                "SELECT fencepost.enqueue_run(%s, %s, 'p', 1, 'svc', '1', '1 h', %s::jsonb)",
                [TENANT, module_bench.order(), text],
            )
            said = None
        except psycopg.Error as error:
            said = error.sqlstate
        assert said == (None if fine else "FP422"), text


@pytest.mark.parametrize("version", [0, -1])
def test_a_version_counts_from_one(module_bench: Bench, version: int) -> None:
    statement = "SELECT fencepost.enqueue_run(%s, 'version', 'p', %s, 'svc', '1', '1 h')"
    with pytest.raises(psycopg.Error, match="version is a whole number from 1 on"):
        module_bench.producer.execute(statement, [TENANT, version])


def test_a_newer_planner_takes_nothing_from_what_an_older_one_was_given(module_bench: Bench) -> None:
    statement = "SELECT run, created FROM fencepost.enqueue_run('shop', 'kept', 'p', %s, 'svc', %s, '1 h')"
    with psycopg.connect(module_bench.database.dsns["producer"], autocommit=True) as producer:
        first = producer.execute(statement, [1, '{"order": 1}']).fetchone()
        again = producer.execute(statement, [2, '{"order": 1}']).fetchone()
        assert first is not None
        assert again == (first[0], False)
        with pytest.raises(psycopg.Error) as other:
            producer.execute(statement, [2, '{"order": 2}'])
    assert other.value.sqlstate == "FP409"
    assert module_bench.run(first[0]).planner_version == 1
