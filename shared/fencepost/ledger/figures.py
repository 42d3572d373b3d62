"""The few figures of a whole ledger that alerts are made of: what is unknown, and what waits, by age.

Each is read from a part of bounded size (`MOST` rows), so that a look costs the same on any ledger: a number
that reads `MOST` means at least so many, and an age is that of the oldest among those looked at.
"""

from __future__ import annotations

from typing import Any, Final

from fencepost.ledger.connect import Connection

MOST: Final = 10_000

# A call is UNKNOWN since its last attempt's deadline at the latest. What has no queue yet is found by the
# relay's own index, oldest first.
_FIGURES: Final = """
WITH clock AS MATERIALIZED (SELECT fencepost.now() AS now),
unknown AS (
    SELECT in_flight_until FROM fencepost.calls WHERE live AND state = 'UNKNOWN' LIMIT %(most)s
), repairs AS (
    SELECT 1 FROM fencepost.calls WHERE live AND state = 'NEEDS_REPAIR' LIMIT %(most)s
), owed AS (
    SELECT json_array_length(owed::json) AS n FROM fencepost.runs WHERE owed IS NOT NULL
    LIMIT %(most)s
), published AS (
    SELECT due_at FROM fencepost.outbox, clock
    WHERE publish_count > 0 AND due_at <= clock.now AND dead_at IS NULL LIMIT %(most)s
)
SELECT (SELECT count(*) FROM unknown),
    extract(epoch FROM clock.now - (SELECT min(in_flight_until) FROM unknown)),
    (SELECT count(*) FROM repairs),
    (SELECT sum(n) FROM owed),
    extract(epoch FROM clock.now - (SELECT min(publish_at) FROM fencepost.outbox WHERE publish_count = 0)),
    extract(epoch FROM clock.now - (SELECT min(due_at) FROM published))
FROM clock
"""
_NAMES: Final = ("unknown", "unknown_age_s", "repairs", "owed", "outbox_age_s", "waiting_age_s")


def read(connection: Connection) -> dict[str, float]:
    """The figures as of now, in one statement; an age of nothing is nought."""
    row: Any = connection.execute(_FIGURES, {"most": MOST}).fetchone()
    return {name: max(0.0, float(value or 0)) for name, value in zip(_NAMES, row, strict=True)}
