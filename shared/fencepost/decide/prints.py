"""What was sent first is what is sent again, and a result is taken only of what means the same. Pure.

The *fingerprint* is of a stored request's very text, and binds the attempts of one call. The *meaning* is of
what a request asks for, and binds the calls of one key: whatever changes it outside the arguments (another
address, a flag in the query, another path of a later version) makes it another one.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from fencepost.canonical import digest
from fencepost.mcp import Stdio
from fencepost.secrets import PLACEHOLDER
from fencepost.subjects import Call
from fencepost.tools import Tool
from fencepost.wire import StoredRequest, fingerprint


def of(call: Call, request: str) -> str:
    """The fingerprint of a call's request."""
    return fingerprint(call.tenant, call.scope, call.tool, call.tool_version, request)


def kept(call: Call) -> bool:
    """Whether a call's request has a fingerprint: not one that was first sent before there were any."""
    return call.attempts == 0 or call.fingerprint is not None


def drifted(call: Call) -> str | None:
    """Why the stored request may not be sent again: it is not what was sent first. None if it is, or if that
    cannot be told, as of one sent before there were fingerprints; Postgres knows which those are.
    """
    if call.request is None or not kept(call) or call.fingerprint == of(call, call.request):
        return None
    return "the stored request is not the one that was sent first: its fingerprint differs; nothing is sent"


def meaning(tool: Tool, key: str | None, request: str | None) -> str | None:
    """The fingerprint of what a call of this tool asks for; None where its request is not built.

    Over method, address, path, query, the tool's own headers and the body (of JSON its value), without the
    operation key, wherever that travels, and without what stands for secrets; of an MCP tool also over its
    server's command and the pinned definition. Of a free-form Python tool, or one that starts a run, only its
    name and version are known, so that another version means something else.
    """
    if not tool.sends_request:
        planner = tool.child.planner if tool.child is not None else None
        return digest("fencepost.meaning.v1", [tool.kind, tool.name, tool.version, planner])
    if request is None:
        return None
    beside: list[Any] = []
    if tool.mcp is not None:
        server = tool.dependency.mcp
        process = [server.command, list(server.args), server.cwd] if isinstance(server, Stdio) else None
        beside = [tool.mcp.name, tool.mcp.definition, process]
    return digest("fencepost.meaning.v1", [tool.kind, _asked(tool, key, request), beside])


def _asked(tool: Tool, key: str | None, request: str) -> Any:
    known = {key, tool.key.spell(key)} if tool.key is not None and key is not None else {key}
    volatile = sorted((k for k in known if k), key=len, reverse=True)
    try:
        stored = StoredRequest.from_text(request)
    except ValueError:  # what no engine sends has no parts
        return request
    headers = sorted(
        [name.lower(), _without(volatile, value)]
        for name, value in stored.headers
        if value.strip(' "') not in volatile  # whatever stands beside a key means something
    )
    body = _without(volatile, _value(stored.body))
    return [stored.method, _without(volatile, stored.target), headers, body]


def _without(volatile: list[str], text: str) -> str:
    for key in volatile:
        text = text.replace(key, "")
    return PLACEHOLDER.sub("", text)


def _value(body: bytes) -> str:
    """A body as text: of JSON its value, whatever the order of its names, of others its very bytes."""
    try:
        value = json.loads(body, object_pairs_hook=_once, parse_float=_number)
        return json.dumps(value, sort_keys=True)
    except (ValueError, RecursionError):
        return body.decode("latin-1")


def _number(text: str) -> float | dict[str, str]:
    """A number that is no whole one; where a float cannot tell it from its neighbours, its very text."""
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else {"": text}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name twice")
    return made
