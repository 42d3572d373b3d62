"""Both sides of an audit on disk, so that a period of any length is matched in little memory."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from fencepost.books import BookedEffect
from fencepost.clock import parse_rfc3339, rfc3339
from fencepost.states import CallState
from fencepost_ops.audit.compare import Intent

_PAGE: Final = 1000
_SCHEMA: Final = """
CREATE TABLE intents (
    n INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, call TEXT NOT NULL, tool TEXT NOT NULL, receipt TEXT,
    rank INTEGER NOT NULL, inside INTEGER NOT NULL, until TEXT NOT NULL, data TEXT NOT NULL
);
CREATE INDEX intents_receipt ON intents (receipt) WHERE receipt IS NOT NULL;
CREATE INDEX intents_call ON intents (call);
CREATE TABLE referred (
    value TEXT NOT NULL, intent INTEGER NOT NULL, PRIMARY KEY (value, intent)
) WITHOUT ROWID;
CREATE TABLE effects (
    n INTEGER PRIMARY KEY, key TEXT, receipt TEXT, reference TEXT, tool TEXT, inside INTEGER NOT NULL,
    foreign_key INTEGER NOT NULL DEFAULT 0, intent INTEGER, data TEXT NOT NULL
);
CREATE INDEX effects_intent ON effects (intent) WHERE intent IS NOT NULL;
CREATE INDEX effects_key ON effects (key);
"""
# By key; else by receipt; else by the one call that was asked for it by that reference.
_BY_KEY: Final = (
    "UPDATE effects SET intent = (SELECT n FROM intents i WHERE i.key = effects.key)"
    " WHERE intent IS NULL AND key IS NOT NULL"
)
_BY_RECEIPT: Final = """
UPDATE effects SET intent = (SELECT max(n) FROM intents i WHERE i.receipt = effects.receipt
                             AND (effects.tool IS NULL OR i.tool = effects.tool) HAVING count(*) = 1)
WHERE intent IS NULL AND receipt IS NOT NULL AND NOT foreign_key
"""
_BY_REFERENCE: Final = """
UPDATE effects SET intent = (SELECT max(i.n) FROM referred f JOIN intents i ON i.n = f.intent
                             WHERE f.value = effects.reference
                             AND (effects.tool IS NULL OR i.tool = effects.tool)
                             HAVING count(*) = 1)
WHERE intent IS NULL AND reference IS NOT NULL AND NOT foreign_key
"""
_RANKS: Final = {
    CallState.SUCCEEDED: 3,
    CallState.UNKNOWN: 2,
    CallState.NEEDS_REPAIR: 2,
    CallState.DISPATCHING: 2,
}


class Spool:
    """Intents and effects of one audit. `inside`: of the period; the others are there to be matched with."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._sql = connection
        self._sql.executescript(_SCHEMA)

    def add_intents(self, intents: Iterable[Intent], *, inside: bool) -> None:
        """Keep these. Of several calls of one key the one that may have had the effect stands for it."""
        for intent in intents:
            rank = _RANKS.get(CallState(intent.state), 1)
            until = rfc3339(intent.in_flight_until) if intent.in_flight_until is not None else ""
            self._sql.execute(
                "INSERT INTO intents (key, call, tool, receipt, rank, inside, until, data)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET call = excluded.call,"
                " tool = excluded.tool, receipt = excluded.receipt, rank = excluded.rank,"
                " data = excluded.data, inside = max(inside, excluded.inside),"
                " until = max(until, excluded.until)"
                " WHERE excluded.rank >= rank",
                (intent.key, intent.call, intent.tool, intent.receipt, rank, inside, until, _dumped(intent)),
            )
            (n,) = self._sql.execute("SELECT n FROM intents WHERE key = ?", (intent.key,)).fetchone()
            values = {str(value) for value in _scalars(intent.arguments)}
            self._sql.executemany("INSERT OR IGNORE INTO referred VALUES (?, ?)", [(v, n) for v in values])

    def add_strangers(self, intents: Iterable[Intent]) -> None:
        """Keep those of these whose key is not here, to be matched with. What was read of the others before
        the book is not replaced: what happened since may not be in the book.
        """
        here = "SELECT 1 FROM intents WHERE key = ?"
        self.add_intents(
            (one for one in intents if self._sql.execute(here, (one.key,)).fetchone() is None), inside=False
        )

    def add_effects(self, effects: Iterable[BookedEffect], since: datetime, until: datetime) -> None:
        """Keep these."""
        self._sql.executemany(
            "INSERT INTO effects (key, receipt, reference, tool, inside, data) VALUES (?, ?, ?, ?, ?, ?)",
            (
                (one.key, one.receipt, one.reference, one.tool, since <= one.at < until, _dumped(one))
                for one in effects
            ),
        )

    def last_in_flight(self) -> datetime | None:
        """Until when a request of the period's intents may have been on its way."""
        (found,) = self._sql.execute("SELECT max(until) FROM intents WHERE inside").fetchone()
        return parse_rfc3339(found) if found else None

    def strange_keys(self) -> Iterator[list[str]]:
        """Pages of the effects' keys that no intent here has."""
        wanted = (
            "SELECT n, key FROM effects e WHERE n > ? AND key IS NOT NULL AND inside"
            " AND NOT EXISTS (SELECT 1 FROM intents i WHERE i.key = e.key) ORDER BY n LIMIT ?"
        )
        for rows in self._pages(wanted):
            yield sorted({key for _, key in rows})

    def _pages(self, wanted: str) -> Iterator[list[Any]]:
        """The rows of a statement that takes the number to begin after, and how many."""
        last = 0
        while rows := self._sql.execute(wanted, (last, _PAGE)).fetchall():
            last = rows[-1][0]
            yield rows

    def disown(self, keys: Iterable[str]) -> None:
        """The effects of these keys are another dependency's."""
        self._sql.executemany("UPDATE effects SET foreign_key = 1 WHERE key = ?", [(key,) for key in keys])

    def match(self) -> None:
        """Give each effect its intent, if there is one here and it has none yet."""
        for statement in (_BY_KEY, _BY_RECEIPT, _BY_REFERENCE):
            self._sql.execute(statement)

    def left_over(self) -> bool:
        """Whether an effect of the period has no intent, and is not another dependency's."""
        wanted = "SELECT 1 FROM effects WHERE intent IS NULL AND inside AND NOT foreign_key LIMIT 1"
        return self._sql.execute(wanted).fetchone() is not None

    def unsure(self) -> Iterator[list[Intent]]:
        """Pages of the intents that were not settled when they were read, or have no effect."""
        wanted = (
            "SELECT n, data FROM intents i WHERE n > ? AND (rank < 3"
            " OR NOT EXISTS (SELECT 1 FROM effects e WHERE e.intent = i.n)) ORDER BY n LIMIT ?"
        )
        for rows in self._pages(wanted):
            yield [_intent(data) for _, data in rows]

    def renew(self, intents: Iterable[Intent]) -> None:
        """Replace what was read of these before."""
        self._sql.executemany(
            "UPDATE intents SET data = ? WHERE call = ?", [(_dumped(one), one.call) for one in intents]
        )

    def matched(self) -> Iterator[tuple[Intent, Sequence[BookedEffect]]]:
        """Every intent of the period, and every other one with an effect in it, with all its effects."""
        wanted = (
            "SELECT n, data FROM intents i WHERE n > ? AND (inside"
            " OR EXISTS (SELECT 1 FROM effects e WHERE e.intent = i.n AND e.inside)) ORDER BY n LIMIT ?"
        )
        for rows in self._pages(wanted):
            for n, data in rows:
                of = self._sql.execute("SELECT data FROM effects WHERE intent = ? ORDER BY n", (n,))
                yield _intent(data), [_effect(kept) for (kept,) in of]

    def orphans(self) -> Iterator[BookedEffect]:
        """The effects of the period that belong to no intent, here or at another dependency."""
        wanted = (
            "SELECT n, data FROM effects WHERE n > ? AND intent IS NULL AND inside AND NOT foreign_key"
            " ORDER BY n LIMIT ?"
        )
        for rows in self._pages(wanted):
            yield from (_effect(data) for _, data in rows)


@contextmanager
def spooled() -> Iterator[Spool]:
    """An empty spool in a temporary folder, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fencepost-audit-") as folder:
        connection = sqlite3.connect(Path(folder) / "audit.sqlite3")
        # Nothing here outlives the process: it need not be written safely.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        try:
            yield Spool(connection)
        finally:
            connection.close()


_TIMES: Final = {"first_at", "in_flight_until", "at"}


def _dumped(value: Intent | BookedEffect) -> str:
    kept = {k: rfc3339(v) if isinstance(v, datetime) else v for k, v in asdict(value).items()}
    return json.dumps(kept, default=str)


def _loaded(text: str) -> dict[str, Any]:
    kept = json.loads(text)
    return {k: parse_rfc3339(v) if k in _TIMES and v is not None else v for k, v in kept.items()}


def _intent(text: str) -> Intent:
    return Intent(**_loaded(text))


def _effect(text: str) -> BookedEffect:
    return BookedEffect(**_loaded(text))


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _scalars(item)
    elif isinstance(value, list):
        for item in value:
            yield from _scalars(item)
    elif isinstance(value, str | int) and not isinstance(value, bool):
        yield value
