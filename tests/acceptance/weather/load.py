"""Orders to be in the middle of, when the weather turns."""

import itertools
from uuid import UUID

from tests.acceptance.stage import Stage, until
from tests.acceptance.weather import LONG

ORDER = ["debit", "reservation", "shipment"]
WITHIN_S, DEADLINE_S = (150, 600) if LONG else (45, 60)
_numbers = itertools.count(1)


def orders(stage: Stage, count: int, delay_s: float = 0.2) -> dict[str, UUID]:
    """So many orders, each step of which takes a while."""
    name = f"outage-{next(_numbers)}"
    stage.sandbox.fault("delay_before", reference_prefix=name, delay_s=delay_s)
    return {f"{name}-{n}": stage.order(f"{name}-{n}", deadline_s=DEADLINE_S) for n in range(count)}


def all_settle(stage: Stage, sent: dict[str, UUID], within_s: float = WITHIN_S) -> None:
    """Await the end of these orders, each with exactly its three effects."""
    assert stage.ended(*sent.values(), within_s=within_s) == ["COMPLETED"] * len(sent)
    assert {reference: sorted(stage.effects(reference)) for reference in sent} == dict.fromkeys(sent, ORDER)


def done(stage: Stage, sent: dict[str, UUID]) -> int:
    """How many of these are completed."""
    statement = "SELECT count(*) FROM fencepost.runs WHERE id = ANY(%s) AND status = 'COMPLETED'"
    return int(stage.value(statement, list(sent.values())))


def under_way(stage: Stage, sent: dict[str, UUID]) -> None:
    """Await that some call of these is being sent."""
    statement = "SELECT count(*) FROM fencepost.calls WHERE run = ANY(%s) AND state = 'DISPATCHING'"
    until("calls in flight", lambda: stage.value(statement, list(sent.values())) > 0)
