"""Sample values of pydantic models, made from their JSON Schema, so that declarations can be tried. PURE.

A sample is only as good as the schema: what a validator in Python demands beyond it, no sample can know.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from fencepost.misfits import misfits
from fencepost.secrets import NAMES_A_SECRET

_DEEPEST: Final = 12
_FORMATS: Final = {
    "date": "2026-01-02",
    "date-time": "2026-01-02T03:04:05Z",
    "duration": "PT1M",
    "email": "sample@example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "json-string": "{}",
    "time": "03:04:05",
    "uri": "https://example.com/sample",
    "uuid": "00000000-0000-4000-8000-000000000001",
}
_TYPICAL: Final = ("EUR", "a", "A", "1", "a-1", "A1")
_MONEY: Final = {"currency": "EUR", "amount_minor": 100, "scale": 2}


class NoSample(Exception):
    """No sample can be made: the schema, or the model's own validators, do not say what fits."""


def samples(
    model: type[BaseModel],
    words: tuple[str, ...] = ("sample",),
    *,
    fixed: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> list[str]:
    """JSON texts that the model reads, with all fields and with the required ones only. NoSample if none.

    `words` are tried for free text, one after the other; `fixed` are values of fields by name, `secret` the
    name of every secret. `strict` reads as arguments are read.
    """
    made: dict[str, None] = {}
    why = "its schema leaves it open"
    try:
        schema = model.model_json_schema()
    except Exception as error:  # noqa: BLE001 - whatever a model breaks with
        raise NoSample(f"its model has no JSON schema ({type(error).__name__})") from None
    for word in words:
        for full in (True, False):
            try:
                value = _Maker(schema.get("$defs", {}), word, full, fixed or {}).value(schema, "", 0)
                text = json.dumps(value)
                model.model_validate_json(text, strict=strict or None, extra="forbid" if strict else None)
                made[text] = None
            except ValidationError as error:
                why = "; ".join(one.told() for one in misfits(error)[:3])
            except NoSample as error:
                why = str(error)
            except Exception as error:  # noqa: BLE001 - a validator of the model may raise anything
                why = f"{type(error).__name__}: {error}"
    if not made:
        raise NoSample(why)
    return list(made)


class _Maker:
    def __init__(self, defs: Mapping[str, Any], word: str, full: bool, fixed: Mapping[str, Any]) -> None:
        self._defs, self._word, self._full, self._fixed = defs, word, full, fixed

    def value(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        if depth > _DEEPEST:
            raise NoSample(f"{name} holds itself")
        if name in self._fixed:
            return self._fixed[name]
        if "$ref" in schema:
            return self.value(self._defs[schema["$ref"].rpartition("/")[2]], name, depth + 1)
        if schema.get("examples"):
            return schema["examples"][0]
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        for choice in ("anyOf", "oneOf", "allOf"):
            if choice in schema:
                return self._chosen(schema[choice], name, depth)
        return self._typed(schema, name, depth)

    def _chosen(self, choices: list[Mapping[str, Any]], name: str, depth: int) -> Any:
        null = any(one.get("type") == "null" for one in choices)
        if null and not self._full:
            return None
        why = NoSample(f"{name} has no choice")
        for one in choices:
            if one.get("type") != "null":
                try:
                    return self.value(one, name, depth + 1)
                except NoSample as error:
                    why = error
        if null:
            return None
        raise why

    def _typed(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, name, depth)
            case "integer" | "number":
                return _number(schema)
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return self._text(schema, name)

    def _object(self, schema: Mapping[str, Any], depth: int) -> Any:
        fields = schema.get("properties", {})
        if set(fields) == set(_MONEY):
            return dict(_MONEY)
        if schema.get("description") == NAMES_A_SECRET:
            return {"secret": self._fixed.get("secret", "sample")}
        needed = schema.get("required", ())
        made = {
            name: self.value(one, name, depth + 1)
            for name, one in fields.items()
            if self._full or name in needed or name in self._fixed
        }
        rest = schema.get("additionalProperties")
        if self._full and isinstance(rest, dict) and not fields:
            made["sample"] = self.value(rest, "sample", depth + 1)
        return made

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        made = [self.value(one, name, depth + 1) for one in schema.get("prefixItems", ())]
        wanted = max(schema.get("minItems", 0), 1 if self._full else 0)
        if schema.get("items") and len(made) < min(wanted, schema.get("maxItems", wanted)):
            made += [self.value(schema["items"], name, depth + 1)] * (wanted - len(made))
        return made

    def _text(self, schema: Mapping[str, Any], name: str) -> str:
        if (known := _FORMATS.get(schema.get("format", ""))) is not None:
            return known
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        pattern = schema.get("pattern")
        if pattern is None:
            return self._word.ljust(least, "x")[:most]
        for candidate in (self._word, *_TYPICAL, *_matching(pattern)):
            fits = least <= len(candidate) and (most is None or len(candidate) <= most)
            if fits and re.search(pattern, candidate):
                return candidate
        raise NoSample(f"nothing that fits the pattern {pattern!r} of {name} was found")


def _number(schema: Mapping[str, Any]) -> int:
    least, most = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        least = schema["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in schema:
        most = schema["exclusiveMaximum"] - 1
    found = 1 if least is None else max(1, least)
    step = schema.get("multipleOf", 1)
    found = -(-found // step) * step
    return int(found if most is None else min(found, most))


def _matching(pattern: str) -> Iterator[str]:
    """Texts that may fit a regular expression: the least of each repetition, and some more of it."""
    try:
        from re import _parser  # type: ignore[attr-defined]  # there is no public one

        tree = _parser.parse(pattern)
        for more in (0, 1, 8):
            yield "".join(_piece(code, given, more) for code, given in tree)
    except (ImportError, re.error, NoSample):
        return


def _piece(code: Any, given: Any, more: int) -> str:
    match str(code):
        case "LITERAL":
            return chr(given)
        case "ANY":
            return "s"
        case "IN":
            return _of_class(given)
        case "BRANCH":
            return "".join(_piece(code, one, more) for code, one in given[1][0])
        case "SUBPATTERN":
            return "".join(_piece(code, one, more) for code, one in given[-1])
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, inner = given
            repeated = "".join(_piece(code, one, more) for code, one in inner)
            return repeated * int(min(most, least + more))
        case "AT" | "ASSERT" | "ASSERT_NOT":
            return ""
        case _:
            raise NoSample(f"{code} in a pattern")


def _of_class(parts: list[Any]) -> str:
    spelled = ("^" if str(code) == "NEGATE" else _spelled(str(code), given) for code, given in parts)
    wanted = re.compile(f"[{''.join(spelled)}]")
    found = next((one for one in map(chr, (*range(97, 123), *range(33, 127))) if wanted.match(one)), None)
    if found is None:
        raise NoSample("a class of a pattern holds no letter")
    return found


def _spelled(code: str, given: Any) -> str:
    if code == "LITERAL":
        return re.escape(chr(given))
    if code == "RANGE":
        return f"{re.escape(chr(given[0]))}-{re.escape(chr(given[1]))}"
    known = {"DIGIT": r"\d", "WORD": r"\w", "SPACE": r"\s", "NOT_DIGIT": r"\D", "NOT_WORD": r"\W"}
    return known.get(str(given).removeprefix("CATEGORY_"), r"\S")
