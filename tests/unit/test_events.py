"""Events: bodies of any text, and a chain that shows every edit."""

import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.events import GENESIS, Event, body_digest, body_text, chain_fault, chain_hash

AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def event(seq: int = 1, prev: str = GENESIS, body: dict[str, Any] | None = None) -> Event:
    text = body_text(body or {"to": "FAILED"})
    made = Event(
        tenant="shop",
        run=UUID(int=1),
        seq=seq,
        id=UUID(int=100 + seq),
        type="RepairDecided",
        version=1,
        call=UUID(int=2),
        attempt=1,
        body=text,
        digest=body_digest(text),
        principal="ann",
        worker="w",
        fence=7,
        policy="p-1",
        causation=UUID(int=9),
        recorded_at=AT,
        projection="f" * 64,
        prev_hash=prev,
        hash="",
    )
    return replace(made, hash=chain_hash(made))


CHANGED: dict[str, Any] = {
    "tenant": "other",
    "run": UUID(int=3),
    "seq": 2,
    "id": UUID(int=4),
    "type": "RepairRequested",
    "version": 2,
    "call": None,
    "attempt": None,
    "body": '{"to":"SUCCEEDED"}',
    "digest": "0" * 64,
    "principal": "bob",
    "worker": None,
    "fence": 8,
    "policy": None,
    "causation": UUID(int=5),
    "recorded_at": AT + timedelta(microseconds=1),
    "projection": None,
    "prev_hash": "1" * 64,
    "hash": "2" * 64,
}


def test_the_list_of_changes_covers_every_field() -> None:
    assert CHANGED.keys() == {f.name for f in fields(Event)}


@pytest.mark.parametrize("field", sorted(CHANGED))
def test_a_change_of_any_field_breaks_the_chain(field: str) -> None:
    assert chain_fault(event(), GENESIS, 1) is None
    assert chain_fault(replace(event(), **{field: CHANGED[field]}), GENESIS, 1) is not None


def test_a_rewritten_body_with_a_matching_digest_still_breaks_the_chain() -> None:
    body = '{"to":"SUCCEEDED"}'
    forged = replace(event(), body=body, digest=body_digest(body))
    assert chain_fault(forged, GENESIS, 1) == "event 1: its header was changed"


def test_a_missing_and_a_reordered_event_are_told_apart() -> None:
    second = event(2, prev=event().hash)
    assert chain_fault(second, event().hash, 2) is None
    assert chain_fault(second, GENESIS, 1) == "event 1 is missing: found 2"
    assert chain_fault(second, "a" * 64, 2) == "event 2 does not follow the one before it"


def test_ordinary_bodies_are_canonical_and_kept_exactly() -> None:
    assert body_text({"b": 1, "a": "ü\\u"}) == '{"a":"ü\\\\u","b":1}'


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("a\0b", "a\\u0000b"),
        ("half \ud800", "half \\ud800"),
        (1.5, "1.5"),
        (float("nan"), "nan"),
        (2**60, str(2**60)),
    ],
)
def test_what_has_no_canonical_form_is_kept_visibly(said: object, kept: str) -> None:
    body = json.loads(body_text({"message": said, "plain": "C:\\users"}))
    assert body == {"message": kept, "plain": "C:\\users"}


texts = st.text(st.characters(), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(texts, values, max_size=4))
def test_any_body_becomes_text_that_postgres_can_store(body: dict[str, Any]) -> None:
    text = body_text(body)
    assert "\0" not in text
    assert "\\u0000" not in json.dumps(json.loads(text), ensure_ascii=True).replace("\\\\", "")
    text.encode()
