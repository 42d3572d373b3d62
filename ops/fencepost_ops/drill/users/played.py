"""One history of a user's tool as it is judged: its outcome, the book, and what went over the wire."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost_ops.drill.outcome import Outcome
from fencepost_ops.drill.protocol import Protocol
from fencepost_ops.drill.users.entries import Entry
from fencepost_ops.drill.users.exchanges import Exchange
from fencepost_ops.drill.users.plan import AGAIN, OTHER


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
    def case(self) -> str | None:
        """`again` or `other` where a second run asks for the same or for another intent; else None."""
        second = self.protocol.runs[1].run_key if len(self.protocol.runs) == 2 else None
        return second if second in (AGAIN, OTHER) else None

    @property
    def why(self) -> str:
        """What was done to it, in words."""
        struck = "; then ".join(f"{one.fault.named} ({one.process})" for one in self.outcome.struck)
        return ": ".join(filter(None, (self.protocol.about, struck))) or "no fault at all"

    def maker(self, entry: Entry) -> Exchange | None:
        """The request that made an effect."""
        return next((by for one, by in zip(self.entries, self.makers, strict=True) if one is entry), None)
