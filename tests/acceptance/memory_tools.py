"""Memory and retrieval of the acceptance application, and a replica that catches up when a file says so."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import BaseModel

from fencepost import App
from fencepost.ledger.connect import Pool
from fencepost.ledger.memories import PostgresMemory
from fencepost.memory_port import Change, Listed, Slot, Stored, WriteAnswer, Writer
from fencepost.retrieval import Document
from fencepost.tools import Attempt

DAY = timedelta(days=1)


class Query(BaseModel):
    query: str


class Replica:
    """The ledger's memory, whose reads know as many versions of a key as the file of its name says.

    Without a file it is up to date.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pools: dict[int, Pool] = {}

    def _there(self) -> PostgresMemory:
        pid = os.getpid()
        if pid not in self._pools:
            self._pools[pid] = Pool(os.environ["FENCEPOST_DSN"], "acceptance-memory", 2)
        return PostgresMemory(self._pools[pid])

    def write(self, slot: Slot, change: Change, writer: Writer) -> WriteAnswer:
        return self._there().write(slot, change, writer)

    def written(self, slot: Slot, operation: str) -> int | None:
        return self._there().written(slot, operation)

    def read(self, slot: Slot) -> Stored:
        known = self._folder / f"replica-{slot.key}"
        newest = self._there().read(slot)
        if not known.exists() or newest.version <= int(known.read_text()):
            return newest
        return Stored(int(known.read_text()), '"an older value"', exists=True, as_of=datetime.now(UTC) - DAY)

    def keys(self, tenant: str, space: str, prefix: str, after: str, limit: int) -> Sequence[Listed]:
        return self._there().keys(tenant, space, prefix, after, limit)


def add(app: App, folder: Path) -> None:
    """Register the spaces `notes` and `afar`, and the search `docs`."""
    second = timedelta(seconds=1)
    app.memory("notes", per_attempt=2 * second)
    app.memory("afar", store=Replica(folder), wait=10 * second, per_attempt=12 * second)

    def search(args: Query, _attempt: Attempt) -> list[Document]:
        now = datetime.now(UTC)
        return [
            Document(id="handbook", version="r7", as_of=now, text=f"what is known of {args.query}"),
            Document(id="old-handbook", version="r2", as_of=now - 60 * DAY, text="what was known once"),
        ]

    app.retrieval("docs", search=search, max_age=30 * DAY, per_attempt=2 * second)
