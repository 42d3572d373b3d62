"""A tool of the acceptance application that is an MCP server's, started anew for each attempt."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fencepost import Absent, App, Contract, Effect, Found, Lookup
from fencepost.mcp import Stdio, ToolCall, ToolResult
from fencepost.tools import LookupResult

FOLDER = "diary"
PATHS = ":".join(str(Path(__file__).parents[2] / part) for part in ("shared", "workers", "relay", "ops"))


class Note(BaseModel):
    ref: str
    text: str


class Written(BaseModel):
    id: str


def add(app: App, folder: Path) -> None:
    """Register it."""
    second = timedelta(seconds=1)
    # Of a process that is started for it an attempt may take long on a busy machine.
    times: Any = {"attempts": 3, "per_attempt": 120 * second, "grace": second, "reserve": second}
    args = ("-m", "fencepost_ops.sandbox.mcp_server", str(folder / FOLDER))
    server = Stdio(command=sys.executable, args=args, env={"PYTHONPATH": PATHS})
    diary = app.dependency("diary", mcp=server, **times)
    write = diary.mcp(
        "diary.write",
        arguments=Note,
        remote="write_note",
        effect=Effect.IRREVERSIBLE,
        intent=lambda a: ("note", a.ref),
        returns=Written,
        contract=Contract(lookup=Lookup(by="key", strong=True)),
    )

    @write.lookup
    def find(args: Note, key: str) -> ToolCall:
        return ToolCall("find_note", {"key": key})

    @write.lookup_parse
    def found(answer: ToolResult, args: Note) -> LookupResult:
        note = answer.structured["note"]
        return Found(note["id"], note) if answer.structured["found"] else Absent()
