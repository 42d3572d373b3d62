import dataclasses
import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr, computed_field, field_validator, model_validator

from fencepost.canonical import arguments_hash
from fencepost.contracts import Effect
from fencepost.proposals import Limits, Rejected, Validated, validate
from fencepost.tools import Proposal, Tool, operation_key
from tests.typing.user_code import app, close_day, debit, level

DEBIT = {"order_id": "o-1", "amount": 5}


def check(
    tool: str | Tool, arguments: Any, *, tenant: str = "shop", limits: Limits | None = None, **more: Any
) -> Validated | Rejected:
    tools = {tool.name: tool} if isinstance(tool, Tool) else app.tools
    name = tool.name if isinstance(tool, Tool) else tool
    proposal = Proposal(name, arguments, **more)
    return validate(
        proposal, tools=tools, tenant=tenant, run_id="r", turn=2, ordinal=3, limits=limits or Limits()
    )


def accepted(tool: str | Tool, arguments: Any, **more: Any) -> Validated:
    found = check(tool, arguments, **more)
    assert isinstance(found, Validated), found
    return found


def refused(tool: str | Tool, arguments: Any, **more: Any) -> tuple[int, str]:
    found = check(tool, arguments, **more)
    assert isinstance(found, Rejected), found
    return found.step, found.code


def tool_of(model: type[BaseModel], check: Callable[[Any], object] | None = None) -> Tool:
    return dataclasses.replace(
        debit.tool, name="t", arguments=model, check=check, intent=lambda args: (repr(args),), request=None
    )


def test_a_valid_proposal_becomes_canonical() -> None:
    found = accepted("wallet.debit", ' {"amount": 5, "order_id" : "o-1"} ', call_id="debit")
    assert found == Validated(
        tool_name="wallet.debit",
        tool_version=1,
        label="debit",
        arguments='{"amount":5,"currency":"EUR","order_id":"o-1"}',
        arguments_hash=arguments_hash({"order_id": "o-1", "amount": 5, "currency": "EUR"}),
        operation=operation_key("shop", "wallet/default", "wallet.debit", ("order", "o-1")),
        scope="wallet/default",
        effect=Effect.REVERSIBLE,
        required=True,
    )


def test_text_mapping_and_model_mean_the_same() -> None:
    by_text = accepted("wallet.debit", json.dumps(DEBIT))
    assert by_text == accepted("wallet.debit", DEBIT)
    assert by_text == accepted("wallet.debit", debit.tool.arguments.model_validate(DEBIT))
    assert by_text == accepted("wallet.debit", {**DEBIT, "currency": "EUR"})


def test_an_unlabelled_proposal_is_labelled_by_its_place() -> None:
    assert accepted("wallet.debit", DEBIT).label == "2.3"
    assert accepted("wallet.debit", DEBIT, call_id="a\0b").label == "a\\u0000b"


def test_the_planner_does_not_say_what_is_required() -> None:
    assert accepted("wallet.debit", DEBIT, required=False).required is True
    optional = dataclasses.replace(debit.tool, required=False)
    assert accepted(optional, DEBIT, required=True).required is False


def test_a_read_has_no_operation() -> None:
    assert accepted("inventory.level", {"sku": "x"}).operation is None


# (1) schema and size


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("", "syntax"),
        ("{", "syntax"),
        ('{"order_id": "o-1", "amount": 5} {}', "syntax"),
        ("[]", "not_an_object"),
        ("null", "not_an_object"),
        ('"order"', "not_an_object"),
        ({"order_id": object()}, "type"),
        ({1: 2}, "key_type"),
        ({}, "schema"),
        ({"order_id": "o-1"}, "schema"),
        ({**DEBIT, "amount": "5"}, "schema"),
        ({**DEBIT, "amount": True}, "schema"),
        ({**DEBIT, "amount": 0}, "schema"),
        ({**DEBIT, "currency": "XXX"}, "schema"),
        ({**DEBIT, "extra": 1}, "schema"),
        ({**DEBIT, "order_id": "x" * 41}, "schema"),
    ],
)
def test_step_1_refuses_what_does_not_fit_the_schema(arguments: Any, code: str) -> None:
    assert refused("wallet.debit", arguments) == (1, code)


def test_step_1_refuses_what_is_too_large_or_too_deep() -> None:
    assert refused("wallet.debit", '{"order_id": "' + "x" * 100 + '"}', limits=Limits(max_bytes=50)) == (
        1,
        "too_large",
    )
    assert refused("wallet.debit", {"order_id": "x" * 100}, limits=Limits(max_bytes=50)) == (1, "too_large")
    assert refused("wallet.debit", '{"order_id":' * 5 + "1" + "}" * 5, limits=Limits(max_depth=4)) == (
        1,
        "too_deep",
    )
    assert refused("wallet.debit", {"order_id": [[[[1]]]]}, limits=Limits(max_depth=4)) == (1, "too_deep")
    assert refused("wallet.debit", "[" * 60_000) == (1, "too_deep")


def test_arguments_that_defaults_make_too_large_are_refused() -> None:
    class Padded(BaseModel):
        padding: str = "x" * 100

    assert refused(tool_of(Padded), {}, limits=Limits(max_bytes=50)) == (3, "too_large")


def test_a_validator_that_breaks_rejects() -> None:
    class Breaking(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def _broken(cls, value: int) -> int:
            raise RuntimeError(f"boom {value}")

    assert refused(tool_of(Breaking), {"x": 1}) == (1, "schema")


# (2) known tool and version


def test_step_2_refuses_unknown_tools_and_versions() -> None:
    assert refused("wallet.debitt", DEBIT) == (2, "unknown_tool")
    assert refused("wallet.debit", DEBIT, version=2) == (2, "unknown_version")
    assert refused("wallet.debit", {}, version=2) == (2, "unknown_version")
    assert accepted("wallet.debit", DEBIT, version=1).tool_version == 1


# (3) canonical arguments


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('{"amount": 5, "amount": 5, "order_id": "o"}', "duplicate_key"),
        ('{"amount": 5.0, "order_id": "o"}', "float"),
        ('{"amount": 5e0, "order_id": "o"}', "float"),
        ('{"amount": NaN, "order_id": "o"}', "not_finite"),
        ('{"amount": 9007199254740992, "order_id": "o"}', "number_range"),
        ('{"amount": 5, "order_id": "\\ud800"}', "surrogate"),
        ('{"amount": 5, "order_id": "\\u0000"}', "nul"),
        ({"amount": 5.0, "order_id": "o"}, "float"),
        ({"amount": 5, "order_id": "\0"}, "nul"),
    ],
)
def test_step_3_refuses_what_two_readers_could_take_for_different_things(arguments: Any, code: str) -> None:
    assert refused("wallet.debit", arguments) == (3, code)


def test_a_tool_is_known_before_its_arguments_are_judged() -> None:
    assert refused("wallet.debitt", '{"a": 1.5}') == (2, "unknown_tool")
    assert refused("wallet.debitt", "{") == (1, "syntax")


class Colour(StrEnum):
    RED = "red"


class Rich(BaseModel):
    at: datetime
    id: UUID
    colour: Colour
    price: Decimal
    tags: set[str]
    nested: list[dict[str, frozenset[int]]]


RICH = {
    "at": "2026-01-02T03:04:05+01:00",
    "id": "00000000-0000-0000-0000-000000000005",
    "colour": "red",
    "price": "1.50",
    "nested": [{"a": [3, 1, 2]}],
}


def test_sets_are_sorted_and_rich_types_have_one_text() -> None:
    tool = tool_of(Rich)
    tags = [f"tag-{n}" for n in range(20)]
    one = accepted(tool, {**RICH, "tags": tags})
    other = accepted(tool, {**RICH, "tags": tags[::-1], "nested": [{"a": [1, 2, 3]}]})
    assert one.arguments == other.arguments
    assert json.loads(one.arguments)["tags"] == sorted(tags)
    assert json.loads(one.arguments)["nested"] == [{"a": [1, 2, 3]}]
    assert json.loads(one.arguments)["price"] == "1.50"


def test_a_float_field_is_never_digested() -> None:
    class Weighed(BaseModel):
        kilos: float

    assert refused(tool_of(Weighed), {"kilos": 1}) == (3, "float")


def test_arguments_that_change_on_their_way_to_text_are_refused() -> None:
    class Secret(BaseModel):
        pin: SecretStr

    class Growing(BaseModel):
        n: int

        @model_validator(mode="after")
        def _grow(self) -> "Growing":
            object.__setattr__(self, "__dict__", {"n": self.n + 1})
            return self

    assert refused(tool_of(Secret), {"pin": "1234"}) == (3, "not_canonical")
    assert refused(tool_of(Growing), {"n": 1}) == (3, "not_canonical")
    found = check(tool_of(Secret), {"pin": "1234"})
    assert isinstance(found, Rejected)
    assert "1234" not in found.message


def test_computed_fields_are_left_out_of_the_arguments() -> None:
    class Area(BaseModel):
        side: int

        @computed_field  # type: ignore[prop-decorator]
        @property
        def area(self) -> int:
            return self.side * self.side

    assert accepted(tool_of(Area), {"side": 3}).arguments == '{"side":3}'


# (4) tenant


def test_step_4_binds_a_tenant_argument_to_the_run() -> None:
    assert refused("ledger.close_day", {"tenant": "other", "day": "x"}) == (4, "tenant")
    assert accepted("ledger.close_day", {"tenant": "shop", "day": "x"}).tool_name == "ledger.close_day"
    elsewhere = dataclasses.replace(close_day.tool, tenant_fields=("day",))
    assert refused(elsewhere, {"tenant": "other", "day": "x"}) == (4, "tenant")
    assert accepted(elsewhere, {"tenant": "other", "day": "shop"}).scope == "local/default"


def test_the_tenant_is_part_of_the_operation() -> None:
    assert (
        accepted("wallet.debit", DEBIT, tenant="a").operation
        != accepted("wallet.debit", DEBIT, tenant="b").operation
    )


# (5) business


def test_step_5_asks_the_tools_own_check() -> None:
    found = check("wallet.debit", {**DEBIT, "amount": 1_000_001})
    assert isinstance(found, Rejected)
    assert (found.step, found.code) == (5, "business_rule")
    assert found.message == "business_rule: more than a clerk may debit at once"


def test_a_check_that_says_no_or_breaks_rejects() -> None:
    def broken(_args: object) -> None:
        raise KeyError("x")

    model = level.tool.arguments
    assert refused(tool_of(model, lambda _args: False), {"sku": "x"}) == (5, "business_rule")
    assert refused(tool_of(model, broken), {"sku": "x"}) == (5, "check_failed")
    assert accepted(tool_of(model, lambda _args: True), {"sku": "x"}).operation is not None


def test_an_intent_that_breaks_rejects() -> None:
    broken = dataclasses.replace(debit.tool, intent=lambda args: ("order", args.missing))
    fractional = dataclasses.replace(debit.tool, intent=lambda _args: ("order", 0.5))
    assert refused(broken, DEBIT) == (5, "intent")
    assert refused(fractional, DEBIT) == (5, "intent")


# Whatever a model says


def test_a_rejection_is_safe_to_store_and_bounded() -> None:
    found = check("tool\0\ud800" + "x" * 500, '{"a": "' + "\0" * 5000 + '"}', call_id="l" * 999)
    assert isinstance(found, Rejected)
    for text in (found.tool_name, found.label, found.message, found.arguments):
        text.encode()
        assert "\0" not in text
        assert len(text) <= 2000
    assert len(found.label) <= 200


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.sampled_from(["wallet.debit", "ledger.close_day", "inventory.level", "?", ""]) | st.text(max_size=5),
    st.text(max_size=40)
    | st.dictionaries(st.sampled_from(["order_id", "amount", "tenant", "sku", "x"]), json_like, max_size=4)
    | json_like.map(lambda value: json.dumps(value, default=str)),
    st.text(max_size=5),
)
def test_nothing_a_planner_writes_raises(tool: str, arguments: Any, label: str) -> None:
    found = check(tool, arguments, call_id=label)
    assert isinstance(found, Validated | Rejected)
    if isinstance(found, Rejected):
        assert 1 <= found.step <= 5
        (found.message + found.arguments + found.tool_name + found.label).encode()
    else:
        app.tool(found.tool_name).read_arguments(found.arguments)


def test_equal_arguments_have_equal_texts_and_hashes_in_any_order() -> None:
    one = accepted("wallet.debit", '{"order_id":"o","amount":5}')
    other = accepted("wallet.debit", '{"amount":5,"order_id":"o"}')
    assert one == other


def test_the_preview_of_what_cannot_be_shown_is_its_type() -> None:
    class Unshowable:
        def __repr__(self) -> str:
            raise RuntimeError

    found = check("wallet.debit", {"order_id": Unshowable()})
    assert isinstance(found, Rejected)
    assert found.arguments == "<dict>"
