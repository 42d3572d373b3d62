"""Who keeps the server waiting, since when, and for how long it may. Pure but for the clock it is given."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, auto
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

RESERVED: Final = 64
"""Files a process keeps for itself beside the sessions of its ledger: its own, and connections that are
accepted but not counted yet.
"""
MOST: Final = 2000
"""Connections at once beside the streams, whatever the limit of files: each may hold half a request."""


class Phase(Enum):
    """What a client has not sent, or not taken, yet."""

    HEAD = auto()
    BODY = auto()
    IDLE = auto()
    UNREAD = auto()
    CLOSING = auto()


class Waiting(Generic[K]):
    """The connections that wait for their client, which has so long to send a head, to send a body, and to
    take what was written before its connection was closed, whatever trickles meanwhile; and twice as long
    to read on where no more is written because it does not.

    One that is idle between two requests owes nothing.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience = {Phase.HEAD: patience_s, Phase.BODY: patience_s, Phase.CLOSING: patience_s}
        self._patience[Phase.UNREAD] = 2 * patience_s
        self._found: dict[K, tuple[Phase, object, float]] = {}

    def seen(self, one: K, phase: Phase | None, turn: object, now: float) -> None:
        """It waits in this phase, for what belongs to this turn; None: it waits for us."""
        before = self._found.get(one)
        if before is not None and before[:2] == (phase, turn):
            return
        self._found.pop(one, None)  # put last again: they stand in the order in which they began to wait
        if phase is not None:
            self._found[one] = (phase, turn, now)

    def gone(self, one: K) -> None:
        """It is closed."""
        self._found.pop(one, None)

    def longest(self) -> K | None:
        """Who has waited longest, and is cut where there is no room for another."""
        return next(iter(self._found), None)

    def overdue(self, now: float) -> list[tuple[K, Phase]]:
        """Whose time is over, and what it did not do in time."""
        return [
            (one, phase)
            for one, (phase, _, since) in self._found.items()
            if phase in self._patience and now - since >= self._patience[phase]
        ]


def room(files: int, sessions: int, streams: int) -> int:
    """Connections at once in a process that may open so many files; negative: any number."""
    most = MOST + streams
    return most if files < 0 else max(1, min(most, files - RESERVED - sessions))
