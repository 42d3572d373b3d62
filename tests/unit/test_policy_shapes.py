"""Whatever a tool's model accepts has its place in a request to policies, and is seen as it is."""

from dataclasses import replace
from datetime import UTC
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from fencepost.authority.shapes import (
    Unfit,
    arguments_shape,
    check_shape,
    merged,
    projection,
    quoted,
    type_text,
)
from fencepost.canonical import MAX_INT
from fencepost.contracts import Effect
from fencepost.fields import DecimalText, Instant, TenantId, Unordered
from fencepost.money import Money
from fencepost.proposals import canonical_value
from fencepost.secrets import SecretRef
from tests.unit.policies_app import Address, Everything, engine
from tests.unit.policy_questions import ANY, REQUEST

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30
) | st.sampled_from(
    ['"', "\\", "__entity", '{"__extn": 1}', "\u202e", "a\nb", "permit(principal,action,resource);"]
)
ADDRESS = st.builds(Address, **{"street": TEXT, "zip-code": st.none() | TEXT})
EVERYTHING = st.builds(
    Everything,
    text=TEXT,
    number=st.integers(-MAX_INT, MAX_INT),
    flag=st.booleans(),
    moment=st.datetimes(timezones=st.just(UTC)),
    day=st.dates(),
    exact=st.decimals(allow_nan=False, allow_infinity=False),
    kind=st.sampled_from(["x", "y"]),
    labels=st.sets(TEXT, max_size=3),
    addresses=st.lists(ADDRESS, max_size=3),
    home=st.none() | ADDRESS,
    weight=st.just(1.0),
    free=st.dictionaries(TEXT, TEXT, max_size=2),
    either=TEXT | st.integers(-5, 5),
    maybe=st.lists(st.none() | TEXT, max_size=2),
)
SEEING = engine(f"{ANY} when {{ context.arguments == context.arguments }};")


@given(EVERYTHING)
def test_whatever_the_model_accepts_cedar_takes(args: Everything) -> None:
    given_ = canonical_value(args)
    decision = SEEING.decide(replace(REQUEST, tool="wallet.everything", effect=Effect.READ, arguments=given_))
    assert decision.allowed, decision.reason


class Node(BaseModel):
    name: str
    kids: list["Node"] = []


class Typed(BaseModel):
    when: Instant
    price: DecimalText
    tags: Unordered[str]
    order: TenantId[Literal["order"]]
    money: Money | None = None
    secret: SecretRef
    uid: UUID
    node: Node
    pair: tuple[int, str]
    mixed: Literal[1, "a"] = 1
    aliased: int = Field(alias="a-lias")
    nothing: None = None
    odd: int = Field(default=1, alias="__entity")


def test_the_types_of_arguments() -> None:
    shape, missing = arguments_shape(Typed)
    assert type_text(shape) == (
        '{ "a-lias": Long, "money"?: { "amount_minor": Long, "currency": String, "scale": Long },'
        ' "node": { "name": String }, "order": String, "price": String, "secret": { "secret": String },'
        ' "tags": Set<String>, "uid": String, "when": datetime }'
    )
    assert sorted(missing) == ["__entity", "mixed", "node.kids", "nothing", "pair"]
    check_shape(shape)


@pytest.mark.parametrize(
    "wrong", ["word", {}, {"set": "word"}, {"record": {}}, {"record": {}, "optional": ["a"]}, None, ["text"]]
)
def test_what_is_no_shape(wrong: Any) -> None:
    with pytest.raises(ValueError, match="not the shape"):
        check_shape(wrong)


def test_what_versions_differ_in_is_left_out_and_what_one_lacks_is_optional() -> None:
    one = {"record": {"a": "text", "b": "text", "c": {"record": {"d": "text", "e": "text"}, "optional": []}}}
    two = {"record": {"a": "text", "b": "integer", "c": {"record": {"d": "boolean"}, "optional": []}}}
    three = {"record": {"b": "text"}}
    found, lost = merged([{**shape, "optional": []} for shape in (one, two, three)])
    assert found == {
        "record": {"a": "text", "c": {"record": {"e": "text"}, "optional": ["e"]}},
        "optional": ["a", "c"],
    }
    assert lost == ["b", "c.d"]


@pytest.mark.parametrize(
    "value", ["2026-01-02T03:04:05", "2026-01-02 03:04:05Z", "now", "", 5, None, "2026-1-2"]
)
def test_what_is_no_instant(value: Any) -> None:
    with pytest.raises(Unfit, match="arguments is no instant"):
        projection("instant")(value)


def test_instants_are_cut_to_milliseconds_and_days_begin_in_utc() -> None:
    assert projection("instant")("2026-01-02T00:00:00.9999+05:30") == "2026-01-01T18:30:00.999Z"
    assert projection("instant")("2026-01-02") == "2026-01-02"


@settings(max_examples=30)
@given(TEXT)
def test_texts_are_quoted_for_cedar(text: str) -> None:
    same = engine(f"{ANY} when {{ context.tenant == {quoted(text)} }};")
    assert same.decide(replace(REQUEST, tenant=text)).allowed
