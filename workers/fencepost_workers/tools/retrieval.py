"""What a result rests on, and whether anybody vouches for it, as recorded with it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from fencepost.outcomes import Applied, Outcome, doubtful, told
from fencepost.tools import Tool

log = logging.getLogger(__name__)

MOST_GROUNDS: Final = 100

Grounds = tuple[Mapping[str, Any], ...]


def grounded(tool: Tool, outcome: Outcome) -> tuple[Outcome, Grounds]:
    """The outcome, strange if nobody vouches for this very result, and the grounds of what it applied.

    Both are read from the text that is kept. Grounds that cannot be read are none: a result must not be lost
    for what is said about it.
    """
    if not isinstance(outcome, Applied):
        return outcome, ()
    if tool.doubtful is not None and doubtful(tool, outcome.result_json_text):
        outcome = replace(outcome, strange=True)
    if tool.grounds is None:
        return outcome, ()
    try:
        return outcome, tuple(tool.grounds(json.loads(outcome.result_json_text)))[:MOST_GROUNDS]
    except Exception as error:  # noqa: BLE001 - the application's code, on what a downstream said
        log.warning("what a result of %s rests on cannot be told: %s", tool.name, told(error))
        return outcome, ()
