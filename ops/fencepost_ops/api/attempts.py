"""How often an address may present a token that is none. Pure but for the clock it is given."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final

BURST: Final = 20
"""Wrong tokens from one address in a row before it is told to wait."""
EVERY_S: Final = 3.0
"""Seconds in which one more is allowed again."""
_REMEMBERED: Final = 10_000  # addresses; the one longest unheard of is forgotten


class Attempts:
    """Counts wrong tokens by address (of IPv6 by /64), in this process.

    Only those are told to wait: every token of the right form is looked up, whatever its address has done,
    so that nobody behind the same proxy is shut out by a neighbour. A token has 256 bits: none is guessed.
    """

    def __init__(self) -> None:
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wrong(self, address: str, now: float) -> float:
        """It was nobody's: the seconds it is told to wait, and it counts no more while it has to; 0: none."""
        block = _block(address)
        spent = self._left(block, now)
        if spent >= BURST:
            return (spent - BURST + 1) * EVERY_S
        self._spent[block] = (spent + 1, now)
        self._spent.move_to_end(block)
        if len(self._spent) > _REMEMBERED:
            self._spent.popitem(last=False)
        return 0.0

    def _left(self, block: str, now: float) -> float:
        spent, at = self._spent.get(block, (0.0, now))
        return max(0.0, spent - (now - at) / EVERY_S)


def _block(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    if isinstance(found, ipaddress.IPv6Address):
        if (mapped := found.ipv4_mapped) is not None:
            return str(mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
