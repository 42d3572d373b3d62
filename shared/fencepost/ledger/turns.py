"""What models said in a run's earlier turns, read from its history for whoever asks one again.

A read costs what has happened since the number it is given: the rows of one run above it, by its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from fencepost.events import EventType
from fencepost.ledger.connect import Connection
from fencepost.ledger.reads import Subject, intact

_TOLD: Final = (EventType.MODEL_RESPONSE_RECORDED, EventType.MODEL_OUTCOME_UNKNOWN)
_CONTEXT_TURNS = """
SELECT e.tenant, e.run, e.seq, (e.body ->> 'turn')::integer, e.body ->> 'objection', e.body ->> 'answer',
       payloads.data, e.body ->> 'code'
FROM unnest(%(tenants)s::text[], %(ids)s::uuid[], %(seqs)s::bigint[]) AS s (tenant, id, seq)
JOIN fencepost.events e ON e.run = s.id AND e.tenant = s.tenant AND e.seq > s.seq
    AND e.type = ANY (%(types)s)
LEFT JOIN fencepost.payloads ON payloads.tenant = e.tenant AND payloads.digest = e.body ->> 'answer'
ORDER BY e.run, e.seq
"""


@dataclass(frozen=True, slots=True)
class ContextTurn:
    """One answer of a model, or (`code`) one that was lost. `data` is what is kept of it, under `digest`."""

    tenant: str
    run: UUID
    seq: int
    turn: int | None
    objection: str | None
    digest: str | None
    data: bytes | None
    code: str | None = None

    @property
    def damaged(self) -> str | None:
        """What is wrong with what is kept of it, in a sentence; None where it is what was recorded."""
        if self.digest is None or (self.data is not None and intact(self.digest, self.data)):
            return None
        what = "is missing" if self.data is None else "was changed: its hash is another"
        return f"the stored answer {self.digest} of turn {self.turn} {what}; restore it from a backup"


def context_turns(
    connection: Connection, of: Sequence[tuple[str, UUID, int]]
) -> dict[Subject, list[ContextTurn]]:
    """What any number of runs' models said above a number of their histories (0: all); one statement."""
    columns = {
        "tenants": [tenant for tenant, _, _ in of],
        "ids": [run for _, run, _ in of],
        "seqs": [seq for _, _, seq in of],
        "types": [str(one) for one in _TOLD],
    }
    turns: dict[Subject, list[ContextTurn]] = {}
    for row in connection.execute(_CONTEXT_TURNS, columns):
        turns.setdefault((row[0], row[1]), []).append(ContextTurn(*row))
    return turns
