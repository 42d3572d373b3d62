"""What the HTTP interface's login may write of runs: a cancel, and nothing else.

It is neither a worker nor an operator, so it presents no term, no call and no other office, and adds only the
events that a cancel writes; that it may say so of any run is its office. Rows of the outbox it moves as a
cancel that it writes in the same transaction moves them: none that a worker holds, and none to a later time
than its run's own.
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

_THIS_CHANGE: Final = """EXISTS (SELECT 1 FROM fencepost.events e
            WHERE e.run = {run} AND e.tenant = {of}.tenant AND e.seq = {seq}
            AND e.xmin = pg_current_xact_id()::xid)"""
_RUN: Final = _THIS_CHANGE.format(run="r.id", of="r", seq="r.seq")
_CALL: Final = _THIS_CHANGE.format(run="c.run", of="c", seq="c.version")

GUARD_CANCELS: Final = f"""
CREATE FUNCTION fencepost.guard_outbox_api() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    placed fencepost.outbox := coalesce(NEW, OLD);
    of_run record;
    of_call record;
    before fencepost.outbox;
    may boolean;
BEGIN
    SELECT r.*, {_RUN} AS moved INTO of_run FROM fencepost.runs r
        WHERE r.id = placed.run AND r.tenant = placed.tenant;
    SELECT c.*, {_CALL} AS moved INTO of_call FROM fencepost.calls c
        WHERE c.id = placed.subject AND c.tenant = placed.tenant;
    IF TG_OP = 'DELETE' THEN
        may := CASE OLD.kind WHEN 'run' THEN of_run.moved AND of_run.status = 'STOPPED'
            ELSE of_call.moved AND of_call.state = 'CANCELLED' END;
    ELSE
        SELECT * INTO before FROM fencepost.outbox o WHERE o.subject = NEW.subject AND o.tenant = NEW.tenant;
        may := NEW.worker IS NULL AND NEW.publish_at = NEW.due_at AND NEW.publish_count = 0
            AND NEW.root IS NOT DISTINCT FROM of_run.root AND NEW.generation <= coalesce(
                before.generation + 2, of_run.seq) AND NEW.generation > coalesce(before.generation, 0)
            AND CASE NEW.kind
            WHEN 'run' THEN of_run.moved AND NEW.subject = NEW.run AND NEW.queue = 'compensator'
                AND (NEW.takeovers, NEW.fence) = (0, of_run.fence) AND CASE of_run.status
                    WHEN 'STOPPING' THEN of_run.unsettled > 0 OR NEW.due_at <= fencepost.now()
                    WHEN 'COMPENSATING' THEN of_run.open > of_run.repairs OR NEW.due_at <= fencepost.now() END
            ELSE NEW.run = of_call.run AND NEW.due_at <= fencepost.now() AND before.worker IS NULL
                AND (NEW.queue, NEW.takeovers, NEW.fence) = (before.queue, before.takeovers, before.fence)
                AND (of_call.child IS NOT NULL AND (of_run.moved OR EXISTS (SELECT 1 FROM fencepost.runs r
                        WHERE r.id = of_call.child AND r.tenant = of_call.tenant AND {_RUN}))
                    OR of_call.waits AND EXISTS (SELECT 1 FROM fencepost.operations o
                        WHERE o.key IN (of_call.operation, of_call.resource) AND o.tenant = of_call.tenant
                        AND o.status = 'released' AND o.xmin = pg_current_xact_id()::xid)) END;
    END IF;
    IF may IS NOT TRUE THEN
        RAISE EXCEPTION 'outbox %: % moves it by a cancel, and not like this', placed.subject, current_user
            USING ERRCODE = 'FP002';
    END IF;
    RETURN placed;
END $$;
CREATE TRIGGER guard_outbox_api BEFORE INSERT OR UPDATE OR DELETE ON fencepost.outbox
    FOR EACH ROW WHEN ({_ONLY_API}) EXECUTE FUNCTION fencepost.guard_outbox_api();
"""
"""Judged for that login alone: nobody else pays for it."""
