"""Field types of arguments: what they take, the one text they give, and what they refuse at which step."""

import json
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from fencepost.fields import DecimalText, Instant, TenantId, Unordered, parts_of
from fencepost.money import Money
from fencepost.proposals import Rejected, Validated, validate
from fencepost.secrets import SecretRef
from fencepost.tools import Proposal, operation_key
from tests.unit.golden import MODELS, Line, tool


class At(BaseModel):
    at: Instant


class Rate(BaseModel):
    rate: DecimalText


class Tags(BaseModel):
    tags: Unordered[str]


class Inner(BaseModel):
    whom: TenantId[Literal["customer"]]


class Orders(BaseModel):
    about: TenantId[Literal["order"]] | None = None
    listed: list[TenantId[Literal["order"]]] = []
    within: Inner | None = None
    keyed: dict[str, Unordered[TenantId[Literal["order"]]]] = {}
    cost: tuple[Money, ...] = ()


def check(model: type[BaseModel], arguments: Any, tenant: str = "shop") -> Validated | Rejected:
    made = tool(model)
    proposal = Proposal(made.name, arguments)
    return validate(proposal, tools={made.name: made}, tenant=tenant, run_id="r", turn=1, ordinal=0)


def text(model: type[BaseModel], arguments: Any) -> str:
    found = check(model, arguments)
    assert isinstance(found, Validated), found
    return found.arguments


def refused(model: type[BaseModel], arguments: Any, tenant: str = "shop") -> tuple[int, str]:
    found = check(model, arguments, tenant)
    assert isinstance(found, Rejected), found
    assert found.message.startswith(f"{found.code}: ")
    return found.step, found.code


# instants


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000000Z"),
        ("2026-01-02t03:04:05z", "2026-01-02T03:04:05.000000Z"),
        ("2026-01-02T08:49:05+05:45", "2026-01-02T03:04:05.000000Z"),
        ("2026-01-01T23:34:05-03:30", "2026-01-02T03:04:05.000000Z"),
        ("2026-01-02T03:04:05-00:00", "2026-01-02T03:04:05.000000Z"),
        ("2026-01-02T03:04:05.12Z", "2026-01-02T03:04:05.120000Z"),
        ("2026-01-02T03:04:05.123456000Z", "2026-01-02T03:04:05.123456Z"),
        ("2024-02-29T23:59:59+23:59", "2024-02-29T00:00:59.000000Z"),
    ],
)
def test_an_instant_is_utc_with_six_decimals(given: str, kept: str) -> None:
    assert text(At, {"at": given}) == f'{{"at":"{kept}"}}'


@pytest.mark.parametrize(
    "given",
    [
        "2026-01-02T03:04:05",
        "2026-01-02",
        "2026-01-02 03:04:05Z",
        "2016-12-31T23:59:60Z",
        "2026-01-02T24:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-01-02T03:04:05.1234567Z",
        "2026-01-02T03:04:05+24:00",
        "2026-01-02T03:04:05+0545",
        "2026-01-02T03:04Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "٢٠٢٦-01-02T03:04:05Z",
        " 2026-01-02T03:04:05Z",
        "2026-01-02T03:04:05Z[Europe/Berlin]",
        "",
        1767322800,
        None,
        True,
        ["2026-01-02T03:04:05Z"],
    ],
)
def test_what_is_no_instant_is_refused(given: Any) -> None:
    assert refused(At, {"at": given}) == (3, "instant")


def test_python_gives_instants_as_datetimes_with_a_zone() -> None:
    summer = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    assert Proposal("t", At(at=summer)).arguments == {"at": "2026-01-02T01:04:05.000000Z"}
    with pytest.raises(ValidationError, match="without a zone"):
        At(at=datetime(2026, 1, 2))  # noqa: DTZ001 - the point


class Plain(BaseModel):
    at: datetime


def test_a_plain_datetime_is_spelled_in_one_way_and_needs_a_zone_too() -> None:
    one = text(Plain, {"at": "2026-01-02T04:04:05+01:00"})
    assert one == text(Plain, {"at": "2026-01-02T03:04:05Z"}) == '{"at":"2026-01-02T03:04:05.000000Z"}'
    assert refused(Plain, {"at": "2026-01-02T03:04:05"}) == (3, "instant")


# decimals


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("12.50", "12.5"),
        ("12.5", "12.5"),
        ("0", "0"),
        ("-0", "0"),
        ("-0.000", "0"),
        ("100", "100"),
        ("100.0", "100"),
        ("0.0000001", "0.0000001"),
        ("-0.10", "-0.1"),
        ("9007199254740993", "9007199254740993"),
    ],
)
def test_a_decimal_has_one_text(given: str, kept: str) -> None:
    assert text(Rate, {"rate": given}) == f'{{"rate":"{kept}"}}'


@pytest.mark.parametrize(
    "given",
    [
        "1e-7",
        "1E5",
        "+1",
        "01",
        "1.",
        ".5",
        "1,5",
        "1_000",
        " 1",
        "1 ",
        "0x10",
        "NaN",
        "Infinity",
        "-",
        "",
        "١",
        "1" * 39,
        1,
        True,
        None,
    ],
)
def test_what_is_no_decimal_text_is_refused(given: Any) -> None:
    assert refused(Rate, {"rate": given}) == (3, "decimal")


def test_a_json_number_is_no_decimal() -> None:
    assert refused(Rate, '{"rate": 1.50}') == (3, "float")
    assert Rate(rate=Decimal("1.50")).model_dump(mode="json") == {"rate": "1.5"}
    with pytest.raises(ValidationError, match="no decimal number"):
        Rate(rate=Decimal("NaN"))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**12), max_value=10**12))
def test_a_decimal_keeps_its_value(value: Decimal) -> None:
    adapter: TypeAdapter[Decimal] = TypeAdapter(DecimalText)
    written = adapter.dump_python(value, mode="json")
    assert adapter.validate_python(written) == value
    assert written == adapter.dump_python(adapter.validate_python(written), mode="json")


# sets


def test_a_set_has_one_order_and_no_item_twice() -> None:
    assert text(Tags, {"tags": ["b", "a"]}) == text(Tags, {"tags": ["a", "b"]}) == '{"tags":["a","b"]}'
    assert refused(Tags, {"tags": ["a", "b", "a"]}) == (3, "duplicate_item")
    assert refused(Tags, {"tags": ["a", 1]}) == (1, "schema")
    assert refused(Tags, {"tags": "ab"}) == (1, "schema")


def test_items_are_compared_as_what_they_mean() -> None:
    class Times(BaseModel):
        at: Unordered[Instant]
        lines: Unordered[Line] = frozenset()

    assert refused(Times, {"at": ["2026-01-02T03:04:05Z", "2026-01-02T04:04:05+01:00"]}) == (
        3,
        "duplicate_item",
    )
    twice = [{"sku": "a"}, {"sku": "a", "quantity": 1}]
    assert refused(Times, {"at": [], "lines": twice}) == (3, "duplicate_item")
    assert Times(at=frozenset(), lines=frozenset({Line(sku="b")})).model_dump(mode="json") == {
        "at": [],
        "lines": [{"sku": "b", "quantity": 1}],
    }


def test_what_planners_are_told_of_a_set() -> None:
    schema = Tags.model_json_schema()["properties"]["tags"]
    assert schema == {"items": {"type": "string"}, "title": "Tags", "type": "array", "uniqueItems": True}


# ids of a tenant


@pytest.mark.parametrize(
    "arguments",
    [
        {"about": "other/order/o-1"},
        {"listed": ["shop/order/o-1", "other/order/o-1"]},
        {"within": {"whom": "other/customer/c-1"}},
        {"keyed": {"x": ["other/order/o-1"]}},
        {"about": "shop2/order/o-1"},
        {"about": "Shop/order/o-1"},
        {"about": "shop /order/o-1"},
        {"about": "shop/order/x/order/o-1"},
    ],
)
def test_an_id_of_another_tenant_is_refused_wherever_it_stands(arguments: Any) -> None:
    assert refused(Orders, arguments) == (4, "tenant")


@pytest.mark.parametrize(
    "given",
    ["o-1", "shop/invoice/o-1", "shop/order/", "/order/o-1", "shop/order/../o-2", "shop/order/a b", 7, None],
)
def test_what_is_no_id_of_its_kind_is_refused(given: Any) -> None:
    assert refused(Orders, {"listed": [given]}) == (3, "tenant_id")


def test_an_id_of_the_runs_tenant_passes_and_stays_as_it_is() -> None:
    given = {"about": "shop/order/o-1", "listed": ["shop/order/o-2"]}
    assert '"about":"shop/order/o-1"' in text(Orders, given)
    found = check(Orders, {"about": "a/b/order/o-1"}, tenant="a/b")
    assert isinstance(found, Validated)
    made: TenantId[Any] = TenantId("a/b", "order", "o-1")
    (read,) = [part for part in parts_of(Orders(about=made)) if isinstance(part, TenantId)]
    assert read == made
    assert (read.tenant, read.kind, read.id, repr(read)) == (
        "a/b",
        "order",
        "o-1",
        "TenantId('a/b/order/o-1')",
    )
    assert {read: 1}[made] == 1


def test_a_kind_has_to_be_said() -> None:
    for wrong in (TenantId, TenantId[str], TenantId[Literal["a", "b"]], TenantId[Literal["A b"]]):
        with pytest.raises(TypeError, match="says of what"):
            TypeAdapter(wrong)


def test_a_field_that_names_the_tenant_is_bound_at_any_depth() -> None:
    class Owner(BaseModel):
        tenant: str

    class Nested(BaseModel):
        owners: list[Owner]

    assert refused(Nested, {"owners": [{"tenant": "shop"}, {"tenant": "other"}]}) == (4, "tenant")
    assert isinstance(check(Nested, {"owners": [{"tenant": "shop"}]}), Validated)


def test_several_faults_at_once_are_the_schemas() -> None:
    class Both(BaseModel):
        at: Instant
        n: int

    assert refused(Both, {"at": "never", "n": "x"}) == (1, "schema")


def test_an_id_and_a_secrets_name_may_be_part_of_an_intent() -> None:
    made: TenantId[Any] = TenantId("shop", "order", "o-1")
    named = operation_key("shop", "s", "t", ("pay", made, SecretRef("mailbox/anna", of="x")))
    assert named == operation_key("shop", "s", "t", ("pay", "shop/order/o-1", "mailbox/anna"))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["shop/order/o-1", "2026-01-02T03:04:05Z", "1.50", "EUR", "mailbox/anna", "a", "b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["currency", "amount_minor", "scale", "secret", "sku", "x"]), inner)
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(sorted(MODELS)),
    st.dictionaries(
        st.sampled_from(["value", "order", "amount", "due", "rate", "note", "id", "lines", "windows", "tags"])
        | st.sampled_from(["insured", "sendTo", "carrier", "user", "password"]),
        json_values,
    ),
)
def test_whatever_stands_in_a_field_is_refused_or_has_one_text(model: str, arguments: Any) -> None:
    found = check(MODELS[model], json.dumps(arguments))
    if isinstance(found, Validated):
        again = check(MODELS[model], found.arguments)
        assert isinstance(again, Validated)
        assert (again.arguments, again.arguments_hash) == (found.arguments, found.arguments_hash)
