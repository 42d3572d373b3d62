"""What Postgres says where it still holds: any other refusal is no proof of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REFUSALS: Final[Mapping[str, str]] = {
    "result_of_another_request.code": "there is no such result to reuse",
    "another_spelling.code": 'check constraint "principals_names_check"',
    "key_shared.code": "a key that is completed is not handed on",
    "lost_is_failed.code": "FAILED only by a proof of its own",
    "doubt_forgotten.code": "FAILED only by a proof of its own",
    "stale_record.code": "is not the accepted one",
    "completed_while_open.code": "it has an open or doubtful call",
    "stale_turn.code": "proposed without the term of its run",
    "cancelled_after_end.code": "cancel raises the fence and clears the owner",
    "stopped_while_unsettled.code": "it cannot be STOPPED while a call is unsent or unsettled",
    "compensated_twice.code": 'unique constraint "calls_one_compensation"',
    "row_dropped_at_publish.code": "permission denied for table outbox",
    "term_not_presented": "no term and no office",
    "fence_ignored.code": "is not the accepted one",
    "approval_of_one_suffices.code": "cannot approve or deny it like this",
    "allowance_let_go_too_early.code": "no attempt goes beyond it",
    "settled_before_its_end.code": "only by a proof of its own",
    "slice_not_asked.code": "its slice is more than is left of its parent's budget",
    "attempts_uncounted.code": "what it has used moves with the events of that",
    "expired_run_dispatched.code": "and sends nothing",
    "slice_not_held.code": "they hold from their start to their end",
    "answers_uncounted.code": "what its models use and hold moves",
    "history_edited.granted": "events is append-only: UPDATE is refused",
}
"""By the name of each sabotage that Postgres is said to hold."""
