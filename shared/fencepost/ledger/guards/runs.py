"""What Postgres refuses of a run."""

from __future__ import annotations

from fencepost.ledger.guards.below import BELOW
from fencepost.ledger.guards.cancels import only_cancels
from fencepost.ledger.guards.counts import COUNTED, COUNTS, PLACED
from fencepost.ledger.guards.words import hop_words, offices, words
from fencepost.states import CALL_UNSETTLED, RUN_HOPS

_OF_MODELS = words(
    frozenset({"ModelRequestStarted", "ModelResponseRecorded", "ModelOutcomeUnknown", "RunCompleted"})
)

_UNCHANGING = f"""
        IF (NEW.tenant, NEW.id, NEW.run_key, NEW.planner, NEW.principal, NEW.request,
            NEW.on_stop, NEW.created_at, NEW.deadline, NEW.root, NEW.parent, NEW.parent_call, NEW.depth,
            NEW.traceparent, NEW.login)
           IS DISTINCT FROM
           (OLD.tenant, OLD.id, OLD.run_key, OLD.planner, OLD.principal, OLD.request,
            OLD.on_stop, OLD.created_at, OLD.deadline, OLD.root, OLD.parent, OLD.parent_call, OLD.depth,
            OLD.traceparent, OLD.login) THEN
            RAISE EXCEPTION 'run %: its request does not change', NEW.id USING ERRCODE = 'FP001';
        END IF;
        IF NEW.seq = OLD.seq THEN
            OLD.ended := NULL;  -- computed after this
            IF NEW IS DISTINCT FROM OLD THEN
                RAISE EXCEPTION 'run %: changed without an event', NEW.id USING ERRCODE = 'FP004';
            END IF;
            RETURN NEW;
        END IF;
        -- What the events of this change say, read once: a query costs many times what a comparison does.
        SELECT coalesce(sum((e.body #>> '{{spent,tokens}}')::bigint) FILTER (WHERE of_models), 0) AS tokens,
               coalesce(sum((e.body #>> '{{spent,cost}}')::bigint) FILTER (WHERE of_models), 0) AS cost,
{COUNTED.strip(chr(10))}
               count(*) FILTER (WHERE of_models) AS told, max(e.seq) FILTER (WHERE of_models) AS last,
               min(e.seq) FILTER (WHERE e.body ->> 'untrusted' = 'true') AS tainted,
               bool_or(e.seq = NEW.seq AND e.hash = NEW.head_hash AND e.projection IS NOT NULL) AS headed,
               bool_or(e.type IN ('ChildRunStarted', 'ChildRunSettled')) AS children INTO asked
        FROM fencepost.events e CROSS JOIN LATERAL (
            SELECT e.call IS NULL AND e.type IN ({_OF_MODELS}) AS of_models) AS m
        WHERE e.run = NEW.id AND e.tenant = NEW.tenant AND e.seq > OLD.seq AND e.seq <= NEW.seq;
        IF asked.headed IS NOT TRUE THEN
            RAISE EXCEPTION 'run %: seq and head_hash move only with events', NEW.id USING ERRCODE = 'FP004';
        END IF;
        IF NEW.fence < OLD.fence THEN
            RAISE EXCEPTION 'run %: a fence never falls', NEW.id USING ERRCODE = 'FP002';
        END IF;
        -- Another version of its planner is a person's word, and comes with the event that says so.
        IF NEW.planner_version <> OLD.planner_version THEN
            IF NOT (by_office IS NOT DISTINCT FROM 'repair'
                AND EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.id AND e.tenant = NEW.tenant
                    AND e.seq > OLD.seq AND e.seq <= NEW.seq AND e.type = 'RunRepinned'
                    AND e.body ->> 'to' = NEW.planner_version::text
                    AND e.body ->> 'login' = session_user)) THEN
                RAISE EXCEPTION 'run %: its planner''s version changes by a person''s word only', NEW.id
                    USING ERRCODE = 'FP002';
            END IF;
        END IF;
        -- The first event of this change that says so taints it, whether the row likes it or not.
        IF NEW.tainted IS DISTINCT FROM coalesce(OLD.tainted, asked.tainted) THEN
            RAISE EXCEPTION 'run %: what it has learnt comes with the event that says so, and stays', NEW.id
                USING ERRCODE = 'FP004';
        END IF;
        -- What it owes is told as it stops, and is owed until a person decides or it comes into doubt.
        IF (NEW.owed IS DISTINCT FROM OLD.owed OR (NEW.status = 'STOPPED' AND OLD.status <> 'STOPPED'))
           AND NOT EXISTS (SELECT 1 FROM fencepost.events e
                WHERE e.run = NEW.id AND e.tenant = NEW.tenant AND e.seq > OLD.seq AND e.seq <= NEW.seq
                AND CASE e.type WHEN 'RunStopped' THEN coalesce((
                        SELECT json_agg(o ->> 'call' ORDER BY o ->> 'call')
                        FROM json_array_elements(e.body -> 'not_offset') AS o WHERE o ->> 'owed' = 'true'
                    )::jsonb, '[]') = coalesce(NEW.owed::jsonb, '[]')
                    WHEN 'RepairRequested' THEN NEW.status = OLD.status
                        AND coalesce(NEW.owed::jsonb, '[]') <@ coalesce(OLD.owed::jsonb, '[]')
                    ELSE e.type = 'RepairDecided' AND (NEW.status = OLD.status OR NEW.owed IS NULL) END) THEN
            RAISE EXCEPTION 'run %: what it owes comes with the event that says so', NEW.id
                USING ERRCODE = 'FP004';
        END IF;
        IF NEW.turn < OLD.turn THEN
            RAISE EXCEPTION 'run %: what it has used does not come back', NEW.id USING ERRCODE = 'FP001';
        END IF;
        -- What models use and hold moves by what the events of this change say, and by nothing else.
        held_tokens := OLD.held_tokens;
        held_cost := OLD.held_cost;
        IF asked.told > 0 THEN
            SELECT coalesce((e.body #>> '{{held,tokens}}')::bigint, 0),
                   coalesce((e.body #>> '{{held,cost}}')::bigint, 0) INTO held_tokens, held_cost
            FROM fencepost.events e WHERE e.run = NEW.id AND e.tenant = NEW.tenant AND e.seq = asked.last;
        END IF;
        IF (NEW.tokens, NEW.cost, NEW.held_tokens, NEW.held_cost)
           <> (OLD.tokens + asked.tokens, OLD.cost + asked.cost, held_tokens, held_cost) THEN
            RAISE EXCEPTION 'run %: what its models use and hold moves with the events of that', NEW.id
                USING ERRCODE = 'FP004';
        END IF;
{COUNTS.strip(chr(10))}
{BELOW.strip(chr(10))}
"""

_PRESENTED = f"""
        IF by_office = 'call' THEN
            via := 'call';
            IF NOT EXISTS (SELECT 1 FROM fencepost.calls c WHERE c.tenant = NEW.tenant AND c.id = by_call
                    AND c.run IS NOT DISTINCT FROM NEW.id AND (c.fence < by_fence
                        OR (c.fence = by_fence AND c.owner = by_owner))) THEN
                RAISE EXCEPTION 'run %: the presented term of its call is not the accepted one', NEW.id
                    USING ERRCODE = 'FP002';
            END IF;
        ELSIF by_office IS NOT NULL THEN
            via := by_office;
            IF via NOT IN ({offices(RUN_HOPS)}) THEN
                RAISE EXCEPTION 'run %: there is no office %', NEW.id, via USING ERRCODE = 'FP002';
            END IF;
            IF via IN ('approval', 'repair', 'recover')
               AND NOT pg_has_role(current_user, 'fencepost_operator', 'member') THEN
                RAISE EXCEPTION 'run %: % is not an operator', NEW.id, current_user USING ERRCODE = 'FP002';
            END IF;
            IF by_version IS DISTINCT FROM OLD.seq THEN
                RAISE EXCEPTION 'run %: office % saw version %, it is %', NEW.id, via, by_version, OLD.seq
                    USING ERRCODE = 'FP002';
            END IF;
            IF via = 'recover' THEN
                IF NOT EXISTS (SELECT 1 FROM fencepost.epochs p WHERE p.released_at IS NULL) THEN
                    RAISE EXCEPTION 'run %: the ledger is not held after a restore', NEW.id
                        USING ERRCODE = 'FP002';
                END IF;
            END IF;
        ELSIF by_owner IS NULL OR by_fence IS NULL THEN
            RAISE EXCEPTION 'run %: no term and no office', NEW.id USING ERRCODE = 'FP002';
        ELSIF by_owner = OLD.owner AND by_fence = OLD.fence THEN
            via := 'term';
            IF NEW.fence <> OLD.fence OR (NEW.owner IS NOT NULL AND NEW.owner <> OLD.owner) THEN
                RAISE EXCEPTION 'run %: a term does not change itself', NEW.id USING ERRCODE = 'FP002';
            END IF;
        ELSIF by_fence > OLD.fence THEN
            via := 'claim';
            IF NEW.fence <> by_fence OR (NEW.owner IS NOT NULL AND NEW.owner <> by_owner) THEN
                RAISE EXCEPTION 'run %: a claim takes the term it presents', NEW.id USING ERRCODE = 'FP002';
            END IF;
        ELSE
            RAISE EXCEPTION 'run %: term %/% is not the accepted one', NEW.id, by_owner, by_fence
                USING ERRCODE = 'FP002';
        END IF;
        IF via = 'claim' AND NEW.status IN ('QUEUED', 'ACTING') AND NEW.owner IS NOT NULL THEN
            RAISE EXCEPTION 'run %: nobody holds it while it is %', NEW.id, NEW.status
                USING ERRCODE = 'FP001';
        END IF;
        IF via NOT IN ('term', 'claim') AND (NEW.fence <= OLD.fence OR NEW.owner IS NOT NULL) THEN
            RAISE EXCEPTION 'run %: % raises the fence and clears the owner', NEW.id, via
                USING ERRCODE = 'FP002';
        END IF;
        IF (via || ':' || OLD.status || '>' || NEW.status) NOT IN ({hop_words(RUN_HOPS)}) THEN
            RAISE EXCEPTION 'run %: % may not move it from % to %', NEW.id, via, OLD.status, NEW.status
                USING ERRCODE = 'FP001';
        END IF;
        IF NEW.status = 'COMPLETED' AND OLD.status <> 'COMPLETED' THEN
            IF EXISTS (SELECT 1 FROM fencepost.calls c
                WHERE c.run = NEW.id AND c.tenant IS NOT DISTINCT FROM NEW.tenant AND c.live) THEN
                RAISE EXCEPTION 'run %: it has an open or doubtful call', NEW.id USING ERRCODE = 'FP001';
            END IF;
        END IF;
"""

GUARD_RUNS = f"""
CREATE FUNCTION fencepost.guard_run() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    by_owner text;
    by_fence bigint;
    by_version bigint;
    by_office text;
    by_call uuid;
    via text;
    asked record;
    held_tokens bigint;
    held_cost bigint;
    settled record;
    stands text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'runs are never deleted' USING ERRCODE = 'FP004';
    END IF;
    by_owner := NEW.presented_owner;
    by_fence := NEW.presented_fence;
    by_version := NEW.presented_version;
    by_office := NEW.presented_office;
    by_call := NEW.presented_call;
    NEW.presented_owner := NULL;
    NEW.presented_fence := NULL;
    NEW.presented_version := NULL;
    NEW.presented_office := NULL;
    NEW.presented_call := NULL;
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'QUEUED' OR NEW.seq <> 0 OR NEW.owner IS NOT NULL OR NEW.fence <> 0
           OR NEW.tainted IS NOT NULL OR num_nonnulls(NEW.below, NEW.markers, NEW.owed) <> 0
           OR (NEW.awaiting, NEW.tokens, NEW.cost, NEW.held_tokens, NEW.held_cost, NEW.bytes, NEW.fruitless,
               NEW.detached, NEW.unknowns) <> (0, 0, 0, 0, 0, 0, 0, 0, 0) THEN
            RAISE EXCEPTION 'run %: a run begins QUEUED, with no history and no owner', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        RETURN NEW;
    END IF;
{only_cancels("run").strip(chr(10))}
{_UNCHANGING.strip(chr(10))}
    -- Events of its calls count in a run without a word; everything else is presented.
    IF asked.own OR (NEW.planner_version, NEW.status, NEW.stop_reason, NEW.stop_detail, NEW.owner,
            NEW.fence, NEW.result, NEW.preview, NEW.turn, NEW.requests, NEW.calls, NEW.failures, NEW.outages,
            NEW.tokens, NEW.cost, NEW.held_tokens, NEW.held_cost, NEW.markers)
       IS DISTINCT FROM (OLD.planner_version, OLD.status, OLD.stop_reason, OLD.stop_detail, OLD.owner,
            OLD.fence, OLD.result, OLD.preview, OLD.turn, OLD.requests, OLD.calls, OLD.failures, OLD.outages,
            OLD.tokens, OLD.cost, OLD.held_tokens, OLD.held_cost, OLD.markers)
       OR NEW.fruitless NOT IN (OLD.fruitless, 0) THEN
{_PRESENTED.strip(chr(10))}
    END IF;
{PLACED.strip(chr(10))}
    RETURN NEW;
END $$;
CREATE TRIGGER guard_run BEFORE INSERT OR UPDATE OR DELETE ON fencepost.runs
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_run();

CREATE FUNCTION fencepost.guard_stopped() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Judged at COMMIT: the last call's outcome and the run's move are one change, but two statements.
    IF EXISTS (SELECT 1 FROM fencepost.calls c
            WHERE c.run = NEW.id AND c.tenant IS NOT DISTINCT FROM NEW.tenant
            AND c.state IN ('AWAITING_APPROVAL', 'INTENT_RECORDED', {words(CALL_UNSETTLED)})
            AND (NEW.status = 'STOPPED' OR c.state IN ({words(CALL_UNSETTLED)})))
       AND EXISTS (SELECT 1 FROM fencepost.runs r
            WHERE r.tenant = NEW.tenant AND r.id = NEW.id AND r.status = NEW.status) THEN
        RAISE EXCEPTION 'run %: it cannot be % while a call is unsent or unsettled', NEW.id, NEW.status
            USING ERRCODE = 'FP001';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER guard_stopped AFTER UPDATE ON fencepost.runs DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.status <> OLD.status AND (NEW.status = 'STOPPED'
        OR (NEW.status = 'COMPENSATING' AND OLD.status <> 'STOPPED')))
    EXECUTE FUNCTION fencepost.guard_stopped();
"""
