"""How often in a row a run's planner was given up because its worker was to end: counted from its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from fencepost import commands as c
from fencepost.ledger import rows
from fencepost.ledger.connect import Connection, Pipeline

_COUNT: Final = """
SELECT w.tenant, w.id, (last.body ->> 'drained')::integer
FROM unnest(%s::text[], %s::uuid[]) AS w (tenant, id) CROSS JOIN LATERAL (
    SELECT e.type, e.body FROM fencepost.events e
    WHERE e.run = w.id AND e.tenant IS NOT DISTINCT FROM w.tenant
      AND e.type IN ('ModelOutcomeUnknown', 'ModelResponseRecorded')
    ORDER BY e.seq DESC LIMIT 1) AS last
WHERE last.type = 'ModelOutcomeUnknown' AND last.body ->> 'drained' ~ '^[0-9]+$'
"""
"""Of the last answer, or the last that was lost: what its event tells counts those before it."""


def read(
    connection: Connection, pipeline: Pipeline, batch: Sequence[c.Command]
) -> dict[tuple[str, UUID], int]:
    """For the runs of which a planner is being given up; no statement where there are none."""
    runs = {(x.tenant, x.run) for x in batch if isinstance(x, c.RecordPlanLost) and x.code == c.DRAINED}
    if not runs:
        return {}
    of = rows.text_array(tenant for tenant, _ in runs), rows.plain_array(run for _, run in runs)
    found = connection.execute(_COUNT, of)
    pipeline.sync()
    return {(tenant, run): number for tenant, run, number in found}
