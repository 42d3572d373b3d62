"""Calls of an MCP server's tool that is not what was pinned: they are held, and nothing is sent. Pure.

A held call rests in INTENT_RECORDED. Its claims put it off, and spend no attempt, as long as the pin is the
one it was held under: a person looks at what the server offers now and pins that (`fencepost mcp pin`), and
the next claim goes on, also where attempts are used up; or cancels the run. Once in a while a held call looks
again by itself, in case the server is what it was, and keeps its last attempt for a person. At its run's
deadline it ends as every unsent call does.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from fencepost.decide import gate
from fencepost.decide.fold import Fold
from fencepost.mcp import CHANGED, held_pin
from fencepost.outcomes import Refused
from fencepost.subjects import Call
from fencepost.tools import Tool

AGAIN: Final = timedelta(seconds=15)
"""Between two looks at whether the pin is another; the longest a fresh pin waits for a call."""
RECHECK: Final = timedelta(minutes=5)
"""From one attempt of a held call to the next under the same pin."""


def admit(fold: Fold, call: Call, tool: Tool) -> dict[str, Any] | None:
    """Until when a held call is put off, and why, as `_defer` takes it; None where it may be sent."""
    pin = held_pin(call.error)
    if pin is None or tool.mcp is None or tool.mcp.definition != pin:
        return None
    left = tool.dependency.attempts - call.attempts
    if left > 1 and call.in_flight_until is not None and fold.now >= call.in_flight_until + RECHECK:
        return None
    due = fold.now + AGAIN
    own = gate.extended(call, due, fold.now) if call.compensates else {}
    return {"until": due, "why": {"held": CHANGED, **own}}


def holds(outcome: Refused, tool: Tool) -> bool:
    """Whether an attempt found that its tool is not what was pinned, and sent nothing."""
    return tool.kind == "mcp" and outcome.code == CHANGED


def limit(call: Call, attempts: int) -> int:
    """How many attempts a call may have: one more once a person has pinned anew what it was held for."""
    return attempts if held_pin(call.error) is None else max(attempts, call.attempts + 1)
