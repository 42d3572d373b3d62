"""What really happened, for the checker: the sandbox's book, and the file of what Python tools did."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from fencepost.canonical import sanitize
from fencepost_ops.checker import BookEffect, BookRequest, Origin, SandboxBooks
from fencepost_ops.sandbox.book import Book

DEEDS = ("local", "hasty", "deadly")
SHARED = ("bank", "blind")
"""Dependencies whose effects are in the wallet's book."""
BOTH = ("patient",)


def read_deeds(file: Path) -> list[BookEffect]:
    """The effects of Python tools, in order."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [
        BookEffect(
            service=line["service"],
            receipt=sanitize(line["receipt"], 500),
            key=line["key"],
            digest="",
            at=datetime.fromtimestamp(line["at"], UTC),
            origin=Origin(UUID(line["call"]), line["attempt"]),
        )
        for line in lines
    ]


class Books:
    """All books of one fleet."""

    def __init__(self, book: Book, deeds: Path) -> None:
        self._sandbox = SandboxBooks(book)
        self._deeds = deeds

    def services(self) -> Sequence[str]:
        return (*self._sandbox.services(), *DEEDS, *SHARED, *BOTH)

    def effects(self, service: str) -> Sequence[BookEffect]:
        if service in self._sandbox.services():
            return self._sandbox.effects(service)
        return [deed for deed in read_deeds(self._deeds) if deed.service == service]

    def requests(self, service: str) -> Sequence[BookRequest]:
        return self._sandbox.requests(service) if service in self._sandbox.services() else []
