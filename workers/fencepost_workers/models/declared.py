"""What a model is told of the tools it may propose: names as its wire takes them, texts, schemas. PURE.

A wire takes letters, digits, `_` and `-` in a name, 64 of them at most (OpenAI's rule, within Anthropic's).
What does not fit is spelled with `_`; where two tools would then be called alike, the later one carries a
digest of its name. Which name is whose is looked up, never guessed from its spelling.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fencepost.authority import matches
from fencepost.tools import Tool

NAME_CHARS: Final = 64
DESCRIPTION_CHARS: Final = 2000
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Declaration:
    """One tool as a model is told of it."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Declared:
    """All of them, and whose names they are."""

    tools: tuple[Declaration, ...]
    known: Mapping[str, Tool]
    """The tools themselves, by their own names: no other can be proposed."""
    own: Mapping[str, str]
    """From a name on the wire to the tool's."""
    told: Mapping[str, str]
    """From a tool's name to that on the wire."""

    def tool(self, name: str) -> str:
        """The tool that a model means; a name that is of none comes back as it is, for step 2 to refuse."""
        return self.own.get(name, name)

    def arguments(self, name: str, written: str) -> str:
        """What a model wrote for this tool; where it wrote none, an empty object if the tool takes none."""
        tool = self.known.get(self.tool(name))
        return "{}" if not written and tool is not None and not tool.arguments.model_fields else written

    def wire(self, tool: str) -> str:
        """How an earlier call's tool is named on the wire, whether it is declared, or there is one at all."""
        return self.told.get(tool) or spelled(tool)


def declare(tools: Mapping[str, Tool], patterns: Iterable[str]) -> Declared:
    """The tools that fit one of the patterns, in the order of their names."""
    wanted = list(patterns)
    known = {name: tools[name] for name in sorted(tools) if any(matches(one, name) for one in wanted)}
    own: dict[str, str] = {name: name for name in known if spelled(name) == name}
    for name in known:
        if spelled(name) != name:
            own[_free(name, own)] = name
    told = {tool: name for name, tool in own.items()}
    declarations = tuple(
        Declaration(told[name], described(tool), schema_of(tool)) for name, tool in known.items()
    )
    return Declared(declarations, known, own, told)


def spelled(name: str) -> str:
    """A name with the characters a wire takes."""
    return _FOREIGN.sub("_", name)[:NAME_CHARS] or "_"


def _free(name: str, taken: Mapping[str, str]) -> str:
    plain = spelled(name)
    if plain not in taken and len(name) <= NAME_CHARS:
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{plain[: NAME_CHARS - 13]}_{digest}"


def described(tool: Tool) -> str:
    """What its declaration says of it, else the docstring of its function; empty for one without."""
    function = tool.function or tool.request
    written = inspect.getdoc(function) if inspect.isroutine(function) else None
    return (tool.describe or written or "")[:DESCRIPTION_CHARS]


def schema_of(tool: Tool) -> dict[str, Any]:
    """The JSON Schema of its arguments, closed: no object takes what it does not name, as step 1 will say."""
    schema: dict[str, Any] = _closed(copy.deepcopy(tool.arguments.model_json_schema()))
    return schema


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for name, value in schema.items():
        if name in {"properties", "$defs", "patternProperties"} and isinstance(value, dict):
            kept[name] = {field: _closed(one) for field, one in value.items()}
        elif name in {"default", "const", "enum", "examples"}:
            kept[name] = value
        elif name != "title":
            kept[name] = _closed(value)
    if kept.get("type") == "object" and (kept.get("properties") or "additionalProperties" not in kept):
        kept["additionalProperties"] = False
        kept.setdefault("properties", {})
    return kept
