"""The sandbox's MCP server and its book, and an app whose tools are its."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fencepost import Absent, App, Contract, Effect, Found, Lookup
from fencepost.declarations import McpTool
from fencepost.mcp import McpServer, Stdio, ToolCall, ToolResult
from fencepost.services import Dependency
from fencepost.tools import LookupResult
from fencepost_ops.sandbox.mcp_book import FAULTS, McpBook

ROOT = Path(__file__).parents[2]
PATHS = ":".join(str(ROOT / folder) for folder in ("shared", "workers", "relay", "ops"))
START_S = 20.0


class Note(BaseModel):
    ref: str
    text: str = "hello"


class Written(BaseModel):
    id: str
    ref: str


class Notes:
    """One server's folder: its book, and what goes wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.book = McpBook(folder)
        folder.mkdir(parents=True, exist_ok=True)

    def faults(self, **said: Any) -> None:
        (self.folder / FAULTS).write_text(json.dumps(said))

    def calls(self, name: str = "write_note") -> list[Mapping[str, Any]]:
        return [line for line in self.book.lines("call") if line["name"] == name]

    def effects(self) -> list[Mapping[str, Any]]:
        return [*self.book.lines("effect")]

    def stdio(self, **said: Any) -> Stdio:
        args = ("-m", "fencepost_ops.sandbox.mcp_server", str(self.folder))
        return Stdio(command=sys.executable, args=args, env={"PYTHONPATH": PATHS}, **said)

    @contextmanager
    def http(self, *flags: str) -> Iterator[str]:
        """Its URL while it runs."""
        command = [
            sys.executable,
            "-m",
            "fencepost_ops.sandbox.mcp_server",
            str(self.folder),
            "--http",
            *flags,
        ]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PYTHONPATH": PATHS}
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield child.stdout.readline().decode().strip()
        finally:
            child.stdin.close()
            child.wait(START_S)
            child.stdout.close()


LOOKED_UP = Contract(lookup=Lookup(by="key", strong=True), settle=timedelta(seconds=1))


def served(app: App, server: McpServer, url: str | None = None, **times: Any) -> Dependency:
    return app.dependency("notes", url, mcp=server, **times)


def writing(notes: Dependency, **said: Any) -> McpTool[Note, Written]:
    """`note.write`, which can be looked up by its key."""
    options: dict[str, Any] = {"remote": "write_note", "contract": LOOKED_UP, **said}
    write = notes.mcp(
        "note.write",
        arguments=Note,
        effect=Effect.IRREVERSIBLE,
        intent=lambda a: ("note", a.ref),
        returns=Written,
        **options,
    )

    @write.lookup
    def find(args: Note, key: str) -> ToolCall:
        return ToolCall("find_note", {"key": key})

    @write.lookup_parse
    def found(answer: ToolResult, args: Note) -> LookupResult:
        note = answer.structured["note"]
        return Found(note["id"], note) if answer.structured["found"] else Absent()

    return write
