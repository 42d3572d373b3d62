"""What Postgres refuses of `runs.below`: slices that go to children, and come back, without an event of it.

It cannot check how much of a slice was used, but for that what was used does not come back.
"""

from __future__ import annotations

from typing import Final

from fencepost.events import EventType as E
from fencepost.ledger.guards.words import words

_ENDING: Final = frozenset(
    {
        E.CHILD_RUN_SETTLED,
        E.TOOL_RESULT_RECORDED,
        E.TOOL_ATTEMPT_FAILED,
        E.TOOL_EFFECT_RECONCILED,
        E.REPAIR_DECIDED,
        E.RESULT_REUSED,
        E.CALL_CANCELLED,
        E.PROPOSAL_REJECTED,
        E.AUTHORIZATION_DENIED,
        E.APPROVAL_DECIDED,
    }
)
"""With one of these a call ends, and with the call what was held for its run, or waited for."""
_MOVES: Final = _ENDING | {E.CHILD_RUN_STARTED, E.CALL_DETACHED, E.MODEL_RESPONSE_RECORDED}

_CHANGE: Final = "e.run = NEW.id AND e.tenant = NEW.tenant AND e.seq > OLD.seq AND e.seq <= NEW.seq"

# `asked.children`: this change starts or settles a run of its calls.
BELOW: Final = f"""
        IF asked.children OR NEW.below IS DISTINCT FROM OLD.below THEN
            IF NEW.below IS DISTINCT FROM OLD.below AND NOT EXISTS (
                    SELECT 1 FROM fencepost.events e WHERE {_CHANGE} AND e.type IN ({words(_MOVES)})) THEN
                RAISE EXCEPTION 'run %: what its children hold and have used moves with their events', NEW.id
                    USING ERRCODE = 'FP004';
            END IF;
            IF EXISTS (
                    SELECT 1 FROM jsonb_each(OLD.below::jsonb -> 'held') AS o (held_by, piece)
                    FULL JOIN jsonb_each(NEW.below::jsonb -> 'held') AS n (held_by, piece) USING (held_by)
                    WHERE o.piece IS DISTINCT FROM n.piece AND NOT EXISTS (
                        SELECT 1 FROM fencepost.events e WHERE {_CHANGE} AND e.call::text = held_by
                        AND CASE WHEN n.piece IS NULL THEN e.type IN ({words(_ENDING)})
                            ELSE o.piece IS NULL AND e.type = 'ChildRunStarted'
                                AND e.body::jsonb -> 'held' = n.piece END))
                OR EXISTS (SELECT 1 FROM fencepost.events e WHERE {_CHANGE} AND CASE e.type
                    WHEN 'ChildRunSettled' THEN NEW.below::jsonb -> 'held' -> e.call::text IS NOT NULL
                    WHEN 'ChildRunStarted' THEN e.body -> 'held' IS NOT NULL
                        AND NEW.below::jsonb -> 'held' -> e.call::text IS NULL AND NOT EXISTS (
                            SELECT 1 FROM fencepost.events l WHERE l.run = e.run AND l.tenant = e.tenant
                            AND l.seq > e.seq AND l.seq <= NEW.seq AND l.call = e.call
                            AND l.type IN ({words(_ENDING)}))
                    ELSE false END)
                OR EXISTS (SELECT 1 FROM jsonb_each(OLD.below::jsonb -> 'used') AS o (name, used)
                    WHERE coalesce(NEW.below::jsonb -> 'used' -> o.name < o.used, true)) THEN
                RAISE EXCEPTION 'run %: what its children hold, they hold from their start to their end',
                    NEW.id USING ERRCODE = 'FP004';
            END IF;
        END IF;
"""
