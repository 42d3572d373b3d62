"""Signals: durable messages to a run, which its planner sees at its next turn.

A signal that was taken is in the run's record for good, numbered from 1 per run, and goes to the run, not to
its calls: it interrupts nothing that is in flight. Whoever holds the run's lock sees all there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from fencepost.errors import Conflict, FencepostError, NotFound, UsageError
from fencepost.ledger import rows
from fencepost.ledger.connect import Connection, Pipeline
from fencepost.ledger.guards.api import MAX_SIGNAL_BYTES
from fencepost.names import named
from fencepost.runrequest import input_text
from fencepost.views import Signal

__all__ = ["MAX_SIGNAL_BYTES", "Deaf", "Sent", "Signal", "read_pinned", "read_signals", "send"]


_READ_PINNED = """
SELECT a.tenant, a.id, (e.body ->> 'signals')::integer
FROM unnest(%s::text[], %s::uuid[]) AS w (tenant, id)
JOIN fencepost.events a ON a.id = w.id AND a.tenant IS NOT DISTINCT FROM w.tenant
JOIN fencepost.events e ON e.run = a.run AND e.tenant = a.tenant AND e.seq > a.seq AND e.causation = w.id
WHERE e.type = 'ModelRequestStarted' AND e.body ->> 'signals' IS NOT NULL
"""


class Deaf(FencepostError):
    """The run's planner is not asked any more."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal that was taken: its number in the run, and whether it was now."""

    number: int
    created: bool
    sent_at: datetime


def send(
    connection: Connection, tenant: str, run: UUID, *, key: str, name: str, body: Any, sender: str
) -> Sent:
    """Send a signal; returned means committed. The same again under its key changes nothing.

    A run that waits for nothing but time is made due; one with open calls hears it when those are settled.
    UsageError for what cannot be, NotFound for no such run, `Conflict` where the key is another signal's,
    `Deaf` once the run stops or has ended. Psycopg's other errors come as they are.
    """
    try:
        row = connection.execute(
            "SELECT * FROM fencepost.signal_run(%s, %s, %s, %s, %s::text::jsonb, %s)",
            [tenant, run, _text("key", key), _text("name", name), input_text(body), named("sender", sender)],
        ).fetchone()
    except psycopg.Error as error:
        kind = {"FP422": UsageError, "FP404": NotFound, "FP409": Conflict, "FP410": Deaf}.get(
            error.sqlstate or ""
        )
        if kind is None:
            raise
        raise kind(error.diag.message_primary) from error
    assert row is not None
    return Sent(*row)


def _text(name: str, text: str) -> str:
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError(f"{name} holds what cannot be stored as text")
    return text


def read_signals(
    connection: Connection, of: Sequence[tuple[str, UUID, int]]
) -> dict[tuple[str, UUID], tuple[Signal, ...]]:
    """The signals of any number of runs, each up to a number, in order; one statement.

    The same arguments give the same answer for ever.
    """
    columns = {
        "tenants": [tenant for tenant, _, _ in of],
        "runs": [run for _, run, _ in of],
        "most": [number for _, _, number in of],
    }
    read = connection.execute(
        "SELECT s.tenant, s.run, s.number, s.name, s.body, s.sender, s.sent_at"
        " FROM unnest(%(tenants)s::text[], %(runs)s::uuid[], %(most)s::integer[]) AS w (tenant, run, most)"
        " JOIN fencepost.signals s ON s.run = w.run AND s.tenant = w.tenant AND s.number <= w.most"
        " ORDER BY s.run, s.number",
        columns,
    )
    found: dict[tuple[str, UUID], list[Signal]] = defaultdict(list)
    for tenant, run, *signal in read:
        found[tenant, run].append(Signal(*signal))
    return {key: tuple(signals) for key, signals in found.items()}


def read_pinned(
    connection: Connection, pipeline: Pipeline, claims: Collection[tuple[str, UUID]]
) -> dict[tuple[str, UUID], int]:
    """How many signals the requests told of that these claims of runs have made, by tenant and claim; those
    that told of none are left out. No statement where there are no claims.
    """
    if not claims:
        return {}
    of = rows.text_array(tenant for tenant, _ in claims), rows.plain_array(id_ for _, id_ in claims)
    told = connection.execute(_READ_PINNED, of)
    pipeline.sync()
    return {(tenant, id_): number for tenant, id_, number in told}
