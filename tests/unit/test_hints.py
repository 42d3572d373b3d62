"""What may be taken from a broker message: the hint it names, and nothing else (R1)."""

import base64
import copy
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost_workers import broker
from fencepost_workers.hints import MOST_ITEMS, Flaw, read

SUBJECT = str(UUID(int=7))
ITEM = ["shop", SUBJECT, 3]
EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def packed(*body: Any) -> str:
    return base64.b64encode(json.dumps(body).encode()).decode()


def message(*items: Any) -> dict[str, Any]:
    """As the relay publishes it."""
    return {
        "body": packed([list(items)], {}, EMBED),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": "fencepost.planner", "id": "i-1", "eta": None, "lang": "py"},
        "properties": {
            "delivery_tag": "t-1",
            "delivery_info": {"exchange": "", "routing_key": "planner"},
            "body_encoding": "base64",
        },
    }


def changed(**parts: Any) -> dict[str, Any]:
    """A message with some parts replaced; `headers__eta` is the eta of the headers."""
    whole = message(ITEM)
    for path, value in parts.items():
        *outer, last = path.replace("content_", "content-").split("__")
        place = whole
        for name in outer:
            place = place[name]
        place[last] = value
    return whole


def body(found: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(found["body"]))


def test_a_list_of_hints_passes_as_it_is() -> None:
    found = read(message(ITEM, ["t", SUBJECT, 0]), "planner")
    assert isinstance(found, dict)
    assert body(found) == [[[ITEM, ["t", SUBJECT, 0]]], {}, EMBED]
    assert (found["headers"]["task"], found["headers"]["id"]) == ("fencepost.planner", "i-1")
    assert found["properties"]["delivery_tag"] == "t-1"


@pytest.mark.parametrize(
    "forged",
    [
        changed(headers__eta="2099-01-01T00:00:00+00:00"),
        changed(headers__expires="2001-01-01T00:00:00+00:00"),
        changed(headers__timelimit=[1, 1]),
        changed(headers__group="g", headers__shadow="another", headers__retries=9),
        changed(properties__reply_to="somebody", properties__priority=9, properties__delivery_info={"x": 1}),
        changed(body=packed([[ITEM]], {}, {"chain": [{"task": "other"}], "callbacks": [{"task": "x"}]})),
    ],
    ids=["eta", "expires", "timelimit", "headers", "properties", "chain"],
)
def test_nothing_else_a_message_says_has_an_effect(forged: dict[str, Any]) -> None:
    assert read(forged, "planner") == read(message(ITEM), "planner")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (None, "it is no task message"),
        (3, "it is no task message"),
        ("text", "it is no task message"),
        ([], "it is no task message"),
        ({}, "it is no task message"),
        (changed(properties=None), "it is no task message"),
        (changed(headers=[]), "it is no task message"),
        (changed(headers__id=None), "it is no task message"),
        (changed(headers__id={}), "it is no task message"),
        (changed(headers__id="x" * 201), "it is no task message"),
        (changed(properties__delivery_tag=""), "it is no task message"),
        (changed(body=None), "it is no task message"),
        (changed(body="&&&"), "it is no task message"),
        (changed(body=base64.b64encode(b"{").decode()), "it is no task message"),
        (changed(body=base64.b64encode(b"[" * 100_000).decode()), "it is no task message"),
        (changed(body=packed()), "it is no task message"),
        (changed(body=packed([], {}, EMBED)), "it is no task message"),
        (changed(headers__task="fencepost.dispatcher"), "it names another task"),
        (changed(headers__task=["fencepost.planner"]), "it names another task"),
        (changed(content_type="application/x-python-serialize"), "its body is not plain JSON"),
        (changed(properties__body_encoding=None), "its body is not plain JSON"),
        (changed(headers__compression="application/x-gzip"), "its body is not plain JSON"),
        (changed(body=packed([[ITEM]], {"items": []}, EMBED)), "its argument is not one list of subjects"),
        (message(), "its argument is not one list of subjects"),
        (message(*[ITEM] * (MOST_ITEMS + 1)), "its argument is not one list of subjects"),
        (changed(body=packed(["items"], {}, EMBED)), "its argument is not one list of subjects"),
    ],
)
def test_what_is_no_list_of_hints_is_a_flaw(entry: Any, reason: str) -> None:
    assert read(entry, "planner") == Flaw(reason)


NO_HINT = Flaw("it names something that is no tenant, subject and generation")


@pytest.mark.parametrize(
    "item",
    [
        ["", SUBJECT, 1],
        ["t" * 101, SUBJECT, 1],
        ["a\x00b", SUBJECT, 1],
        ["\ud800", SUBJECT, 1],
        [None, SUBJECT, 1],
        ["shop", SUBJECT.replace("-", ""), 1],
        ["shop", SUBJECT, -1],
        ["shop", SUBJECT, 2**63],
        ["shop", SUBJECT, True],
        ["shop", SUBJECT, 1.0],
        ["shop", SUBJECT, "1"],
    ],
)
def test_every_item_is_a_tenant_a_subject_and_a_generation(item: Any) -> None:
    assert read(message(ITEM, item), "planner") == NO_HINT


@pytest.mark.parametrize("tenant", ["two\nlines", "zero\u200bwidth", "\x7f", "\U0001f980", "t" * 100])
def test_a_tenant_is_whatever_postgres_can_name(tenant: str) -> None:
    assert isinstance(read(message(ITEM, [tenant, SUBJECT, 1]), "planner"), dict)


@pytest.mark.parametrize("item", [[], ["shop", SUBJECT], ["shop", "not one", 1], 5, None, {"a": 1}])
def test_an_item_of_another_shape_is_a_flaw_as_well(item: Any) -> None:
    assert isinstance(read(message(ITEM, item), "planner"), Flaw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_no_entry_raises(entry: Any) -> None:
    assert isinstance(read(entry, "planner"), Flaw)


def _spoil(place: list[str]) -> Callable[[Any], Any]:
    def spoil(value: Any) -> Any:
        whole = copy.deepcopy(message(ITEM))
        inner: Any = whole
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = value
        return whole

    return spoil


PLACES = [
    ["body"],
    ["content-type"],
    ["headers"],
    ["properties"],
    ["headers", "task"],
    ["headers", "id"],
    ["headers", "compression"],
    ["properties", "delivery_tag"],
    ["properties", "body_encoding"],
]


@given(st.sampled_from(PLACES).flatmap(lambda place: JSON.map(_spoil(place))))
def test_no_part_of_a_message_raises(entry: Any) -> None:
    assert isinstance(read(entry, "planner"), dict | Flaw)


def test_whoever_drops_an_entry_hears_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(broker, "heard", [lambda: heard.append("planner")])
    transport = object.__new__(broker.Transport)
    for _ in range(3):
        transport._deliver({"no": "message"}, "planner")
    assert heard == ["planner"] * 3
