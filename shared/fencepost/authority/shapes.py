"""What a policy can see of a tool's arguments: their JSON schema as types of Cedar, and their values by it.

Cedar has text, 64-bit integers, booleans, instants, sets and records. A list becomes a set, so its order and
its repeats are not visible; a Decimal is text, which can be compared but not added; a date is its midnight
UTC; an instant is cut to milliseconds; an absent (null) argument is an attribute that is not there. Left out,
because Cedar has nothing for it: floats, mappings with free keys, unions, models that contain themselves, and
lists that may hold null. Policies cannot read what is left out; the tool's own check can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from fencepost.canonical import MAX_INT
from fencepost.clock import parse_rfc3339

Shape: TypeAlias = "str | dict[str, Any]"
"""`text`, `integer`, `boolean`, `instant`; `{"set": Shape}`; `{"record": {name: Shape}, "optional": [name]}`.

Made of JSON, because a published policy keeps the shapes it was checked against.
"""

SCALARS: Final = {"text": "String", "integer": "Long", "boolean": "Bool", "instant": "datetime"}
EMPTY: Final[Shape] = {"record": {}, "optional": []}
_ESCAPES: Final = frozenset({"__entity", "__extn", "__expr"})  # how Cedar's JSON names what is no plain value
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_KINDS: Final = {"string": "text", "integer": "integer", "boolean": "boolean"}


class Unfit(ValueError):
    """The value is not of the shape."""


def arguments_shape(model: type[BaseModel]) -> tuple[Shape, list[str]]:
    """The record of a model's arguments as they are kept (by alias, defaults filled in), and what it lacks.

    The second part is the paths that no policy can read. A model without a JSON schema raises what pydantic
    raises.
    """
    schema = model.model_json_schema(mode="serialization", by_alias=True)
    found = _Reader(schema.get("$defs", {}))
    shape = found.shape(schema, "", ())
    return (EMPTY, ["all of it"]) if shape is None else (shape, found.missing)


class _Reader:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self.missing: list[str] = []

    def shape(self, schema: Any, path: str, within: tuple[str, ...]) -> Shape | None:
        """The shape of one schema; None, and its path kept, where Cedar has none."""
        found = self._shape(schema, path, within)
        if found is None:
            self.missing.append(path or "all of it")
        return found

    def _shape(self, schema: Any, path: str, within: tuple[str, ...]) -> Shape | None:
        if not isinstance(schema, dict):
            return None
        if (reference := schema.get("$ref")) is not None:
            name = str(reference).rsplit("/", 1)[-1]
            if name in within or name not in self._definitions:
                return None
            return self._shape(self._definitions[name], path, (*within, name))
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values is not None:
            return _of_values(values)
        if any(word in schema for word in ("anyOf", "oneOf", "allOf")):
            return self._choice(schema, path, within)
        match schema.get("type"):
            case "string":
                return "instant" if schema.get("format") in {"date-time", "date"} else "text"
            case "integer" | "boolean" as kind:
                return _KINDS[kind]
            case "array":
                return self._set(schema, path, within)
            case "object":
                return self._record(schema, path, within)
            case _:
                return None

    def _choice(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Shape | None:
        if "oneOf" in schema or len(schema.get("allOf", [0])) != 1:
            return None
        options = [one for one in schema.get("anyOf", schema.get("allOf", [])) if not _is_null(one)]
        shapes = [self._shape(one, path, within) for one in options]
        first = shapes[0] if shapes else None
        return first if all(shape == first for shape in shapes) else None

    def _set(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Shape | None:
        items = schema.get("items")
        if "prefixItems" in schema or items is None or _nullable(items, self._definitions):
            return None
        inner = self._shape(items, f"{path}[]", within)
        return None if inner is None else {"set": inner}

    def _record(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Shape | None:
        properties = schema.get("properties")
        if properties is None and schema.get("additionalProperties", False) is not False:
            return None  # a mapping with free keys
        fields: dict[str, Shape] = {}
        optional: list[str] = []
        for name, inner in (properties or {}).items():
            if isinstance(inner, dict) and inner.get("readOnly"):
                continue  # computed, so not among the arguments
            where = f"{path}.{name}" if path else name
            if name in _ESCAPES or not name.isprintable():
                self.missing.append(where)
            elif (shape := self.shape(inner, where, within)) is not None:
                fields[name] = shape
                if _nullable(inner, self._definitions):
                    optional.append(name)
        return {"record": fields, "optional": sorted(optional)}


def _of_values(values: list[Any]) -> Shape | None:
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) != 1:
        return None
    return {str: "text", int: "integer", bool: "boolean"}.get(kinds.pop())


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and (schema.get("type") == "null" or schema.get("const", 0) is None)


def _nullable(schema: Any, definitions: Mapping[str, Any], depth: int = 8) -> bool:
    if not isinstance(schema, dict) or depth <= 0:
        return False
    if (reference := schema.get("$ref")) is not None:
        return _nullable(definitions.get(str(reference).rsplit("/", 1)[-1]), definitions, depth - 1)
    if _is_null(schema) or None in schema.get("enum", ()):
        return True
    options = [*schema.get("anyOf", ()), *schema.get("allOf", ())]
    return any(_nullable(option, definitions, depth - 1) for option in options)


def merged(shapes: Sequence[Shape]) -> tuple[Shape, list[str]]:
    """The record that fits values of each of these records, and the paths left out because they differ there.

    An attribute that not all of them have becomes optional.
    """
    records = [shape for shape in shapes if isinstance(shape, dict)]
    fields: dict[str, Shape] = {}
    optional, lost = set[str](), list[str]()
    for name in sorted({name for record in records for name in record["record"]}):
        having = [record for record in records if name in record["record"]]
        inner = [record["record"][name] for record in having]
        if all(_is_record(shape) for shape in inner):
            fields[name], deeper = merged(inner)
            lost += [f"{name}.{path}" for path in deeper]
        elif all(shape == inner[0] for shape in inner):
            fields[name] = inner[0]
        else:
            lost.append(name)
            continue
        if len(having) < len(records) or any(name in record["optional"] for record in having):
            optional.add(name)
    return {"record": fields, "optional": sorted(optional)}, lost


def _is_record(shape: Shape) -> bool:
    return isinstance(shape, dict) and "record" in shape


def type_text(shape: Shape) -> str:
    """The shape as a type in a Cedar schema."""
    if isinstance(shape, str):
        return SCALARS[shape]
    if "set" in shape:
        return f"Set<{type_text(shape['set'])}>"
    optional = set(shape["optional"])
    fields = (
        f"{quoted(name)}{'?' if name in optional else ''}: {type_text(inner)}"
        for name, inner in sorted(shape["record"].items())
    )
    return "{ " + ", ".join(fields) + " }" if shape["record"] else "{}"


def quoted(text: str) -> str:
    """A string literal of Cedar."""
    return '"' + "".join(_literal(text)) + '"'


def _literal(text: str) -> Iterator[str]:
    for character in text:
        if character in {'"', "\\"}:
            yield "\\" + character
        elif character.isprintable():
            yield character
        else:
            yield f"\\u{{{ord(character):x}}}"


Projection = Callable[[Any], Any]


def projection(shape: Shape, path: str = "arguments") -> Projection:
    """The function that gives of a JSON value what the shape shows of it; it raises Unfit, naming the place.

    Only attributes of the shape are read, so nothing in a value can name an entity or call a function of
    Cedar, however it is written.
    """
    if shape == "text":
        return _checked(str, path, "text")
    if shape == "boolean":
        return _checked(bool, path, "true or false")
    if shape == "integer":
        return _integer(path)
    if shape == "instant":
        return _instant(path)
    assert isinstance(shape, dict)
    return _set(shape, path) if "set" in shape else _record(shape, path)


def _checked(kind: type, path: str, word: str) -> Projection:
    def project(value: Any) -> Any:
        if type(value) is not kind:
            raise Unfit(f"{path} is not {word}")
        return value

    return project


def _integer(path: str) -> Projection:
    def project(value: Any) -> Any:
        if type(value) is not int or not -MAX_INT <= value <= MAX_INT:
            raise Unfit(f"{path} is no integer within 2**53 - 1")
        return value

    return project


def _instant(path: str) -> Projection:
    def project(value: Any) -> Any:
        try:
            if _DATE.fullmatch(value):
                return value
            return instant_text(parse_rfc3339(value))
        except (TypeError, ValueError):
            raise Unfit(f"{path} is no instant with a zone") from None

    return project


def instant_text(moment: datetime) -> str:
    """An instant as Cedar reads it: UTC, cut to milliseconds. Unfit without a zone."""
    if moment.tzinfo is None:
        raise Unfit(f"{moment} has no time zone")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _set(shape: dict[str, Any], path: str) -> Projection:
    inner = projection(shape["set"], f"{path}[]")

    def project(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise Unfit(f"{path} is no list")
        return [inner(item) for item in value]

    return project


def _record(shape: dict[str, Any], path: str) -> Projection:
    optional = set(shape["optional"])
    fields = [
        (name, name in optional, projection(inner, f"{path}.{name}"))
        for name, inner in sorted(shape["record"].items())
    ]

    def project(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Unfit(f"{path} is no object")
        made = {}
        for name, may_lack, inner in fields:
            item = value.get(name)
            if item is not None:
                made[name] = inner(item)
            elif not may_lack:
                raise Unfit(f"{path}.{name} is missing")
        return made

    return project


def check_shape(shape: Any, depth: int = 32) -> None:
    """ValueError unless this, read from a stored text, is a shape."""
    if isinstance(shape, str) and shape in SCALARS:
        return
    if depth > 0 and isinstance(shape, dict):
        if set(shape) == {"set"}:
            check_shape(shape["set"], depth - 1)
            return
        if set(shape) == {"record", "optional"} and isinstance(shape["record"], dict):
            for inner in shape["record"].values():
                check_shape(inner, depth - 1)
            if isinstance(shape["optional"], list) and set(shape["optional"]) <= set(shape["record"]):
                return
    raise ValueError("not the shape of a tool's arguments")
