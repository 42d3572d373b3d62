"""The simulated fleet: which processes there are, who lives, and what a dead one leaves to others."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, LiteralString

from fencepost.states import Queue
from fencepost_ops.drill.ledger import DrillLedger
from fencepost_ops.drill.process import Host, Worker, World
from fencepost_relay.relay import Relay
from fencepost_workers.pulse_program import END, MAKE_DUE, REGISTER

SPOKEN: Final = 3
"""TTLs of its own looking within which a relay has certainly judged a worker that is silent."""


class RelayHost(Host):
    """A relay's process."""

    def __init__(self, number: int, relay: Relay) -> None:
        super().__init__("relay", number)
        self.relay = relay

    def work(self) -> None:
        """One pass."""
        self.relay.run_once()


class SimulatedFleet:
    """All processes of one history. A supervisor starts another one for each that died."""

    def __init__(self, ledger: DrillLedger, world: World, takeover_limit: int) -> None:
        self.names: dict[str, str] = {}
        self.workers: list[Worker] = []
        self.relays: list[RelayHost] = []
        self._ledger = ledger
        self._world = world
        self._limit = takeover_limit
        self._spawned = 0
        self._silent_until: dict[str, float] = {}

    def spawn(self, queue: Queue) -> None:
        """One more worker of this queue, stamped."""
        self._spawned += 1
        host = Worker(queue, self._spawned, self._world, self._limit)
        self.workers.append(host)
        self.names[host.token] = host.name
        row = {"token": host.token, "role": host.role, "host": host.name, "pid": self._spawned, "knows": None}
        self._say(REGISTER, row)

    def spawn_relay(self) -> None:
        """One more relay."""
        self._spawned += 1
        settings = self._world.settings
        relay = Relay(
            self._ledger.database.dsns["relay"],
            self._world.redis,
            republish=timedelta(seconds=settings.republish_s),
            worker_ttl=timedelta(seconds=settings.worker_ttl_s),
        )
        self.relays.append(RelayHost(self._spawned, relay))

    @property
    def living(self) -> list[str]:
        """The tokens that are stamped on."""
        return [host.token for host in self.workers if not (host.dead or host.silent)]

    def judging(self, now_s: float) -> bool:
        """Whether a worker is silent that the relays may not have judged yet: they need to look often."""
        for host in self.workers:
            if host.silent:
                ttl = self._world.settings.worker_ttl_s
                self._silent_until.setdefault(host.token, now_s + SPOKEN * ttl)
        return any(until > now_s for until in self._silent_until.values())

    def bury(self, host: Host) -> None:
        """A dead process: its pulse hands its rows back, unless its whole host died; another is started."""
        if isinstance(host, RelayHost):
            host.relay.close()
            self.relays.remove(host)
            self.spawn_relay()
        elif isinstance(host, Worker):
            if not host.silent:
                for statement in (END, MAKE_DUE):
                    self._say(statement, {"token": host.token})
                self.workers.remove(host)
            self.spawn(host.queue)

    def _say(self, statement: LiteralString, values: Mapping[str, Any]) -> None:
        """As a worker's pulse does, by its login and past every guard."""
        with self._ledger.sessions["worker"].connection() as session:
            session.execute(statement, values)

    def close(self) -> None:
        """Let go of every session of its own."""
        for host in self.relays:
            host.relay.close()
