"""What is not known of an attempt: that its effect may exist, how long there is to establish it, and what is
left to try it again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from fencepost import breaker, deadlines
from fencepost.clock import rfc3339
from fencepost.decide import gate
from fencepost.decide.fold import Fold
from fencepost.events import EventType
from fencepost.outcomes import Unsure
from fencepost.subjects import Call
from fencepost.taint import brought
from fencepost.tools import Tool

E = EventType


def room(fold: Fold, call: Call, tool: Tool) -> dict[str, int]:
    """What is left to try it again: attempts, and the time of its run."""
    left = tool.dependency.attempts + call.throttled - call.attempts
    return {"attempts_left": left, "run_left_ms": deadlines.millis(fold.run.deadline - fold.now)}


def mark_unknown(
    fold: Fold,
    call: Call,
    tool: Tool,
    outcome: Unsure,
    *,
    lost: bool = False,
    ready_at: datetime | None = None,
    requests: int = 0,
) -> None:
    """The effect may exist. Reconciliation gets its own deadline, stamped the first time."""
    until = call.reconcile_until if call.doubt else None
    spec, rand = tool.dependency, fold.command.rand
    # The first unknown outcome is looked into at once, later ones of the same call with growing patience.
    pause = (
        deadlines.backoff(call.attempts, spec.backoff, spec.backoff_cap, rand)
        if call.attempts > 1
        else timedelta(0)
    )
    until = until or deadlines.plus(fold.now, spec.reconcile_for)
    # Whatever a downstream asks for, a doubt is not put off beyond its own deadline.
    again = min(ready_at or fold.now + pause, until)
    body: dict[str, Any] = {
        "code": outcome.code,
        "message": outcome.message,
        "lost": lost,
        "ready_at": rfc3339(again),
        "reconcile_until": rfc3339(until),
        "requests": requests,
        **brought(tool),
    }
    body |= {"throttled": True} if breaker.throttled(outcome) else {}
    body |= room(fold, call, tool) | gate.decision(fold, call, outcome.code, again)
    fold.emit(E.TOOL_OUTCOME_MARKED_UNKNOWN, body, call=call.id, attempt=call.attempts)
