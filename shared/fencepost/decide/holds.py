"""Calls of an MCP server's tool that is not what was pinned: they are held, and nothing is sent. Pure.

A held call rests in INTENT_RECORDED. Its claims put it off, and spend no attempt, as long as the pin is the
one it was held under: a person looks at what the server offers now and pins that (`fencepost mcp pin`), and
the next claim goes on, also where attempts are used up; or cancels the run. Once in a while a held call looks
again by itself, in case the server is what it was, and keeps its last attempt for a person. At its run's
deadline it ends as every unsent call does.

That nothing has changed is not written each time: a deferral is, whenever the time held has doubled since the
last one, and in between only the call's row is put off. So a hold of weeks is some twenty events.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from fencepost.clock import rfc3339
from fencepost.commands import Answer, Done, Moved
from fencepost.decide import gate
from fencepost.decide.fold import Fold
from fencepost.events import EventType
from fencepost.mcp import CHANGED, held_pin
from fencepost.outcomes import Refused
from fencepost.states import CallState
from fencepost.subjects import Call
from fencepost.tools import Tool

AGAIN: Final = timedelta(seconds=15)
"""Between two looks at whether the pin is another; the longest a fresh pin waits for a call."""
RECHECK: Final = timedelta(minutes=5)
"""From one attempt of a held call to the next under the same pin."""


def admit(fold: Fold, call: Call, tool: Tool, fence: int) -> Answer | None:
    """Put a held call off; None where it may be sent."""
    pin = held_pin(call.error)
    if pin is None or tool.mcp is None or tool.mcp.definition != pin:
        return None
    left = tool.dependency.attempts + call.throttled - call.attempts
    if left > 1 and call.in_flight_until is not None and fold.now >= call.in_flight_until + RECHECK:
        return None
    due = fold.now + AGAIN
    if not _to_be_told(fold.now, call):
        fold.again = due
        return Moved()
    # What was not told in between counts as little against what compensates as what is told now.
    own = gate.extended(call, due, min(call.ready_at, fold.now)) if call.compensates else {}
    body = {"ready_at": rfc3339(due), "waits": False, "fence": fence, "held": CHANGED, **own}
    fold.emit(EventType.DISPATCH_DEFERRED, body, call=call.id)
    return Done(CallState.INTENT_RECORDED)


def _to_be_told(now: datetime, call: Call) -> bool:
    """Whether the time held has doubled since the last event; of what compensates, in good time."""
    since, sent = now - call.ready_at, call.in_flight_until
    if sent is None:
        return True
    if call.compensates and call.reconcile_until is not None:
        soon = call.reconcile_until - now <= 2 * AGAIN
        return soon or since >= min(RECHECK, call.ready_at - sent)
    return since >= call.ready_at - sent


def holds(outcome: Refused, tool: Tool) -> bool:
    """Whether an attempt found that its tool is not what was pinned, and sent nothing."""
    return tool.kind == "mcp" and outcome.code == CHANGED


def limit(call: Call, tool: Tool) -> int:
    """How many attempts a call may have: as many as were throttled more (they say nothing of the call), and
    one more once a person has pinned anew what it was held for.
    """
    attempts = tool.dependency.attempts + call.throttled
    if tool.kind != "mcp" or held_pin(call.error) is None:
        return attempts
    return max(attempts, call.attempts + 1)
