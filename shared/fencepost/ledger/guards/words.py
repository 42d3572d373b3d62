"""Lists of the state tables as SQL, for the guards that are generated from them."""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.states import Hops


def words(values: Iterable[str]) -> str:
    """The values as a list of SQL literals."""
    return ", ".join(f"'{v}'" for v in sorted(values))


def hop_words(hops: Hops) -> str:
    """Every net move as `via:source>target`."""
    return ", ".join(f"'{via}:{s}>{t}'" for via in sorted(hops) for s, t in sorted(hops[via]))


def offices(hops: Hops) -> str:
    """The presentations that need no term, only the version of the row they saw."""
    return words(frozenset(hops) - {"term", "claim", "call"})
