"""What the HTTP interface's login may write of runs: a cancel, and nothing else.

It is neither a worker nor an operator, so it presents no term, no call and no other office, and adds only the
events that a cancel writes; that it may say so of any run is its office.
"""

from __future__ import annotations

from typing import Final

from fencepost.events import EventType
from fencepost.ledger.guards.words import words

CANCEL_WRITES: Final = frozenset(
    {
        EventType.RUN_CREATED,
        EventType.CANCEL_REQUESTED,
        EventType.MODEL_OUTCOME_UNKNOWN,
        EventType.RUN_STOPPING,
        EventType.CALL_CANCELLED,
        EventType.COMPENSATION_REQUESTED,
        EventType.RUN_STOPPED,
    }
)
"""All that `offices.request_cancel` can emit, with all that follows from it in the same change."""

_ONLY_API: Final = """pg_has_role(current_user, 'fencepost_api', 'member')
           AND NOT pg_has_role(current_user, 'fencepost_worker', 'member')
           AND NOT pg_has_role(current_user, 'fencepost_operator', 'member')"""


def only_cancels(what: str) -> str:
    """What refuses a change of a run or a call that the interface's login presents as no cancel."""
    return f"""
        IF by_office IS DISTINCT FROM 'cancel' AND {_ONLY_API} THEN
            RAISE EXCEPTION '{what} %: % may cancel it, and nothing else', NEW.id, current_user
                USING ERRCODE = 'FP002';
        END IF;
"""


ONLY_CANCEL_EVENTS: Final = f"""
    IF {_ONLY_API}
       AND EXISTS (SELECT 1 FROM added a WHERE a.type NOT IN ({words(CANCEL_WRITES)})) THEN
        RAISE EXCEPTION '% writes the events of a cancel, and no others', current_user
            USING ERRCODE = 'FP002';
    END IF;
"""

ONLY_RELEASES: Final = f"""
    IF (NEW.status <> 'released' OR (NEW.run, NEW.call) IS DISTINCT FROM (OLD.run, OLD.call))
       AND {_ONLY_API} THEN
        RAISE EXCEPTION 'operation %: % lets go of it by a cancel, and nothing else', NEW.key, current_user
            USING ERRCODE = 'FP002';
    END IF;
"""
