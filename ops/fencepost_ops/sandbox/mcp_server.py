"""An MCP server with a book and faults, by stdio or streamable HTTP, made with the official SDK.

    python -m fencepost_ops.sandbox.mcp_server FOLDER            # stdio
    python -m fencepost_ops.sandbox.mcp_server FOLDER --http     # prints its URL, ends when stdin does

It keeps notes: `write_note` has an effect, `find_note` finds it by the key it was sent under. Each line of
`FOLDER/book.jsonl` is one thing that happened, written down before anything is answered. `FOLDER/faults.json`
says what goes wrong, read anew for every request: `write_note` and `find_note` to `{"do": FAULT, "times": N}`
(the first N calls of it in the book; without `times` all), `describe` to what `write_note` is said to be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from fencepost.mcp import KEY_META
from fencepost_ops.sandbox.mcp_book import FAULTS, McpBook

HUGE: Final = 8 * 1024 * 1024
_NOTE: Final = {
    "type": "object",
    "properties": {"ref": {"type": "string"}, "text": {"type": "string"}},
    "required": ["ref", "text"],
    "additionalProperties": False,
}
_WRITTEN: Final = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "ref": {"type": "string"}},
    "required": ["id", "ref"],
}
_KEY: Final = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}


class Notes:
    """The server's two tools."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.book = McpBook(folder)

    def _faults(self) -> Mapping[str, Any]:
        path = self._folder / FAULTS
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return found

    def wrong(self, tool: str) -> str:
        """What goes wrong with the call that was just written down; nothing for most."""
        rule = self._faults().get(tool, {})
        calls = sum(line["name"] == tool for line in self.book.lines("call"))
        return str(rule.get("do", "")) if calls <= rule.get("times", calls) else ""

    async def listed(self, _ctx: ServerRequestContext[Any], _params: Any) -> types.ListToolsResult:
        """See tools/list."""
        self.book.write("list")
        says = {"description": "Writes a note.", "outputSchema": _WRITTEN} | self._faults().get(
            "describe", {}
        )
        notes = [
            {"name": "write_note", "inputSchema": _NOTE, **says},
            {"name": "find_note", "description": "Finds a note by its key.", "inputSchema": _KEY},
        ]
        hidden = self._faults().get("hide", [])
        return types.ListToolsResult(
            tools=[types.Tool.model_validate(one) for one in notes if one["name"] not in hidden]
        )

    async def called(
        self, _ctx: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """See tools/call."""
        meta = dict(params.meta or {})
        self.book.write("call", name=params.name, arguments=params.arguments, meta=meta)
        if params.name == "find_note":
            return self._found(str((params.arguments or {}).get("key")))
        if params.name != "write_note":
            return _failed(f"Unknown tool: {params.name}")
        return await self._written(params.arguments or {}, str(meta.get(KEY_META)))

    async def _written(
        self, arguments: Mapping[str, Any], key: str
    ) -> types.CallToolResult | types.InputRequiredResult:
        do, _, how = self.wrong("write_note").partition(":")
        if set(arguments) != {"ref", "text"}:
            return _failed("bad arguments")
        if do == "die_before":
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "error":
            raise MCPError(int(how), "refused")
        if do == "raise_before":
            return _failed("it broke before anything was done")
        if do == "ask":
            return types.InputRequiredResult(request_state="more")
        if do == "slow":
            await asyncio.sleep(float(how))
        if do == "child":  # something it starts outlives its answer, unless its whole group is ended
            child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)  # noqa: ASYNC220 - of a fault
            self.book.write("child", child=child.pid)
        number = len(self.book.lines("effect")) + 1
        note = {"id": f"note_{number}", "ref": arguments["ref"]}
        self.book.write("effect", key=key, note=note, text=arguments["text"])
        if do == "die_after":
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "slow_after":
            await asyncio.sleep(float(how))
        if do == "raise_after":
            return _failed("it broke after all was done")
        if do == "wrong":
            return _answer({"id": 7})
        if do == "huge":
            return _answer({**note, "more": "x" * HUGE})
        return _answer(note)

    def _found(self, key: str) -> types.CallToolResult:
        do = self.wrong("find_note")
        if do == "raise":
            return _failed("it cannot look just now")
        found = next((line["note"] for line in self.book.lines("effect") if line["key"] == key), None)
        return _answer({"found": found is not None, "note": found})


def _answer(value: Mapping[str, Any]) -> types.CallToolResult:
    text = types.TextContent(type="text", text=json.dumps(value))
    return types.CallToolResult(content=[text], structured_content=dict(value))


def _failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def server_of(notes: Notes) -> Server[Any]:
    """The SDK's server of these tools."""
    return Server("notes", version="1", on_list_tools=notes.listed, on_call_tool=notes.called)


async def _stdio(notes: Notes) -> None:
    from mcp.server.stdio import stdio_server

    server = server_of(notes)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


class _Bare:
    """Answers a call as a gateway would, where a fault says so."""

    def __init__(self, app: Any, notes: Notes) -> None:
        self._app = app
        self._notes = notes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        rule = self._notes._faults().get("gateway") if scope["type"] == "http" else None  # noqa: SLF001
        method = dict(scope.get("headers") or ()).get(b"mcp-method", b"")
        if rule is None or method != b"tools/call":
            await self._app(scope, receive, send)
            return
        self._notes.book.write("gateway", status=rule["status"])
        headers = [(name.lower().encode(), value.encode()) for name, value in rule.get("headers", {}).items()]
        await send({"type": "http.response.start", "status": rule["status"], "headers": headers})
        await send({"type": "http.response.body", "body": rule.get("body", "").encode()})


async def _http(notes: Notes, *, as_json: bool) -> None:
    import uvicorn

    app = server_of(notes).streamable_http_app(json_response=as_json)
    config = uvicorn.Config(_Bare(app, notes), host="127.0.0.1", port=0, log_level="warning")
    serving = uvicorn.Server(config)
    running = asyncio.ensure_future(serving.serve())
    while not serving.started and not running.done():  # noqa: ASYNC110 - nobody tells it
        await asyncio.sleep(0.01)
    port = next(_ports(serving))
    print(f"http://127.0.0.1:{port}/mcp", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    serving.should_exit = True
    await running


def _ports(serving: Any) -> Iterator[int]:
    for server in serving.servers:
        for socket in server.sockets:
            yield socket.getsockname()[1]


def main() -> None:
    """Serve until nobody speaks to it any more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--json", action="store_true", help="answer with JSON instead of an event stream")
    said = parser.parse_args()
    said.folder.mkdir(parents=True, exist_ok=True)
    notes = Notes(said.folder)
    asyncio.run(_http(notes, as_json=said.json) if said.http else _stdio(notes))


if __name__ == "__main__":
    main()
