CREATE SCHEMA IF NOT EXISTS fencepost;

DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['fencepost_worker', 'fencepost_relay', 'fencepost_producer', 'fencepost_operator', 'fencepost_reader'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;  -- roles are shared by all databases of a cluster
        END;
    END LOOP;
END $$;

CREATE TABLE fencepost.events (
	tenant TEXT NOT NULL, 
	run UUID NOT NULL, 
	seq BIGINT NOT NULL, 
	id UUID NOT NULL, 
	type TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	call UUID, 
	attempt INTEGER, 
	body JSON NOT NULL, 
	digest TEXT NOT NULL, 
	principal TEXT NOT NULL, 
	worker TEXT, 
	fence BIGINT, 
	policy TEXT, 
	causation UUID NOT NULL, 
	recorded_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	projection TEXT, 
	prev_hash TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	CONSTRAINT events_pkey PRIMARY KEY (run, seq, tenant), 
	CONSTRAINT events_id_key UNIQUE (id)
);

CREATE TABLE fencepost.evidence (
	tenant TEXT NOT NULL, 
	id UUID NOT NULL, 
	run UUID NOT NULL, 
	call UUID NOT NULL, 
	attempt INTEGER NOT NULL, 
	owner TEXT NOT NULL, 
	fence BIGINT NOT NULL, 
	applied BOOLEAN NOT NULL, 
	receipt TEXT, 
	result TEXT, 
	code TEXT NOT NULL, 
	retryable BOOLEAN DEFAULT false NOT NULL, 
	recorded_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	CONSTRAINT evidence_pkey PRIMARY KEY (id, tenant)
);

CREATE TABLE fencepost.operations (
	tenant TEXT NOT NULL, 
	key TEXT NOT NULL, 
	scope TEXT NOT NULL, 
	arguments_hash TEXT NOT NULL, 
	status TEXT NOT NULL, 
	doubt BOOLEAN DEFAULT false NOT NULL, 
	run UUID, 
	call UUID, 
	first_sent_at TIMESTAMP WITH TIME ZONE, 
	expires_at TIMESTAMP WITH TIME ZONE, 
	receipt TEXT, 
	result TEXT, 
	preview TEXT, 
	reused INTEGER DEFAULT 0 NOT NULL, 
	proof UUID, 
	CONSTRAINT operations_pkey PRIMARY KEY (key, tenant)
);

CREATE TABLE fencepost.outbox (
	tenant TEXT NOT NULL, 
	subject UUID NOT NULL, 
	kind TEXT NOT NULL, 
	run UUID NOT NULL, 
	generation BIGINT NOT NULL, 
	queue TEXT NOT NULL, 
	due_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	publish_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	publish_count INTEGER DEFAULT 0 NOT NULL, 
	takeovers INTEGER DEFAULT 0 NOT NULL, 
	worker TEXT, 
	fence BIGINT DEFAULT 0 NOT NULL, 
	CONSTRAINT outbox_pkey PRIMARY KEY (subject, tenant)
)
 WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

CREATE TABLE fencepost.payloads (
	tenant TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	data BYTEA NOT NULL, 
	CONSTRAINT payloads_pkey PRIMARY KEY (digest, tenant), 
	CONSTRAINT payloads_digest_check CHECK (digest = encode(sha256(data), 'hex'))
);

CREATE TABLE fencepost.runs (
	tenant TEXT NOT NULL, 
	id UUID NOT NULL, 
	run_key TEXT NOT NULL, 
	planner TEXT NOT NULL, 
	planner_version INTEGER NOT NULL, 
	principal TEXT NOT NULL, 
	request JSONB NOT NULL, 
	on_stop TEXT NOT NULL, 
	created_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	deadline TIMESTAMP WITH TIME ZONE NOT NULL, 
	status TEXT DEFAULT 'QUEUED' NOT NULL, 
	stop_reason TEXT, 
	stop_detail TEXT, 
	turn INTEGER DEFAULT 0 NOT NULL, 
	requests INTEGER DEFAULT 0 NOT NULL, 
	calls INTEGER DEFAULT 0 NOT NULL, 
	attempts INTEGER DEFAULT 0 NOT NULL, 
	open INTEGER DEFAULT 0 NOT NULL, 
	unsettled INTEGER DEFAULT 0 NOT NULL, 
	repairs INTEGER DEFAULT 0 NOT NULL, 
	effects INTEGER DEFAULT 0 NOT NULL, 
	failures INTEGER DEFAULT 0 NOT NULL, 
	ready_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	result TEXT, 
	preview TEXT, 
	fence BIGINT DEFAULT 0 NOT NULL, 
	owner TEXT, 
	calls_sum TEXT DEFAULT '0000000000000000000000000000000000000000000000000000000000000000' NOT NULL, 
	seq BIGINT DEFAULT 0 NOT NULL, 
	head_hash TEXT DEFAULT '0000000000000000000000000000000000000000000000000000000000000000' NOT NULL, 
	presented_owner TEXT, 
	presented_fence BIGINT, 
	presented_version BIGINT, 
	presented_office TEXT, 
	presented_call UUID, 
	CONSTRAINT runs_pkey PRIMARY KEY (id, tenant)
);

CREATE TABLE fencepost.workers (
	token TEXT NOT NULL, 
	role TEXT NOT NULL, 
	host TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	started_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	last_seen TIMESTAMP WITH TIME ZONE NOT NULL, 
	ended_at TIMESTAMP WITH TIME ZONE, 
	CONSTRAINT workers_pkey PRIMARY KEY (token)
);

CREATE TABLE fencepost.calls (
	tenant TEXT NOT NULL, 
	id UUID NOT NULL, 
	run UUID NOT NULL, 
	turn INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	label TEXT NOT NULL, 
	tool TEXT NOT NULL, 
	tool_version INTEGER NOT NULL, 
	effect TEXT NOT NULL, 
	operation TEXT, 
	scope TEXT NOT NULL, 
	compensates TEXT, 
	arguments TEXT NOT NULL, 
	arguments_hash TEXT NOT NULL, 
	required BOOLEAN NOT NULL, 
	state TEXT NOT NULL, 
	doubt BOOLEAN DEFAULT false NOT NULL, 
	attempts INTEGER DEFAULT 0 NOT NULL, 
	ready_at TIMESTAMP WITH TIME ZONE NOT NULL, 
	waits BOOLEAN DEFAULT false NOT NULL, 
	request TEXT, 
	in_flight_until TIMESTAMP WITH TIME ZONE, 
	quiet_at TIMESTAMP WITH TIME ZONE, 
	reconcile_until TIMESTAMP WITH TIME ZONE, 
	asks INTEGER DEFAULT 0 NOT NULL, 
	lost BOOLEAN DEFAULT false NOT NULL, 
	lookup TEXT, 
	receipt TEXT, 
	result TEXT, 
	preview TEXT, 
	error TEXT, 
	reused BOOLEAN DEFAULT false NOT NULL, 
	proof UUID, 
	settled_seq BIGINT, 
	fence BIGINT DEFAULT 0 NOT NULL, 
	owner TEXT, 
	version BIGINT NOT NULL, 
	presented_owner TEXT, 
	presented_fence BIGINT, 
	presented_version BIGINT, 
	presented_office TEXT, 
	CONSTRAINT calls_pkey PRIMARY KEY (id, tenant), 
	CONSTRAINT calls_run_fkey FOREIGN KEY(tenant, run) REFERENCES fencepost.runs (tenant, id)
);

CREATE INDEX calls_of_run ON fencepost.calls (run);

CREATE UNIQUE INDEX calls_one_compensation ON fencepost.calls (compensates, tenant) WHERE compensates IS NOT NULL AND state NOT IN ('CANCELLED', 'FAILED', 'REJECTED');

CREATE INDEX calls_open ON fencepost.calls (run) WHERE state IN ('AWAITING_APPROVAL', 'DISPATCHING', 'INTENT_RECORDED', 'NEEDS_REPAIR', 'UNKNOWN') OR doubt;

CREATE INDEX calls_waiting ON fencepost.calls (operation) WHERE waits;

CREATE INDEX evidence_call ON fencepost.evidence (call);

CREATE INDEX outbox_publish_at ON fencepost.outbox (publish_at);

CREATE INDEX outbox_run ON fencepost.outbox (run);

CREATE INDEX outbox_worker ON fencepost.outbox (worker) WHERE worker IS NOT NULL;

CREATE UNIQUE INDEX runs_key ON fencepost.runs (run_key, tenant) WHERE run_key <> '';

CREATE INDEX runs_open ON fencepost.runs (created_at) WHERE status NOT IN ('COMPLETED', 'STOPPED');

CREATE FUNCTION fencepost.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT clock_timestamp() $$;

CREATE FUNCTION fencepost.guard_call() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    run_status text;
    run_owner text;
    run_fence bigint;
    via text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'calls are never deleted' USING ERRCODE = 'FP004';
    END IF;
    -- The run's lock serialises every change of its calls with its completion.
    SELECT status, owner, fence INTO run_status, run_owner, run_fence
        FROM fencepost.runs WHERE tenant = NEW.tenant AND id = NEW.run FOR NO KEY UPDATE;
    IF TG_OP = 'INSERT' THEN
        IF NEW.presented_owner IS NULL OR NEW.presented_owner IS DISTINCT FROM run_owner
           OR NEW.presented_fence IS DISTINCT FROM run_fence THEN
            RAISE EXCEPTION 'call %: proposed without the term of its run', NEW.id USING ERRCODE = 'FP002';
        END IF;
        IF NEW.state NOT IN ('AWAITING_APPROVAL', 'CANCELLED', 'INTENT_RECORDED', 'REJECTED')
           OR NEW.doubt OR NEW.attempts <> 0 OR NEW.owner IS NOT NULL THEN
            RAISE EXCEPTION 'call %: cannot begin %', NEW.id, NEW.state USING ERRCODE = 'FP001';
        END IF;
        IF run_status NOT IN ('PLANNING', 'COMPENSATING') THEN
            RAISE EXCEPTION 'call %: its run is %', NEW.id, run_status USING ERRCODE = 'FP001';
        END IF;
    ELSE
        IF (NEW.tenant, NEW.id, NEW.run, NEW.turn, NEW.ordinal, NEW.label, NEW.tool, NEW.tool_version,
            NEW.effect, NEW.operation, NEW.scope, NEW.compensates, NEW.arguments, NEW.arguments_hash,
            NEW.required)
           IS DISTINCT FROM
           (OLD.tenant, OLD.id, OLD.run, OLD.turn, OLD.ordinal, OLD.label, OLD.tool, OLD.tool_version,
            OLD.effect, OLD.operation, OLD.scope, OLD.compensates, OLD.arguments, OLD.arguments_hash,
            OLD.required)
           OR (OLD.request IS NOT NULL AND NEW.request IS DISTINCT FROM OLD.request) THEN
            RAISE EXCEPTION 'call %: what was proposed and sent does not change', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        IF NEW.version IS DISTINCT FROM OLD.version AND (NEW.version < OLD.version OR NOT EXISTS (
            SELECT 1 FROM fencepost.events e WHERE e.tenant = NEW.tenant AND e.run = NEW.run
                AND e.seq = NEW.version AND e.call = NEW.id)) THEN
            RAISE EXCEPTION 'call %: its version moves only with its events', NEW.id USING ERRCODE = 'FP004';
        END IF;
        IF NEW.fence < OLD.fence THEN
            RAISE EXCEPTION 'call %: a fence never falls', NEW.id USING ERRCODE = 'FP002';
        END IF;
        IF NEW.attempts < OLD.attempts OR NEW.in_flight_until < OLD.in_flight_until
           OR (OLD.in_flight_until IS NOT NULL AND NEW.in_flight_until IS NULL) THEN
            RAISE EXCEPTION 'call %: an attempt cannot be unmade', NEW.id USING ERRCODE = 'FP001';
        END IF;
        IF (NEW.state, NEW.owner, NEW.fence, NEW.doubt, NEW.attempts, NEW.receipt, NEW.result, NEW.proof,
            NEW.in_flight_until, NEW.quiet_at, NEW.reconcile_until, NEW.request)
           IS DISTINCT FROM
           (OLD.state, OLD.owner, OLD.fence, OLD.doubt, OLD.attempts, OLD.receipt, OLD.result, OLD.proof,
            OLD.in_flight_until, OLD.quiet_at, OLD.reconcile_until, OLD.request) THEN
            IF NEW.presented_office IS NOT NULL THEN
                via := NEW.presented_office;
                IF via NOT IN ('cancel', 'evidence', 'repair') THEN
                    RAISE EXCEPTION 'call %: there is no office %', NEW.id, via USING ERRCODE = 'FP002';
                END IF;
                IF via = 'repair' AND NOT pg_has_role(current_user, 'fencepost_operator', 'member') THEN
                    RAISE EXCEPTION 'call %: % is not an operator', NEW.id, current_user
                        USING ERRCODE = 'FP002';
                END IF;
                IF NEW.presented_version IS DISTINCT FROM OLD.version THEN
                    RAISE EXCEPTION 'call %: office % saw version %, it is %', NEW.id, via,
                        NEW.presented_version, OLD.version USING ERRCODE = 'FP002';
                END IF;
                IF NEW.fence <= OLD.fence OR NEW.owner IS NOT NULL THEN
                    RAISE EXCEPTION 'call %: an office raises the fence and clears the owner', NEW.id
                        USING ERRCODE = 'FP002';
                END IF;
            ELSIF NEW.presented_owner IS NULL OR NEW.presented_fence IS NULL THEN
                RAISE EXCEPTION 'call %: no term and no office', NEW.id USING ERRCODE = 'FP002';
            ELSIF NEW.presented_owner = OLD.owner AND NEW.presented_fence = OLD.fence THEN
                via := 'term';
                IF NEW.fence <> OLD.fence OR (NEW.owner IS NOT NULL AND NEW.owner <> OLD.owner) THEN
                    RAISE EXCEPTION 'call %: a term does not change itself', NEW.id USING ERRCODE = 'FP002';
                END IF;
            ELSIF NEW.presented_fence > OLD.fence THEN
                via := 'claim';
                IF NEW.fence <> NEW.presented_fence
                   OR (NEW.owner IS NOT NULL AND NEW.owner <> NEW.presented_owner) THEN
                    RAISE EXCEPTION 'call %: a claim takes the term it presents', NEW.id
                        USING ERRCODE = 'FP002';
                END IF;
            ELSE
                RAISE EXCEPTION 'call %: term %/% is not the accepted one', NEW.id, NEW.presented_owner,
                    NEW.presented_fence USING ERRCODE = 'FP002';
            END IF;
            IF (via || ':' || OLD.state || '>' || NEW.state) NOT IN ('cancel:AWAITING_APPROVAL>CANCELLED', 'cancel:INTENT_RECORDED>CANCELLED', 'claim:DISPATCHING>DISPATCHING', 'claim:DISPATCHING>FAILED', 'claim:DISPATCHING>INTENT_RECORDED', 'claim:DISPATCHING>NEEDS_REPAIR', 'claim:DISPATCHING>SUCCEEDED', 'claim:DISPATCHING>UNKNOWN', 'claim:INTENT_RECORDED>AWAITING_APPROVAL', 'claim:INTENT_RECORDED>DISPATCHING', 'claim:INTENT_RECORDED>INTENT_RECORDED', 'claim:INTENT_RECORDED>REJECTED', 'claim:INTENT_RECORDED>SUCCEEDED', 'claim:UNKNOWN>DISPATCHING', 'claim:UNKNOWN>FAILED', 'claim:UNKNOWN>NEEDS_REPAIR', 'claim:UNKNOWN>SUCCEEDED', 'claim:UNKNOWN>UNKNOWN', 'evidence:ACCEPTED_UNKNOWN>NEEDS_REPAIR', 'evidence:CANCELLED>NEEDS_REPAIR', 'evidence:FAILED>NEEDS_REPAIR', 'evidence:INTENT_RECORDED>NEEDS_REPAIR', 'evidence:REJECTED>NEEDS_REPAIR', 'evidence:SUCCEEDED>NEEDS_REPAIR', 'repair:NEEDS_REPAIR>ACCEPTED_UNKNOWN', 'repair:NEEDS_REPAIR>FAILED', 'repair:NEEDS_REPAIR>SUCCEEDED', 'repair:NEEDS_REPAIR>UNKNOWN', 'term:DISPATCHING>FAILED', 'term:DISPATCHING>INTENT_RECORDED', 'term:DISPATCHING>NEEDS_REPAIR', 'term:DISPATCHING>SUCCEEDED', 'term:DISPATCHING>UNKNOWN', 'term:UNKNOWN>FAILED', 'term:UNKNOWN>NEEDS_REPAIR', 'term:UNKNOWN>SUCCEEDED', 'term:UNKNOWN>UNKNOWN') THEN
                RAISE EXCEPTION 'call %: % may not move it from % to %', NEW.id, via, OLD.state, NEW.state
                    USING ERRCODE = 'FP001';
            END IF;
            IF (OLD.doubt AND NOT NEW.doubt)
               AND (NEW.proof IS NULL OR NEW.proof IS NOT DISTINCT FROM OLD.proof OR NOT EXISTS (
                    SELECT 1 FROM fencepost.events e
                    WHERE e.id = NEW.proof
                      AND (e.tenant, e.run, e.call) IS NOT DISTINCT FROM (NEW.tenant, NEW.run, NEW.id)
                      AND e.type IN ('RepairDecided', 'ToolAttemptFailed', 'ToolEffectReconciled', 'ToolResultRecorded'))) THEN
                RAISE EXCEPTION 'call %: doubt is cleared only by a proof', NEW.id USING ERRCODE = 'FP003';
            END IF;
            IF NEW.doubt AND NEW.state IN ('ACCEPTED_UNKNOWN', 'CANCELLED', 'FAILED', 'REJECTED', 'SUCCEEDED') THEN
                RAISE EXCEPTION 'call %: it cannot end % in doubt', NEW.id, NEW.state USING ERRCODE = 'FP003';
            END IF;
            IF NEW.version = OLD.version THEN
                RAISE EXCEPTION 'call %: changed without an event', NEW.id USING ERRCODE = 'FP004';
            END IF;
            -- Nothing but a repair, evidence or a reconciliation touches calls of a run that has completed.
            IF run_status = 'COMPLETED' AND via NOT IN ('evidence', 'repair')
               AND OLD.state NOT IN ('DISPATCHING', 'UNKNOWN') THEN
                RAISE EXCEPTION 'call %: its run has completed', NEW.id USING ERRCODE = 'FP001';
            END IF;
        END IF;
    END IF;
    NEW.presented_owner := NULL;
    NEW.presented_fence := NULL;
    NEW.presented_version := NULL;
    NEW.presented_office := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_call BEFORE INSERT OR UPDATE OR DELETE ON fencepost.calls
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_call();

CREATE FUNCTION fencepost.guard_run() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    via text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'runs are never deleted' USING ERRCODE = 'FP004';
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'QUEUED' OR NEW.seq <> 0 OR NEW.owner IS NOT NULL OR NEW.fence <> 0 THEN
            RAISE EXCEPTION 'run %: a run begins QUEUED, with no history and no owner', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
    ELSE
        IF (NEW.tenant, NEW.id, NEW.run_key, NEW.planner, NEW.planner_version, NEW.principal, NEW.request,
            NEW.on_stop, NEW.created_at, NEW.deadline)
           IS DISTINCT FROM
           (OLD.tenant, OLD.id, OLD.run_key, OLD.planner, OLD.planner_version, OLD.principal, OLD.request,
            OLD.on_stop, OLD.created_at, OLD.deadline) THEN
            RAISE EXCEPTION 'run %: its request does not change', NEW.id USING ERRCODE = 'FP001';
        END IF;
        IF NEW.fence < OLD.fence THEN
            RAISE EXCEPTION 'run %: a fence never falls', NEW.id USING ERRCODE = 'FP002';
        END IF;
        IF (NEW.seq, NEW.head_hash) IS DISTINCT FROM (OLD.seq, OLD.head_hash)
           AND (NEW.seq <= OLD.seq OR NOT EXISTS (
                SELECT 1 FROM fencepost.events e WHERE e.tenant = NEW.tenant AND e.run = NEW.id
                    AND e.seq = NEW.seq AND e.hash = NEW.head_hash)) THEN
            RAISE EXCEPTION 'run %: seq and head_hash move only with events', NEW.id USING ERRCODE = 'FP004';
        END IF;
        IF (NEW.status, NEW.stop_reason, NEW.owner, NEW.fence, NEW.result)
           IS DISTINCT FROM (OLD.status, OLD.stop_reason, OLD.owner, OLD.fence, OLD.result) THEN
            IF NEW.seq = OLD.seq THEN
                RAISE EXCEPTION 'run %: changed without an event', NEW.id USING ERRCODE = 'FP004';
            END IF;
            IF NEW.presented_office = 'call' THEN
                via := 'call';
                IF NOT EXISTS (SELECT 1 FROM fencepost.calls c
                        WHERE c.tenant = NEW.tenant AND c.id = NEW.presented_call
                        AND c.run IS NOT DISTINCT FROM NEW.id AND (c.fence < NEW.presented_fence
                            OR (c.fence = NEW.presented_fence AND c.owner = NEW.presented_owner))) THEN
                    RAISE EXCEPTION 'run %: the presented term of its call is not the accepted one', NEW.id
                        USING ERRCODE = 'FP002';
                END IF;
            ELSIF NEW.presented_office IS NOT NULL THEN
                via := NEW.presented_office;
                IF via NOT IN ('cancel', 'repair') THEN
                    RAISE EXCEPTION 'run %: there is no office %', NEW.id, via USING ERRCODE = 'FP002';
                END IF;
                IF via = 'repair' AND NOT pg_has_role(current_user, 'fencepost_operator', 'member') THEN
                    RAISE EXCEPTION 'run %: % is not an operator', NEW.id, current_user
                        USING ERRCODE = 'FP002';
                END IF;
                IF NEW.presented_version IS DISTINCT FROM OLD.seq THEN
                    RAISE EXCEPTION 'run %: office % saw version %, it is %', NEW.id, via,
                        NEW.presented_version, OLD.seq USING ERRCODE = 'FP002';
                END IF;
            ELSIF NEW.presented_owner IS NULL OR NEW.presented_fence IS NULL THEN
                RAISE EXCEPTION 'run %: no term and no office', NEW.id USING ERRCODE = 'FP002';
            ELSIF NEW.presented_owner = OLD.owner AND NEW.presented_fence = OLD.fence THEN
                via := 'term';
                IF NEW.fence <> OLD.fence OR (NEW.owner IS NOT NULL AND NEW.owner <> OLD.owner) THEN
                    RAISE EXCEPTION 'run %: a term does not change itself', NEW.id USING ERRCODE = 'FP002';
                END IF;
            ELSIF NEW.presented_fence > OLD.fence THEN
                via := 'claim';
                IF NEW.fence <> NEW.presented_fence
                   OR (NEW.owner IS NOT NULL AND NEW.owner <> NEW.presented_owner) THEN
                    RAISE EXCEPTION 'run %: a claim takes the term it presents', NEW.id
                        USING ERRCODE = 'FP002';
                END IF;
            ELSE
                RAISE EXCEPTION 'run %: term %/% is not the accepted one', NEW.id, NEW.presented_owner,
                    NEW.presented_fence USING ERRCODE = 'FP002';
            END IF;
            IF via NOT IN ('term', 'claim') AND (NEW.fence <= OLD.fence OR NEW.owner IS NOT NULL) THEN
                RAISE EXCEPTION 'run %: % raises the fence and clears the owner', NEW.id, via
                    USING ERRCODE = 'FP002';
            END IF;
            IF (via || ':' || OLD.status || '>' || NEW.status) NOT IN ('call:ACTING>COMPENSATING', 'call:ACTING>STOPPED', 'call:ACTING>STOPPING', 'call:PLANNING>COMPENSATING', 'call:PLANNING>STOPPED', 'call:PLANNING>STOPPING', 'call:QUEUED>COMPENSATING', 'call:QUEUED>STOPPED', 'call:QUEUED>STOPPING', 'call:STOPPING>COMPENSATING', 'call:STOPPING>STOPPED', 'cancel:ACTING>COMPENSATING', 'cancel:ACTING>STOPPED', 'cancel:ACTING>STOPPING', 'cancel:PLANNING>COMPENSATING', 'cancel:PLANNING>STOPPED', 'cancel:PLANNING>STOPPING', 'cancel:QUEUED>COMPENSATING', 'cancel:QUEUED>STOPPED', 'cancel:QUEUED>STOPPING', 'claim:ACTING>COMPENSATING', 'claim:ACTING>PLANNING', 'claim:ACTING>STOPPED', 'claim:ACTING>STOPPING', 'claim:COMPENSATING>COMPENSATING', 'claim:COMPENSATING>STOPPED', 'claim:PLANNING>COMPENSATING', 'claim:PLANNING>PLANNING', 'claim:PLANNING>STOPPED', 'claim:PLANNING>STOPPING', 'claim:QUEUED>COMPENSATING', 'claim:QUEUED>PLANNING', 'claim:QUEUED>STOPPED', 'claim:QUEUED>STOPPING', 'claim:STOPPING>COMPENSATING', 'claim:STOPPING>STOPPED', 'claim:STOPPING>STOPPING', 'repair:ACTING>COMPENSATING', 'repair:ACTING>STOPPED', 'repair:ACTING>STOPPING', 'repair:PLANNING>COMPENSATING', 'repair:PLANNING>STOPPED', 'repair:PLANNING>STOPPING', 'repair:STOPPED>COMPENSATING', 'repair:STOPPING>COMPENSATING', 'repair:STOPPING>STOPPED', 'term:COMPENSATING>COMPENSATING', 'term:COMPENSATING>STOPPED', 'term:PLANNING>ACTING', 'term:PLANNING>COMPENSATING', 'term:PLANNING>COMPLETED', 'term:PLANNING>PLANNING', 'term:PLANNING>STOPPED', 'term:PLANNING>STOPPING') THEN
                RAISE EXCEPTION 'run %: % may not move it from % to %', NEW.id, via, OLD.status, NEW.status
                    USING ERRCODE = 'FP001';
            END IF;
            IF NEW.status = 'COMPLETED' AND OLD.status <> 'COMPLETED' AND EXISTS (
                SELECT 1 FROM fencepost.calls c
                    WHERE c.run = NEW.id AND c.tenant IS NOT DISTINCT FROM NEW.tenant
                    AND (c.state IN ('AWAITING_APPROVAL', 'DISPATCHING', 'INTENT_RECORDED', 'NEEDS_REPAIR', 'UNKNOWN') OR c.doubt)) THEN
                RAISE EXCEPTION 'run %: it has an open or doubtful call', NEW.id USING ERRCODE = 'FP001';
            END IF;
        END IF;
    END IF;
    NEW.presented_owner := NULL;
    NEW.presented_fence := NULL;
    NEW.presented_version := NULL;
    NEW.presented_office := NULL;
    NEW.presented_call := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_run BEFORE INSERT OR UPDATE OR DELETE ON fencepost.runs
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_run();

CREATE FUNCTION fencepost.guard_stopped() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Judged at COMMIT: the last call's outcome and the run's end are one change, but two statements.
    IF EXISTS (SELECT 1 FROM fencepost.runs r
            WHERE r.tenant = NEW.tenant AND r.id = NEW.id AND r.status = 'STOPPED')
       AND EXISTS (SELECT 1 FROM fencepost.calls c
            WHERE c.run = NEW.id AND c.tenant IS NOT DISTINCT FROM NEW.tenant
            AND c.state IN ('AWAITING_APPROVAL', 'INTENT_RECORDED', 'DISPATCHING', 'UNKNOWN')) THEN
        RAISE EXCEPTION 'run %: it cannot stop while a call is unsent or unsettled', NEW.id
            USING ERRCODE = 'FP001';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER guard_stopped AFTER UPDATE ON fencepost.runs DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.status = 'STOPPED' AND OLD.status <> 'STOPPED')
    EXECUTE FUNCTION fencepost.guard_stopped();

CREATE FUNCTION fencepost.guard_operation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'operation keys are never forgotten' USING ERRCODE = 'FP004';
    END IF;
    IF (NEW.tenant, NEW.key, NEW.scope) IS DISTINCT FROM (OLD.tenant, OLD.key, OLD.scope)
       OR (OLD.first_sent_at IS NOT NULL AND NEW.first_sent_at IS DISTINCT FROM OLD.first_sent_at) THEN
        RAISE EXCEPTION 'operation %: its identity and first send do not change', NEW.key
            USING ERRCODE = 'FP001';
    END IF;
    IF OLD.doubt AND NEW.call IS DISTINCT FROM OLD.call THEN
        RAISE EXCEPTION 'operation %: a key in doubt is not handed on', NEW.key USING ERRCODE = 'FP003';
    END IF;
    IF NEW.call IS DISTINCT FROM OLD.call AND OLD.status NOT IN ('failed', 'released') THEN
        RAISE EXCEPTION 'operation %: a key that is % is not handed on', NEW.key, OLD.status
            USING ERRCODE = 'FP001';
    END IF;
    IF OLD.doubt AND NOT NEW.doubt
       AND (NEW.proof IS NULL OR NEW.proof IS NOT DISTINCT FROM OLD.proof OR NOT EXISTS (
            SELECT 1 FROM fencepost.events e
            WHERE e.id = NEW.proof
                AND (e.tenant, e.call) IS NOT DISTINCT FROM (NEW.tenant, NEW.call)
                AND e.type IN ('RepairDecided', 'ToolAttemptFailed', 'ToolEffectReconciled', 'ToolResultRecorded'))) THEN
        RAISE EXCEPTION 'operation %: doubt is cleared only by a proof', NEW.key USING ERRCODE = 'FP003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_operation BEFORE UPDATE OR DELETE ON fencepost.operations
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_operation();

CREATE FUNCTION fencepost.guard_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.tenant, NEW.subject, NEW.kind, NEW.run)
       IS DISTINCT FROM (OLD.tenant, OLD.subject, OLD.kind, OLD.run) THEN
        RAISE EXCEPTION 'outbox %: its subject does not change', NEW.subject USING ERRCODE = 'FP001';
    END IF;
    IF NEW.generation < OLD.generation THEN
        RAISE EXCEPTION 'outbox %: a generation never falls', NEW.subject USING ERRCODE = 'FP001';
    END IF;
    IF NEW.generation = OLD.generation AND (NEW.due_at > OLD.due_at
            OR (NEW.queue, NEW.worker, NEW.fence, NEW.takeovers)
               IS DISTINCT FROM (OLD.queue, OLD.worker, OLD.fence, OLD.takeovers)) THEN
        RAISE EXCEPTION 'outbox %: within a generation due_at only falls', NEW.subject
            USING ERRCODE = 'FP001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_outbox BEFORE UPDATE ON fencepost.outbox
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_outbox();

CREATE FUNCTION fencepost.guard_outbox_end() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    state text;
BEGIN
    -- Judged at COMMIT: an open subject always has its row, whatever its change wrote in between (I12).
    IF EXISTS (SELECT 1 FROM fencepost.outbox o WHERE o.tenant = OLD.tenant AND o.subject = OLD.subject) THEN
        RETURN NULL;
    END IF;
    -- By key first, judged afterwards: asked for an open call, Postgres may walk the index of all open ones.
    IF OLD.kind = 'run' THEN
        SELECT r.status INTO state FROM fencepost.runs r WHERE r.tenant = OLD.tenant AND r.id = OLD.subject;
    ELSE
        SELECT c.state INTO state FROM fencepost.calls c WHERE c.tenant = OLD.tenant AND c.id = OLD.subject;
    END IF;
    IF (OLD.kind = 'run' AND state NOT IN ('COMPLETED', 'STOPPED'))
       OR (OLD.kind = 'call' AND state IN ('AWAITING_APPROVAL', 'DISPATCHING', 'INTENT_RECORDED', 'NEEDS_REPAIR', 'UNKNOWN')) THEN
        RAISE EXCEPTION 'outbox %: its subject is open', OLD.subject USING ERRCODE = 'FP001';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER guard_outbox_end AFTER DELETE ON fencepost.outbox DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_outbox_end();

CREATE FUNCTION fencepost.append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'FP004';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON fencepost.events
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.events
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON fencepost.evidence
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.evidence
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.calls
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.runs
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.operations
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();

CREATE FUNCTION fencepost.guard_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- What a foreign key would ask of every row, asked once of a statement's; runs are never deleted.
    IF EXISTS (SELECT 1 FROM (SELECT DISTINCT tenant, run FROM added) a
            WHERE NOT EXISTS (SELECT 1 FROM fencepost.runs r WHERE r.tenant = a.tenant AND r.id = a.run)) THEN
        RAISE EXCEPTION 'an event of a run that does not exist' USING ERRCODE = 'FP004';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER guard_events AFTER INSERT ON fencepost.events REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.guard_events();

CREATE FUNCTION fencepost.guard_evidence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.tenant = NEW.tenant AND e.run = NEW.run
            AND e.type = 'ToolAttemptStarted' AND e.call = NEW.call AND e.attempt = NEW.attempt
            AND e.worker = NEW.owner AND e.fence = NEW.fence) THEN
        RAISE EXCEPTION 'evidence %: no such attempt was ever started', NEW.id USING ERRCODE = 'FP002';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_evidence BEFORE INSERT ON fencepost.evidence
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_evidence();

CREATE FUNCTION fencepost.enqueue_run(
    p_tenant text, p_run_key text, p_planner text, p_version integer, p_principal text, p_input jsonb,
    p_deadline interval, p_budget jsonb DEFAULT '{}', p_on_stop text DEFAULT 'compensate',
    p_id uuid DEFAULT gen_random_uuid()
) RETURNS TABLE (run uuid, created boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    v_now timestamptz := fencepost.now();
    v_request jsonb;
    v_run fencepost.runs;
BEGIN
    IF coalesce(p_tenant, '') = '' OR coalesce(p_run_key, '') = '' OR coalesce(p_planner, '') = ''
       OR coalesce(p_principal, '') = '' OR p_version IS NULL OR p_input IS NULL OR p_budget IS NULL THEN
        RAISE EXCEPTION 'tenant, run key, planner, version, principal, input and budget are required'
            USING ERRCODE = 'FP422';
    END IF;
    IF length(p_run_key) > 200 OR length(p_tenant) > 100 OR length(p_principal) > 200
       OR length(p_planner) > 200 THEN
        RAISE EXCEPTION 'a run key, principal or planner has at most 200 characters, a tenant 100'
            USING ERRCODE = 'FP422';
    END IF;
    IF octet_length(p_input::text) > 1048576 THEN
        RAISE EXCEPTION 'a run''s input is at most 1 MiB; keep the rest elsewhere and pass a reference'
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
            WHEN name IN ('turns', 'calls', 'attempts') THEN
                value::text !~ '^[0-9]{1,10}$' OR value::bigint > 2147483647
            ELSE true END) THEN
        RAISE EXCEPTION 'a budget holds whole numbers under turns, calls, attempts and wall_clock_ms, not %',
            left(p_budget::text, 200) USING ERRCODE = 'FP422';
    END IF;
    IF p_on_stop IS NULL OR p_on_stop NOT IN ('compensate', 'leave') THEN
        RAISE EXCEPTION 'on_stop is compensate or leave, not %', p_on_stop USING ERRCODE = 'FP422';
    END IF;
    v_request := jsonb_build_object('planner', p_planner, 'version', p_version, 'principal', p_principal,
        'input', p_input, 'deadline', extract(epoch FROM p_deadline), 'budget', p_budget,
        'on_stop', p_on_stop);
    INSERT INTO fencepost.runs (tenant, id, run_key, planner, planner_version, principal, request, on_stop,
                                created_at, deadline, ready_at)
    VALUES (p_tenant, p_id, p_run_key, p_planner, p_version, p_principal, v_request, p_on_stop,
            v_now, v_now + p_deadline, v_now)
    ON CONFLICT (run_key, tenant) WHERE run_key <> '' DO NOTHING RETURNING * INTO v_run;
    IF FOUND THEN
        INSERT INTO fencepost.outbox (tenant, subject, kind, run, generation, queue, due_at, publish_at)
        VALUES (p_tenant, p_id, 'run', p_id, 1, 'planner', v_now, v_now);
        RETURN QUERY SELECT p_id, true;
        RETURN;
    END IF;
    SELECT * INTO v_run FROM fencepost.runs r
    WHERE r.tenant = p_tenant AND r.run_key = p_run_key AND r.run_key <> '';
    IF v_run.request <> v_request THEN
        RAISE EXCEPTION 'run key % is taken by another request', p_run_key USING ERRCODE = 'FP409',
            HINT = 'Use another run key, or send the request that was sent first.';
    END IF;
    RETURN QUERY SELECT v_run.id, false;
END $$;
REVOKE ALL ON FUNCTION fencepost.enqueue_run FROM PUBLIC;

GRANT USAGE ON SCHEMA fencepost TO fencepost_worker, fencepost_relay, fencepost_producer, fencepost_operator,
    fencepost_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA fencepost TO fencepost_worker, fencepost_operator, fencepost_reader;
GRANT INSERT ON fencepost.events, fencepost.calls, fencepost.operations, fencepost.evidence,
    fencepost.payloads, fencepost.workers, fencepost.outbox TO fencepost_worker, fencepost_operator;
GRANT UPDATE ON fencepost.runs, fencepost.calls, fencepost.operations, fencepost.outbox, fencepost.workers
    TO fencepost_worker, fencepost_operator;
GRANT DELETE ON fencepost.outbox TO fencepost_worker, fencepost_operator;
GRANT SELECT ON fencepost.outbox, fencepost.workers TO fencepost_relay;
GRANT UPDATE (publish_at, publish_count, due_at) ON fencepost.outbox TO fencepost_relay;
GRANT SELECT ON fencepost.runs TO fencepost_producer;
GRANT EXECUTE ON FUNCTION fencepost.enqueue_run TO fencepost_producer, fencepost_operator, fencepost_worker;
