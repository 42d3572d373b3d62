"""What lies in an intake's queue is judged by what it holds: a request of its own tenant, or a reason."""

import base64
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.errors import UsageError
from fencepost.settings import Settings
from fencepost_workers.intake import marking
from fencepost_workers.intake_entry import MAX_BYTES, MAX_ENTRY, Binding, Cut, judged

BINDING = Binding("intake", "shop", "svc:intake")
GOOD = {"run_key": "o-1", "planner": "p", "input": {"order": 1}, "deadline_s": 300}


def message(content: Any, headers: Any = None, **changes: Any) -> bytes:
    text = content if isinstance(content, str) else json.dumps(content)
    made = {
        "headers": {"task": "fencepost.intake", "id": "t-1"} if headers is None else headers,
        "content-type": "application/json",
        "properties": {"body_encoding": "base64"},
        "body": base64.b64encode(text.encode()).decode(),
    }
    return json.dumps({**made, **changes}).encode()


def asked(**changes: Any) -> bytes:
    return message([[], {**GOOD, **changes}, {}])


def test_a_request_is_read_from_the_keyword_arguments_and_belongs_to_the_binding() -> None:
    found = judged(
        asked(version=2, budget={"turns": 3}, on_stop="leave", deadline_s=1.5, tainted=True), BINDING
    )
    assert found.request is not None
    assert found.request == BINDING.request(
        planner="p",
        version=2,
        input={"order": 1},
        run_key="o-1",
        deadline=timedelta(seconds=1.5),
        budget=found.request.budget,
        on_stop="leave",
        tainted=True,
    )
    assert (found.request.tenant, found.request.principal) == ("shop", "svc:intake")


def test_a_message_is_known_by_its_task_id_and_its_content() -> None:
    one = judged(asked(), BINDING)
    redelivered = json.loads(asked())
    redelivered["headers"]["redelivered"] = True
    redelivered["properties"]["delivery_tag"] = "another"
    assert judged(json.dumps(redelivered).encode(), BINDING).id == one.id
    others = [
        judged(asked(run_key="o-2"), BINDING),
        judged(message([[], GOOD, {}], headers={"task": "fencepost.intake", "id": "t-2"}), BINDING),
        judged(message([[], GOOD, {}], headers={"task": "other", "id": "t-1"}), Binding("q", "shop", "p")),
        judged(b"garbage", BINDING),
    ]
    assert len({one.id, *(other.id for other in others)}) == 5


LAID_OUT = ([[], GOOD], [[], GOOD, {}, {}], [[], GOOD, 7], [[], GOOD, [["chain"]]], {"kwargs": GOOD}, 7)
"""Otherwise than a message that names its task in a header."""


@pytest.mark.parametrize(
    ("item", "why"),
    [
        *(
            (message(content), "its content is no list of args, kwargs and what follows")
            for content in LAID_OUT
        ),
        (message([[], [], {}]), "its kwargs are no object"),
        (message({"task": "other", "kwargs": GOOD}, headers={}), "the intake knows no task other"),
        (message(7, headers={}), "it names no task"),
        (message('[[], {"run_key": "a", "run_key": "b"}, {}]'), "the key 'run_key' appears twice"),
        (message("[[], {"), "not JSON: "),
        (
            message("", **{"content-type": "application/x-python-serialize"}),
            "its content is application/x-python",
        ),
        (message("", **{"content-type": None}), "its content is None, only application/json is read"),
        (message("", body="§"), "this is no message of a Celery client"),
        (message("", body=base64.b64encode(b"\xff").decode()), "its content is not UTF-8"),
        (message("", headers={"compression": "application/x-bz2"}), "it is compressed as application/x-bz2"),
        (message("x", headers={"compression": "application/x-gzip"}), "it cannot be decompressed"),
        (b"[" * 100_000, "this is no message of a Celery client"),
        (message("x" * (MAX_BYTES + 1)), "the message has 8388609 bytes, at most 8388608 are read"),
        (b"x" * (MAX_ENTRY + 1), "the message has 12582913 bytes, at most 12582912 are read"),
        (
            asked(input=[{"a": {"__type__": "uuid", "__value__": {"hex": "x"}}}]),
            "input[0].a is a uuid in Celery's",
        ),
    ],
)
def test_what_is_no_request_says_why(item: bytes, why: str) -> None:
    found = judged(item, BINDING)
    assert found.request is None
    assert found.error.startswith(why)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(), some, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from([*GOOD, "version", "budget", "on_stop", "tenant", "args", "x"])


@settings(max_examples=40)
@given(st.dictionaries(FIELDS, JSON, max_size=3), st.booleans())
def test_no_keyword_arguments_raise(changes: dict[str, Any], whole: bool) -> None:
    found = judged(message([[], {**GOOD, **changes} if whole else changes, {}]), BINDING)
    assert (found.request is None) == bool(found.error)


@settings(max_examples=40)
@given(JSON, JSON, JSON, JSON)
def test_no_entry_raises(headers: Any, properties: Any, body: Any, content: Any) -> None:
    for item in (
        {"headers": headers, "properties": properties, "body": body, "content-type": content},
        {"headers": {"task": "fencepost.intake"}, "properties": {}, "body": body, "content-type": content},
        content,
    ):
        assert judged(json.dumps(item).encode(), BINDING).error
    assert judged(message(body), BINDING).error


def test_a_binding_names_what_the_ledger_takes() -> None:
    with pytest.raises(UsageError, match="has 101 characters"):
        Binding("intake", "t" * 101, "p")
    with pytest.raises(UsageError, match="principal is a name"):
        Binding("intake", "t", "")


def test_of_an_entry_that_came_cut_the_refusal_says_the_size_and_each_is_its_own() -> None:
    found = [judged(b"begins alike", BINDING, Cut(30_000_000, 1000, tag)) for tag in ("a", "b", "b")]
    assert {one.error for one in found} == {"the message has 30000000 bytes, at most 1000 are read"}
    assert {one.text for one in found} == {b"begins alike"}
    assert len({one.id for one in found}) == 2


def test_what_a_killed_intake_held_comes_back_in_a_minute_and_apart_from_what_others_hold() -> None:
    options = marking(Settings(hostile=False))
    assert options["visibility_timeout"] == 60
    assert marking(Settings(hostile=True))["visibility_timeout"] == 2
    names = [options[f"unacked{part}_key"] for part in ("", "_index", "_mutex")]
    assert len({*names, "unacked", "unacked_index", "unacked_mutex"}) == 6
