"""What a result rests on, and whether anybody vouches for it, as recorded with it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fencepost.outcomes import Applied, Outcome, doubtful, told
from fencepost.tools import Tool

log = logging.getLogger(__name__)

MOST_GROUNDS: Final = 100


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a result rests on. `missing` is what is not among `listed`: how many are `left_out`, or why all of
    them are `unread`; None: nothing is.
    """

    listed: tuple[Mapping[str, Any], ...] = ()
    missing: Mapping[str, Any] | None = None


def grounded(tool: Tool, outcome: Outcome) -> tuple[Outcome, Grounds]:
    """The outcome, strange if nobody vouches for this very result, and the grounds of what it applied.

    Both are read from the text that is kept. Of grounds that cannot be read the reason is kept: a result must
    not be lost for what is said about it, and nobody shall take it for one that rests on nothing.
    """
    if not isinstance(outcome, Applied):
        return outcome, Grounds()
    if tool.doubtful is not None and doubtful(tool, outcome.result_json_text):
        outcome = replace(outcome, strange=True)
    if tool.grounds is None:
        return outcome, Grounds()
    try:
        found = tuple(dict(one) for one in tool.grounds(json.loads(outcome.result_json_text)))
    except Exception as error:  # noqa: BLE001 - the application's code, on what a downstream said
        log.warning("what a result of %s rests on cannot be told: %s", tool.name, told(error))
        return outcome, Grounds(missing={"unread": told(error)})
    more = len(found) - MOST_GROUNDS
    return outcome, Grounds(found[:MOST_GROUNDS], {"left_out": more} if more > 0 else None)
