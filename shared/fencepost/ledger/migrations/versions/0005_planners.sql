SET LOCAL lock_timeout = '2s';

-- What models have used of a run's budget, and where the run stands in a tree of runs.
ALTER TABLE fencepost.runs
    ADD COLUMN tokens bigint DEFAULT 0 NOT NULL, ADD COLUMN cost bigint DEFAULT 0 NOT NULL,
    ADD COLUMN held_tokens bigint DEFAULT 0 NOT NULL, ADD COLUMN held_cost bigint DEFAULT 0 NOT NULL,
    ADD COLUMN bytes bigint DEFAULT 0 NOT NULL, ADD COLUMN fruitless integer DEFAULT 0 NOT NULL,
    ADD COLUMN detached integer DEFAULT 0 NOT NULL, ADD COLUMN depth integer DEFAULT 0 NOT NULL,
    ADD COLUMN outages integer DEFAULT 0 NOT NULL, ADD COLUMN written integer DEFAULT 1 NOT NULL,
    ADD COLUMN root uuid, ADD COLUMN parent uuid, ADD COLUMN parent_call uuid, ADD COLUMN below text,
    ADD COLUMN markers text, ADD COLUMN traceparent text, ADD COLUMN unknowns integer DEFAULT 0 NOT NULL;
-- Which run a call has started, and whether its turn still waits for it.
ALTER TABLE fencepost.calls ADD COLUMN child uuid, ADD COLUMN detached boolean DEFAULT false NOT NULL;
-- The tree a row belongs to, which is the trace of whatever is done about it; none for a root's own rows.
ALTER TABLE fencepost.outbox ADD COLUMN root uuid;
-- Whether nobody vouches for the result of a key, which other runs may take.
ALTER TABLE fencepost.operations ADD COLUMN untrusted boolean DEFAULT false NOT NULL;
-- Which versions of planners and tools a process can run, as it says with its first stamp.
ALTER TABLE fencepost.workers ADD COLUMN knows text;

-- A producer may say whose trace its run belongs to.
DROP FUNCTION fencepost.enqueue_run(text, text, text, integer, text, jsonb, interval, jsonb, text, uuid);

-- Messages to runs, and the tokens of producers over HTTP.
DO $$ BEGIN
    CREATE ROLE fencepost_api NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;  -- roles are shared by all databases of a cluster
END $$;
CREATE TABLE fencepost.signals (
    tenant TEXT NOT NULL,
    run UUID NOT NULL,
    number INTEGER NOT NULL,
    key TEXT NOT NULL,
    name TEXT NOT NULL,
    body JSONB NOT NULL,
    sender TEXT NOT NULL,
    sent_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT signals_pkey PRIMARY KEY (run, number, tenant)
);
CREATE UNIQUE INDEX signals_key ON fencepost.signals (run, key, tenant);
CREATE TABLE fencepost.api_tokens (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    principals TEXT NOT NULL,
    scopes TEXT NOT NULL,
    digest TEXT NOT NULL,
    note TEXT DEFAULT '' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    created_by TEXT NOT NULL,
    login TEXT NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE,
    last_used_at TIMESTAMP WITH TIME ZONE,
    revoked_at TIMESTAMP WITH TIME ZONE,
    revoked_by TEXT,
    CONSTRAINT api_tokens_pkey PRIMARY KEY (id)
);
GRANT SELECT ON fencepost.signals, fencepost.api_tokens TO fencepost_worker, fencepost_operator, fencepost_reader;
GRANT USAGE ON SCHEMA fencepost TO fencepost_api;
GRANT SELECT ON fencepost.runs, fencepost.events, fencepost.calls, fencepost.payloads, fencepost.signals,
    fencepost.api_tokens, fencepost.operations, fencepost.outbox, fencepost.workers, fencepost.dependencies,
    fencepost.allowances, fencepost.epochs, fencepost.policies, fencepost.principals, fencepost.delegations,
    fencepost.withdrawn TO fencepost_api;
GRANT INSERT ON fencepost.events TO fencepost_api;
GRANT INSERT (tenant, subject, kind, run, generation, queue, due_at, takeovers, worker, fence, root,
    publish_at, publish_count) ON fencepost.outbox TO fencepost_api;
GRANT UPDATE ON fencepost.runs, fencepost.calls, fencepost.operations TO fencepost_api;
GRANT UPDATE (generation, queue, due_at, takeovers, worker, fence, publish_at, publish_count)
    ON fencepost.outbox TO fencepost_api;
GRANT UPDATE (used_count, used_minor, event, presented_events, limit_count, limit_minor, currency)
    ON fencepost.allowances TO fencepost_api;
GRANT DELETE ON fencepost.outbox TO fencepost_api;
GRANT UPDATE (last_used_at) ON fencepost.api_tokens TO fencepost_api;
REVOKE SELECT ON fencepost.api_tokens FROM fencepost_worker, fencepost_reader;
GRANT INSERT ON fencepost.api_tokens TO fencepost_operator;
GRANT UPDATE (revoked_at, revoked_by) ON fencepost.api_tokens TO fencepost_operator;
GRANT SELECT (id, tenant, principals, scopes, note, created_at, created_by, login, expires_at, last_used_at,
    revoked_at, revoked_by) ON fencepost.api_tokens TO fencepost_reader;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON fencepost.signals
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.signals
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();

-- What runs remember, and what their results rest on.
CREATE TABLE fencepost.memory (
    tenant TEXT NOT NULL,
    space TEXT NOT NULL,
    key TEXT NOT NULL,
    version BIGINT NOT NULL,
    value TEXT,
    absent BOOLEAN DEFAULT false NOT NULL,
    restores BIGINT,
    untrusted BOOLEAN NOT NULL,
    operation TEXT NOT NULL,
    run UUID NOT NULL,
    call UUID NOT NULL,
    written_at TIMESTAMP WITH TIME ZONE NOT NULL,
    erased_at TIMESTAMP WITH TIME ZONE,
    erased_by TEXT,
    erased_reason TEXT,
    CONSTRAINT memory_pkey PRIMARY KEY (space, tenant, key, version),
    CONSTRAINT memory_operation_tenant_key UNIQUE (operation, tenant),
    CONSTRAINT memory_value_check CHECK (octet_length(value) <= 61440),
    CONSTRAINT memory_erased_check CHECK (num_nonnulls(erased_at, erased_by, erased_reason) IN (0, 3))
);
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.memory
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();
CREATE VIEW fencepost.grounding AS
SELECT e.tenant, e.run, e.seq, g.place, e.call, c.turn, c.label, c.tool, g.said ->> 'source' AS source,
    g.said ->> 'id' AS id, g.said ->> 'version' AS version, g.said ->> 'as_of' AS as_of,
    coalesce((g.said ->> 'stale')::boolean, false) AS stale, e.recorded_at,
    coalesce((e.body #>> '{ungrounded,left_out}')::bigint, 0) AS left_out,
    e.body #>> '{ungrounded,unread}' AS unread
FROM fencepost.events e JOIN fencepost.calls c ON c.id = e.call AND c.tenant = e.tenant
    LEFT JOIN LATERAL json_array_elements(e.body -> 'grounds') WITH ORDINALITY AS g (said, place) ON true
WHERE e.type IN ('ToolResultRecorded', 'ToolEffectReconciled')
    AND (e.body -> 'grounds' IS NOT NULL OR e.body -> 'ungrounded' IS NOT NULL);
GRANT SELECT ON fencepost.memory, fencepost.grounding TO fencepost_worker, fencepost_operator, fencepost_reader;
GRANT INSERT ON fencepost.memory TO fencepost_worker;
GRANT UPDATE (value, erased_at, erased_by, erased_reason) ON fencepost.memory TO fencepost_operator;

-- What is sent holds its key as well as what it sets.
DROP TRIGGER guard_setter ON fencepost.calls;
CREATE CONSTRAINT TRIGGER guard_setter AFTER UPDATE ON fencepost.calls DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.state = 'DISPATCHING' AND (NEW.resource IS NOT NULL OR NEW.operation IS NOT NULL))
    EXECUTE FUNCTION fencepost.guard_setter();

-- What is said of a call is said by its row as well.
DROP TRIGGER guard_head ON fencepost.events;
CREATE CONSTRAINT TRIGGER guard_head AFTER INSERT ON fencepost.events DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.projection IS NOT NULL OR NEW.call IS NOT NULL)
    EXECUTE FUNCTION fencepost.guard_head();

-- Functions that are new or changed, as they are defined beside the schema.

CREATE OR REPLACE FUNCTION fencepost.guard_call() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run_status text;
    run_owner text;
    run_fence bigint;
    run_deadline timestamptz;
    run_principal text;
    by_owner text;
    by_fence bigint;
    by_version bigint;
    by_office text;
    via text;
    said record;
    rest fencepost.calls;
    asked json;
    offset_too boolean;
    word record;
    verdict jsonb;
    settles boolean;
    waiting boolean;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'calls are never deleted' USING ERRCODE = 'FP004';
    END IF;
    by_owner := NEW.presented_owner;
    by_fence := NEW.presented_fence;
    by_version := NEW.presented_version;
    by_office := NEW.presented_office;
    NEW.presented_owner := NULL;
    NEW.presented_fence := NULL;
    NEW.presented_version := NULL;
    NEW.presented_office := NULL;
    -- The run's lock serialises every change of its calls with its completion.
    SELECT status, owner, fence, deadline, principal
        INTO run_status, run_owner, run_fence, run_deadline, run_principal
        FROM fencepost.runs WHERE tenant = NEW.tenant AND id = NEW.run FOR NO KEY UPDATE;
    IF TG_OP = 'INSERT' THEN

        IF by_owner IS NULL OR by_owner IS DISTINCT FROM run_owner OR by_fence IS DISTINCT FROM run_fence THEN
            RAISE EXCEPTION 'call %: proposed without the term of its run', NEW.id USING ERRCODE = 'FP002';
        END IF;
        IF NEW.state NOT IN ('AWAITING_APPROVAL', 'CANCELLED', 'INTENT_RECORDED', 'REJECTED')
           OR NEW.doubt OR NEW.attempts <> 0 OR NEW.owner IS NOT NULL OR NEW.reused OR NEW.lost
           OR NEW.asks <> 0 OR num_nonnulls(NEW.request, NEW.in_flight_until, NEW.quiet_at, NEW.lookup,
                NEW.receipt, NEW.result, NEW.proof, NEW.fingerprint, NEW.restored,
                NEW.reserved, NEW.child) <> 0 OR NEW.detached THEN
            RAISE EXCEPTION 'call %: cannot begin %, or with a past', NEW.id, NEW.state
                USING ERRCODE = 'FP001';
        END IF;
        IF NEW.approval IS NULL AND NEW.state = 'AWAITING_APPROVAL'
           OR NEW.approval IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.seq <= NEW.version
                AND e.tenant = NEW.tenant AND e.call IS NOT DISTINCT FROM NEW.id
                AND e.type = 'ApprovalRequested' AND NEW.approval::jsonb
                    = jsonb_build_object('asked', e.body::jsonb -> 'asked', 'decisions', '[]'::jsonb)) THEN
            RAISE EXCEPTION 'call %: nobody was asked to approve it like this', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        -- What offsets an effect is proposed by a run that stops, and nothing else is.
        IF run_status <> (CASE WHEN NEW.compensates IS NULL THEN 'PLANNING' ELSE 'COMPENSATING' END) THEN
            RAISE EXCEPTION 'call %: its run is %', NEW.id, run_status USING ERRCODE = 'FP001';
        END IF;
        IF NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.seq = NEW.version
                AND e.tenant = NEW.tenant AND e.call IS NOT DISTINCT FROM NEW.id) THEN
            RAISE EXCEPTION 'call %: proposed without an event', NEW.id USING ERRCODE = 'FP004';
        END IF;
    ELSE
        IF by_office IS DISTINCT FROM 'cancel' AND pg_has_role(current_user, 'fencepost_api', 'member')
           AND NOT pg_has_role(current_user, 'fencepost_worker', 'member')
           AND NOT pg_has_role(current_user, 'fencepost_operator', 'member') THEN
            RAISE EXCEPTION 'call %: % may cancel it, and nothing else', NEW.id, current_user
                USING ERRCODE = 'FP002';
        END IF;
        IF (NEW.tenant, NEW.id, NEW.run, NEW.turn, NEW.ordinal, NEW.label, NEW.tool, NEW.tool_version,
            NEW.effect, NEW.operation, NEW.scope, NEW.compensates, NEW.arguments, NEW.arguments_hash,
            NEW.required, NEW.resource)
           IS DISTINCT FROM
           (OLD.tenant, OLD.id, OLD.run, OLD.turn, OLD.ordinal, OLD.label, OLD.tool, OLD.tool_version,
            OLD.effect, OLD.operation, OLD.scope, OLD.compensates, OLD.arguments, OLD.arguments_hash,
            OLD.required, OLD.resource)
           OR (OLD.request IS NOT NULL AND NEW.request IS DISTINCT FROM OLD.request)
           OR (OLD.fingerprint IS NOT NULL AND NEW.fingerprint IS DISTINCT FROM OLD.fingerprint) THEN
            RAISE EXCEPTION 'call %: what was proposed and sent does not change', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        IF NEW.version = OLD.version THEN
            OLD.live := NULL;  -- computed after this
            OLD.offsets := NULL;
            IF NEW IS DISTINCT FROM OLD THEN
                RAISE EXCEPTION 'call %: changed without an event', NEW.id USING ERRCODE = 'FP004';
            END IF;
            RETURN NEW;
        END IF;
        SELECT e.id, e.type, e.attempt, e.worker, e.fence, e.body INTO said FROM fencepost.events e
            WHERE e.run = NEW.run AND e.seq = NEW.version AND e.tenant = NEW.tenant
                AND e.call IS NOT DISTINCT FROM NEW.id;
        IF NOT FOUND OR NEW.version < OLD.version THEN
            RAISE EXCEPTION 'call %: its version moves only with its events', NEW.id USING ERRCODE = 'FP004';
        END IF;
        -- Evidence wakes the reconciler of a doubt that nobody holds; whatever else changes is presented.
        IF said.type = 'EvidenceFiled' THEN
            rest := NEW;
            rest.version := OLD.version;
            rest.ready_at := OLD.ready_at;
            rest.live := OLD.live;  -- computed after this
            rest.offsets := OLD.offsets;
            IF rest IS NOT DISTINCT FROM OLD THEN
                IF NEW.ready_at <> OLD.ready_at AND (OLD.state <> 'UNKNOWN' OR OLD.owner IS NOT NULL) THEN
                    RAISE EXCEPTION 'call %: evidence does not move it', NEW.id USING ERRCODE = 'FP002';
                END IF;
                RETURN NEW;
            END IF;
        END IF;
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
        IF NEW.fence < OLD.fence THEN
            RAISE EXCEPTION 'call %: a fence never falls', NEW.id USING ERRCODE = 'FP002';
        END IF;
        IF NEW.attempts < OLD.attempts OR NEW.in_flight_until < OLD.in_flight_until
           OR (OLD.in_flight_until IS NOT NULL AND NEW.in_flight_until IS NULL) THEN
            RAISE EXCEPTION 'call %: an attempt cannot be unmade', NEW.id USING ERRCODE = 'FP001';
        END IF;
        IF by_office IS NOT NULL THEN
            via := by_office;
            IF via NOT IN ('approval', 'cancel', 'evidence', 'recover', 'repair') THEN
                RAISE EXCEPTION 'call %: there is no office %', NEW.id, via USING ERRCODE = 'FP002';
            END IF;
            IF via IN ('approval', 'repair', 'recover')
               AND NOT pg_has_role(current_user, 'fencepost_operator', 'member') THEN
                RAISE EXCEPTION 'call %: % is not an operator', NEW.id, current_user USING ERRCODE = 'FP002';
            END IF;
            IF by_version IS DISTINCT FROM OLD.version THEN
                RAISE EXCEPTION 'call %: office % saw version %, it is %', NEW.id, via, by_version,
                    OLD.version USING ERRCODE = 'FP002';
            END IF;
            IF NEW.fence <= OLD.fence OR NEW.owner IS NOT NULL THEN
                RAISE EXCEPTION 'call %: an office raises the fence and clears the owner', NEW.id
                    USING ERRCODE = 'FP002';
            END IF;
            IF via = 'recover' THEN
                IF (said.type, said.body ->> 'code')
                        IS DISTINCT FROM ('ToolOutcomeMarkedUnknown', 'ledger_restored')
                   OR NOT EXISTS (SELECT 1 FROM fencepost.epochs p WHERE p.released_at IS NULL
                        AND p.epoch::text = said.body ->> 'epoch') THEN
                    RAISE EXCEPTION 'call %: the ledger is not held after a restore', NEW.id
                        USING ERRCODE = 'FP002';
                END IF;
            END IF;
        ELSIF by_owner IS NULL OR by_fence IS NULL THEN
            RAISE EXCEPTION 'call %: no term and no office', NEW.id USING ERRCODE = 'FP002';
        ELSIF by_owner = OLD.owner AND by_fence = OLD.fence THEN
            via := 'term';
            IF NEW.fence <> OLD.fence OR (NEW.owner IS NOT NULL AND NEW.owner <> OLD.owner) THEN
                RAISE EXCEPTION 'call %: a term does not change itself', NEW.id USING ERRCODE = 'FP002';
            END IF;
        ELSIF by_fence > OLD.fence THEN
            via := 'claim';
            IF NEW.fence <> by_fence OR (NEW.owner IS NOT NULL AND NEW.owner <> by_owner) THEN
                RAISE EXCEPTION 'call %: a claim takes the term it presents', NEW.id USING ERRCODE = 'FP002';
            END IF;
        ELSE
            RAISE EXCEPTION 'call %: term %/% is not the accepted one', NEW.id, by_owner, by_fence
                USING ERRCODE = 'FP002';
        END IF;
        IF (via || ':' || OLD.state || '>' || NEW.state) NOT IN ('approval:AWAITING_APPROVAL>AWAITING_APPROVAL', 'approval:AWAITING_APPROVAL>INTENT_RECORDED', 'approval:AWAITING_APPROVAL>REJECTED', 'cancel:AWAITING_APPROVAL>CANCELLED', 'cancel:INTENT_RECORDED>CANCELLED', 'claim:AWAITING_APPROVAL>REJECTED', 'claim:DISPATCHING>DISPATCHING', 'claim:DISPATCHING>FAILED', 'claim:DISPATCHING>INTENT_RECORDED', 'claim:DISPATCHING>NEEDS_REPAIR', 'claim:DISPATCHING>SUCCEEDED', 'claim:DISPATCHING>UNKNOWN', 'claim:INTENT_RECORDED>AWAITING_APPROVAL', 'claim:INTENT_RECORDED>DISPATCHING', 'claim:INTENT_RECORDED>INTENT_RECORDED', 'claim:INTENT_RECORDED>REJECTED', 'claim:INTENT_RECORDED>SUCCEEDED', 'claim:UNKNOWN>DISPATCHING', 'claim:UNKNOWN>FAILED', 'claim:UNKNOWN>NEEDS_REPAIR', 'claim:UNKNOWN>SUCCEEDED', 'claim:UNKNOWN>UNKNOWN', 'evidence:ACCEPTED_UNKNOWN>NEEDS_REPAIR', 'evidence:AWAITING_APPROVAL>NEEDS_REPAIR', 'evidence:CANCELLED>NEEDS_REPAIR', 'evidence:FAILED>NEEDS_REPAIR', 'evidence:INTENT_RECORDED>NEEDS_REPAIR', 'evidence:REJECTED>NEEDS_REPAIR', 'evidence:SUCCEEDED>NEEDS_REPAIR', 'recover:AWAITING_APPROVAL>UNKNOWN', 'recover:DISPATCHING>UNKNOWN', 'recover:INTENT_RECORDED>UNKNOWN', 'recover:UNKNOWN>UNKNOWN', 'repair:NEEDS_REPAIR>ACCEPTED_UNKNOWN', 'repair:NEEDS_REPAIR>FAILED', 'repair:NEEDS_REPAIR>NEEDS_REPAIR', 'repair:NEEDS_REPAIR>SUCCEEDED', 'repair:NEEDS_REPAIR>UNKNOWN', 'repair:SUCCEEDED>SUCCEEDED', 'term:DISPATCHING>FAILED', 'term:DISPATCHING>INTENT_RECORDED', 'term:DISPATCHING>NEEDS_REPAIR', 'term:DISPATCHING>SUCCEEDED', 'term:DISPATCHING>UNKNOWN', 'term:UNKNOWN>FAILED', 'term:UNKNOWN>NEEDS_REPAIR', 'term:UNKNOWN>SUCCEEDED', 'term:UNKNOWN>UNKNOWN') THEN
            RAISE EXCEPTION 'call %: % may not move it from % to %', NEW.id, via, OLD.state, NEW.state
                USING ERRCODE = 'FP001';
        END IF;
        IF via <> 'recover' AND NEW.restored IS DISTINCT FROM OLD.restored THEN
            RAISE EXCEPTION 'call %: what a restore has marked stays marked', NEW.id USING ERRCODE = 'FP003';
        END IF;
        IF NEW.state = 'NEEDS_REPAIR' AND OLD.state <> 'NEEDS_REPAIR' AND said.type <> 'RepairRequested' THEN
            IF NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq < NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type = 'RepairRequested') THEN
                RAISE EXCEPTION 'call %: nobody asked for a person to look at it', NEW.id
                    USING ERRCODE = 'FP004';
            END IF;
        END IF;
        -- Nothing but a repair, evidence or a reconciliation touches calls of a run that has completed.
        IF run_status = 'COMPLETED' AND via NOT IN ('evidence', 'repair')
           AND OLD.state NOT IN ('DISPATCHING', 'UNKNOWN') THEN
            RAISE EXCEPTION 'call %: its run has completed', NEW.id USING ERRCODE = 'FP001';
        END IF;
        -- Nobody holds a call that waits for its run: a claim may find that it has nothing to do.
        waiting := via = 'claim' AND OLD.child IS NOT NULL AND NEW.owner IS NULL
            AND said.type = 'ReconciliationDeferred';
        IF NEW.attempts > OLD.attempts OR (via = 'claim' AND NEW.state = 'DISPATCHING' AND NOT waiting) THEN
            IF via <> 'claim' OR NEW.attempts <> OLD.attempts + 1 OR NOT (
                (said.type, said.attempt, said.worker, said.fence)
                    IS NOT DISTINCT FROM ('ToolAttemptStarted', NEW.attempts, by_owner, by_fence)
                OR EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq < NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type = 'ToolAttemptStarted' AND e.attempt = NEW.attempts
                    AND e.worker = by_owner AND e.fence = by_fence)) THEN
                RAISE EXCEPTION 'call %: nobody started attempt % under this term', NEW.id, NEW.attempts
                    USING ERRCODE = 'FP004';
            END IF;
            -- Nothing is sent for the first time but by a run that goes on, and none that outlives it (I10).
            IF OLD.state = 'INTENT_RECORDED' AND (
                run_status <> CASE WHEN NEW.compensates IS NULL THEN 'ACTING' ELSE 'COMPENSATING' END
                OR (NEW.compensates IS NULL AND OLD.in_flight_until IS NULL
                    AND NEW.in_flight_until > run_deadline)) THEN
                RAISE EXCEPTION 'call %: its run is % until %, and sends nothing', NEW.id, run_status,
                    run_deadline USING ERRCODE = 'FP001';
            END IF;
            -- What is sent again is what the event of the first attempt says was sent.
            IF OLD.request IS NOT NULL AND OLD.attempts > 0 THEN
                IF NEW.fingerprint IS DISTINCT FROM (
                    SELECT e.body ->> 'fingerprint' FROM fencepost.events e WHERE e.run = NEW.run
                        AND e.tenant = NEW.tenant AND e.call IS NOT DISTINCT FROM NEW.id
                        AND e.type = 'ToolAttemptStarted' AND e.attempt = 1) THEN
                    RAISE EXCEPTION 'call %: what is sent again has another fingerprint than what was sent',
                        NEW.id USING ERRCODE = 'FP004';
                END IF;
            END IF;
        ELSIF (NEW.request, NEW.fingerprint) IS DISTINCT FROM (OLD.request, OLD.fingerprint)
              OR (via <> 'recover' AND (NEW.in_flight_until, NEW.quiet_at)
                  IS DISTINCT FROM (OLD.in_flight_until, OLD.quiet_at))
              OR NEW.quiet_at < OLD.quiet_at THEN
            RAISE EXCEPTION 'call %: what is sent, and until when, changes with an attempt', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        IF NEW.reserved IS DISTINCT FROM OLD.reserved THEN
            IF NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq <= NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.body ->> 'reserved' = NEW.reserved
                    AND ((e.type = 'ToolAttemptStarted' AND e.attempt = NEW.attempts)
                        OR (e.type = 'ToolOutcomeMarkedUnknown' AND via = 'recover')
                        OR (e.type = 'LeaseAcquired' AND via = 'claim' AND OLD.reserved IS NULL
                            AND OLD.restored IS NOT NULL AND OLD.attempts = 0))) THEN
                RAISE EXCEPTION 'call %: what it holds of allowances changes only as an attempt begins',
                    NEW.id USING ERRCODE = 'FP001';
            END IF;
        END IF;
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
        IF via = 'repair' AND (coalesce(said.body ->> 'login', session_user) <> session_user
               OR said.type NOT IN ('RepairProposed', 'RepairDecided')
               OR (said.type = 'RepairProposed') <> (NEW.state = 'NEEDS_REPAIR')
               OR (said.body -> 'asked' IS NOT NULL AND (said.body #>> '{asked,login}' <> session_user
                   AND said.body #>> '{asked,login}' = OLD.proposed::json ->> 'login') IS NOT TRUE)) THEN
            RAISE EXCEPTION 'call %: it is not for login % to decide this', NEW.id, session_user
                USING ERRCODE = 'FP002';
        END IF;
        IF via = 'repair' AND OLD.state = 'NEEDS_REPAIR' AND said.type = 'RepairDecided' THEN
            IF said.body -> 'asked' IS NULL
               AND EXISTS (SELECT 1 FROM fencepost.rules r WHERE r.name = 'repair_by_two') THEN
                RAISE EXCEPTION
                    'call %: a decision takes two persons here: one asks for it, another confirms it', NEW.id
                    USING ERRCODE = 'FP002';
            END IF;
            asked := OLD.proposed::json;
            offset_too := asked ->> 'decision' = 'COMPENSATE';
            IF said.body -> 'asked' IS NOT NULL
               AND ((asked ->> 'version')::bigint = OLD.version
                    AND (asked ->> 'expires_at')::timestamptz > fencepost.now()
                    AND NEW.state = CASE WHEN offset_too THEN 'SUCCEEDED' ELSE asked ->> 'decision' END
                    AND said.body ->> 'to' = NEW.state
                    AND coalesce(said.body ->> 'compensate', 'false') = offset_too::text
                    AND said.body ->> 'receipt' IS NOT DISTINCT FROM asked ->> 'receipt'
                    AND (NEW.state <> 'SUCCEEDED' OR NEW.receipt IS NOT DISTINCT FROM asked ->> 'receipt')
                    ) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: what is confirmed is not what was asked for, or is so no longer',
                    NEW.id USING ERRCODE = 'FP002';
            END IF;
        END IF;
        IF NEW.proposed IS DISTINCT FROM OLD.proposed AND (via = 'repair' AND CASE said.type
                WHEN 'RepairProposed' THEN NEW.proposed = said.body::text
                WHEN 'RepairDecided' THEN NEW.proposed IS NULL
                ELSE false END) IS NOT TRUE THEN
            RAISE EXCEPTION 'call %: a decision is asked for by a person, and only by its event', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        IF OLD.approval IS NOT NULL OR NEW.approval IS NOT NULL OR via = 'approval'
           OR 'AWAITING_APPROVAL' IN (OLD.state, NEW.state) THEN
            SELECT e.type, e.body::jsonb AS body INTO word FROM fencepost.events e
                WHERE e.run = NEW.run AND e.tenant = NEW.tenant AND e.seq > OLD.version
                    AND e.seq <= NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type IN ('ApprovalRequested', 'ApprovalDecided') ORDER BY e.seq DESC LIMIT 1;
            verdict := word.body -> 'decision';
            IF NEW.approval IS DISTINCT FROM OLD.approval AND (CASE word.type
                    WHEN 'ApprovalRequested' THEN via = 'claim' AND NEW.approval::jsonb
                        = jsonb_build_object('asked', word.body -> 'asked', 'decisions', '[]'::jsonb)
                    WHEN 'ApprovalDecided' THEN via = 'approval' AND NEW.approval::jsonb = jsonb_set(
                        OLD.approval::jsonb, '{decisions}', OLD.approval::jsonb -> 'decisions' || verdict)
                    ELSE false END) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: what persons were asked and said changes only with its event', NEW.id
                    USING ERRCODE = 'FP001';
            END IF;
            IF NEW.state = 'AWAITING_APPROVAL' AND OLD.state <> 'AWAITING_APPROVAL'
               AND (word.type = 'ApprovalRequested' AND NEW.approval::jsonb = jsonb_build_object(
                    'asked', word.body -> 'asked', 'decisions', '[]'::jsonb)) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: nobody was asked to approve it', NEW.id USING ERRCODE = 'FP004';
            END IF;
            IF via = 'approval' AND (word.type IS NOT DISTINCT FROM 'ApprovalDecided'
                    AND NEW.approval IS DISTINCT FROM OLD.approval AND verdict ->> 'login' = session_user
                    AND (OLD.approval::json #>> '{asked,expires_at}')::timestamptz > fencepost.now()
                    AND (verdict ->> 'approve' = 'true') = (NEW.state <> 'REJECTED')
                    AND (verdict ->> 'approve' <> 'true' OR NOT EXISTS (
                        SELECT 1 FROM jsonb_array_elements(OLD.approval::jsonb -> 'decisions') d
                            WHERE d ->> 'approve' = 'true'
                            AND (d ->> 'login' = session_user OR d ->> 'who' = verdict ->> 'who')))
                    AND (verdict ->> 'approve' <> 'true' OR verdict ->> 'who' <> run_principal)
                    AND (NEW.state <> 'INTENT_RECORDED' OR (
                        SELECT count(*) FROM jsonb_array_elements(NEW.approval::jsonb -> 'decisions') d
                            WHERE d ->> 'approve' = 'true')
                        >= (NEW.approval::json #>> '{asked,count}')::integer)) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: login % cannot approve or deny it like this', NEW.id, session_user
                    USING ERRCODE = 'FP002';
            END IF;
            IF via = 'claim' AND OLD.state = 'AWAITING_APPROVAL'
               AND (word.type IS NOT DISTINCT FROM 'ApprovalDecided' AND verdict IS NULL
                    AND (OLD.approval::json #>> '{asked,expires_at}')::timestamptz <= fencepost.now())
                    IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: persons may still approve it', NEW.id USING ERRCODE = 'FP002';
            END IF;
        END IF;
        IF (NEW.offset_asked, NEW.offset_left) IS DISTINCT FROM (OLD.offset_asked, OLD.offset_left) THEN
            IF via <> 'repair' OR NEW.state <> 'SUCCEEDED' OR said.type <> 'RepairDecided'
               OR (NEW.version IN (NEW.offset_asked, NEW.offset_left)) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: whether its effect is offset again is a person''s word', NEW.id
                    USING ERRCODE = 'FP001';
            END IF;
        ELSIF via = 'repair' AND OLD.state = 'SUCCEEDED' THEN
            RAISE EXCEPTION 'call %: a person who says nothing changes nothing', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        IF NEW.doubt AND NEW.state IN ('ACCEPTED_UNKNOWN', 'CANCELLED', 'FAILED', 'REJECTED', 'SUCCEEDED') THEN
            RAISE EXCEPTION 'call %: it cannot end % in doubt', NEW.id, NEW.state USING ERRCODE = 'FP003';
        END IF;
        IF NEW.state = 'INTENT_RECORDED' AND NEW.doubt THEN
            RAISE EXCEPTION 'call %: what may have happened is not sent as if it had not', NEW.id
                USING ERRCODE = 'FP003';
        END IF;
        -- Unknown is in doubt, and so is an attempt that takes the place of one nobody answered for.
        IF NOT NEW.doubt AND (NEW.state IN ('UNKNOWN', 'NEEDS_REPAIR')
                OR (OLD.doubt AND NEW.state NOT IN ('SUCCEEDED', 'FAILED', 'ACCEPTED_UNKNOWN'))
                OR (OLD.state = 'DISPATCHING' AND NEW.state = 'DISPATCHING' AND NOT waiting)) THEN
            RAISE EXCEPTION 'call %: doubt is cleared only by a proof', NEW.id USING ERRCODE = 'FP003';
        END IF;
        IF OLD.state = 'DISPATCHING' AND NEW.state = 'INTENT_RECORDED' THEN
            IF NOT ((via = 'term' OR NEW.effect = 'read') AND OLD.child IS NULL AND (
                (said.type, said.attempt, said.worker, said.fence)
                    IS NOT DISTINCT FROM ('ToolAttemptFailed', NEW.attempts, by_owner, by_fence)
                OR EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq < NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type = 'ToolAttemptFailed' AND e.attempt = NEW.attempts
                    AND e.worker = by_owner AND e.fence = by_fence))) THEN
                RAISE EXCEPTION
                    'call %: an attempt is made again only after one that is known to have failed', NEW.id
                    USING ERRCODE = 'FP003';
            END IF;
        END IF;
        settles := NEW.state IN ('SUCCEEDED', 'FAILED', 'ACCEPTED_UNKNOWN') AND NEW.state <> OLD.state;
        IF NOT settles AND (NEW.receipt, NEW.result, NEW.proof, NEW.reused)
                IS DISTINCT FROM (OLD.receipt, OLD.result, OLD.proof, OLD.reused) THEN
            RAISE EXCEPTION 'call %: a result comes with the end it proves', NEW.id USING ERRCODE = 'FP001';
        END IF;
        IF settles AND OLD.state = 'INTENT_RECORDED' THEN
            IF NEW.reused IS NOT TRUE OR NEW.proof IS DISTINCT FROM OLD.proof OR NOT EXISTS (
                SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq <= NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type = 'ResultReused' AND (e.body ->> 'untrusted' = 'true' OR NOT EXISTS (
                        SELECT 1 FROM fencepost.operations o WHERE o.key = NEW.operation
                            AND o.tenant = NEW.tenant AND o.untrusted)))
               OR NOT EXISTS (SELECT 1 FROM fencepost.operations o
                    WHERE o.key = NEW.operation AND o.tenant = NEW.tenant
                    AND o.status = 'completed' AND NOT o.doubt AND (o.arguments_hash, o.receipt, o.result)
                        IS NOT DISTINCT FROM (NEW.arguments_hash, NEW.receipt, NEW.result)) THEN
                RAISE EXCEPTION 'call %: there is no such result to reuse', NEW.id USING ERRCODE = 'FP003';
            END IF;
        ELSIF settles THEN
            IF said.id IS DISTINCT FROM NEW.proof THEN
                SELECT e.id, e.type, e.attempt, e.worker, e.fence, e.body INTO said FROM fencepost.events e
                    WHERE e.id = NEW.proof AND e.tenant = NEW.tenant AND e.seq > OLD.version
                        AND e.seq < NEW.version
                        AND (e.run, e.call) IS NOT DISTINCT FROM (NEW.run, NEW.id);
            END IF;
            IF NEW.reused OR (CASE
                -- The run that it has started goes on, whatever anybody says.
                WHEN OLD.child IS NOT NULL AND said.type NOT IN ('ChildRunSettled', 'RepairDecided')
                    THEN false ELSE CASE said.type
                WHEN 'ToolResultRecorded' THEN via = 'term' AND OLD.state = 'DISPATCHING'
                    AND NEW.state = 'SUCCEEDED' AND (said.attempt, said.worker, said.fence)
                        IS NOT DISTINCT FROM (NEW.attempts, by_owner, by_fence)
                WHEN 'ToolAttemptFailed' THEN (via = 'term' OR NEW.effect = 'read')
                    AND OLD.state = 'DISPATCHING' AND NEW.state = 'FAILED'
                    AND (said.attempt, said.worker, said.fence)
                        IS NOT DISTINCT FROM (NEW.attempts, by_owner, by_fence)
                    AND said.body ->> 'final' = 'true'
                    AND (NOT OLD.doubt OR coalesce(said.body ->> 'stored', '') = 'true')
                WHEN 'ToolEffectReconciled' THEN (via = 'claim' OR (via = 'term' AND OLD.state = 'UNKNOWN'))
                    AND (said.worker, said.fence) IS NOT DISTINCT FROM (by_owner, by_fence)
                    AND said.body ->> 'to' = NEW.state
                WHEN 'RepairDecided' THEN via = 'repair' AND said.body ->> 'to' = NEW.state
                    AND (NEW.state NOT IN ('FAILED', 'ACCEPTED_UNKNOWN') OR NOT EXISTS (
                        SELECT 1 FROM fencepost.runs r WHERE r.tenant = NEW.tenant AND r.id = OLD.child
                            AND (r.status <> 'STOPPED' OR r.open <> 0
                                OR (NEW.state = 'FAILED' AND (r.effects, r.unknowns) <> (0, 0))
                                OR (r.effects > 0 AND NEW.compensates IS NULL))))
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
                ELSE false END END) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: % only by a proof of its own, written in this change', NEW.id,
                    NEW.state USING ERRCODE = 'FP003';
            END IF;
        END IF;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencepost.guard_run() RETURNS trigger LANGUAGE plpgsql
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
           OR NEW.tainted IS NOT NULL OR num_nonnulls(NEW.below, NEW.markers) <> 0
           OR (NEW.awaiting, NEW.tokens, NEW.cost, NEW.held_tokens, NEW.held_cost, NEW.bytes, NEW.fruitless,
               NEW.detached, NEW.unknowns) <> (0, 0, 0, 0, 0, 0, 0, 0, 0) THEN
            RAISE EXCEPTION 'run %: a run begins QUEUED, with no history and no owner', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        RETURN NEW;
    END IF;
        IF by_office IS DISTINCT FROM 'cancel' AND pg_has_role(current_user, 'fencepost_api', 'member')
           AND NOT pg_has_role(current_user, 'fencepost_worker', 'member')
           AND NOT pg_has_role(current_user, 'fencepost_operator', 'member') THEN
            RAISE EXCEPTION 'run %: % may cancel it, and nothing else', NEW.id, current_user
                USING ERRCODE = 'FP002';
        END IF;
        IF (NEW.tenant, NEW.id, NEW.run_key, NEW.planner, NEW.principal, NEW.request,
            NEW.on_stop, NEW.created_at, NEW.deadline, NEW.root, NEW.parent, NEW.parent_call, NEW.depth,
            NEW.traceparent)
           IS DISTINCT FROM
           (OLD.tenant, OLD.id, OLD.run_key, OLD.planner, OLD.principal, OLD.request,
            OLD.on_stop, OLD.created_at, OLD.deadline, OLD.root, OLD.parent, OLD.parent_call, OLD.depth,
            OLD.traceparent) THEN
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
        SELECT coalesce(sum((e.body #>> '{spent,tokens}')::bigint) FILTER (WHERE of_models), 0) AS tokens,
               coalesce(sum((e.body #>> '{spent,cost}')::bigint) FILTER (WHERE of_models), 0) AS cost,
               count(*) FILTER (WHERE e.type = 'ToolAttemptStarted') AS attempts,
               count(*) FILTER (WHERE e.type = 'ToolProposalRecorded') AS calls,
               -- A question that a provider has turned away unread is none.
               count(*) FILTER (WHERE e.type = 'ModelRequestStarted') - count(*) FILTER (
                   WHERE e.type = 'ModelOutcomeUnknown' AND e.body ->> 'taken' = 'false') AS requests,
               coalesce(sum(octet_length(e.body::text)) FILTER (
                   WHERE e.version >= 2), 0) AS bytes,
               max(e.version) AS written, bool_or(e.call IS NULL) AS own,
               bool_or(e.call IS NOT NULL AND e.type IN ('ChildRunSettled', 'RepairDecided', 'RepairRequested', 'ResultReused', 'ToolEffectReconciled', 'ToolResultRecorded')) AS settle,
               max(e.seq) FILTER (WHERE e.call IS NULL AND e.type IN ('CompensationRequested', 'ModelRequestStarted', 'ModelResponseRecorded', 'RepairDecided', 'RunCompleted', 'RunCreated', 'RunStopped', 'RunStopping')) AS placed,
               count(*) FILTER (WHERE of_models) AS told, max(e.seq) FILTER (WHERE of_models) AS last,
               min(e.seq) FILTER (WHERE e.body ->> 'untrusted' = 'true') AS tainted,
               bool_or(e.seq = NEW.seq AND e.hash = NEW.head_hash AND e.projection IS NOT NULL) AS headed,
               bool_or(e.type IN ('ChildRunStarted', 'ChildRunSettled')) AS children INTO asked
        FROM fencepost.events e CROSS JOIN LATERAL (
            SELECT e.call IS NULL AND e.type IN ('ModelOutcomeUnknown', 'ModelRequestStarted', 'ModelResponseRecorded', 'RunCompleted') AS of_models) AS m
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
        IF NEW.turn < OLD.turn THEN
            RAISE EXCEPTION 'run %: what it has used does not come back', NEW.id USING ERRCODE = 'FP001';
        END IF;
        -- What models use and hold moves by what the events of this change say, and by nothing else.
        held_tokens := OLD.held_tokens;
        held_cost := OLD.held_cost;
        IF asked.told > 0 THEN
            SELECT coalesce((e.body #>> '{held,tokens}')::bigint, 0),
                   coalesce((e.body #>> '{held,cost}')::bigint, 0) INTO held_tokens, held_cost
            FROM fencepost.events e WHERE e.run = NEW.id AND e.tenant = NEW.tenant AND e.seq = asked.last;
        END IF;
        IF (NEW.tokens, NEW.cost, NEW.held_tokens, NEW.held_cost)
           <> (OLD.tokens + asked.tokens, OLD.cost + asked.cost, held_tokens, held_cost) THEN
            RAISE EXCEPTION 'run %: what its models use and hold moves with the events of that', NEW.id
                USING ERRCODE = 'FP004';
        END IF;
        IF (NEW.attempts, NEW.calls, NEW.requests, NEW.bytes, NEW.written)
           <> (OLD.attempts + asked.attempts, OLD.calls + asked.calls, OLD.requests + asked.requests,
               OLD.bytes + asked.bytes, greatest(OLD.written, asked.written)) THEN
            RAISE EXCEPTION 'run %: what it has used moves with the events of that', NEW.id
                USING ERRCODE = 'FP004';
        END IF;
        IF asked.settle OR (NEW.effects, NEW.unknowns) <> (OLD.effects, OLD.unknowns) THEN
            SELECT coalesce(sum(((m.became = 'SUCCEEDED')::int - (m.was = 'SUCCEEDED')::int) * m.sign)
                       FILTER (WHERE m.acts AND NOT m.reused), 0) AS effects,
                   coalesce(sum((m.became = 'ACCEPTED_UNKNOWN' AND m.version >= 2)::int
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
                        AND e.type IN ('ChildRunSettled', 'RepairDecided', 'RepairRequested', 'ResultReused', 'ToolEffectReconciled', 'ToolResultRecorded')) AS s) AS m;
            IF settled.early OR (NEW.effects, NEW.unknowns)
                    <> (OLD.effects + settled.effects, greatest(OLD.unknowns + settled.unknowns, 0)) THEN
                RAISE EXCEPTION 'run %: what its calls have done counts with the events that say so', NEW.id
                    USING ERRCODE = 'FP004';
            END IF;
        END IF;
        IF asked.children OR NEW.below IS DISTINCT FROM OLD.below THEN
            IF NEW.below IS DISTINCT FROM OLD.below AND NOT EXISTS (
                    SELECT 1 FROM fencepost.events e WHERE e.run = NEW.id AND e.tenant = NEW.tenant AND e.seq > OLD.seq AND e.seq <= NEW.seq AND e.type IN ('ApprovalDecided', 'AuthorizationDenied', 'CallCancelled', 'CallDetached', 'ChildRunSettled', 'ChildRunStarted', 'ModelResponseRecorded', 'ProposalRejected', 'RepairDecided', 'ResultReused', 'ToolAttemptFailed', 'ToolEffectReconciled', 'ToolResultRecorded')) THEN
                RAISE EXCEPTION 'run %: what its children hold and have used moves with their events', NEW.id
                    USING ERRCODE = 'FP004';
            END IF;
            IF EXISTS (
                    SELECT 1 FROM jsonb_each(OLD.below::jsonb -> 'held') AS o (held_by, piece)
                    FULL JOIN jsonb_each(NEW.below::jsonb -> 'held') AS n (held_by, piece) USING (held_by)
                    WHERE o.piece IS DISTINCT FROM n.piece AND NOT EXISTS (
                        SELECT 1 FROM fencepost.events e WHERE e.run = NEW.id AND e.tenant = NEW.tenant AND e.seq > OLD.seq AND e.seq <= NEW.seq AND e.call::text = held_by
                        AND CASE WHEN n.piece IS NULL THEN e.type IN ('ApprovalDecided', 'AuthorizationDenied', 'CallCancelled', 'ChildRunSettled', 'ProposalRejected', 'RepairDecided', 'ResultReused', 'ToolAttemptFailed', 'ToolEffectReconciled', 'ToolResultRecorded')
                            ELSE o.piece IS NULL AND e.type = 'ChildRunStarted'
                                AND e.body::jsonb -> 'held' = n.piece END))
                OR EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.id AND e.tenant = NEW.tenant AND e.seq > OLD.seq AND e.seq <= NEW.seq AND CASE e.type
                    WHEN 'ChildRunSettled' THEN NEW.below::jsonb -> 'held' -> e.call::text IS NOT NULL
                    WHEN 'ChildRunStarted' THEN e.body -> 'held' IS NOT NULL
                        AND NEW.below::jsonb -> 'held' -> e.call::text IS NULL AND NOT EXISTS (
                            SELECT 1 FROM fencepost.events l WHERE l.run = e.run AND l.tenant = e.tenant
                            AND l.seq > e.seq AND l.seq <= NEW.seq AND l.call = e.call
                            AND l.type IN ('ApprovalDecided', 'AuthorizationDenied', 'CallCancelled', 'ChildRunSettled', 'ProposalRejected', 'RepairDecided', 'ResultReused', 'ToolAttemptFailed', 'ToolEffectReconciled', 'ToolResultRecorded'))
                    ELSE false END)
                OR EXISTS (SELECT 1 FROM jsonb_each(OLD.below::jsonb -> 'used') AS o (name, used)
                    WHERE coalesce(NEW.below::jsonb -> 'used' -> o.name < o.used, true)) THEN
                RAISE EXCEPTION 'run %: what its children hold, they hold from their start to their end',
                    NEW.id USING ERRCODE = 'FP004';
            END IF;
        END IF;
    -- Events of its calls count in a run without a word; everything else is presented.
    IF asked.own OR (NEW.planner_version, NEW.status, NEW.stop_reason, NEW.stop_detail, NEW.owner,
            NEW.fence, NEW.result, NEW.preview, NEW.turn, NEW.requests, NEW.calls, NEW.failures, NEW.outages,
            NEW.tokens, NEW.cost, NEW.held_tokens, NEW.held_cost, NEW.markers)
       IS DISTINCT FROM (OLD.planner_version, OLD.status, OLD.stop_reason, OLD.stop_detail, OLD.owner,
            OLD.fence, OLD.result, OLD.preview, OLD.turn, OLD.requests, OLD.calls, OLD.failures, OLD.outages,
            OLD.tokens, OLD.cost, OLD.held_tokens, OLD.held_cost, OLD.markers)
       OR NEW.fruitless NOT IN (OLD.fruitless, 0) THEN
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
            IF via NOT IN ('approval', 'cancel', 'recover', 'repair') THEN
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
        IF (via || ':' || OLD.status || '>' || NEW.status) NOT IN ('approval:ACTING>COMPENSATING', 'approval:ACTING>STOPPED', 'approval:ACTING>STOPPING', 'call:ACTING>COMPENSATING', 'call:ACTING>STOPPED', 'call:ACTING>STOPPING', 'call:PLANNING>COMPENSATING', 'call:PLANNING>STOPPED', 'call:PLANNING>STOPPING', 'call:QUEUED>COMPENSATING', 'call:QUEUED>STOPPED', 'call:QUEUED>STOPPING', 'call:STOPPING>COMPENSATING', 'call:STOPPING>STOPPED', 'cancel:ACTING>COMPENSATING', 'cancel:ACTING>STOPPED', 'cancel:ACTING>STOPPING', 'cancel:PLANNING>COMPENSATING', 'cancel:PLANNING>STOPPED', 'cancel:PLANNING>STOPPING', 'cancel:QUEUED>COMPENSATING', 'cancel:QUEUED>STOPPED', 'cancel:QUEUED>STOPPING', 'claim:ACTING>ACTING', 'claim:ACTING>COMPENSATING', 'claim:ACTING>PLANNING', 'claim:ACTING>STOPPED', 'claim:ACTING>STOPPING', 'claim:COMPENSATING>COMPENSATING', 'claim:COMPENSATING>STOPPED', 'claim:PLANNING>COMPENSATING', 'claim:PLANNING>PLANNING', 'claim:PLANNING>STOPPED', 'claim:PLANNING>STOPPING', 'claim:QUEUED>COMPENSATING', 'claim:QUEUED>PLANNING', 'claim:QUEUED>QUEUED', 'claim:QUEUED>STOPPED', 'claim:QUEUED>STOPPING', 'claim:STOPPING>COMPENSATING', 'claim:STOPPING>STOPPED', 'claim:STOPPING>STOPPING', 'recover:COMPENSATING>COMPENSATING', 'recover:PLANNING>PLANNING', 'recover:STOPPING>STOPPING', 'repair:ACTING>ACTING', 'repair:ACTING>COMPENSATING', 'repair:ACTING>STOPPED', 'repair:ACTING>STOPPING', 'repair:PLANNING>COMPENSATING', 'repair:PLANNING>PLANNING', 'repair:PLANNING>STOPPED', 'repair:PLANNING>STOPPING', 'repair:QUEUED>QUEUED', 'repair:STOPPED>COMPENSATING', 'repair:STOPPING>COMPENSATING', 'repair:STOPPING>STOPPED', 'term:COMPENSATING>COMPENSATING', 'term:COMPENSATING>STOPPED', 'term:PLANNING>ACTING', 'term:PLANNING>COMPENSATING', 'term:PLANNING>COMPLETED', 'term:PLANNING>PLANNING', 'term:PLANNING>STOPPED', 'term:PLANNING>STOPPING') THEN
            RAISE EXCEPTION 'run %: % may not move it from % to %', NEW.id, via, OLD.status, NEW.status
                USING ERRCODE = 'FP001';
        END IF;
        IF NEW.status = 'COMPLETED' AND OLD.status <> 'COMPLETED' THEN
            IF EXISTS (SELECT 1 FROM fencepost.calls c
                WHERE c.run = NEW.id AND c.tenant IS NOT DISTINCT FROM NEW.tenant AND c.live) THEN
                RAISE EXCEPTION 'run %: it has an open or doubtful call', NEW.id USING ERRCODE = 'FP001';
            END IF;
        END IF;
    END IF;
    stands := OLD.status;
    IF asked.placed IS NOT NULL THEN
        SELECT CASE e.type WHEN 'CompensationRequested' THEN 'COMPENSATING' WHEN 'ModelRequestStarted' THEN 'PLANNING' WHEN 'ModelResponseRecorded' THEN 'ACTING' WHEN 'RepairDecided' THEN 'COMPENSATING' WHEN 'RunCompleted' THEN 'COMPLETED' WHEN 'RunCreated' THEN 'QUEUED' WHEN 'RunStopped' THEN 'STOPPED' WHEN 'RunStopping' THEN 'STOPPING' END INTO stands FROM fencepost.events e
            WHERE e.run = NEW.id AND e.tenant = NEW.tenant AND e.seq = asked.placed;
    END IF;
    IF NEW.status IS DISTINCT FROM stands THEN
        RAISE EXCEPTION 'run %: it is where its events take it, and not %', NEW.id, NEW.status
            USING ERRCODE = 'FP004';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencepost.guard_stopped() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Judged at COMMIT: the last call's outcome and the run's move are one change, but two statements.
    IF EXISTS (SELECT 1 FROM fencepost.calls c
            WHERE c.run = NEW.id AND c.tenant IS NOT DISTINCT FROM NEW.tenant
            AND c.state IN ('AWAITING_APPROVAL', 'INTENT_RECORDED', 'DISPATCHING', 'UNKNOWN')
            AND (NEW.status = 'STOPPED' OR c.state IN ('DISPATCHING', 'UNKNOWN')))
       AND EXISTS (SELECT 1 FROM fencepost.runs r
            WHERE r.tenant = NEW.tenant AND r.id = NEW.id AND r.status = NEW.status) THEN
        RAISE EXCEPTION 'run %: it cannot be % while a call is unsent or unsettled', NEW.id, NEW.status
            USING ERRCODE = 'FP001';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION fencepost.guard_operation() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    holder record;
    offsetting text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'operation keys are never forgotten' USING ERRCODE = 'FP004';
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'released' OR NEW.doubt OR NEW.reused <> 0 OR NEW.arguments_hash <> ''
           OR NEW.releases OR NEW.untrusted
           OR num_nonnulls(NEW.run, NEW.call, NEW.first_sent_at, NEW.expires_at, NEW.receipt, NEW.result,
                NEW.preview, NEW.proof) <> 0 THEN
            RAISE EXCEPTION 'operation %: a key begins free and with no past', NEW.key
                USING ERRCODE = 'FP001';
        END IF;
        RETURN NEW;
    END IF;
    IF (NEW.tenant, NEW.key, NEW.scope, NEW.resource)
            IS DISTINCT FROM (OLD.tenant, OLD.key, OLD.scope, OLD.resource)
       OR (OLD.first_sent_at IS NOT NULL AND NEW.first_sent_at IS DISTINCT FROM OLD.first_sent_at) THEN
        RAISE EXCEPTION 'operation %: its identity and first send do not change', NEW.key
            USING ERRCODE = 'FP001';
    END IF;
    IF (NEW.status <> 'released' OR (NEW.run, NEW.call) IS DISTINCT FROM (OLD.run, OLD.call))
       AND pg_has_role(current_user, 'fencepost_api', 'member')
           AND NOT pg_has_role(current_user, 'fencepost_worker', 'member')
           AND NOT pg_has_role(current_user, 'fencepost_operator', 'member') THEN
        RAISE EXCEPTION 'operation %: % lets go of it by a cancel, and nothing else', NEW.key, current_user
            USING ERRCODE = 'FP002';
    END IF;
    IF NEW.resource THEN
        IF NEW.call IS DISTINCT FROM OLD.call AND OLD.call IS NOT NULL THEN
            SELECT c.state, c.doubt INTO holder FROM fencepost.calls c
                WHERE c.id = OLD.call AND c.tenant = NEW.tenant;
            IF OLD.status <> 'released' OR OLD.doubt OR holder.doubt
               OR holder.state NOT IN ('ACCEPTED_UNKNOWN', 'CANCELLED', 'FAILED', 'REJECTED', 'SUCCEEDED') THEN
                RAISE EXCEPTION 'resource %: a call that was sent to set it has not ended', NEW.key
                    USING ERRCODE = 'FP003';
            END IF;
            IF OLD.expires_at > fencepost.now() THEN
                RAISE EXCEPTION 'resource %: what was sent may still set it', NEW.key USING ERRCODE = 'FP003';
            END IF;
        END IF;
        SELECT c.resource, c.run, c.state, c.doubt, c.attempts, c.proof, CASE WHEN c.quiet_at < '9999-01-01 00:00:00+00:00'
            THEN c.quiet_at ELSE c.in_flight_until END AS quiet INTO holder FROM fencepost.calls c
            WHERE c.id = NEW.call AND c.tenant = NEW.tenant;
        IF (holder.resource, holder.run) IS DISTINCT FROM (NEW.key, NEW.run)
           OR (holder.attempts < 1 AND NOT holder.doubt) THEN
            RAISE EXCEPTION 'resource %: it is held by a call that was sent to set it', NEW.key
                USING ERRCODE = 'FP001';
        END IF;
        IF NEW.doubt <> holder.doubt THEN
            RAISE EXCEPTION 'resource %: its doubt is that of the call that holds it', NEW.key
                USING ERRCODE = 'FP003';
        END IF;
        IF NEW.status <> (CASE WHEN holder.state IN ('AWAITING_APPROVAL', 'DISPATCHING', 'INTENT_RECORDED', 'NEEDS_REPAIR', 'UNKNOWN') THEN 'open' ELSE 'released' END)
           OR (NEW.status = 'open' AND NEW.expires_at IS NOT NULL)
           OR NEW.reused <> 0 OR NEW.arguments_hash <> '' OR NEW.releases OR NEW.untrusted
           OR num_nonnulls(NEW.first_sent_at, NEW.receipt, NEW.result, NEW.preview, NEW.proof) <> 0 THEN
            RAISE EXCEPTION 'resource %: it is not % while the call that holds it is %', NEW.key, NEW.status,
                holder.state USING ERRCODE = 'FP001';
        END IF;
        -- Only the downstream's own answer says that nothing is under way any more.
        IF NEW.status = 'released' AND coalesce(NEW.expires_at >= holder.quiet, holder.quiet IS NULL) IS FALSE
           AND NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.id = holder.proof
                AND e.tenant = NEW.tenant AND e.run = NEW.run
                AND e.type IN ('ToolResultRecorded', 'ToolAttemptFailed')) THEN
            RAISE EXCEPTION 'resource %: what was sent may set it until %', NEW.key, holder.quiet
                USING ERRCODE = 'FP003';
        END IF;
        RETURN NEW;
    END IF;
    IF NEW.call IS DISTINCT FROM OLD.call AND OLD.call IS NOT NULL THEN
        IF OLD.doubt THEN
            RAISE EXCEPTION 'operation %: a key in doubt is not handed on', NEW.key USING ERRCODE = 'FP003';
        END IF;
        SELECT c.state, c.doubt INTO holder FROM fencepost.calls c
            WHERE c.id = OLD.call AND c.tenant = NEW.tenant;
        IF OLD.status NOT IN ('released', 'failed') OR holder.state NOT IN ('CANCELLED', 'FAILED', 'REJECTED') OR holder.doubt THEN
            RAISE EXCEPTION 'operation %: a key that is % is not handed on by a call that is %', NEW.key,
                OLD.status, holder.state USING ERRCODE = 'FP001';
        END IF;
    END IF;
    SELECT c.operation, c.run, c.state, c.doubt, c.attempts, c.arguments_hash, c.receipt, c.result, c.preview,
        c.proof, c.version INTO holder FROM fencepost.calls c WHERE c.id = NEW.call AND c.tenant = NEW.tenant;
    IF (holder.operation, holder.run, holder.arguments_hash)
       IS DISTINCT FROM (NEW.key, NEW.run, NEW.arguments_hash) THEN
        RAISE EXCEPTION 'operation %: it is held by a call of its own', NEW.key USING ERRCODE = 'FP001';
    END IF;
    IF NEW.doubt <> holder.doubt THEN
        RAISE EXCEPTION 'operation %: its doubt is that of the call that holds it', NEW.key
            USING ERRCODE = 'FP003';
    END IF;
    IF OLD.doubt AND NOT NEW.doubt AND (NEW.proof IS NULL OR NEW.proof IS NOT DISTINCT FROM OLD.proof) THEN
        RAISE EXCEPTION 'operation %: doubt is cleared only by a proof', NEW.key USING ERRCODE = 'FP003';
    END IF;
    IF (NEW.receipt, NEW.result, NEW.preview, NEW.proof)
            IS DISTINCT FROM (holder.receipt, holder.result, holder.preview, holder.proof)
       AND (holder.state IN ('ACCEPTED_UNKNOWN', 'CANCELLED', 'FAILED', 'REJECTED', 'SUCCEEDED') OR (NEW.receipt, NEW.result, NEW.preview, NEW.proof)
            IS DISTINCT FROM (OLD.receipt, OLD.result, OLD.preview, OLD.proof)) THEN
        RAISE EXCEPTION 'operation %: its result is that of the call that holds it', NEW.key
            USING ERRCODE = 'FP001';
    END IF;
    IF (NEW.first_sent_at, NEW.expires_at) IS DISTINCT FROM (OLD.first_sent_at, OLD.expires_at)
       AND ((holder.attempts > 0 OR holder.doubt) AND NEW.first_sent_at <= fencepost.now()
            AND coalesce(NEW.expires_at >= NEW.first_sent_at, true)) IS NOT TRUE THEN
        RAISE EXCEPTION 'operation %: it was not sent then', NEW.key USING ERRCODE = 'FP001';
    END IF;
    -- How long its downstream deduplicates, and what it forgets, is noted only as it is sent.
    IF (NEW.first_sent_at, NEW.expires_at, NEW.releases)
            IS DISTINCT FROM (OLD.first_sent_at, OLD.expires_at, OLD.releases)
       AND (SELECT e.xmin FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
            AND e.call IS NOT DISTINCT FROM NEW.call AND e.seq <= holder.version
            AND e.type IN ('ToolAttemptStarted', 'ToolOutcomeMarkedUnknown')
            ORDER BY e.seq DESC LIMIT 1) IS DISTINCT FROM pg_current_xact_id()::xid THEN
        RAISE EXCEPTION 'operation %: it is not being sent', NEW.key USING ERRCODE = 'FP001';
    END IF;
    IF NEW.releases <> OLD.releases AND holder.attempts < 1 THEN
        RAISE EXCEPTION 'operation %: what a contract says of it is noted as it is sent', NEW.key
            USING ERRCODE = 'FP001';
    END IF;
    -- Whoever takes a result has to know whose words it is: the event that proved it says so. A key that is
    -- taken anew, or let go unsent, has none: what proved its last holder's failure stays beside it.
    IF (NEW.proof, NEW.untrusted, NEW.status) IS DISTINCT FROM (OLD.proof, OLD.untrusted, OLD.status) THEN
        IF (NEW.call IS NOT DISTINCT FROM OLD.call AND OLD.untrusted AND NOT NEW.untrusted)
           OR (NEW.status NOT IN ('open', 'released')
               AND NEW.proof IS NOT NULL AND NOT NEW.untrusted AND EXISTS (
                SELECT 1 FROM fencepost.events e WHERE e.id = NEW.proof AND e.tenant = NEW.tenant
                AND e.body ->> 'untrusted' = 'true')) THEN
            RAISE EXCEPTION 'operation %: nobody vouches for its result, and it says otherwise', NEW.key
                USING ERRCODE = 'FP001';
        END IF;
    END IF;
    IF NEW.reused < OLD.reused OR (NEW.reused > OLD.reused AND NEW.status <> 'completed') THEN
        RAISE EXCEPTION 'operation %: a result taken stays taken', NEW.key USING ERRCODE = 'FP001';
    END IF;
    IF NEW.status IN ('compensating', 'compensated') OR OLD.status IN ('compensating', 'compensated') THEN
        -- At most one living compensation: its index is unique.
        SELECT c.state INTO offsetting FROM fencepost.calls c WHERE c.offsets = NEW.key
            AND c.tenant = NEW.tenant;
    END IF;
    IF (CASE NEW.status
        WHEN 'open' THEN holder.state IN ('AWAITING_APPROVAL', 'DISPATCHING', 'INTENT_RECORDED', 'NEEDS_REPAIR', 'UNKNOWN')
        WHEN 'completed' THEN holder.state = 'SUCCEEDED'
            AND (OLD.status NOT IN ('compensating', 'compensated') OR offsetting IS NULL)
        WHEN 'failed' THEN holder.state = 'FAILED'
        WHEN 'unknown' THEN holder.state = 'ACCEPTED_UNKNOWN'
        WHEN 'released' THEN holder.state IN ('REJECTED', 'CANCELLED')
        WHEN 'compensating' THEN offsetting <> 'SUCCEEDED'
            AND (OLD.status IN ('compensating', 'compensated') OR offsetting NOT IN ('AWAITING_APPROVAL', 'INTENT_RECORDED'))
        WHEN 'compensated' THEN offsetting = 'SUCCEEDED'
        ELSE false END) IS NOT TRUE THEN
        RAISE EXCEPTION 'operation %: it is not % while the call that holds it is % and what offsets it %',
            NEW.key, NEW.status, holder.state, coalesce(offsetting, 'nothing') USING ERRCODE = 'FP001';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencepost.guard_setter() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Judged at COMMIT, when the keys are written too: two calls cannot both hold one.
    IF NEW.resource IS NOT NULL AND NOT EXISTS (SELECT 1 FROM fencepost.operations o
            WHERE o.key = NEW.resource AND o.tenant = NEW.tenant AND o.resource AND o.call = NEW.id
            AND o.status = 'open') THEN
        RAISE EXCEPTION 'call %: sent without holding what it sets', NEW.id USING ERRCODE = 'FP003';
    END IF;
    IF NEW.operation IS NOT NULL AND NOT EXISTS (SELECT 1 FROM fencepost.operations o
            WHERE o.key = NEW.operation AND o.tenant = NEW.tenant AND o.call = NEW.id AND o.status = 'open'
            AND o.first_sent_at IS NOT NULL) THEN
        RAISE EXCEPTION 'call %: sent without holding its key', NEW.id USING ERRCODE = 'FP003';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION fencepost.guard_outbox() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (NEW.tenant, NEW.subject, NEW.kind, NEW.run, NEW.root)
       IS DISTINCT FROM (OLD.tenant, OLD.subject, OLD.kind, OLD.run, OLD.root) THEN
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
    -- What went wrong with a generation says nothing of the next; what is set aside is not published.
    IF NEW.generation > OLD.generation THEN
        NEW.failures := 0;
        NEW.error := NULL;
        NEW.dead_at := NULL;
    ELSIF NEW.dead_at IS NOT NULL THEN
        NEW.publish_at := '9999-01-01 00:00:00+00';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencepost.guard_outbox_end() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
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

CREATE OR REPLACE FUNCTION fencepost.guard_outbox_api() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    placed fencepost.outbox := coalesce(NEW, OLD);
    of_run record;
    of_call record;
    before fencepost.outbox;
    may boolean;
BEGIN
    SELECT r.*, EXISTS (SELECT 1 FROM fencepost.events e
            WHERE e.run = r.id AND e.tenant = r.tenant AND e.seq = r.seq
            AND e.xmin = pg_current_xact_id()::xid) AS moved INTO of_run FROM fencepost.runs r
        WHERE r.id = placed.run AND r.tenant = placed.tenant;
    SELECT c.*, EXISTS (SELECT 1 FROM fencepost.events e
            WHERE e.run = c.run AND e.tenant = c.tenant AND e.seq = c.version
            AND e.xmin = pg_current_xact_id()::xid) AS moved INTO of_call FROM fencepost.calls c
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
                        WHERE r.id = of_call.child AND r.tenant = of_call.tenant AND EXISTS (SELECT 1 FROM fencepost.events e
            WHERE e.run = r.id AND e.tenant = r.tenant AND e.seq = r.seq
            AND e.xmin = pg_current_xact_id()::xid)))
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
    FOR EACH ROW WHEN (pg_has_role(current_user, 'fencepost_api', 'member')
           AND NOT pg_has_role(current_user, 'fencepost_worker', 'member')
           AND NOT pg_has_role(current_user, 'fencepost_operator', 'member')) EXECUTE FUNCTION fencepost.guard_outbox_api();

CREATE OR REPLACE FUNCTION fencepost.guard_worker() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF greatest(NEW.last_seen, NEW.ended_at, NEW.progress_at) > fencepost.now() + interval '1 s' THEN
        RAISE EXCEPTION 'worker %: a stamp says when, it does not promise', NEW.token USING ERRCODE = 'FP001';
    END IF;
    IF TG_OP = 'UPDATE' THEN
        IF (NEW.token, NEW.role, NEW.host, NEW.pid, NEW.started_at)
           IS DISTINCT FROM (OLD.token, OLD.role, OLD.host, OLD.pid, OLD.started_at) THEN
            RAISE EXCEPTION 'worker %: a token is one process', OLD.token USING ERRCODE = 'FP001';
        END IF;
        IF OLD.ended_at IS NOT NULL AND NEW.ended_at IS DISTINCT FROM OLD.ended_at THEN
            RAISE EXCEPTION 'worker %: it has ended, and comes back under another token', OLD.token
                USING ERRCODE = 'FP001';
        END IF;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencepost.append_only() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'FP004';
END $$;

CREATE OR REPLACE FUNCTION fencepost.guard_events() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_has_role(current_user, 'fencepost_api', 'member')
           AND NOT pg_has_role(current_user, 'fencepost_worker', 'member')
           AND NOT pg_has_role(current_user, 'fencepost_operator', 'member')
       AND EXISTS (SELECT 1 FROM added a WHERE a.type NOT IN ('CallCancelled', 'CancelRequested', 'CompensationRequested', 'ModelOutcomeUnknown', 'RunCreated', 'RunStopped', 'RunStopping')) THEN
        RAISE EXCEPTION '% writes the events of a cancel, and no others', current_user
            USING ERRCODE = 'FP002';
    END IF;
    -- Asked once of a statement's rows. A scalar subquery is never planned as a table of all runs.
    IF EXISTS (
        SELECT 1 FROM (
            SELECT a.tenant, a.run, a.seq, a.type, a.prev_hash, a.projection,
                lag(a.seq) OVER chain AS seq_before, lag(a.hash) OVER chain AS hash_before,
                lead(a.seq) OVER chain AS seq_after
            FROM added a WINDOW chain AS (PARTITION BY a.run, a.tenant ORDER BY a.seq)) e
        WHERE (e.seq_after IS NULL AND e.projection IS NULL) OR (e.seq = 1) <> (e.type = 'RunCreated')
            OR CASE WHEN e.seq_before IS NULL THEN
                (SELECT e.seq = r.seq + 1 AND e.prev_hash = r.head_hash FROM fencepost.runs r
                    WHERE r.tenant = e.tenant AND r.id = e.run) IS NOT TRUE
            ELSE e.seq <> e.seq_before + 1 OR e.prev_hash <> e.hash_before END) THEN
        RAISE EXCEPTION 'events go on where the history of their run ends, and say where it stands then'
            USING ERRCODE = 'FP004';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION fencepost.guard_head() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Judged at COMMIT: an event beyond its run's head would stop the run for ever.
    IF NEW.projection IS NOT NULL THEN
        IF NOT EXISTS (SELECT 1 FROM fencepost.runs r
                WHERE r.tenant = NEW.tenant AND r.id = NEW.run AND r.seq >= NEW.seq) THEN
            RAISE EXCEPTION 'run %: it has not moved to its event %', NEW.run, NEW.seq
                USING ERRCODE = 'FP004';
        END IF;
    END IF;
    -- Nor is anything said of a call that its row does not say: its newest event is its version.
    IF NEW.call IS NOT NULL THEN
        IF NOT EXISTS (SELECT 1 FROM fencepost.calls c WHERE c.id = NEW.call AND c.tenant = NEW.tenant
                AND c.run = NEW.run AND c.version >= NEW.seq) THEN
            RAISE EXCEPTION 'run %: a call has not moved to its event', NEW.run USING ERRCODE = 'FP004';
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION fencepost.guard_evidence() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.tenant = NEW.tenant AND e.run = NEW.run
            AND e.type = 'ToolAttemptStarted' AND e.call = NEW.call AND e.attempt = NEW.attempt
            AND e.worker = NEW.owner AND e.fence = NEW.fence) THEN
        RAISE EXCEPTION 'evidence %: no such attempt was ever started', NEW.id USING ERRCODE = 'FP002';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.id = NEW.id AND e.tenant = NEW.tenant
            AND e.type = 'EvidenceFiled' AND (e.run, e.call, e.attempt, e.worker, e.fence)
                IS NOT DISTINCT FROM (NEW.run, NEW.call, NEW.attempt, NEW.owner, NEW.fence)
            AND (e.body ->> 'applied', e.body ->> 'receipt', e.body ->> 'result')
                IS NOT DISTINCT FROM (NEW.applied::text, NEW.receipt, NEW.result)) THEN
        RAISE EXCEPTION 'evidence %: no event says so', NEW.id USING ERRCODE = 'FP004';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencepost.guard_epoch() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF num_nonnulls(NEW.released_at, NEW.released_by, NEW.release_reason) <> 0
           OR greatest(NEW.since, NEW.opened_at) > fencepost.now() THEN
            RAISE EXCEPTION 'epoch %: it begins in the past, and is not released yet', NEW.epoch
                USING ERRCODE = 'FP001';
        END IF;
    ELSIF (NEW.epoch, NEW.since, NEW.opened_at, NEW.opened_by, NEW.reason)
           IS DISTINCT FROM (OLD.epoch, OLD.since, OLD.opened_at, OLD.opened_by, OLD.reason)
          OR OLD.released_at IS NOT NULL OR NEW.released_at IS NULL OR NEW.released_by IS NULL THEN
        RAISE EXCEPTION 'epoch %: it is released once, and nothing else of it changes', OLD.epoch
            USING ERRCODE = 'FP004';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencepost.guard_policy() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    following bigint := (SELECT coalesce(max(version), 0) + 1 FROM fencepost.policies);
BEGIN
    IF NEW.version < following THEN
        RAISE EXCEPTION 'policy version % was published before', NEW.version USING ERRCODE = '23505';
    ELSIF NEW.version IS DISTINCT FROM following THEN
        RAISE EXCEPTION 'policy version % is not the next, which is %', NEW.version, following
            USING ERRCODE = 'FP004';
    END IF;
    IF '' IN (trim(NEW.name), trim(NEW.digest), trim(NEW.bundle), trim(NEW.published_by), trim(NEW.note))
        OR NEW.tenant <> '' AND trim(NEW.tenant) = ''
    THEN
        RAISE EXCEPTION 'policy version %: its name, digest, bundle, publisher and note must be said',
            NEW.version USING ERRCODE = 'FP004';
    END IF;
    NEW.login := session_user;
    NEW.published_at := fencepost.now();
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencepost.note_authority() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
BEGIN
    INSERT INTO fencepost.authority_changes (tenant, id, at, login, made_by, reason, about, change, said)
    VALUES (coalesce(found ->> 'tenant', ''), gen_random_uuid(), fencepost.now(), session_user,
        nullif(current_setting('fencepost.by', true), ''),
        nullif(current_setting('fencepost.reason', true), ''), TG_TABLE_NAME, lower(TG_OP), found::text);
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION fencepost.guard_allowance() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    told text;
    said json;
    by_events uuid[];
    sums record;
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.until IS NULL OR OLD.until > fencepost.now() - interval '1 day' THEN
            RAISE EXCEPTION 'allowance %: what is used of it still counts', OLD.allowance
                USING ERRCODE = 'FP004';
        END IF;
        RETURN OLD;
    END IF;
    by_events := NEW.presented_events;
    NEW.presented_events := NULL;
    IF TG_OP = 'INSERT' THEN
        IF (NEW.used_count, NEW.used_minor) <> (0, 0) THEN
            RAISE EXCEPTION 'allowance %: what is new is unused', NEW.allowance USING ERRCODE = 'FP001';
        END IF;
        RETURN NEW;
    END IF;
    IF (NEW.tenant, NEW.key, NEW.allowance, NEW.since, NEW.until, NEW.first_call)
       IS DISTINCT FROM (OLD.tenant, OLD.key, OLD.allowance, OLD.since, OLD.until, OLD.first_call) THEN
        RAISE EXCEPTION 'allowance %: a counter does not become another', OLD.allowance
            USING ERRCODE = 'FP001';
    END IF;
    -- What a batch has come to is one change of a counter: nothing of it counts twice.
    IF EXISTS (SELECT 1 FROM fencepost.events e WHERE e.id = OLD.event AND e.tenant = OLD.tenant
            AND e.xmin = pg_current_xact_id()::xid) THEN
        RAISE EXCEPTION 'allowance %: it has changed in this transaction', OLD.allowance
            USING ERRCODE = 'FP004';
    END IF;
    -- An event of this very transaction: one that was there before has been counted. Its call, written before
    -- its counters, has or had a share; what begins an attempt or catches up tells of that share itself.
    SELECT e.type, s.share INTO told, said FROM fencepost.events e
        JOIN fencepost.calls c ON c.id = e.call AND c.tenant IS NOT DISTINCT FROM e.tenant
        LEFT JOIN LATERAL (SELECT share FROM json_array_elements(e.body -> 'reserved') share
            WHERE e.type IN ('ToolAttemptStarted', 'ToolOutcomeMarkedUnknown', 'LeaseAcquired') AND share ->> 'key' = NEW.key LIMIT 1) s ON true
        WHERE e.id = NEW.event AND e.tenant = NEW.tenant AND e.xmin = pg_current_xact_id()::xid
            AND (e.type NOT IN ('ToolAttemptStarted', 'ToolOutcomeMarkedUnknown', 'LeaseAcquired') OR s.share IS NOT NULL)
            AND c.reserved::jsonb @> jsonb_build_array(jsonb_build_object('key', NEW.key));
    IF (CASE WHEN NEW.used_count < OLD.used_count OR NEW.used_minor < OLD.used_minor
            THEN told IN ('ToolAttemptFailed', 'ToolEffectReconciled', 'RepairDecided', 'ApprovalDecided', 'CallCancelled', 'AuthorizationDenied', 'ProposalRejected')
            ELSE told IN ('ToolAttemptStarted', 'RepairRequested', 'ToolOutcomeMarkedUnknown', 'LeaseAcquired') END) IS NOT TRUE THEN
        RAISE EXCEPTION 'allowance %: it changes only with what a call has come to', OLD.allowance
            USING ERRCODE = 'FP004';
    END IF;
    IF told = 'ToolAttemptStarted' AND (NEW.limit_count::text, NEW.limit_minor::text, NEW.currency)
       IS DISTINCT FROM (said ->> 'limit_count', said ->> 'limit_minor', said ->> 'currency') THEN
        RAISE EXCEPTION 'allowance %: its limits are those of the attempt let go', OLD.allowance
            USING ERRCODE = 'FP004';
    END IF;
    -- A window of another length would be forgotten before it ends, and all that was used with it.
    IF told = 'ToolAttemptStarted' AND (NEW.since, NEW.until)
       IS DISTINCT FROM ((said ->> 'since')::timestamptz, (said ->> 'until')::timestamptz) THEN
        RAISE EXCEPTION 'allowance %: its window is that of the attempt let go', OLD.allowance
            USING ERRCODE = 'FP004';
    END IF;
    IF told = 'ToolAttemptStarted'
       AND (NEW.used_count > NEW.limit_count OR NEW.used_minor > NEW.limit_minor) THEN
        RAISE EXCEPTION 'allowance %: no attempt goes beyond it', OLD.allowance USING ERRCODE = 'FP003';
    END IF;
    -- A call takes or gives back its share once, however many events of it are told.
    SELECT coalesce(sum(m.calls) FILTER (WHERE m.takes), 0) AS took_count,
            coalesce(sum(m.minor) FILTER (WHERE m.takes), 0) AS took_minor,
            coalesce(sum(m.calls) FILTER (WHERE m.gives), 0) AS gave_count,
            coalesce(sum(m.minor) FILTER (WHERE m.gives), 0) AS gave_minor
        INTO sums FROM (
            SELECT bool_or(e.type IN ('ToolAttemptStarted', 'RepairRequested', 'ToolOutcomeMarkedUnknown', 'LeaseAcquired')) AS takes,
                bool_or(e.type IN ('ToolAttemptFailed', 'ToolEffectReconciled', 'RepairDecided', 'ApprovalDecided', 'CallCancelled', 'AuthorizationDenied', 'ProposalRejected')) AS gives,
                (share ->> 'count')::bigint AS calls, (share ->> 'minor')::bigint AS minor
            FROM fencepost.events e
                JOIN fencepost.calls c ON c.id = e.call AND c.tenant IS NOT DISTINCT FROM e.tenant
                CROSS JOIN LATERAL jsonb_array_elements(c.reserved::jsonb) share
            WHERE e.id = ANY (by_events || NEW.event) AND e.tenant = NEW.tenant
                AND e.xmin = pg_current_xact_id()::xid AND share ->> 'key' = NEW.key
            GROUP BY c.id, share) m;
    IF (NEW.used_count - OLD.used_count BETWEEN -sums.gave_count AND sums.took_count
            AND NEW.used_minor - OLD.used_minor BETWEEN -sums.gave_minor AND sums.took_minor) IS NOT TRUE THEN
        RAISE EXCEPTION 'allowance %: its calls have taken or given back less', OLD.allowance
            USING ERRCODE = 'FP004';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION fencepost.start_children(p_tenants text[], p_runs uuid[], p_calls uuid[])
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_made integer := 0;
    v_run record;
BEGIN
    -- An event beyond its run's head is one of this transaction: each starts its run once.
    FOR v_run IN
        SELECT r.tenant, (e.body ->> 'child')::uuid AS id, r.id AS parent, c.id AS call, r.principal,
            coalesce(r.root, r.id) AS root, r.depth + 1 AS depth, r.traceparent, r.request,
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
            on_stop, created_at, deadline, ready_at, root, parent, parent_call, depth, traceparent)
        VALUES (v_run.tenant, v_run.id, 'child:' || v_run.call, v_run.said ->> 'planner',
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
            v_run.call, v_run.depth, v_run.traceparent);
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

CREATE OR REPLACE FUNCTION fencepost.guard_child() RETURNS trigger LANGUAGE plpgsql
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
    may := '{"turns": 16, "calls": 64, "attempts": 256, "events": 50000, "bytes": 52428800, "depth": 4, "children": 16, "fruitless": 5, "repeats": 5}' || jsonb_strip_nulls(above.request -> 'budget');
    has := '{"turns": 16, "calls": 64, "attempts": 256, "events": 50000, "bytes": 52428800, "depth": 4, "children": 16, "fruitless": 5, "repeats": 5}' || jsonb_strip_nulls(NEW.request -> 'budget');
    piece := above.below -> 'held' -> NEW.parent_call::text;
    IF piece IS DISTINCT FROM jsonb_strip_nulls(jsonb_build_object('turns', has -> 'turns', 'calls', has -> 'calls', 'attempts', has -> 'attempts', 'tokens', has -> 'tokens', 'cost', has -> 'cost', 'children', (has ->> 'children')::bigint + 1)) THEN
        RAISE EXCEPTION 'run %: its parent holds another slice for it', NEW.id USING ERRCODE = 'FP004';
    END IF;
    IF (has ->> 'depth')::bigint >= (may ->> 'depth')::bigint OR EXISTS (
        SELECT 1 FROM unnest(ARRAY['turns', 'calls', 'attempts', 'tokens', 'cost', 'children']) AS n (name)
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

CREATE OR REPLACE FUNCTION fencepost.guard_api_token() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'token %: it is revoked, never deleted', OLD.id USING ERRCODE = 'FP004';
    ELSIF TG_OP = 'INSERT' THEN
        NEW.login := session_user;
        NEW.created_at := fencepost.now();
        IF num_nonnulls(NEW.last_used_at, NEW.revoked_at, NEW.revoked_by) <> 0
           OR NEW.digest !~ '^[0-9a-f]{64}$' OR '' IN (trim(NEW.tenant), trim(NEW.created_by)) THEN
            RAISE EXCEPTION 'token %: it begins unused, with a digest and an owner', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        RETURN NEW;
    END IF;
    IF (NEW.id, NEW.tenant, NEW.principals, NEW.scopes, NEW.digest, NEW.note, NEW.created_at, NEW.created_by,
        NEW.login, NEW.expires_at)
       IS DISTINCT FROM
       (OLD.id, OLD.tenant, OLD.principals, OLD.scopes, OLD.digest, OLD.note, OLD.created_at, OLD.created_by,
        OLD.login, OLD.expires_at)
       OR OLD.revoked_at IS NOT NULL
          AND (NEW.revoked_at, NEW.revoked_by) IS DISTINCT FROM (OLD.revoked_at, OLD.revoked_by)
       OR (NEW.revoked_at IS NULL) <> (NEW.revoked_by IS NULL) THEN
        RAISE EXCEPTION 'token %: what it may does not change, and what is revoked stays so', OLD.id
            USING ERRCODE = 'FP001';
    END IF;
    IF NEW.last_used_at IS DISTINCT FROM OLD.last_used_at THEN
        NEW.last_used_at := fencepost.now();  -- whoever uses it does not say when
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER guard_api_token BEFORE INSERT OR UPDATE OR DELETE ON fencepost.api_tokens
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_api_token();

CREATE OR REPLACE FUNCTION fencepost.guard_memory() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    newest bigint;
    was fencepost.memory;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'memory is append-only: a version''s value may be erased, its row stays'
            USING ERRCODE = 'FP004';
    ELSIF TG_OP = 'UPDATE' THEN
        IF (NEW.tenant, NEW.space, NEW.key, NEW.version, NEW.absent, NEW.restores, NEW.untrusted,
            NEW.operation, NEW.run, NEW.call, NEW.written_at)
           IS DISTINCT FROM
           (OLD.tenant, OLD.space, OLD.key, OLD.version, OLD.absent, OLD.restores, OLD.untrusted,
            OLD.operation, OLD.run, OLD.call, OLD.written_at)
           OR NEW.value IS NOT NULL OR OLD.value IS NULL OR NEW.erased_at IS NULL THEN
            RAISE EXCEPTION 'version % of %: a version does not change; its value may be erased',
                OLD.version, OLD.key USING ERRCODE = 'FP004';
        END IF;
        NEW.erased_at := fencepost.now();
        RETURN NEW;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(jsonb_build_array(NEW.tenant, NEW.space, NEW.key)::text, 0));
    SELECT max(m.version) INTO newest FROM fencepost.memory m
    WHERE m.tenant = NEW.tenant AND m.space = NEW.space AND m.key = NEW.key;
    IF NEW.version <> coalesce(newest, 0) + 1 OR NEW.erased_at IS NOT NULL OR NEW.operation = ''
       OR NEW.restores NOT BETWEEN 0 AND NEW.version - 1
       OR (NEW.value IS NULL) <> (NEW.absent) THEN
        RAISE EXCEPTION 'version % of %: it comes after version %, with a value or restoring none',
            NEW.version, NEW.key, coalesce(newest, 0) USING ERRCODE = 'FP001';
    END IF;
    IF NEW.restores > 0 THEN
        SELECT * INTO was FROM fencepost.memory m WHERE m.tenant = NEW.tenant AND m.space = NEW.space
            AND m.key = NEW.key AND m.version = NEW.restores;
    END IF;
    IF NEW.restores IS NOT NULL AND (was.erased_at IS NOT NULL OR (was.untrusted AND NOT NEW.untrusted)
           OR (NEW.value, NEW.absent) IS DISTINCT FROM (was.value, coalesce(was.absent, true))) THEN
        RAISE EXCEPTION 'version % of %: it is not what version % was', NEW.version, NEW.key, NEW.restores
            USING ERRCODE = 'FP001';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM fencepost.calls c
            JOIN fencepost.operations o ON o.key = c.operation AND o.tenant IS NOT DISTINCT FROM c.tenant
            JOIN fencepost.runs r ON r.id = c.run AND r.tenant IS NOT DISTINCT FROM c.tenant
        WHERE c.id = NEW.call AND c.tenant = NEW.tenant AND c.run IS NOT DISTINCT FROM NEW.run
            AND c.operation IS NOT DISTINCT FROM NEW.operation AND o.call = c.id AND o.status = 'open'
            AND c.state = 'DISPATCHING' AND c.owner IS NOT NULL AND c.in_flight_until > fencepost.now()
            AND c.tool = NEW.space || CASE WHEN NEW.restores IS NULL THEN '.write' ELSE '.restore' END
            AND c.arguments::json ->> 'key' = NEW.key AND CASE WHEN NEW.restores IS NULL
                THEN (c.arguments::json ->> 'expected')::bigint = NEW.version - 1
                    AND (c.arguments::json -> 'value')::text = NEW.value
                ELSE (c.arguments::json ->> 'to')::bigint = NEW.restores END
            -- What its run learns while the attempt is under way was not known to who asked.
            AND (NEW.untrusted OR r.tainted IS NULL OR r.tainted > (
                SELECT max(e.seq) FROM fencepost.events e WHERE e.run = c.run AND e.tenant = c.tenant
                AND e.call IS NOT DISTINCT FROM c.id AND e.type = 'ToolAttemptStarted'))) AND EXISTS (SELECT 1 FROM fencepost.runs) THEN
        RAISE EXCEPTION 'version % of %: no attempt that is under way asks for it', NEW.version, NEW.key
            USING ERRCODE = 'FP002';
    END IF;
    NEW.written_at := fencepost.now();
    RETURN NEW;
END $$;

CREATE TRIGGER guard_memory BEFORE INSERT OR UPDATE OR DELETE ON fencepost.memory
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_memory();

CREATE OR REPLACE FUNCTION fencepost.write_memory(
    p_tenant text, p_space text, p_key text, p_expected bigint, p_value text, p_restores bigint,
    p_untrusted boolean, p_operation text, p_run uuid, p_call uuid, p_until timestamptz
) RETURNS TABLE (said text, at_version bigint) LANGUAGE plpgsql AS $$
DECLARE
    done fencepost.memory;
    old fencepost.memory;
    newest bigint;
    expected boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(jsonb_build_array(p_tenant, p_space, p_key)::text, 0));
    -- An operation's key holds its tenant; so asked, the lookup is planned by the operation.
    SELECT * INTO done FROM fencepost.memory m
    WHERE m.operation = p_operation AND m.tenant IS NOT DISTINCT FROM p_tenant;
    IF FOUND THEN
        RETURN QUERY SELECT CASE WHEN (done.space, done.key) = (p_space, p_key)
            AND done.restores IS NOT DISTINCT FROM p_restores
            AND (p_restores IS NOT NULL OR done.version = p_expected + 1
                AND (done.value = p_value OR done.erased_at IS NOT NULL))
            THEN 'written' ELSE 'other' END, done.version;
        RETURN;
    END IF;
    IF fencepost.now() >= p_until THEN  -- once the lock is held: what comes later is never seen by a lookup
        RETURN QUERY SELECT 'late', NULL::bigint;
        RETURN;
    END IF;
    SELECT coalesce(max(m.version), 0) INTO newest FROM fencepost.memory m
    WHERE m.tenant = p_tenant AND m.space = p_space AND m.key = p_key;
    -- What restored a version stands for it: so a chain of writes is offset from its end to its beginning.
    SELECT newest = p_expected OR p_restores IS NOT NULL AND EXISTS (
        WITH RECURSIVE stands AS (
            SELECT newest AS version
            UNION ALL SELECT m.restores FROM stands s JOIN fencepost.memory m ON m.space = p_space
                AND m.key = p_key AND m.tenant IS NOT DISTINCT FROM p_tenant AND m.version = s.version
                AND m.restores > 0)
        SELECT FROM stands s WHERE s.version = p_expected) INTO expected;
    IF NOT expected OR p_restores > newest THEN
        RETURN QUERY SELECT 'conflict', newest;
        RETURN;
    END IF;
    IF p_restores > 0 THEN
        SELECT * INTO old FROM fencepost.memory m
        WHERE m.tenant = p_tenant AND m.space = p_space AND m.key = p_key AND m.version = p_restores;
        IF old.erased_at IS NOT NULL THEN
            RETURN QUERY SELECT 'erased', newest;
            RETURN;
        END IF;
    END IF;
    INSERT INTO fencepost.memory (tenant, space, key, version, value, absent, restores, untrusted, operation,
        run, call, written_at)
    VALUES (p_tenant, p_space, p_key, newest + 1,
        CASE WHEN p_restores IS NULL THEN p_value ELSE old.value END,
        p_restores IS NOT NULL AND coalesce(old.absent, true), p_restores,
        p_untrusted OR coalesce(old.untrusted, false), p_operation, p_run, p_call, fencepost.now());
    RETURN QUERY SELECT 'written', newest + 1;
END $$;

REVOKE ALL ON FUNCTION fencepost.write_memory FROM PUBLIC;

GRANT EXECUTE ON FUNCTION fencepost.write_memory TO fencepost_worker;

CREATE OR REPLACE FUNCTION fencepost.written_memory(p_tenant text, p_space text, p_key text, p_operation text)
RETURNS TABLE (said text, at_version bigint) LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended(jsonb_build_array(p_tenant, p_space, p_key)::text, 0)) THEN
        RETURN QUERY SELECT 'busy', NULL::bigint;
        RETURN;
    END IF;
    RETURN QUERY SELECT 'known', (SELECT m.version FROM fencepost.memory m
        WHERE m.operation = p_operation AND m.tenant IS NOT DISTINCT FROM p_tenant);
END $$;

REVOKE ALL ON FUNCTION fencepost.written_memory FROM PUBLIC;

GRANT EXECUTE ON FUNCTION fencepost.written_memory TO fencepost_worker;

CREATE OR REPLACE FUNCTION fencepost.enqueue_run(
    p_tenant text, p_run_key text, p_planner text, p_version integer, p_principal text, p_input jsonb,
    p_deadline interval, p_budget jsonb DEFAULT '{}', p_on_stop text DEFAULT 'compensate',
    p_id uuid DEFAULT gen_random_uuid(), p_traceparent text DEFAULT NULL
) RETURNS TABLE (run uuid, created boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := fencepost.now();
    v_request jsonb;
    v_deadline interval;
    v_usual CONSTANT jsonb := '{"turns": 16, "calls": 64, "attempts": 256, "events": 50000, "bytes": 52428800, "depth": 4, "children": 16, "fruitless": 5, "repeats": 5}';
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
    IF starts_with(p_run_key, 'child:') THEN
        RAISE EXCEPTION 'run keys that begin with child: are those of runs that calls start; use another'
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
            WHEN name = 'tainted' THEN value <> 'true'
            WHEN name = 'turns' THEN (value::text !~ '^[0-9]{1,16}$' OR value::bigint NOT BETWEEN 0 AND 2147483647)
            WHEN name = 'calls' THEN (value::text !~ '^[0-9]{1,16}$' OR value::bigint NOT BETWEEN 0 AND 2147483647)
            WHEN name = 'attempts' THEN (value::text !~ '^[0-9]{1,16}$' OR value::bigint NOT BETWEEN 0 AND 2147483647)
            WHEN name = 'tokens' THEN value <> 'null' AND (value::text !~ '^[0-9]{1,16}$' OR value::bigint NOT BETWEEN 0 AND 9007199254740991)
            WHEN name = 'cost' THEN value <> 'null' AND (value::text !~ '^[0-9]{1,16}$' OR value::bigint NOT BETWEEN 0 AND 9007199254740991)
            WHEN name = 'events' THEN (value::text !~ '^[0-9]{1,16}$' OR value::bigint NOT BETWEEN 0 AND 2147483647)
            WHEN name = 'bytes' THEN (value::text !~ '^[0-9]{1,16}$' OR value::bigint NOT BETWEEN 0 AND 9007199254740991)
            WHEN name = 'depth' THEN (value::text !~ '^[0-9]{1,16}$' OR value::bigint NOT BETWEEN 0 AND 2147483647)
            WHEN name = 'children' THEN (value::text !~ '^[0-9]{1,16}$' OR value::bigint NOT BETWEEN 0 AND 2147483647)
            WHEN name = 'fruitless' THEN (value::text !~ '^[0-9]{1,16}$' OR value::bigint NOT BETWEEN 1 AND 2147483647)
            WHEN name = 'repeats' THEN (value::text !~ '^[0-9]{1,16}$' OR value::bigint NOT BETWEEN 2 AND 2147483647)
            WHEN name = 'wall_clock_ms' THEN value <> 'null' AND (value::text !~ '^[0-9]{1,16}$' OR value::bigint NOT BETWEEN 1 AND 315360000000)
            ELSE true END) THEN
        RAISE EXCEPTION 'a budget holds whole numbers, within their ranges, under turns, calls, attempts, tokens, cost, events, bytes, depth, children, fruitless, repeats, wall_clock_ms, not %',
            left(p_budget::text, 200) USING ERRCODE = 'FP422';
    END IF;
    IF p_on_stop IS NULL OR p_on_stop NOT IN ('compensate', 'leave') THEN
        RAISE EXCEPTION 'on_stop is compensate or leave, not %', p_on_stop USING ERRCODE = 'FP422';
    END IF;
    IF p_traceparent !~ '^(00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}|(?!00|ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,200})?)$' THEN
        RAISE EXCEPTION 'a traceparent is one of W3C Trace Context, not %', left(p_traceparent, 200)
            USING ERRCODE = 'FP422';
    END IF;
    -- In seconds: a day is 24 hours here, whatever the session's time zone makes of it.
    v_deadline := make_interval(secs => extract(epoch FROM p_deadline)::double precision);
    v_request := jsonb_build_object('planner', p_planner, 'version', p_version, 'principal', p_principal,
        'input', p_input, 'deadline', extract(epoch FROM p_deadline), 'budget', p_budget,
        'on_stop', p_on_stop);
    INSERT INTO fencepost.runs (tenant, id, run_key, planner, planner_version, principal, request, on_stop,
                                created_at, deadline, ready_at, traceparent)
    VALUES (p_tenant, p_id, p_run_key, p_planner, p_version, p_principal, v_request, p_on_stop,
            v_now, v_now + v_deadline, v_now, p_traceparent)
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

REVOKE ALL ON FUNCTION fencepost.enqueue_run FROM PUBLIC;

GRANT EXECUTE ON FUNCTION fencepost.enqueue_run TO fencepost_producer, fencepost_operator, fencepost_worker;

GRANT EXECUTE ON FUNCTION fencepost.enqueue_run TO fencepost_api;

CREATE OR REPLACE FUNCTION fencepost.refuse_intake(
    p_id uuid, p_queue text, p_tenant text, p_principal text, p_message text, p_error text
) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO fencepost.intake_refusals (id, queue, tenant, principal, message, error, received_at)
    VALUES (p_id, p_queue, p_tenant, p_principal, p_message, p_error, fencepost.now())
    ON CONFLICT (id) DO NOTHING
$$;

CREATE OR REPLACE FUNCTION fencepost.signal_run(
    p_tenant text, p_run uuid, p_key text, p_name text, p_body jsonb, p_sender text
) RETURNS TABLE (number integer, created boolean, sent_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_run fencepost.runs;
    v_sent fencepost.signals;
    v_now timestamptz;
    v_number integer;
BEGIN
    IF coalesce(p_key, '') = '' OR coalesce(p_name, '') = '' OR coalesce(p_sender, '') = ''
       OR p_body IS NULL THEN
        RAISE EXCEPTION 'a signal''s key, name, body and sender are required' USING ERRCODE = 'FP422';
    END IF;
    IF length(p_key) > 200 OR length(p_name) > 100 OR length(p_sender) > 300 THEN
        RAISE EXCEPTION 'a signal''s key has at most 200 characters, its name 100, its sender 300'
            USING ERRCODE = 'FP422';
    END IF;
    IF jsonb_path_exists(p_body, 'strict $.**{64} ? (@.type() == "object" || @.type() == "array")') THEN
        RAISE EXCEPTION 'a signal''s body is nested at most 64 levels deep' USING ERRCODE = 'FP422';
    END IF;
    IF octet_length(p_body::text) > 65536 THEN
        RAISE EXCEPTION 'a signal''s body is at most 65536 bytes of JSON; refer to the rest'
            USING ERRCODE = 'FP422';
    END IF;
    SELECT * INTO v_run FROM fencepost.runs r WHERE r.tenant = p_tenant AND r.id = p_run FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no run %', p_run USING ERRCODE = 'FP404';
    END IF;
    SELECT * INTO v_sent FROM fencepost.signals s
    WHERE s.run = p_run AND s.key = p_key AND s.tenant = p_tenant;
    IF FOUND THEN
        IF (v_sent.name, v_sent.body, v_sent.sender) IS DISTINCT FROM (p_name, p_body, p_sender) THEN
            RAISE EXCEPTION 'key % of run % is that of another signal, number %', p_key, p_run, v_sent.number
                USING ERRCODE = 'FP409', HINT = 'Use another key, or send what was sent first.';
        END IF;
        RETURN QUERY SELECT v_sent.number, false, v_sent.sent_at;
        RETURN;
    END IF;
    IF v_run.status NOT IN ('QUEUED', 'PLANNING', 'ACTING') THEN
        RAISE EXCEPTION 'run % is %: its planner is not asked any more', p_run, v_run.status
            USING ERRCODE = 'FP410';
    END IF;
    v_number := coalesce((SELECT max(s.number) FROM fencepost.signals s
        WHERE s.run = p_run AND s.tenant = p_tenant), 0) + 1;
    IF v_number > 1000 THEN
        RAISE EXCEPTION 'run % has 1000 signals, and takes no more', p_run USING ERRCODE = 'FP422';
    END IF;
    IF octet_length(p_body::text) + coalesce((SELECT sum(octet_length(s.body::text)) FROM fencepost.signals s
           WHERE s.run = p_run AND s.tenant = p_tenant), 0) > 1048576 THEN
        RAISE EXCEPTION 'the signals of run % are at most 1048576 bytes of JSON together', p_run
            USING ERRCODE = 'FP422', HINT = 'Refer to the rest.';
    END IF;
    v_now := fencepost.now();  -- once the lock is held (R6)
    INSERT INTO fencepost.signals (tenant, run, number, key, name, body, sender, sent_at)
    VALUES (p_tenant, p_run, v_number, p_key, p_name, p_body, p_sender, v_now);
    -- Only a run that its turn lets go on: one with open calls would be claimed in vain, and one whose
    -- planner failed waits as long as that takes.
    UPDATE fencepost.outbox o SET due_at = v_now, publish_at = least(o.publish_at, v_now)
    WHERE o.tenant = p_tenant AND o.subject = p_run AND o.queue = 'planner' AND o.worker IS NULL
      AND o.due_at > v_now AND o.dead_at IS NULL AND v_run.status = 'ACTING' AND v_run.open = v_run.detached;
    RETURN QUERY SELECT v_number, true, v_now;
END $$;

REVOKE ALL ON FUNCTION fencepost.signal_run FROM PUBLIC;

GRANT EXECUTE ON FUNCTION fencepost.signal_run TO fencepost_producer, fencepost_operator, fencepost_api;
