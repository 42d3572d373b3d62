"""Runs that would wait for each other's keys until their deadlines: found as a call begins to wait.

A call waits for the call that holds its key. If that one has started a run, it waits for what is open there:
for calls that wait for a key themselves, or have started runs. Whoever would close a circle of such waits is
refused (`decide.children.admit`), so that every circle loses its last call and no other.

Of a join that waits for some of its calls, or until an instant, those count that it cannot be met without as
things stand, and those that work on after it. So two circles are missed, and end at a deadline: one that is
closed by several calls of a join of which any could be spared but not all, and one whose call becomes needed
only later, as others of its join fail. The call that begins last is refused even where its own join could
spare it: its planner is told.

Only runs that have a parent can close one, and only by a key whose holder has started a run. Such waits
begin one at a time in a tenant, by an advisory lock that is held until the COMMIT, so that of two at once the
second sees the first. A call that waits already is not judged again. What is looked at is bounded: a circle
that is longer or wider ends at a deadline.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol
from uuid import UUID

from fencepost import commands as c
from fencepost import operations
from fencepost.decide.circles import Circles, Key
from fencepost.ledger import rows
from fencepost.ledger.connect import Connection, Pipeline
from fencepost.operations import Operation
from fencepost.proposals import Validated
from fencepost.subjects import Call, Run

DEPTH: Final = 16
MOST: Final = 256
"""Calls that are looked at along the way, of each key: a wide tree hides no circle of its neighbours'."""

# OFFSET 0, and tenants that are not distinct: what is known to be equal is looked for by a tenant alone.
_HELD: Final = """
(SELECT o.tenant, o.call FROM fencepost.operations o WHERE o.key = w.key AND o.tenant = w.tenant OFFSET 0) o
JOIN fencepost.calls c ON c.id = o.call AND c.tenant = o.tenant AND c.child IS NOT NULL AND c.live
"""
# Who may start a run locks the key of its call, which this batch has locked: a holder without one gets none.
_ALONE: Final = f"""
SELECT pg_advisory_xact_lock(hashtextextended(tenant, 7))
FROM (SELECT DISTINCT w.tenant FROM unnest(%s::text[], %s::text[]) AS w (tenant, key)
      WHERE EXISTS (SELECT FROM {_HELD}) ORDER BY w.tenant) AS one
"""
# Whether the run `r` waits for its call `k`, which is not over. What is detached is waited for at the run's
# end, unless it was told to stop; and so is what has begun under a join that leaves its rest at work.
_WAITED: Final = """
CASE
    WHEN r.below IS NULL THEN true
    WHEN r.below::jsonb #> '{stop}' ? k.id::text THEN false
    WHEN r.below::jsonb #> '{join,calls}' ? k.id::text THEN CASE
        WHEN k.child IS NOT NULL AND r.below::jsonb #>> '{join,rest}' = 'leave' THEN true
        WHEN r.below::jsonb #>> '{join,by}' IS NOT NULL THEN false
        ELSE (r.below::json #>> '{join,need}')::int - coalesce((r.below::json #>> '{join,got}')::int, 0)
            >= jsonb_array_length(r.below::jsonb #> '{join,calls}') END
    ELSE true END
"""
_CHAINS: Final = f"""
SELECT w.tenant, w.key, found.child, found.way
FROM unnest(%s::text[], %s::text[]) AS w (tenant, key) CROSS JOIN LATERAL (
    WITH RECURSIVE chain (tenant, child, way) AS (
        SELECT c.tenant, c.child, ARRAY[c.tool || ' of run ' || c.run] FROM {_HELD}
      UNION ALL
        SELECT held.tenant, held.child, way || (held.tool || ' of run ' || held.run)
        FROM chain
        JOIN fencepost.runs r ON r.id = chain.child AND r.tenant = chain.tenant
        JOIN fencepost.calls k ON k.run = r.id AND k.tenant IS NOT DISTINCT FROM r.tenant AND k.live
            AND {_WAITED}
        LEFT JOIN fencepost.operations o ON k.waits AND o.key = k.operation AND o.tenant = k.tenant
        JOIN fencepost.calls held ON held.id = CASE WHEN k.waits THEN o.call ELSE k.id END
            AND held.tenant = k.tenant AND held.child IS NOT NULL AND held.live
        WHERE cardinality(way) < {DEPTH})
    SELECT child, way FROM chain LIMIT %s) AS found
"""


class Loaded(Protocol):
    """What of a batch is looked at; see `load.Loaded`."""

    # fmt: off
    @property
    def runs(self) -> Mapping[tuple[str, UUID], Run]: ...  # noqa: D102 - as in `load.Loaded`
    @property
    def calls(self) -> Mapping[tuple[str, UUID], Mapping[UUID, Call]]: ...  # noqa: D102
    @property
    def operations(self) -> Mapping[Key, Operation]: ...  # noqa: D102
    # fmt: on


def awaited(batch: Sequence[c.Command], loaded: Loaded) -> set[Key]:
    """Keys that calls of other runs hold, and for which calls of child runs may begin to wait."""
    found: set[Key] = set()
    for x in batch:
        run = loaded.runs.get((x.tenant, x.run))
        if run is None or run.parent is None:
            continue
        keys: list[str | None] = []
        if isinstance(x, c.RecordTurn):
            keys = [one.operation for one in x.proposals if isinstance(one, Validated)]
        elif isinstance(x, c.ClaimCall):
            call = loaded.calls[x.tenant, x.run].get(x.subject)
            keys = [call.operation] if call is not None and not call.waits else []
        held = (loaded.operations.get((x.tenant, key)) for key in keys if key is not None)
        found |= {(x.tenant, o.key) for o in held if o is not None and operations.held(o) and o.run != run.id}
    return found


def read(connection: Connection, pipeline: Pipeline, keys: Collection[Key]) -> Circles:
    """What the holders of these keys wait for; no statement where nobody is about to wait."""
    if not keys:
        return Circles()
    connection.execute(_ALONE, _arrays(keys))
    found = connection.execute(_CHAINS, [*_arrays(keys), MOST])
    pipeline.sync()
    chains: dict[Key, list[tuple[UUID, str]]] = {}
    for tenant, key, child, way in found:
        chains.setdefault((tenant, key), []).append((child, ", which waits for ".join(way)))
    return Circles(chains)


def _arrays(keys: Iterable[Key]) -> list[str]:
    tenants, named = zip(*sorted(keys), strict=True)
    return [rows.text_array(tenants), rows.text_array(named)]
