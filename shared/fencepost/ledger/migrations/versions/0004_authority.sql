SET LOCAL lock_timeout = '2s';

-- Which event first told a run something that nobody vouches for.
ALTER TABLE fencepost.runs ADD COLUMN tainted bigint;
-- What persons were asked and have said of a call, and which allowances it holds.
ALTER TABLE fencepost.calls ADD COLUMN approval text, ADD COLUMN reserved text;

-- Published policies; in force for a tenant is the greatest version of its own and of all tenants'.
CREATE TABLE fencepost.policies (
    version BIGINT NOT NULL,
    tenant TEXT DEFAULT '' NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    bundle TEXT NOT NULL,
    published_at TIMESTAMP WITH TIME ZONE NOT NULL,
    published_by TEXT NOT NULL,
    login TEXT NOT NULL,
    note TEXT NOT NULL,
    CONSTRAINT policies_pkey PRIMARY KEY (version)
);
CREATE TABLE fencepost.principals (
    tenant TEXT NOT NULL,
    principal TEXT NOT NULL,
    roles TEXT DEFAULT '[]' NOT NULL,
    disabled_at TIMESTAMP WITH TIME ZONE,
    reason TEXT,
    changed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    changed_by TEXT NOT NULL,
    version BIGINT DEFAULT 1 NOT NULL,
    CONSTRAINT principals_pkey PRIMARY KEY (principal, tenant)
);
-- Who acts with whose authority, for which tools (a pattern), until when.
CREATE TABLE fencepost.delegations (
    tenant TEXT NOT NULL,
    id UUID NOT NULL,
    principal TEXT NOT NULL,
    delegate TEXT NOT NULL,
    tools TEXT DEFAULT '*' NOT NULL,
    since TIMESTAMP WITH TIME ZONE NOT NULL,
    until TIMESTAMP WITH TIME ZONE NOT NULL,
    made_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    revoked_at TIMESTAMP WITH TIME ZONE,
    revoked_by TEXT,
    CONSTRAINT delegations_pkey PRIMARY KEY (id, tenant)
);
CREATE INDEX delegations_delegate ON fencepost.delegations (delegate) WHERE revoked_at IS NULL;
CREATE TABLE fencepost.withdrawn (
    tool TEXT NOT NULL,
    version INTEGER NOT NULL,
    withdrawn_at TIMESTAMP WITH TIME ZONE NOT NULL,
    withdrawn_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    CONSTRAINT withdrawn_pkey PRIMARY KEY (tool, version)
);
-- What of an allowance is used and held, per subject and window; a row that is not there is unused.
CREATE TABLE fencepost.allowances (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    used_count BIGINT DEFAULT 0 NOT NULL,
    used_minor BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT allowances_pkey PRIMARY KEY (key, tenant)
) WITH (fillfactor = 50);
GRANT SELECT ON fencepost.policies, fencepost.principals, fencepost.delegations, fencepost.withdrawn,
    fencepost.allowances TO fencepost_worker, fencepost_operator, fencepost_reader;
GRANT INSERT ON fencepost.policies, fencepost.principals, fencepost.delegations, fencepost.withdrawn
    TO fencepost_operator;
GRANT UPDATE ON fencepost.principals TO fencepost_operator;
GRANT UPDATE (revoked_at, revoked_by) ON fencepost.delegations TO fencepost_operator;
GRANT DELETE ON fencepost.withdrawn TO fencepost_operator;
GRANT INSERT, UPDATE ON fencepost.allowances TO fencepost_worker, fencepost_operator;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON fencepost.policies
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.policies
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();

-- Functions that are new or changed, as they are defined beside the schema.

CREATE OR REPLACE FUNCTION fencepost.guard_run() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    by_owner text;
    by_fence bigint;
    by_version bigint;
    by_office text;
    by_call uuid;
    via text;
    head uuid;
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
           OR NEW.tainted IS NOT NULL THEN
            RAISE EXCEPTION 'run %: a run begins QUEUED, with no history and no owner', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        RETURN NEW;
    END IF;
        IF (NEW.tenant, NEW.id, NEW.run_key, NEW.planner, NEW.planner_version, NEW.principal, NEW.request,
            NEW.on_stop, NEW.created_at, NEW.deadline)
           IS DISTINCT FROM
           (OLD.tenant, OLD.id, OLD.run_key, OLD.planner, OLD.planner_version, OLD.principal, OLD.request,
            OLD.on_stop, OLD.created_at, OLD.deadline) THEN
            RAISE EXCEPTION 'run %: its request does not change', NEW.id USING ERRCODE = 'FP001';
        END IF;
        IF NEW.seq = OLD.seq THEN
            OLD.ended := NULL;  -- computed after this
            IF NEW IS DISTINCT FROM OLD THEN
                RAISE EXCEPTION 'run %: changed without an event', NEW.id USING ERRCODE = 'FP004';
            END IF;
            RETURN NEW;
        END IF;
        SELECT e.call INTO head FROM fencepost.events e WHERE e.run = NEW.id AND e.seq = NEW.seq
            AND e.tenant = NEW.tenant AND e.hash = NEW.head_hash AND e.projection IS NOT NULL;
        IF NOT FOUND OR NEW.seq < OLD.seq THEN
            RAISE EXCEPTION 'run %: seq and head_hash move only with events', NEW.id USING ERRCODE = 'FP004';
        END IF;
        IF NEW.fence < OLD.fence THEN
            RAISE EXCEPTION 'run %: a fence never falls', NEW.id USING ERRCODE = 'FP002';
        END IF;
        IF NEW.tainted IS DISTINCT FROM OLD.tainted AND (OLD.tainted IS NOT NULL OR NOT EXISTS (
                SELECT 1 FROM fencepost.events e WHERE e.run = NEW.id AND e.seq = NEW.tainted
                AND e.tenant IS NOT DISTINCT FROM NEW.tenant
                AND e.seq > OLD.seq AND e.seq <= NEW.seq AND e.body ->> 'untrusted' = 'true')) THEN
            RAISE EXCEPTION 'run %: what it has learnt comes with the event that says so, and stays', NEW.id
                USING ERRCODE = 'FP004';
        END IF;
        IF NEW.turn < OLD.turn OR NEW.requests < OLD.requests OR NEW.calls < OLD.calls
           OR NEW.attempts < OLD.attempts THEN
            RAISE EXCEPTION 'run %: what it has used does not come back', NEW.id USING ERRCODE = 'FP001';
        END IF;
    -- A call's outcome counts in its run without a word; everything else is presented.
    IF head IS NULL OR (NEW.status, NEW.stop_reason, NEW.stop_detail, NEW.owner, NEW.fence, NEW.result,
            NEW.preview, NEW.turn, NEW.requests, NEW.calls, NEW.failures)
       IS DISTINCT FROM (OLD.status, OLD.stop_reason, OLD.stop_detail, OLD.owner, OLD.fence, OLD.result,
            OLD.preview, OLD.turn, OLD.requests, OLD.calls, OLD.failures) THEN
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
            IF via NOT IN ('cancel', 'recover', 'repair') THEN
                RAISE EXCEPTION 'run %: there is no office %', NEW.id, via USING ERRCODE = 'FP002';
            END IF;
            IF via IN ('repair', 'recover')
               AND NOT pg_has_role(current_user, 'fencepost_operator', 'member') THEN
                RAISE EXCEPTION 'run %: % is not an operator', NEW.id, current_user USING ERRCODE = 'FP002';
            END IF;
            IF by_version IS DISTINCT FROM OLD.seq THEN
                RAISE EXCEPTION 'run %: office % saw version %, it is %', NEW.id, via, by_version, OLD.seq
                    USING ERRCODE = 'FP002';
            END IF;
            IF via = 'recover' AND NOT EXISTS (
                    SELECT 1 FROM fencepost.epochs p WHERE p.released_at IS NULL) THEN
                RAISE EXCEPTION 'run %: the ledger is not held after a restore', NEW.id
                    USING ERRCODE = 'FP002';
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
        IF via NOT IN ('term', 'claim') AND (NEW.fence <= OLD.fence OR NEW.owner IS NOT NULL) THEN
            RAISE EXCEPTION 'run %: % raises the fence and clears the owner', NEW.id, via
                USING ERRCODE = 'FP002';
        END IF;
        IF (via || ':' || OLD.status || '>' || NEW.status) NOT IN ('call:ACTING>COMPENSATING', 'call:ACTING>STOPPED', 'call:ACTING>STOPPING', 'call:PLANNING>COMPENSATING', 'call:PLANNING>STOPPED', 'call:PLANNING>STOPPING', 'call:QUEUED>COMPENSATING', 'call:QUEUED>STOPPED', 'call:QUEUED>STOPPING', 'call:STOPPING>COMPENSATING', 'call:STOPPING>STOPPED', 'cancel:ACTING>COMPENSATING', 'cancel:ACTING>STOPPED', 'cancel:ACTING>STOPPING', 'cancel:PLANNING>COMPENSATING', 'cancel:PLANNING>STOPPED', 'cancel:PLANNING>STOPPING', 'cancel:QUEUED>COMPENSATING', 'cancel:QUEUED>STOPPED', 'cancel:QUEUED>STOPPING', 'claim:ACTING>COMPENSATING', 'claim:ACTING>PLANNING', 'claim:ACTING>STOPPED', 'claim:ACTING>STOPPING', 'claim:COMPENSATING>COMPENSATING', 'claim:COMPENSATING>STOPPED', 'claim:PLANNING>COMPENSATING', 'claim:PLANNING>PLANNING', 'claim:PLANNING>STOPPED', 'claim:PLANNING>STOPPING', 'claim:QUEUED>COMPENSATING', 'claim:QUEUED>PLANNING', 'claim:QUEUED>STOPPED', 'claim:QUEUED>STOPPING', 'claim:STOPPING>COMPENSATING', 'claim:STOPPING>STOPPED', 'claim:STOPPING>STOPPING', 'recover:COMPENSATING>COMPENSATING', 'recover:PLANNING>PLANNING', 'recover:STOPPING>STOPPING', 'repair:ACTING>COMPENSATING', 'repair:ACTING>STOPPED', 'repair:ACTING>STOPPING', 'repair:PLANNING>COMPENSATING', 'repair:PLANNING>STOPPED', 'repair:PLANNING>STOPPING', 'repair:STOPPED>COMPENSATING', 'repair:STOPPING>COMPENSATING', 'repair:STOPPING>STOPPED', 'term:COMPENSATING>COMPENSATING', 'term:COMPENSATING>STOPPED', 'term:PLANNING>ACTING', 'term:PLANNING>COMPENSATING', 'term:PLANNING>COMPLETED', 'term:PLANNING>PLANNING', 'term:PLANNING>STOPPED', 'term:PLANNING>STOPPING') THEN
            RAISE EXCEPTION 'run %: % may not move it from % to %', NEW.id, via, OLD.status, NEW.status
                USING ERRCODE = 'FP001';
        END IF;
        IF NEW.status = 'COMPLETED' AND OLD.status <> 'COMPLETED' AND EXISTS (
            SELECT 1 FROM fencepost.calls c
                WHERE c.run = NEW.id AND c.tenant IS NOT DISTINCT FROM NEW.tenant
                AND c.live) THEN
            RAISE EXCEPTION 'run %: it has an open or doubtful call', NEW.id USING ERRCODE = 'FP001';
        END IF;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencepost.enqueue_run(
    p_tenant text, p_run_key text, p_planner text, p_version integer, p_principal text, p_input jsonb,
    p_deadline interval, p_budget jsonb DEFAULT '{}', p_on_stop text DEFAULT 'compensate',
    p_id uuid DEFAULT gen_random_uuid()
) RETURNS TABLE (run uuid, created boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    v_now timestamptz := fencepost.now();
    v_request jsonb;
    v_deadline interval;
    v_usual CONSTANT jsonb := '{"turns": 16, "calls": 64, "attempts": 256}';
    v_run fencepost.runs;
BEGIN
    IF coalesce(p_tenant, '') = '' OR coalesce(p_run_key, '') = '' OR coalesce(p_planner, '') = ''
       OR coalesce(p_principal, '') = '' OR p_version IS NULL OR p_input IS NULL OR p_budget IS NULL THEN
        RAISE EXCEPTION 'tenant, run key, planner, version, principal, input and budget are required'
            USING ERRCODE = 'FP422';
    END IF;
    IF p_version < 1 THEN
        RAISE EXCEPTION 'version is a whole number from 1 on, not %', p_version USING ERRCODE = 'FP422';
    END IF;
    IF length(p_run_key) > 200 OR length(p_tenant) > 100 OR length(p_principal) > 200
       OR length(p_planner) > 200 THEN
        RAISE EXCEPTION 'a run key, principal or planner has at most 200 characters, a tenant 100'
            USING ERRCODE = 'FP422';
    END IF;
    -- First, and no deeper than asked: what follows may not bear the rest.
    IF jsonb_path_exists(p_input, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")') THEN
        RAISE EXCEPTION 'a run''s input is nested at most 64 levels deep' USING ERRCODE = 'FP422';
    END IF;
    IF octet_length(p_input::text) > 1048576 THEN
        RAISE EXCEPTION 'a run''s input is at most 1 MiB; keep the rest elsewhere and pass a reference'
            USING ERRCODE = 'FP422';
    END IF;
    IF p_input::text ~ '([0-9.]{200}){2}[0-9.]' AND EXISTS (
        SELECT 1 FROM jsonb_path_query(p_input, 'strict $.** ? (@.type() == "number")') AS n
        WHERE length(translate(n::text, '-.', '')) > 400) THEN
        RAISE EXCEPTION 'a number in a run''s input has at most 400 digits; pass longer ones as text'
            USING ERRCODE = 'FP422';
    END IF;
    IF p_deadline IS NULL OR p_deadline <= interval '0' THEN
        RAISE EXCEPTION 'the deadline lies in the past; give one that lies ahead' USING ERRCODE = 'FP422';
    END IF;
    IF p_deadline > interval '3650 days' THEN
        RAISE EXCEPTION 'a deadline is at most 3650 days ahead' USING ERRCODE = 'FP422';
    END IF;
    IF jsonb_typeof(p_budget) <> 'object' OR EXISTS (
        SELECT 1 FROM jsonb_each(p_budget) AS b (name, value) WHERE CASE
            WHEN name = 'wall_clock_ms' THEN value <> 'null'
                AND (value::text !~ '^[0-9]{1,12}$' OR value::bigint NOT BETWEEN 1 AND 315360000000)
            WHEN name = 'tainted' THEN value <> 'true'
            WHEN name IN ('turns', 'calls', 'attempts') THEN
                value::text !~ '^[0-9]{1,10}$' OR value::bigint > 2147483647
            ELSE true END) THEN
        RAISE EXCEPTION 'a budget holds whole numbers under turns, calls, attempts and wall_clock_ms, not %',
            left(p_budget::text, 200) USING ERRCODE = 'FP422';
    END IF;
    IF p_on_stop IS NULL OR p_on_stop NOT IN ('compensate', 'leave') THEN
        RAISE EXCEPTION 'on_stop is compensate or leave, not %', p_on_stop USING ERRCODE = 'FP422';
    END IF;
    -- In seconds: a day is 24 hours here, whatever the session's time zone makes of it.
    v_deadline := make_interval(secs => extract(epoch FROM p_deadline)::double precision);
    v_request := jsonb_build_object('planner', p_planner, 'version', p_version, 'principal', p_principal,
        'input', p_input, 'deadline', extract(epoch FROM p_deadline), 'budget', p_budget,
        'on_stop', p_on_stop);
    INSERT INTO fencepost.runs (tenant, id, run_key, planner, planner_version, principal, request, on_stop,
                                created_at, deadline, ready_at)
    VALUES (p_tenant, p_id, p_run_key, p_planner, p_version, p_principal, v_request, p_on_stop,
            v_now, v_now + v_deadline, v_now)
    ON CONFLICT (run_key, tenant) WHERE run_key <> '' DO NOTHING RETURNING * INTO v_run;
    IF FOUND THEN
        INSERT INTO fencepost.outbox (tenant, subject, kind, run, generation, queue, due_at, publish_at)
        VALUES (p_tenant, p_id, 'run', p_id, 1, 'planner', v_now, v_now);
        RETURN QUERY SELECT p_id, true;
        RETURN;
    END IF;
    SELECT * INTO v_run FROM fencepost.runs r
    WHERE r.tenant = p_tenant AND r.run_key = p_run_key AND r.run_key <> '';
    -- The same request by its values: 1 is 1.0, the order of keys is none, a budget's absent limits are the
    -- usual ones.
    IF v_run.request <> v_request AND (v_run.request - 'budget' <> v_request - 'budget'
            OR v_usual || jsonb_strip_nulls(v_run.request -> 'budget')
               <> v_usual || jsonb_strip_nulls(p_budget)) THEN
        RAISE EXCEPTION 'run key % of tenant % is taken by another request: that of run %',
            p_run_key, p_tenant, v_run.id USING ERRCODE = 'FP409',
            DETAIL = 'Input, planner, version, principal, deadline, budget and on_stop count.',
            HINT = 'Use another run key, or send what was sent first.',
            CONSTRAINT = v_run.id::text;
    END IF;
    RETURN QUERY SELECT v_run.id, false;
END $$;
