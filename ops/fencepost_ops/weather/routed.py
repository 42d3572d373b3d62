"""A fleet whose processes reach Redis, Postgres and the example services over wires with weather."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from fencepost_ops.fleet import Fleet, FleetOptions
from fencepost_ops.weather.proxy import Proxy

WIRED: Final = {
    "redis": "FENCEPOST_REDIS_URL",
    "ledger": "FENCEPOST_DSN",
    "services": "FENCEPOST_SANDBOX_URL",
}
"""Each wire, and the variable by which a process finds what is behind it."""


class RoutedFleet(Fleet):
    """Every process of it goes through `redis`, `ledger` and `services`, and so does who takes its addresses
    from `env`; who takes them from `valkey`, `database` and `sandbox` asks the servers past the wires.
    """

    def __init__(self, options: FleetOptions) -> None:
        super().__init__(options)
        self.redis, self.ledger, self.services = Proxy(), Proxy(), Proxy()

    @property
    def wires(self) -> Mapping[str, Proxy]:
        """The wires by name."""
        return {"redis": self.redis, "ledger": self.ledger, "services": self.services}

    def env(self, role: str) -> dict[str, str]:
        """See Fleet; each address is that of its wire."""
        found = super().env(role)
        for name, variable in WIRED.items():
            if variable in found:
                found[variable] = _by(self.wires[name], found[variable])
        return found

    def stop(self) -> None:
        """See Fleet; the wires end after those who use them."""
        super().stop()
        for wire in self.wires.values():
            wire.close()


def _by(wire: Proxy, url: str) -> str:
    """The address of the same over a wire, which from now on leads there."""
    parts = urlsplit(url)
    assert parts.port is not None  # every server of a fleet of ours has one
    wire.target = parts.port
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{wire.port}"))
