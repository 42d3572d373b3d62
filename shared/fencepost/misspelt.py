"""Options nobody knows: one misspelt would be one that is not said, and some of them are for safety."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping

from fencepost.errors import UsageError


def taken(maker: Callable[..., object], options: type) -> set[str]:
    """What a declaration takes beside its name: its own parameters, and the options of this TypedDict."""
    own = inspect.signature(maker).parameters.values()
    named = {one.name for one in own if one.kind is one.KEYWORD_ONLY or one.default is not one.empty}
    return named.union(options.__annotations__)


def refuse_unknown(
    whose: str,
    said: Iterable[str],
    known: Iterable[str],
    elsewhere: Mapping[str, Iterable[str]] | None = None,
) -> None:
    """UsageError for the first option said that is none of the known, with the nearest and all of them.

    `elsewhere` are the options of other declarations, by what declares them.
    """
    takes = sorted(known)
    for option in said:
        if option in takes:
            continue
        home = next((place for place, options in (elsewhere or {}).items() if option in options), None)
        near = difflib.get_close_matches(option, takes, 1)
        hint = f"; it belongs to {home}" if home else f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{whose} has no option {option}{hint} (it takes {', '.join(takes)})")
