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
_KNOWN: Final = 10_000  # digests of tokens that were right


class Attempts:
    """Counts wrong tokens by address (of IPv6 by /64), in this process.

    A token that was right before is looked up whatever its address has done, so that nobody behind the same
    proxy is shut out by a neighbour; whether it still counts the ledger says.
    """

    def __init__(self) -> None:
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()

    def wait(self, address: str, digest: str | None, now: float) -> float:
        """Seconds this attempt has to wait; 0 where it may be looked at."""
        if digest is not None and digest in self._known:
            return 0.0
        spent = self._left(_block(address), now)
        return 0.0 if spent < BURST else (spent - BURST + 1) * EVERY_S

    def wrong(self, address: str, now: float) -> None:
        """It was nobody's."""
        block = _block(address)
        self._spent[block] = (self._left(block, now) + 1, now)
        self._spent.move_to_end(block)
        if len(self._spent) > _REMEMBERED:
            self._spent.popitem(last=False)

    def right(self, digest: str) -> None:
        """It was somebody's."""
        self._known[digest] = None
        self._known.move_to_end(digest)
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)

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
