"""The provider's book: every model request, when it began and ended, and whether its caller was still there.

One line of JSON when a request begins and one when it ends, in `models.jsonl` beside the other book: they
outlive `kill -9` of the process. A request that has no end was cut off by the process's own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

BOOK_FILE: Final = "models.jsonl"
FIRST_CHARS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One request to a model.

    `transcript` names what it says, on whichever wire; `nth` counts the requests of that transcript at this
    model. `first` is how the user's first words begin. `key` names the secret it came with. `retries` is what
    the SDK says of itself. `outcome` is `answered`, `refused`, `cut` (by a fault, or with the process) or
    `left`: the caller went before the end. `there`: whether the caller was there at the end.
    """

    seq: int
    at: float
    wire: str
    model: str = ""
    stream: bool = False
    turn: int = 0
    transcript: str = ""
    nth: int = 0
    first: str = ""
    body: str = ""
    key: str = ""
    retries: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: str | None = None
    status: int | None = None
    ended: float | None = None
    outcome: str | None = None
    there: bool | None = None

    def wire_form(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


class ModelBook:
    """Reads a provider's book, also of one that was killed."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def requests(self, *, model: str | None = None) -> list[Asking]:
        """Every request, oldest first."""
        return [one for one in _read(self._file) if model in (None, one.model)]


class Ledger:
    """Writes the book of one process; what earlier ones wrote is in it."""

    def __init__(self, folder: Path) -> None:
        file = folder / BOOK_FILE
        self.requests: list[Asking] = list(_read(file))
        self.open = 0
        self.most = 0
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def begin(self, asking: Asking) -> None:
        """Note that a request began."""
        self.requests.append(asking)
        self.open += 1
        self.most = max(self.most, self.open)
        self._write(asdict(asking))

    def know(self, seq: int, **facts: Any) -> None:
        """Note more of a request."""
        self.requests[seq - 1] = replace(self.requests[seq - 1], **facts)
        self._write({"seq": seq, **facts})

    def end(self, seq: int, **facts: Any) -> None:
        """Note that it ended."""
        self.open -= 1
        self.know(seq, **facts)

    def _write(self, row: Mapping[str, Any]) -> None:
        os.write(self._descriptor, json.dumps(row).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _read(file: Path) -> Iterator[Asking]:
    found: dict[int, dict[str, Any]] = {}
    known = {one.name for one in fields(Asking)}
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:  # a power cut may leave half a line
            continue
        found.setdefault(row["seq"], {}).update({name: row[name] for name in row if name in known})
    return (Asking(**row) for row in found.values())
