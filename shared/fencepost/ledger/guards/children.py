"""How a run of a call comes into the ledger: made by Postgres from its parent, its call and the event that
names it. Nobody but a producer's own function and this one inserts runs; and at COMMIT its call names it, and
its parent holds a slice for it that is no more than there is.
"""

from __future__ import annotations

import json
from typing import Final

from fencepost.budgets import Budget
from fencepost.runrequest import OF_CALLS
from fencepost.slices import SHARED

_USUAL: Final = json.dumps({name: limit for name, limit in Budget().to_json().items() if limit is not None})
_SHARED: Final = ", ".join(f"'{name}'" for name in SHARED)
_PIECE: Final = ", ".join(
    f"'{name}', has -> '{name}'" if name != "children" else "'children', (has ->> 'children')::bigint + 1"
    for name in SHARED
)

START_CHILDREN = """
CREATE FUNCTION fencepost.start_children(p_tenants text[], p_runs uuid[], p_calls uuid[])
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_made integer := 0;
    v_run record;
BEGIN
    -- An event beyond its run's head is one of this transaction: each starts its run once.
    FOR v_run IN
        SELECT r.tenant, (e.body ->> 'child')::uuid AS id, r.id AS parent, c.id AS call, r.principal,
            coalesce(r.root, r.id) AS root, r.depth + 1 AS depth, r.traceparent, r.login, r.request,
            c.arguments::jsonb AS input, e.recorded_at AS at, e.body::jsonb AS said,
            (e.body ->> 'deadline')::timestamptz AS deadline, r.deadline AS last,
            c.compensates IS NOT NULL AS offsets, c.effect = 'read' AS reads,
            r.tainted IS NOT NULL OR e.body ->> 'tainted' = 'true' AS tainted
        FROM unnest(p_tenants, p_runs, p_calls) AS w (tenant, run, call)
        JOIN fencepost.runs r ON r.id = w.run AND r.tenant IS NOT DISTINCT FROM w.tenant
        JOIN fencepost.calls c ON c.id = w.call AND c.tenant IS NOT DISTINCT FROM w.tenant
            AND c.run = w.run AND c.child IS NULL
        JOIN fencepost.events e ON e.run = w.run AND e.tenant IS NOT DISTINCT FROM w.tenant
            AND e.call = w.call AND e.seq > r.seq AND e.type = 'ChildRunStarted'
    LOOP
        IF (v_run.deadline > v_run.last AND NOT v_run.offsets) OR v_run.deadline <= v_run.at THEN
            RAISE EXCEPTION 'run %: it ends before the run it is started by', v_run.id
                USING ERRCODE = 'FP001';
        END IF;
        INSERT INTO fencepost.runs (tenant, id, run_key, planner, planner_version, principal, request,
            on_stop, created_at, deadline, ready_at, root, parent, parent_call, depth, traceparent, login)
        VALUES (v_run.tenant, v_run.id, '@OF_CALLS@' || v_run.call, v_run.said ->> 'planner',
            (v_run.said ->> 'version')::integer, v_run.principal,
            jsonb_build_object('planner', v_run.said -> 'planner', 'version', v_run.said -> 'version',
                'principal', v_run.principal, 'input', v_run.input,
                'deadline', extract(epoch FROM v_run.deadline - v_run.at),
                'budget', (v_run.said -> 'budget')
                    || CASE WHEN v_run.tainted THEN '{"tainted": true}' ELSE '{}' END::jsonb,
                'on_stop', v_run.said -> 'on_stop',
                'above', coalesce(v_run.request -> 'above', '[]') || to_jsonb(v_run.parent),
                -- What offsets an effect comes from its own tool, and is not held to what was handed down.
                'within', CASE WHEN v_run.offsets THEN '[]' ELSE coalesce(v_run.request -> 'within', '[]') END
                    || jsonb_build_array(v_run.said -> 'tools'),
                'reads', (v_run.reads OR v_run.said ->> 'reads' = 'true'
                    OR (v_run.request ->> 'reads' = 'true' AND NOT v_run.offsets)) IS TRUE),
            v_run.said ->> 'on_stop', v_run.at, v_run.deadline, v_run.at, v_run.root, v_run.parent,
            v_run.call, v_run.depth, v_run.traceparent, v_run.login);
        INSERT INTO fencepost.outbox (tenant, subject, kind, run, generation, queue, due_at, publish_at, root)
        VALUES (v_run.tenant, v_run.id, 'run', v_run.id, 1, 'planner', v_run.at, v_run.at, v_run.root);
        v_made := v_made + 1;
    END LOOP;
    IF v_made <> cardinality(p_calls) THEN
        RAISE EXCEPTION 'runs are started by the event that names them, and once: % of % were', v_made,
            cardinality(p_calls) USING ERRCODE = 'FP004';
    END IF;
    RETURN v_made;
END $$;
REVOKE ALL ON FUNCTION fencepost.start_children FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fencepost.start_children TO fencepost_worker;
""".replace("@OF_CALLS@", OF_CALLS)

GUARD_CHILDREN = f"""
CREATE FUNCTION fencepost.guard_child() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    above record;
    may jsonb;
    has jsonb;
    piece jsonb;
BEGIN
    -- Judged at COMMIT: the run is made before its call and its parent are written, which say so.
    SELECT c.child, c.state, c.compensates, r.request, r.below::jsonb AS below, jsonb_build_object(
            'turns', r.requests, 'calls', r.calls, 'attempts', r.attempts,
            'tokens', r.tokens + r.held_tokens, 'cost', r.cost + r.held_cost) AS own INTO above
        FROM fencepost.calls c
        JOIN fencepost.runs r ON r.id = c.run AND r.tenant IS NOT DISTINCT FROM c.tenant
        WHERE c.id = NEW.parent_call AND c.tenant = NEW.tenant AND c.run IS NOT DISTINCT FROM NEW.parent;
    IF (above.child, above.state) IS DISTINCT FROM (NEW.id, 'DISPATCHING') THEN
        RAISE EXCEPTION 'run %: the call that starts it does not name it', NEW.id USING ERRCODE = 'FP004';
    END IF;
    IF above.compensates IS NOT NULL THEN
        RETURN NULL;  -- what offsets an effect is held back by no budget
    END IF;
    may := '{_USUAL}' || jsonb_strip_nulls(above.request -> 'budget');
    has := '{_USUAL}' || jsonb_strip_nulls(NEW.request -> 'budget');
    piece := above.below -> 'held' -> NEW.parent_call::text;
    IF piece IS DISTINCT FROM jsonb_strip_nulls(jsonb_build_object({_PIECE})) THEN
        RAISE EXCEPTION 'run %: its parent holds another slice for it', NEW.id USING ERRCODE = 'FP004';
    END IF;
    IF (has ->> 'depth')::bigint >= (may ->> 'depth')::bigint OR EXISTS (
        SELECT 1 FROM unnest(ARRAY[{_SHARED}]) AS n (name)
        WHERE may -> name IS NOT NULL AND (piece -> name IS NULL OR ((piece ->> name)::bigint > 0
            AND (may ->> name)::bigint < coalesce((above.own ->> name)::bigint, 0)
                + coalesce((above.below -> 'used' ->> name)::bigint, 0)
                + (SELECT coalesce(sum((h.value ->> name)::bigint), 0)
                    FROM jsonb_each(above.below -> 'held') AS h)))) THEN
        RAISE EXCEPTION 'run %: its slice is more than is left of its parent''s budget', NEW.id
            USING ERRCODE = 'FP004';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER guard_child AFTER INSERT ON fencepost.runs DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.parent_call IS NOT NULL) EXECUTE FUNCTION fencepost.guard_child();
"""

# A call's run is started with its first attempt, and what it says then never changes.
CHILD = """
        IF NEW.child IS DISTINCT FROM OLD.child THEN
            IF (OLD.child IS NULL AND NEW.attempts > OLD.attempts
                AND EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq <= NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type = 'ChildRunStarted' AND e.body ->> 'child' = NEW.child::text
                    AND (e.worker, e.fence) IS NOT DISTINCT FROM (by_owner, by_fence))
                AND EXISTS (SELECT 1 FROM fencepost.runs r WHERE r.tenant = NEW.tenant AND r.id = NEW.child
                    AND (r.parent, r.parent_call) = (NEW.run, NEW.id))) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: it starts one run, by the event that names it', NEW.id
                    USING ERRCODE = 'FP004';
            END IF;
        END IF;
        IF NEW.detached IS DISTINCT FROM OLD.detached THEN
            IF NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq <= NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type IN ('CallDetached', 'CallAwaited')) THEN
                RAISE EXCEPTION 'call %: whether its turn waits for it, its events say', NEW.id
                    USING ERRCODE = 'FP004';
            END IF;
        END IF;
"""

# Whether its turn waits for a call changes nothing else of it, and needs no term.
DETACHED = """
        IF said.type IN ('CallDetached', 'CallAwaited') THEN
            rest := NEW;
            rest.version := OLD.version;
            rest.detached := OLD.detached;
            rest.live := OLD.live;  -- computed after this
            rest.offsets := OLD.offsets;
            IF rest IS NOT DISTINCT FROM OLD AND NEW.detached = (said.type = 'CallDetached') THEN
                RETURN NEW;
            END IF;
        END IF;
"""

SETTLED = """
                WHEN 'ChildRunSettled' THEN via = 'claim'
                    AND (said.worker, said.fence) IS NOT DISTINCT FROM (by_owner, by_fence)
                    AND said.body ->> 'to' = NEW.state AND said.body ->> 'child' = OLD.child::text
                    AND EXISTS (SELECT 1 FROM fencepost.runs r WHERE r.tenant = NEW.tenant
                        AND r.id = OLD.child AND r.open = 0 AND NOT EXISTS (
                            SELECT 1 FROM fencepost.calls k WHERE k.run = r.id
                            AND k.tenant IS NOT DISTINCT FROM r.tenant AND k.live)
                        AND coalesce((said.body ->> 'unknown')::bigint, 0) = r.unknowns AND CASE r.status
                            WHEN 'COMPLETED' THEN NEW.state = 'SUCCEEDED'
                                AND NEW.result IS NOT DISTINCT FROM r.result
                            WHEN 'STOPPED' THEN (NEW.state = 'FAILED') = ((r.effects, r.unknowns) = (0, 0))
                                AND (NEW.state = 'FAILED' OR NEW.compensates IS NULL)
                            ELSE false END)
"""
"""The end of a run is the proof of its call: COMPLETED is its result, STOPPED a failure where it left
nothing, neither an effect nor one nobody knows of. What was to offset an effect did so where it COMPLETED.
"""

NOT_DENIED = """
                    AND (NEW.state NOT IN ('FAILED', 'ACCEPTED_UNKNOWN') OR NOT EXISTS (
                        SELECT 1 FROM fencepost.runs r WHERE r.tenant = NEW.tenant AND r.id = OLD.child
                            AND (r.status <> 'STOPPED' OR r.open <> 0
                                OR (NEW.state = 'FAILED' AND (r.effects, r.unknowns) <> (0, 0))
                                OR (r.effects > 0 AND NEW.compensates IS NULL))))
"""
"""A person says that a call had no effect, or that nobody knows, only where its run has stopped without."""
