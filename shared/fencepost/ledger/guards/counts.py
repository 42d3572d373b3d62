"""What Postgres refuses of a run's counters: they move by what events of the change say, and by nothing else.

A run is written before its calls, so that what a call was is still to be read there.
"""

from __future__ import annotations

from typing import Final

from fencepost.events import COUNTED_FROM
from fencepost.events import EventType as E
from fencepost.ledger.guards.words import words
from fencepost.states import RUN_TABLE

_SETTLE: Final = words(
    {
        E.TOOL_RESULT_RECORDED,
        E.TOOL_EFFECT_RECONCILED,
        E.CHILD_RUN_SETTLED,
        E.REPAIR_DECIDED,
        E.REPAIR_REQUESTED,
        E.RESULT_REUSED,
    }
)
"""With one of these a call comes to be an effect, or one nobody knows of, or is so no longer."""

_PLACES: Final = {move.event: move.target for move in RUN_TABLE}
"""Where each event that moves a run takes it."""
_PLACED: Final = " ".join(f"WHEN '{event}' THEN '{target}'" for event, target in sorted(_PLACES.items()))

COUNTED: Final = f"""
               count(*) FILTER (WHERE e.type = 'ToolAttemptStarted') AS attempts,
               count(*) FILTER (WHERE e.type = 'ToolProposalRecorded') AS calls,
               -- A question that a provider has turned away unread is none.
               count(*) FILTER (WHERE e.type = 'ModelRequestStarted') - count(*) FILTER (
                   WHERE e.type = 'ModelOutcomeUnknown' AND e.body ->> 'taken' = 'false') AS requests,
               coalesce(sum(octet_length(e.body::text)) FILTER (
                   WHERE e.version >= {COUNTED_FROM}), 0) AS bytes,
               max(e.version) AS written, bool_or(e.call IS NULL) AS own,
               bool_or(e.call IS NOT NULL AND e.type IN ({_SETTLE})) AS settle,
               max(e.seq) FILTER (WHERE e.call IS NULL AND e.type IN ({words(_PLACES)})) AS placed,"""
"""Of the events of a change, for `asked`."""

COUNTS: Final = f"""
        IF (NEW.attempts, NEW.calls, NEW.requests, NEW.bytes, NEW.written)
           <> (OLD.attempts + asked.attempts, OLD.calls + asked.calls, OLD.requests + asked.requests,
               OLD.bytes + asked.bytes, greatest(OLD.written, asked.written)) THEN
            RAISE EXCEPTION 'run %: what it has used moves with the events of that', NEW.id
                USING ERRCODE = 'FP004';
        END IF;
        IF asked.settle OR (NEW.effects, NEW.unknowns) <> (OLD.effects, OLD.unknowns) THEN
            SELECT coalesce(sum(((m.became = 'SUCCEEDED')::int - (m.was = 'SUCCEEDED')::int) * m.sign)
                       FILTER (WHERE m.acts AND NOT m.reused), 0) AS effects,
                   coalesce(sum((m.became = 'ACCEPTED_UNKNOWN' AND m.version >= {COUNTED_FROM})::int
                       - (m.was = 'ACCEPTED_UNKNOWN')::int) FILTER (WHERE m.acts), 0)
                       + coalesce(sum(m.told), 0) AS unknowns,
                   coalesce(bool_or(m.written > OLD.seq), false) AS early INTO settled
            FROM (SELECT s.*,
                    coalesce(lag(s.became) OVER (PARTITION BY s.call ORDER BY s.seq), s.stood) AS was
                -- Equal tenants would be a key, and all calls of a tenant be walked through for each event.
                FROM (SELECT e.call, e.seq, e.version, c.effect <> 'read' AS acts, c.reused, c.state AS stood,
                        c.version AS written, CASE WHEN c.compensates IS NULL THEN 1 ELSE -1 END AS sign,
                        CASE e.type WHEN 'ToolResultRecorded' THEN 'SUCCEEDED'
                            WHEN 'RepairRequested' THEN 'NEEDS_REPAIR' WHEN 'ResultReused' THEN 'REUSED'
                            ELSE e.body ->> 'to' END AS became,
                        CASE e.type WHEN 'ChildRunSettled' THEN (e.body ->> 'unknown')::bigint END AS told
                    FROM fencepost.events e
                    JOIN fencepost.calls c ON c.id = e.call AND c.tenant IS NOT DISTINCT FROM e.tenant
                    WHERE e.run = NEW.id AND e.tenant = NEW.tenant AND e.seq > OLD.seq AND e.seq <= NEW.seq
                        AND e.type IN ({_SETTLE})) AS s) AS m;
            IF settled.early OR (NEW.effects, NEW.unknowns)
                    <> (OLD.effects + settled.effects, greatest(OLD.unknowns + settled.unknowns, 0)) THEN
                RAISE EXCEPTION 'run %: what its calls have done counts with the events that say so', NEW.id
                    USING ERRCODE = 'FP004';
            END IF;
        END IF;
"""

PLACED: Final = f"""
    stands := OLD.status;
    IF asked.placed IS NOT NULL THEN
        SELECT CASE e.type {_PLACED} END INTO stands FROM fencepost.events e
            WHERE e.run = NEW.id AND e.tenant = NEW.tenant AND e.seq = asked.placed;
    END IF;
    IF NEW.status IS DISTINCT FROM stands THEN
        RAISE EXCEPTION 'run %: it is where its events take it, and not %', NEW.id, NEW.status
            USING ERRCODE = 'FP004';
    END IF;
"""
"""Last: that a move is none of the table's, or not presented, is said before."""
