"""Field types of tool arguments: each value has one canonical text, whoever wrote it and however.

`Instant`, `DecimalText`, `Unordered[T]` and `TenantId[Literal["order"]]` here, `fencepost.money.Money`,
`fencepost.secrets.SecretRef`. What is wrong with one of them is a refusal of step 3 under a code of its own
(`refusal`); an id of another tenant is one of step 4, whatever its field is called. No type takes a float.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    Secret,
    SecretBytes,
    SecretStr,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from fencepost.clock import parse_rfc3339, rfc3339

CODE_PREFIX: Final = "fencepost."
MAX_DIGITS: Final = 38
"""Of a decimal: what other systems' decimal columns hold."""
MAX_ID_CHARS: Final = 300

_DECIMAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
_FRACTION = re.compile(r"\.(\d+)", re.ASCII)
_KIND = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:~@+-]{0,199}", re.ASCII)

ItemT = TypeVar("ItemT")
KindT = TypeVar("KindT", bound=str)


def refusal(code: str, message: str) -> PydanticCustomError:
    """What a validator raises to refuse a value at step 3 under this code."""
    return PydanticCustomError(f"{CODE_PREFIX}{code}", "{message}", {"message": message})


# -- instants --


def _instant(value: object) -> datetime:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise refusal(
                "instant", "a time without a zone may be any of a day's instants; add Z or an offset"
            )
        return value.astimezone(UTC)
    if not isinstance(value, str):
        raise refusal("instant", f"an instant is RFC 3339 text, not {type(value).__name__}")
    fraction = _FRACTION.search(value)
    if fraction is not None and fraction[1][6:].strip("0"):
        raise refusal("instant", f"{value[:80]!r} is finer than a microsecond, which cannot be kept exactly")
    try:
        return parse_rfc3339(value)
    except ValueError as error:
        raise refusal("instant", str(error)) from None


Instant = Annotated[
    datetime,
    PlainValidator(_instant),
    PlainSerializer(rfc3339, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A moment: RFC 3339 with a zone in, `2026-01-02T03:04:05.000006Z` out.

Refused: no zone, a leap second (no later reader could keep it), more than six decimals that are not zeros,
years outside 1 to 9999. Any offset is taken, and becomes UTC: `-00:00` too, whose instant is known.
"""


# -- decimals --


def _decimal(value: object) -> Decimal:
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise refusal("decimal", f"{value} is no decimal number")
        value = f"{value:f}" if abs(value.adjusted()) <= MAX_DIGITS else str(value)
    if not isinstance(value, str):
        raise refusal("decimal", f'a decimal is text such as "12.5", not {type(value).__name__}')
    if not _DECIMAL.fullmatch(value):
        raise refusal("decimal", f'{value[:60]!r} is not digits with one point, such as "12.5"')
    text = decimal_text(value)
    if sum(map(str.isdigit, text)) > MAX_DIGITS:
        raise refusal("decimal", f"a decimal has {MAX_DIGITS} digits at most")
    return Decimal(text)


def decimal_text(value: Decimal | str) -> str:
    """The one text of a finite decimal: no exponent, no zeros at the end, no minus before zero."""
    text = f"{value:f}" if isinstance(value, Decimal) else value
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


DecimalText = Annotated[
    Decimal,
    PlainValidator(_decimal),
    PlainSerializer(decimal_text, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^-?(0|[1-9]\d*)(\.\d+)?$"}),
]
"""An exact decimal, as text: `"12.50"` in, `"12.5"` out, since both are one number.

Refused: JSON numbers, exponents, a plus, leading zeros, and more than 38 digits. How many decimals it was
written with is lost; where that matters the value is `Money`, or an integer.
"""


# -- sets --


class _Distinct:
    """Marks a frozenset whose text must not hold an item twice."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        (item,) = get_args(source) or (Any,)
        listed = core_schema.list_schema(handler.generate_schema(item))
        # The list is read as JSON, strictly, and made a set afterwards: before that nobody could count.
        from_json = core_schema.no_info_after_validator_function(_distinct, listed)
        from_python = core_schema.no_info_before_validator_function(_listed, from_json)
        written = core_schema.wrap_serializer_function_ser_schema(
            lambda value, write: write(list(value)), schema=listed, when_used="json"
        )
        return core_schema.json_or_python_schema(from_json, from_python, serialization=written)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "uniqueItems": True}


def _listed(value: object) -> object:
    return list(value) if isinstance(value, set | frozenset | tuple) else value


def _distinct(items: list[Any]) -> frozenset[Any]:
    made = frozenset(items)
    if len(made) != len(items):
        raise refusal("duplicate_item", "an item appears twice in a set; say it once")
    return made


Unordered = Annotated[frozenset[ItemT], _Distinct()]
"""A set: any order in, sorted by canonical text out, so that two orders are one value.

An item that comes twice is refused, not removed: two of a thing may have been meant, and what is shown must
be what was said. (A plain `set` removes it.) Items are compared as what they mean, two spellings of one
instant too.
"""


# -- ids that name their tenant --


class TenantId(Generic[KindT]):
    """An id that names its tenant: `shop/order/o-1`, declared as `TenantId[Literal["order"]]`.

    Step 4 refuses one of another tenant than the run's, wherever in the arguments it stands and whatever its
    field is called. The kind is compared too: an invoice's id is no order's. It is what the planner's input
    and earlier results should hold; that such an order exists, only the downstream knows.
    """

    __slots__ = ("id", "kind", "tenant")

    def __init__(self, tenant: str, kind: str, id: str) -> None:  # noqa: A002 - it is one
        self.tenant = tenant
        self.kind = kind
        self.id = id

    def __str__(self) -> str:
        return f"{self.tenant}/{self.kind}/{self.id}"

    def __repr__(self) -> str:
        return f"TenantId({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TenantId) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        (given,) = get_args(source) or (None,)
        kinds = get_args(given) if get_origin(given) is Literal else ()
        if len(kinds) != 1 or not isinstance(kinds[0], str) or not _KIND.fullmatch(kinds[0]):
            raise TypeError('a tenant\'s id says of what: TenantId[Literal["order"]]')
        kind = kinds[0]
        pattern = rf"^.+/{re.escape(kind)}/{_ID.pattern}$"
        return core_schema.no_info_plain_validator_function(
            lambda value: _tenant_id(value, kind),
            serialization=core_schema.plain_serializer_function_ser_schema(
                str, return_schema=core_schema.str_schema(), when_used="json"
            ),
            json_schema_input_schema=core_schema.str_schema(pattern=pattern),
            metadata={"pydantic_js_functions": [lambda *_: {"type": "string", "pattern": pattern}]},
        )


def _tenant_id(value: object, kind: str) -> TenantId[Any]:
    if isinstance(value, TenantId):
        value = str(value)
    if not isinstance(value, str) or len(value) > MAX_ID_CHARS:
        raise refusal(
            "tenant_id", f"an id is text like tenant/{kind}/id, of {MAX_ID_CHARS} characters at most"
        )
    tenant, _, rest = value.rpartition(f"/{kind}/")  # a tenant's own name may hold a slash, an id none
    if not tenant or not _ID.fullmatch(rest):
        raise refusal("tenant_id", f"{value[:80]!r} is no id of the form tenant/{kind}/id")
    return TenantId(tenant, kind, rest)


def parts_of(value: object) -> Iterator[object]:
    """`value` and everything it holds: fields of models and dataclasses, items, keys and values."""
    yield value
    if isinstance(value, BaseModel):
        for _, item in value:
            yield from parts_of(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from parts_of(key)
            yield from parts_of(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from parts_of(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from parts_of(getattr(value, one.name))


# -- what is not written as it is --


def is_masked(value: object) -> bool:
    """Whether it is written as stars."""
    return isinstance(value, SecretStr | SecretBytes | Secret)


def is_excluded(info: FieldInfo) -> bool:
    """Whether a model leaves this field out of what it writes, always or at times."""
    return bool(info.exclude) or info.exclude_if is not None


def withheld(value: object) -> str | None:
    """The path of the first thing in it that is masked or excluded when written; None if all is told."""
    if isinstance(value, BaseModel):
        fields_of = type(value).model_fields
        for name, item in value:
            if name in fields_of and is_excluded(fields_of[name]):
                return name
            if (inner := withheld(item)) is not None:
                return f"{name}.{inner}".rstrip(".")
        return None
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return next((inner for item in value if (inner := withheld(item)) is not None), None)
    return "" if is_masked(value) else None


def without_withheld(value: object) -> None:
    """Take out of what was read back each field that was not written as it was: reading it is an error."""
    if isinstance(value, BaseModel):
        lost = {name for name, info in type(value).model_fields.items() if is_excluded(info)}
        lost |= {name for name, item in value if not isinstance(item, BaseModel) and holds_masked(item)}
        keep_only(value, type(value).model_fields.keys() - lost)
        for _, item in value:
            without_withheld(item)
    elif isinstance(value, dict):
        without_withheld(list(value.values()))
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            without_withheld(item)


def keep_only(model: BaseModel, names: Container[str]) -> None:
    """Take out of a model all fields but these; to read one that is out is an AttributeError."""
    for name in type(model).model_fields:
        if name not in names:
            model.__dict__.pop(name, None)


def holds_masked(value: object) -> bool:
    """Whether anything in it is written as stars."""
    return any(map(is_masked, parts_of(value)))
