"""The sandbox's book: what was really asked of the services, and what they really did.

`Book` reads it from outside, while the services run, after they were killed, or when they are gone. A row is
in the book before the first byte of its answer leaves, and survives the death of the process (not of the
machine: the last commits may still be in the operating system's memory).
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fencepost_ops.sandbox.services import Money

BOOK_FILE = "sandbox.sqlite3"
BOOK_VERSION = 1

SCHEMA = """
CREATE TABLE requests (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    service TEXT NOT NULL,
    purpose TEXT NOT NULL CHECK (purpose IN ('effect', 'lookup')),
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    key TEXT,
    reference TEXT,
    digest TEXT NOT NULL,     -- SHA-256 of the body's exact bytes
    headers TEXT NOT NULL,    -- JSON: the headers that correlate
    status INTEGER,           -- null: not answered, or not yet
    fault TEXT,               -- the fault it met
    replayed INTEGER NOT NULL DEFAULT 0,
    effect TEXT               -- the effect it committed
);
CREATE TABLE effects (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    service TEXT NOT NULL,
    kind TEXT NOT NULL,
    key TEXT,
    reference TEXT,
    digest TEXT NOT NULL,
    body TEXT NOT NULL,       -- JSON: the request's body
    answer TEXT NOT NULL,     -- JSON: the first answer
    currency TEXT,
    amount_minor INTEGER,
    scale INTEGER,
    at REAL NOT NULL,
    request INTEGER NOT NULL REFERENCES requests (seq),
    headers TEXT NOT NULL,
    undoes TEXT UNIQUE        -- an effect is undone at most once
);
CREATE INDEX effects_by_key ON effects (service, key);
CREATE INDEX effects_by_reference ON effects (service, reference);
CREATE TABLE keys (
    service TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    first_at REAL NOT NULL,
    status INTEGER,
    answer TEXT,              -- null: the first execution failed and is to be done again
    PRIMARY KEY (service, key)
) WITHOUT ROWID;
CREATE TABLE accounts (
    id TEXT PRIMARY KEY, currency TEXT NOT NULL, amount_minor INTEGER NOT NULL, scale INTEGER NOT NULL
);
CREATE TABLE items (sku TEXT PRIMARY KEY, stock INTEGER NOT NULL);
CREATE TABLE pages (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, body TEXT NOT NULL, receipt TEXT NOT NULL
);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Effect:
    """One committed effect. `at` is the service's clock in Unix seconds; `request` the seq of its request."""

    seq: int
    id: str
    service: str
    kind: str
    key: str | None
    reference: str | None
    digest: str
    body: Mapping[str, Any]
    answer: Mapping[str, Any]
    amount: Money | None
    at: float
    request: int
    headers: Mapping[str, str]
    undoes: str | None

    def wire(self) -> dict[str, Any]:
        """The effect as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Request:
    """One request received. `status` is what was answered; None: not yet, or the answer was dropped."""

    seq: int
    at: float
    service: str
    purpose: str
    method: str
    path: str
    key: str | None
    reference: str | None
    digest: str
    headers: Mapping[str, str]
    status: int | None
    fault: str | None
    replayed: bool
    effect: str | None

    def wire(self) -> dict[str, Any]:
        """The request as JSON values."""
        return asdict(self)


def _effect(row: sqlite3.Row) -> Effect:
    values = dict(row)
    currency, minor, scale = values.pop("currency"), values.pop("amount_minor"), values.pop("scale")
    for name in ("body", "answer", "headers"):
        values[name] = json.loads(values[name])
    return Effect(amount=None if currency is None else Money(currency, minor, scale), **values)


def _request(row: sqlite3.Row) -> Request:
    values = dict(row)
    values["headers"] = json.loads(values["headers"])
    values["replayed"] = bool(values["replayed"])
    return Request(**values)


def select_effects(
    connection: sqlite3.Connection,
    *,
    since: int = 0,
    until: float | None = None,
    limit: int | None = None,
    **equal: str | None,
) -> list[Effect]:
    """Effects after number `since`, in order of commit; `equal` names columns and values, None is any."""
    conditions, values = _conditions(since, equal)
    if until is not None:
        conditions, values = f"{conditions} AND at <= ?", [*values, until]
    statement = f"SELECT * FROM effects WHERE {conditions} ORDER BY seq LIMIT ?"
    rows = connection.execute(statement, (*values, -1 if limit is None else limit))
    return [_effect(row) for row in rows]


def select_requests(
    connection: sqlite3.Connection, *, since: int = 0, limit: int | None = None, **equal: str | None
) -> list[Request]:
    """Requests after number `since`, in order of arrival; `equal` names columns and values, None is any."""
    conditions, values = _conditions(since, equal)
    statement = f"SELECT * FROM requests WHERE {conditions} ORDER BY seq LIMIT ?"
    rows = connection.execute(statement, (*values, -1 if limit is None else limit))
    return [_request(row) for row in rows]


def _conditions(since: int, equal: Mapping[str, str | None]) -> tuple[str, list[str | int | float]]:
    asked = {name: value for name, value in equal.items() if value is not None}
    return " AND ".join(["seq > ?", *(f"{name} = ?" for name in asked)]), [since, *asked.values()]


class Book:
    """Reads one sandbox's book, never writing. `path` is the data folder, or the file in it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def effects(
        self,
        service: str | None = None,
        *,
        since: int = 0,
        key: str | None = None,
        limit: int | None = None,
    ) -> list[Effect]:
        """Every committed effect in order, undone ones too. Raises FileNotFoundError without a book."""
        with self._open() as connection:
            return select_effects(connection, since=since, service=service, key=key, limit=limit)

    def requests(
        self,
        service: str | None = None,
        *,
        since: int = 0,
        key: str | None = None,
        purpose: str | None = "effect",
    ) -> list[Request]:
        """Every request received for an effect; `purpose` "lookup" gives the lookups, None both."""
        with self._open() as connection:
            return select_requests(connection, since=since, service=service, key=key, purpose=purpose)

    def effects_per_key(self) -> Counter[tuple[str, str | None]]:
        """How many effects each (service, key) had."""
        return Counter((effect.service, effect.key) for effect in self.effects())

    def requests_per_key(self) -> Counter[tuple[str, str | None]]:
        """How many requests for an effect each (service, key) made."""
        return Counter((request.service, request.key) for request in self.requests())

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        path = self.path / BOOK_FILE if self.path.is_dir() else self.path
        if not path.exists():
            raise FileNotFoundError(f"no sandbox has kept a book at {path}")
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5.0)
        connection.row_factory = sqlite3.Row
        try:
            yield connection
        finally:
            connection.close()
