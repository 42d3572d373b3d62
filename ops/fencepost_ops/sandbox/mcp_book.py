"""What is kept by an MCP server of the sandbox, to be read without the SDK it is made with."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

BOOK: Final = "book.jsonl"
FAULTS: Final = "faults.json"


class McpBook:
    """What was asked of the server and what it did, over all of its processes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BOOK

    def lines(self, what: str | None = None) -> list[dict[str, Any]]:
        """Everything that happened, or what is called `what`, in order."""
        if not self._path.exists():
            return []
        found = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
        return [line for line in found if what in {None, line["what"]}]

    def write(self, what: str, **said: Any) -> None:
        """Write one line down."""
        line = json.dumps({"what": what, "pid": os.getpid(), "at": time.time(), **said})
        with self._path.open(
            "ab", buffering=0
        ) as file:  # one write, so that lines of two processes stay whole
            file.write(line.encode() + b"\n")
