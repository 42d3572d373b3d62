"""The fleet that chaos starts for itself: behind wires, with fault points to arm and a clock to move."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import redis

from fencepost.ledger import principals
from fencepost_ops.chaos_plan import ChaosPlan
from fencepost_ops.demo_plan import TENANT
from fencepost_ops.demo_screen import FleetLog
from fencepost_ops.fleet import ROLES, SHRUNK, Fleet, FleetOptions
from fencepost_ops.local import LocalServerError
from fencepost_ops.trial import PRINCIPAL
from fencepost_ops.weather import RoutedFleet

TOOL: Final = "shipping.schedule"
"""Which is withdrawn, for all orders."""
_BY, _WHY = "chaos", "authority that comes and goes"
TIMES: Final = {
    **SHRUNK,
    "FENCEPOST_SWEEP_S": "2",
    "FENCEPOST_BROKER_TIMEOUT_S": "2",
    "FENCEPOST_TRANSACTION_S": "3",
}
AWAY_S: Final = 0.5  # how long a killed server stays away
DIES_WITHIN_S: Final = 30.0  # a postmaster kills its children itself after five
LOOK_EVERY_S: Final = 0.02


class OwnFleet(RoutedFleet):
    """A routed fleet whose servers can be lost, and whose ledger's clock moved. `met`: how often the services
    that were lost had failed by themselves, by kind.
    """

    def __init__(self, options: FleetOptions) -> None:
        super().__init__(options)
        self.met: Counter[str] = Counter()

    def lose(self, fault: str) -> None:
        """Wipe Redis or kill a server, as the fault is named; returns when it is there again.

        Raises LocalServerError if it does not die, or does not come up again.
        """
        if fault == "redis-flush":
            wipe(self.valkey.url())
        elif fault == "services":
            assert self.sandbox is not None  # chaos has one
            self.met.update(self.sandbox.get("/faults")["fired"])  # a new one counts anew
            self.sandbox.kill()
            self._back("the sandbox", self.sandbox.is_alive)
        elif fault == "redis-restart":
            os.kill(self.valkey.pid, signal.SIGKILL)
            self._back("Valkey", self.valkey.is_alive)
        else:
            os.kill(self.postgres.pid, signal.SIGQUIT)
            self._back("Postgres", self.postgres.is_alive)

    def _back(self, server: str, is_alive: Callable[[], bool]) -> None:
        """Wait until it is dead, leave it away for a while, and start it again."""
        until = time.monotonic() + DIES_WITHIN_S
        while is_alive():  # a postmaster waits for its children
            if time.monotonic() > until:
                raise LocalServerError(f"{server} was killed and still runs after {DIES_WITHIN_S:g} s")
            time.sleep(LOOK_EVERY_S)
        time.sleep(AWAY_S)
        if server not in self.mend():
            raise LocalServerError(f"{server} was killed and nobody started it again")

    def move_clock(self, ahead_s: float) -> None:
        """Put the ledger's clock so far ahead of the machine's; 0 sets it right."""
        with self.connect("owner") as connection:
            connection.execute("UPDATE fencepost.clock SET ahead = make_interval(secs => %s)", [ahead_s])

    def shut(self, *, principal: bool) -> Callable[[], object]:
        """Disable the principal of the orders, or withdraw a tool of theirs; what undoes that."""

        def shut_out(shut: bool) -> None:
            with self.connect("operator") as connection:
                if principal:
                    change = principals.disable if shut else principals.enable
                    change(connection, TENANT, PRINCIPAL, by=_BY, reason=_WHY)
                elif shut:
                    principals.withdraw(connection, TOOL, 1, by=_BY, reason=_WHY)
                else:
                    principals.restore(connection, TOOL, 1, by=_BY, reason=_WHY)

        shut_out(True)
        return lambda: shut_out(False)


def own_fleet(plan: ChaosPlan, scale: dict[str, int], folder: Path, log: FleetLog) -> OwnFleet:
    """The fleet that this plan strikes, not yet started; its processes write to `log`."""
    return OwnFleet(
        FleetOptions(
            data=folder,
            scale=scale,
            env=TIMES,
            env_of=fault_files(folder, scale) if "fault-point" in plan.faults else {},
            sandbox_faults=list(plan.service_faults),
            movable_clock="clock" in plan.faults,
            out=log,
        )
    )


def fault_files(folder: Path, scale: dict[str, int]) -> dict[str, dict[str, str]]:
    """By process name, the environment by which it is armed: it follows the file `faults.ROLE`."""
    fleet = Fleet(FleetOptions(scale=scale))
    return {
        name: {"FENCEPOST_FAULT_FOLLOW": str(folder / f"faults.{role}")}
        for role in ROLES
        for name in fleet.names(role)
    }


def wipe(redis_url: str) -> None:
    """Delete everything in Redis."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
