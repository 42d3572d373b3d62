"""When a run has learnt what nobody vouches for. PURE.

A tool that taints (`Tool.taints`) brings text that somebody else may have written: a page, a mail, a ticket.
Every event that ends such a call, or gives it an error, carries `untrusted`; the first of them taints the
run, and nothing ever clears that. Errors count as well: what a planner is told of a failure is the
downstream's words, and steers a model as an answer does. A tool that is vouched for (`untrusted=False`, or a
`returns` model) taints neither by its result nor by its errors: whoever declares it so answers for both. What
a person says of a call is that person's word; a result it brings back tainted when it was recorded.

A taint says where words came from and nothing of what they are; what it means is the policy's (step 6).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fencepost.tools import Tool

UNTRUSTED: Final = "untrusted"
"""In the body of an event: from here on the run may know what nobody vouches for."""
BORN: Final = "tainted"
"""Beside the limits in a request's budget: the run's input itself came from outside."""


def brought(tool: Tool | None) -> dict[str, bool]:
    """What an event says that carries words of this tool's downstream; of an unknown tool, nothing."""
    return {UNTRUSTED: True} if tool is not None and tool.taints else {}


def first(known: int | None, seq: int, body: Mapping[str, Any]) -> int | None:
    """By which event a run is tainted after this one: the first that says so, for ever."""
    return seq if known is None and body.get(UNTRUSTED) is True else known


def born(request: str) -> dict[str, bool]:
    """What the event that creates a run says: tainted if its producer says so."""
    return {UNTRUSTED: True} if asked(request) else {}


def asked(request: str) -> bool:
    """Whether a run's stored request says that its input came from outside."""
    if f'"{BORN}"' not in request:  # an input may be a mebibyte
        return False
    return (json.loads(request).get("budget") or {}).get(BORN) is True
