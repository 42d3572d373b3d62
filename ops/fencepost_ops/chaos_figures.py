"""What chaos counts of its own runs, in the ledger and in the services' own books."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fencepost_ops.sandbox.book import Effect
from fencepost_ops.trial import Reader

_KEYS: Final = """
SELECT operation, bool_or(state = 'SUCCEEDED') FROM fencepost.calls
WHERE tenant = %s AND operation IS NOT NULL GROUP BY operation
"""
_COUNTS: Final = """
SELECT count(*), coalesce(sum(attempts), 0) FROM fencepost.calls WHERE tenant = %s
"""
# Of the calls whose outcome was ever unknown: how often, by whom it was settled, and how many still are not.
_UNKNOWN: Final = """
WITH marked AS (
    SELECT call, count(*) FILTER (WHERE type = 'ToolOutcomeMarkedUnknown') AS marks,
           count(*) FILTER (WHERE type = 'RepairDecided') AS decided
    FROM fencepost.events
    WHERE tenant = %(tenant)s AND type IN ('ToolOutcomeMarkedUnknown', 'RepairDecided') GROUP BY call
), known AS (
    SELECT m.marks, m.decided > 0 AS decided,
           c.state IN ('SUCCEEDED', 'FAILED', 'REJECTED', 'CANCELLED', 'ACCEPTED_UNKNOWN') AS ended
    FROM marked m JOIN fencepost.calls c ON c.tenant = %(tenant)s AND c.id = m.call WHERE m.marks > 0
)
SELECT count(*), coalesce(sum(marks), 0), count(*) FILTER (WHERE ended AND NOT decided),
       count(*) FILTER (WHERE ended AND decided), count(*) FILTER (WHERE NOT ended) FROM known
"""
_RUNS: Final = """
SELECT count(*), count(*) FILTER (WHERE status = 'COMPLETED'), count(*) FILTER (WHERE status = 'STOPPED')
FROM fencepost.runs WHERE tenant = %s
"""


@dataclass(frozen=True, slots=True)
class Unknowns:
    """Calls whose outcome was unknown, how often it was, and who settled them; `open` are not settled."""

    calls: int
    marks: int
    automatically: int
    by_person: int
    open: int


@dataclass(frozen=True, slots=True)
class Figures:
    """`effects`, `duplicates` and `lost` are counted in the services' own books.

    `duplicates`: effects beyond the first of one key. `lost`: keys of succeeded calls without any effect, and
    runs that were enqueued and are not there.
    """

    runs: int
    completed: int
    stopped: int
    calls: int
    attempts: int
    effects: int
    duplicates: int
    lost: int
    unknowns: Unknowns


def count(reader: Reader, tenant: str, effects: Iterable[Effect], enqueued: int) -> Figures:
    """The figures of a tenant's runs, of which so many were enqueued."""
    runs, completed, stopped = _row(reader, _RUNS, [tenant])
    calls, attempts = _row(reader, _COUNTS, [tenant])
    keys = dict(reader.execute(_KEYS, [tenant]).fetchall())
    happened, duplicates, lost = judged(keys, ((one.service, one.key) for one in effects))
    return Figures(
        runs=runs,
        completed=completed,
        stopped=stopped,
        calls=calls,
        attempts=attempts,
        effects=happened,
        duplicates=duplicates,
        lost=lost + max(0, enqueued - runs),
        unknowns=Unknowns(*_row(reader, _UNKNOWN, {"tenant": tenant})),
    )


def judged(keys: Mapping[str, bool], effects: Iterable[tuple[str, str | None]]) -> tuple[int, int, int]:
    """How many effects these keys had, how many beyond one each, and how many succeeded without any.

    `keys` say of each whether a call of it has succeeded; effects of other keys are somebody else's.
    """
    found = Counter((service, key) for service, key in effects if key in keys)
    seen = {key for _, key in found}
    missing = sum(succeeded and key not in seen for key, succeeded in keys.items())
    return found.total(), sum(times - 1 for times in found.values()), missing


def _row(reader: Reader, statement: str, values: list[str] | dict[str, str]) -> tuple[int, ...]:
    row = reader.execute(statement, values).fetchone()
    assert row is not None  # a count is one row
    return tuple(map(int, row))
