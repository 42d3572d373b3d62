"""Tools of MCP servers as values: how a server is reached, what is stored and sent, what comes back. PURE.

A call is a StoredRequest like any other: method `tools/call`, the server's address as its target, and as
its body the canonical JSON of the call's `name` and `arguments`, so that what was hashed, approved, shown and
sent is one thing. Our operation key is added when it is sent, in `_meta` under `KEY_META`: the protocol has
no field for it (modelcontextprotocol/modelcontextprotocol PR 3182 was closed unmerged), so a server has to be
known to look there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel

from fencepost.contracts import Contract, Effect, Natural
from fencepost.errors import UsageError
from fencepost.fields import holds_masked
from fencepost.misspelt import check_fields
from fencepost.secrets import WIRE, placeheld
from fencepost.wire import StoredRequest

METHOD: Final = "tools/call"
DOMAIN: Final = "dev.fencepost/"
KEY_META: Final = f"{DOMAIN}idempotency-key"
CAPABILITY_META: Final = f"{DOMAIN}capability"
RPC: Final = 0
"""The status of an answer that is a JSON-RPC response, which no HTTP answer has."""

CHANGED: Final = "definition_changed"
"""The code of a call that was held: what its server offers is not what was pinned. Nothing was sent."""
_PINNED: Final = re.compile(rf"{CHANGED}: .* pinned as ([0-9a-f]{{64}})")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")  # of a tool: the specification, server/tools, Tool Names

Protocol = Literal["auto", "legacy", "2026-07-28"]


@dataclass(frozen=True, kw_only=True)
class _Server:
    """What is said of any MCP server.

    `conforming`: its JSON-RPC errors -32601, -32602 and -32020 to -32022 are answered before a tool is begun,
    as the specification means them; only then do they prove that nothing happened. `protocol` is how the
    version is agreed on: "auto" asks `server/discover` first, "legacy" shakes hands, "2026-07-28" does
    neither. `pins` are the digests of its tools' definitions by name, as `fencepost mcp pin` prints them.
    """

    conforming: bool = False
    protocol: Protocol = "auto"
    pins: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.protocol not in {"auto", "legacy", "2026-07-28"}:
            raise UsageError(f'protocol is "auto", "legacy" or "2026-07-28", not {self.protocol!r:.40}')
        for name, digest in self.pins.items():
            check_pin(name, digest)


@dataclass(frozen=True, kw_only=True)
class Streamable(_Server):
    """A server that is reached by streamable HTTP, at its dependency's `base_url`."""


@dataclass(frozen=True, kw_only=True)
class Stdio(_Server):
    """A server that is started for each attempt, and ended with it, with every process of its group.

    It gets the variables of `env` (values may be `env:NAME`) beside PATH, HOME, LANG, TMPDIR and USER, and
    nothing else of ours. If the worker is killed it sees the end of its input; what it is doing then it may
    still finish, so the contract's `settle` counts here too.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    cwd: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        super().__post_init__()
        if not self.command or isinstance(self.args, str):
            raise UsageError("Stdio takes a command, and its arguments as a tuple, not as one text")
        object.__setattr__(self, "args", tuple(self.args))


McpServer = Stdio | Streamable


def is_name(text: str) -> bool:
    """Whether a server may call a tool so: what is no name of one is printed nowhere as if it were."""
    return _NAME.fullmatch(text) is not None


def check_pin(tool: str, digest: str) -> str:
    """The digest itself; UsageError for what is none."""
    if not _DIGEST.fullmatch(digest):
        raise UsageError(
            f"the definition of {tool} is 64 hex digits, as `fencepost mcp pin` prints, not {digest!r:.70}"
        )
    return digest


@dataclass(frozen=True)
class Remote:
    """What a tool is at its server: the name there, the pinned digest of its definition (None: not pinned),
    and whether `isError` there means that nothing happened.
    """

    name: str
    definition: str | None = None
    errors_apply_nothing: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"{self.name!r:.80} is no name of an MCP tool")
        if self.definition is not None:
            check_pin(self.name, self.definition)


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool at an MCP server: its name there and its arguments, as they are sent."""

    name: str
    arguments: Mapping[str, Any] | BaseModel = field(default_factory=dict)

    def bind(self, target: str) -> StoredRequest:
        """The request to store; equal calls give equal bytes. ValueError for what JSON cannot hold."""
        arguments = self.arguments
        if holds_masked(arguments):
            raise ValueError(f"the arguments of {self.name} are masked, so that stars would be sent")
        if isinstance(arguments, BaseModel):
            arguments = arguments.model_dump(mode="json", by_alias=True, context=WIRE)
        form: Any = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False, "sort_keys": True}
        body = json.dumps({"name": self.name, "arguments": arguments}, default=placeheld, **form)
        return StoredRequest(METHOD, target, (("Content-Type", "application/json"),), body.encode())


@dataclass(frozen=True)
class ToolResult:
    """What a tool of an MCP server answered: its content blocks, and its structured content if it has any."""

    content: tuple[Mapping[str, Any], ...] = ()
    structured: Any = None
    has_structured: bool = False
    is_error: bool = False

    @property
    def text(self) -> str:
        """Its text blocks, one after the other, divided by line ends."""
        return "\n".join(str(one.get("text", "")) for one in self.content if one.get("type") == "text")

    @property
    def value(self) -> Any:
        """The structured content; without any the text, as JSON if it is that; without text the blocks."""
        if self.has_structured:
            return self.structured
        if any(one.get("type") != "text" for one in self.content):
            return [dict(one) for one in self.content]
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return self.text

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> ToolResult:
        """The result of a `tools/call` as it came; what is no list of blocks counts as none.

        Whatever `isError` says but false is an error: "true" and 1 pass for booleans elsewhere.
        """
        content, failed = result.get("content"), result.get("isError")
        blocks = content if isinstance(content, list) else []
        return cls(
            content=tuple(one for one in blocks if isinstance(one, dict)),
            structured=result.get("structuredContent"),
            has_structured=result.get("structuredContent") is not None,
            is_error=failed is not None and failed is not False,
        )


def definition_digest(listed: Mapping[str, Any]) -> str:
    """Names what a server says a tool is: name, description, both schemas, annotations; 64 hex digits.

    In what order a schema tells what is a set, such as `required`, changes nothing.
    """
    names = ("name", "description", "inputSchema", "outputSchema", "annotations")
    said = {name: listed.get(name) for name in names}
    said |= {name: _unordered(said[name]) for name in ("inputSchema", "outputSchema")}
    return hashlib.sha256(b"fencepost.mcp.definition.v1\0" + _told(said).encode()).hexdigest()


_SETS: Final = frozenset({"required", "type", "enum", "examples", "anyOf", "oneOf", "allOf"})
_DATA: Final = frozenset({"const", "default", "enum", "examples"})
_BY_NAME: Final = {"properties", "patternProperties", "$defs", "definitions", "dependencies"} | {
    "dependentSchemas",
    "dependentRequired",
}


def _unordered(schema: Any) -> Any:
    """A JSON Schema with its sets in one order; values that it holds, which are no schemas, as they are."""
    if isinstance(schema, list):
        return [_unordered(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {word: _of_word(word, value) for word, value in schema.items()}


def _of_word(word: str, value: Any) -> Any:
    if word in _BY_NAME and isinstance(value, dict):
        return {name: _set(one) if _strings(one) else _unordered(one) for name, one in value.items()}
    inner = value if word in _DATA else _unordered(value)
    return _set(inner) if word in _SETS and isinstance(inner, list) else inner


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _set(values: list[Any]) -> list[Any]:
    return sorted(values, key=_told)


def _told(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def changed(name: str, pinned: str, found: str | None, times: int = 1) -> str:
    """What is told of a held call; `held_pin` reads the pin out of it again."""
    now = "does not offer it any more" if found is None else f"now offers {found}"
    now = now if times <= 1 else f"offers {times} tools of this name"
    return f"{CHANGED}: nothing was sent. {name} is pinned as {pinned}; the server {now}"


def held_pin(error: str | None) -> str | None:
    """The pin under which a call was last held, by its stored error; None for one that was not.

    That error begins as `changed` does for a hold alone: `moves` keeps it so, by the code of the event.
    """
    found = _PINNED.match(error or "")
    return None if found is None else found[1]


def not_held(said: str) -> str:
    """What is told of a call that was not held, so that whoever said it cannot pass it for a hold."""
    return f"it was told: {said}" if said.startswith(f"{CHANGED}:") else said


def contradiction(
    effect: Effect, contract: Contract, annotations: Mapping[str, Any], *, repeat: bool
) -> str | None:
    """Why a server's own hints forbid what was declared of its tool; None where they do not.

    Hints are no promise, so nothing is loosened by them; only what is said outright tightens.
    """
    if effect is Effect.READ and annotations.get("readOnlyHint") is False:
        return "it is declared READ, and its server says that it is not (readOnlyHint is false)"
    if repeat and isinstance(contract.repeat, Natural) and annotations.get("idempotentHint") is False:
        return "it would be repeated, and its server says that this has an effect (idempotentHint is false)"
    return None
