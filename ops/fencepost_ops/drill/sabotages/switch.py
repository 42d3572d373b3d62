"""What a sabotage is, and how one is switched on for a while: in this process, and in the drill's database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from fencepost_ops.drill.ledger import DrillLedger
from fencepost_ops.drill.protocol import Protocol

Off = Callable[[DrillLedger], AbstractContextManager[None]]
EXPECTATION: Final = "expectation"
"""Instead of an invariant: what the protocol expects besides, and is not so any more."""


@dataclass(frozen=True, slots=True)
class Sabotage:
    """One defence. `off` switches it off while its context is open, and on again after it.

    `shows` is a protocol that is clean with the defence, and without it breaks `invariant` (or what the
    protocol expects besides: `EXPECTATION`). `layer` says what is switched off; `held_by` which other defence
    still holds: then nothing is broken, and `invariant` is the one that both defend.
    """

    name: str
    invariant: str
    about: str
    off: Off
    shows: Protocol
    layer: str = "code"
    held_by: str | None = None


@contextmanager
def instead(owner: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    """Have `owner.name` be `other(original)` for a while. Exactly what was there comes back."""
    kept = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, other(kept))
    try:
        yield
    finally:
        setattr(owner, name, kept)


def code(owner: Any, name: str, other: Callable[..., Any]) -> Off:
    """A sabotage of one attribute that the fleet's code looks up each time."""

    def off(_ledger: DrillLedger) -> AbstractContextManager[None]:
        return instead(owner, name, other)

    return off
