"""A fleet whose workers and relays reach Redis and Postgres over wires with weather."""

from fencepost_ops.fleet import Fleet, FleetOptions
from tests.acceptance.stage import Stage
from tests.acceptance.weather.proxy import Proxy

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


class RoutedFleet(Fleet):
    """Every process of it goes through `redis` and `ledger`, and so does what the tests' clients ring with;
    whatever else a test asks it asks the servers directly.
    """

    def __init__(self, options: FleetOptions) -> None:
        super().__init__(options)
        self.redis, self.ledger = Proxy(0), Proxy(0)

    def env(self, role: str) -> dict[str, str]:
        self.redis.target, self.ledger.target = self.valkey.port, self.postgres.port
        found = super().env(role)
        return {
            **found,
            "FENCEPOST_REDIS_URL": _by(self.redis, found["FENCEPOST_REDIS_URL"]),
            "FENCEPOST_DSN": _by(self.ledger, found["FENCEPOST_DSN"]),
        }

    def stop(self) -> None:
        super().stop()  # first those that use the wires
        self.redis.close()
        self.ledger.close()


def _by(wire: Proxy, url: str) -> str:
    return url.replace(f":{wire.target}/", f":{wire.port}/")


def routed(stage: Stage) -> RoutedFleet:
    """The fleet of a stage, which is one of these."""
    assert isinstance(stage.fleet, RoutedFleet)
    return stage.fleet
