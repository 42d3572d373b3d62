"""One history of a user's tool as it is judged: its outcome, the book, and what went over the wire."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost_ops.drill.outcome import Outcome
from fencepost_ops.drill.protocol import Protocol
from fencepost_ops.drill.users.entries import Entry
from fencepost_ops.drill.users.exchanges import Exchange


@dataclass(frozen=True, slots=True)
class Ended:
    """One call at the end."""

    id: str
    label: str
    state: str
    operation: str | None
    arguments: str


@dataclass(frozen=True)
class Played:
    """One history: what came of it, the book, and what went over the wire."""

    outcome: Outcome
    calls: tuple[Ended, ...]
    entries: tuple[Entry, ...]
    makers: tuple[Exchange | None, ...]
    """Which request made which of the entries, as far as it is known."""
    log: tuple[Exchange, ...]

    @property
    def protocol(self) -> Protocol:
        """What was played."""
        return self.outcome.protocol

    @property
    def case(self) -> str:
        """Which case it is, by the last part of its name: `again`, `other`, or what struck."""
        return self.protocol.name.rpartition(".")[2]

    @property
    def why(self) -> str:
        """What was done to it, in words."""
        struck = "; then ".join(f"{one.fault.named} ({one.process})" for one in self.outcome.struck)
        return ": ".join(filter(None, (self.protocol.about, struck))) or "no fault at all"

    def maker(self, entry: Entry) -> Exchange | None:
        """The request that made an effect."""
        return next((by for one, by in zip(self.entries, self.makers, strict=True) if one is entry), None)
