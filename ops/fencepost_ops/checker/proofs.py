"""I4: what may end a doubt, and what must be in the history for that.

| by | to | needs |
|---|---|---|
| ToolResultRecorded | SUCCEEDED | nothing more: an attempt of its own was answered |
| ToolAttemptFailed | FAILED | a final refusal that is the stored answer for the key |
| ToolEffectReconciled | SUCCEEDED | a lookup that found it, or evidence that an attempt was applied |
| ToolEffectReconciled | FAILED | a lookup that found nothing, evidence that none was applied, or a read |
| RepairDecided | any | nothing more: a person's word |
| ChildRunSettled | any | the end of the run that the call started: see `families` |

Only a lookup since the last attempt counts, and that it found nothing only if it was asked when nothing that
had been sent could land any more. How long a downstream may take to show what it has done (`lag`), and how
long it shows it, the history does not tell: those are not asserted.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from fencepost.states import CallState
from fencepost_ops.checker.facts import EventRow
from fencepost_ops.checker.report import Violation, at
from fencepost_ops.checker.story import CallStory, RunStory

C = CallState

PROOFS = frozenset(
    {"ToolResultRecorded", "ToolAttemptFailed", "ToolEffectReconciled", "RepairDecided", "ChildRunSettled"}
)


def doubts(story: RunStory, event: EventRow, body: dict[str, Any]) -> Iterator[Violation]:
    """I4: an attempt's outcome stays unknown until a proof that speaks for the key."""
    call = story.calls.get(event.call) if event.call is not None else None
    if call is None:
        return
    if event.type == "ToolEffectReconciled":
        if not _reconciled(call, body):
            wants = (
                "the effect was never found" if body.get("to") == C.SUCCEEDED else "it was never found absent"
            )
            yield at(event, f"{call.named} left its doubt without a proof: {wants}")
        return
    if not call.doubt:
        return
    # A refusal of the repeat says nothing of the first attempt, unless it is the stored answer for the key.
    forgotten = event.type == "ToolAttemptFailed" and not (body.get("final") and body.get("stored") is True)
    if event.type not in PROOFS or forgotten:
        yield at(event, f"{call.named} left its doubt without a proof")


def _reconciled(call: CallStory, body: dict[str, Any]) -> bool:
    made = set(call.attempts)
    if body.get("to") == C.SUCCEEDED:
        return call.answer == "found" or bool(call.applied & made)
    if body.get("to") != C.FAILED:
        return False
    refused = bool(made) and made <= call.not_applied and not call.restored
    return call.effect == "read" or refused or _absent(call)


def _absent(call: CallStory) -> bool:
    """Whether it was found absent when nothing that had been sent could land any more."""
    quiet, asked = _quiet(call), call.asked_at
    return call.answer == "absent" and quiet is not None and asked is not None and asked > quiet


def _quiet(call: CallStory) -> datetime | None:
    """As was recorded when it was sent; earlier where its contract now says that requests land sooner."""
    settle = call.terms.settle if call.terms is not None else None
    if settle is None or call.in_flight_until is None or call.quiet_at is None:
        return call.quiet_at
    return min(call.quiet_at, call.in_flight_until + settle)
