"""A fleet whose workers and relays reach Redis and Postgres over wires with weather."""

from fencepost_ops.weather import RoutedFleet
from tests.acceptance.stage import Stage

__all__ = ["QUEUES", "RELAYS", "SCALE", "SHORT", "WORKERS", "RoutedFleet", "routed"]

QUEUES = ("planner", "dispatcher", "reconciler", "compensator")
WORKERS = ("planner", "dispatcher-1", "dispatcher-2", "reconciler", "compensator")
RELAYS = ("relay-1", "relay-2")
SCALE = {"relay": 2, "dispatcher": 2}
SHORT = {
    "FENCEPOST_BROKER_TIMEOUT_S": "2",
    "FENCEPOST_TRANSACTION_S": "3",
    "FENCEPOST_REPUBLISH_S": "0.3",
    "FENCEPOST_WORKER_TTL_S": "3",
}
"""What is 10 s elsewhere, or 15 s."""


def routed(stage: Stage) -> RoutedFleet:
    """The fleet of a stage, which is one of these."""
    assert isinstance(stage.fleet, RoutedFleet)
    return stage.fleet
