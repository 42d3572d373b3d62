SET LOCAL lock_timeout = '2s';

-- Which event first told a run something that nobody vouches for, and how many calls wait for an approval.
ALTER TABLE fencepost.runs ADD COLUMN tainted bigint, ADD COLUMN awaiting integer DEFAULT 0 NOT NULL;
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
    CONSTRAINT principals_pkey PRIMARY KEY (principal, tenant),
    CONSTRAINT principals_roles_check CHECK (jsonb_typeof(roles::jsonb) = 'array'
        AND NOT jsonb_path_exists(roles::jsonb, 'strict $[*] ? (@.type() <> "string")')),
    CONSTRAINT principals_moments_check CHECK (changed_at >= '0001-01-01 00:00Z' AND changed_at < '10000-01-01 00:00Z'
        AND disabled_at >= '0001-01-01 00:00Z' AND disabled_at < '10000-01-01 00:00Z')
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
    CONSTRAINT delegations_pkey PRIMARY KEY (id, tenant),
    CONSTRAINT delegations_moments_check CHECK (since >= '0001-01-01 00:00Z' AND since < '10000-01-01 00:00Z'
        AND until >= '0001-01-01 00:00Z' AND until < '10000-01-01 00:00Z'
        AND revoked_at >= '0001-01-01 00:00Z' AND revoked_at < '10000-01-01 00:00Z')
);
CREATE INDEX delegations_delegate ON fencepost.delegations (delegate) WHERE revoked_at IS NULL;
CREATE TABLE fencepost.withdrawn (
    tool TEXT NOT NULL,
    version INTEGER NOT NULL,
    withdrawn_at TIMESTAMP WITH TIME ZONE NOT NULL,
    withdrawn_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    CONSTRAINT withdrawn_pkey PRIMARY KEY (tool, version),
    CONSTRAINT withdrawn_moments_check CHECK (withdrawn_at >= '0001-01-01 00:00Z' AND withdrawn_at < '10000-01-01 00:00Z')
);
-- Every change of a principal, a delegation or a withdrawal, noted by Postgres itself.
CREATE TABLE fencepost.authority_changes (
    tenant TEXT NOT NULL,
    id UUID NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    login TEXT NOT NULL,
    made_by TEXT,
    reason TEXT,
    about TEXT NOT NULL,
    change TEXT NOT NULL,
    said TEXT NOT NULL,
    CONSTRAINT authority_changes_pkey PRIMARY KEY (id, tenant)
);
-- What of an allowance is used and held, per subject and window; a row that is not there is unused.
CREATE TABLE fencepost.allowances (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    allowance TEXT NOT NULL,
    since TIMESTAMP WITH TIME ZONE,
    until TIMESTAMP WITH TIME ZONE,
    first_call UUID NOT NULL,
    used_count BIGINT DEFAULT 0 NOT NULL,
    used_minor BIGINT DEFAULT 0 NOT NULL,
    limit_count BIGINT,
    limit_minor BIGINT,
    currency TEXT,
    event UUID,
    presented_events UUID[],
    CONSTRAINT allowances_pkey PRIMARY KEY (key, tenant),
    CONSTRAINT allowances_used_check CHECK (used_count >= 0 AND used_minor >= 0)
) WITH (fillfactor = 50);
CREATE INDEX allowances_until ON fencepost.allowances (until) WHERE until IS NOT NULL;
GRANT SELECT ON fencepost.policies, fencepost.principals, fencepost.delegations, fencepost.withdrawn,
    fencepost.allowances, fencepost.authority_changes
    TO fencepost_worker, fencepost_operator, fencepost_reader;
GRANT INSERT ON fencepost.policies, fencepost.principals, fencepost.delegations, fencepost.withdrawn
    TO fencepost_operator;
GRANT UPDATE ON fencepost.principals TO fencepost_operator;
GRANT UPDATE (revoked_at, revoked_by) ON fencepost.delegations TO fencepost_operator;
GRANT DELETE ON fencepost.withdrawn TO fencepost_operator;
GRANT INSERT, UPDATE, DELETE ON fencepost.allowances TO fencepost_worker, fencepost_operator;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON fencepost.policies
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.policies
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON fencepost.authority_changes
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.authority_changes
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();

-- Functions that are new or changed, as they are defined beside the schema.

CREATE OR REPLACE FUNCTION fencepost.guard_call() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    run_status text;
    run_owner text;
    run_fence bigint;
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
    SELECT status, owner, fence INTO run_status, run_owner, run_fence
        FROM fencepost.runs WHERE tenant = NEW.tenant AND id = NEW.run FOR NO KEY UPDATE;
    IF TG_OP = 'INSERT' THEN

        IF by_owner IS NULL OR by_owner IS DISTINCT FROM run_owner OR by_fence IS DISTINCT FROM run_fence THEN
            RAISE EXCEPTION 'call %: proposed without the term of its run', NEW.id USING ERRCODE = 'FP002';
        END IF;
        IF NEW.state NOT IN ('AWAITING_APPROVAL', 'CANCELLED', 'INTENT_RECORDED', 'REJECTED')
           OR NEW.doubt OR NEW.attempts <> 0 OR NEW.owner IS NOT NULL OR NEW.reused OR NEW.lost
           OR NEW.asks <> 0 OR num_nonnulls(NEW.request, NEW.in_flight_until, NEW.quiet_at, NEW.lookup,
                NEW.receipt, NEW.result, NEW.proof, NEW.fingerprint, NEW.restored,
                NEW.reserved) <> 0 THEN
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
        IF run_status NOT IN ('PLANNING', 'COMPENSATING') THEN
            RAISE EXCEPTION 'call %: its run is %', NEW.id, run_status USING ERRCODE = 'FP001';
        END IF;
        IF NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.seq = NEW.version
                AND e.tenant = NEW.tenant AND e.call IS NOT DISTINCT FROM NEW.id) THEN
            RAISE EXCEPTION 'call %: proposed without an event', NEW.id USING ERRCODE = 'FP004';
        END IF;
    ELSE
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
            IF via = 'recover' AND (NOT EXISTS (SELECT 1 FROM fencepost.epochs p WHERE p.released_at IS NULL
                    AND p.epoch::text = said.body ->> 'epoch')
                OR (said.type, said.body ->> 'code')
                    IS DISTINCT FROM ('ToolOutcomeMarkedUnknown', 'ledger_restored')) THEN
                RAISE EXCEPTION 'call %: the ledger is not held after a restore', NEW.id
                    USING ERRCODE = 'FP002';
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
        -- Nothing but a repair, evidence or a reconciliation touches calls of a run that has completed.
        IF run_status = 'COMPLETED' AND via NOT IN ('evidence', 'repair')
           AND OLD.state NOT IN ('DISPATCHING', 'UNKNOWN') THEN
            RAISE EXCEPTION 'call %: its run has completed', NEW.id USING ERRCODE = 'FP001';
        END IF;
        IF NEW.attempts > OLD.attempts OR (via = 'claim' AND NEW.state = 'DISPATCHING') THEN
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
            -- What is sent again is what the event of the first attempt says was sent.
            IF OLD.request IS NOT NULL AND OLD.attempts > 0 AND NEW.fingerprint IS DISTINCT FROM (
                SELECT e.body ->> 'fingerprint' FROM fencepost.events e WHERE e.run = NEW.run
                    AND e.tenant = NEW.tenant AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type = 'ToolAttemptStarted' AND e.attempt = 1) THEN
                RAISE EXCEPTION 'call %: what is sent again has another fingerprint than what was sent',
                    NEW.id USING ERRCODE = 'FP004';
            END IF;
        ELSIF (NEW.request, NEW.fingerprint) IS DISTINCT FROM (OLD.request, OLD.fingerprint)
              OR (via <> 'recover' AND (NEW.in_flight_until, NEW.quiet_at)
                  IS DISTINCT FROM (OLD.in_flight_until, OLD.quiet_at))
              OR NEW.quiet_at < OLD.quiet_at THEN
            RAISE EXCEPTION 'call %: what is sent, and until when, changes with an attempt', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        IF NEW.reserved IS DISTINCT FROM OLD.reserved AND NOT EXISTS (
            SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                AND e.seq > OLD.version AND e.seq <= NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                AND e.body ->> 'reserved' = NEW.reserved
                AND ((e.type = 'ToolAttemptStarted' AND e.attempt = NEW.attempts)
                    OR (e.type = 'ToolOutcomeMarkedUnknown' AND via = 'recover')
                    OR (e.type = 'LeaseAcquired' AND via = 'claim' AND OLD.reserved IS NULL
                        AND OLD.restored IS NOT NULL AND OLD.attempts = 0))) THEN
            RAISE EXCEPTION 'call %: what it holds of allowances changes only as an attempt begins', NEW.id
                USING ERRCODE = 'FP001';
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
                OR (OLD.state = 'DISPATCHING' AND NEW.state = 'DISPATCHING')) THEN
            RAISE EXCEPTION 'call %: doubt is cleared only by a proof', NEW.id USING ERRCODE = 'FP003';
        END IF;
        IF OLD.state = 'DISPATCHING' AND NEW.state = 'INTENT_RECORDED' AND NOT (
            (via = 'term' OR NEW.effect = 'read') AND (
                (said.type, said.attempt, said.worker, said.fence)
                    IS NOT DISTINCT FROM ('ToolAttemptFailed', NEW.attempts, by_owner, by_fence)
                OR EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq < NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type = 'ToolAttemptFailed' AND e.attempt = NEW.attempts
                    AND e.worker = by_owner AND e.fence = by_fence))) THEN
            RAISE EXCEPTION 'call %: an attempt is made again only after one that is known to have failed',
                NEW.id USING ERRCODE = 'FP003';
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
                    AND e.type = 'ResultReused')
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
            IF NEW.reused OR (CASE said.type
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
                ELSE false END) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: % only by a proof of its own, written in this change', NEW.id,
                    NEW.state USING ERRCODE = 'FP003';
            END IF;
        END IF;
    END IF;
    RETURN NEW;
END $$;

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
           OR NEW.tainted IS NOT NULL OR NEW.awaiting <> 0 THEN
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
        -- The first event of this change that says so taints it, whether the row likes it or not.
        IF NEW.tainted IS DISTINCT FROM coalesce(OLD.tainted, (
                SELECT min(e.seq) FROM fencepost.events e WHERE e.run = NEW.id AND e.tenant = NEW.tenant
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
        IF (via || ':' || OLD.status || '>' || NEW.status) NOT IN ('approval:ACTING>COMPENSATING', 'approval:ACTING>STOPPED', 'approval:ACTING>STOPPING', 'call:ACTING>COMPENSATING', 'call:ACTING>STOPPED', 'call:ACTING>STOPPING', 'call:PLANNING>COMPENSATING', 'call:PLANNING>STOPPED', 'call:PLANNING>STOPPING', 'call:QUEUED>COMPENSATING', 'call:QUEUED>STOPPED', 'call:QUEUED>STOPPING', 'call:STOPPING>COMPENSATING', 'call:STOPPING>STOPPED', 'cancel:ACTING>COMPENSATING', 'cancel:ACTING>STOPPED', 'cancel:ACTING>STOPPING', 'cancel:PLANNING>COMPENSATING', 'cancel:PLANNING>STOPPED', 'cancel:PLANNING>STOPPING', 'cancel:QUEUED>COMPENSATING', 'cancel:QUEUED>STOPPED', 'cancel:QUEUED>STOPPING', 'claim:ACTING>COMPENSATING', 'claim:ACTING>PLANNING', 'claim:ACTING>STOPPED', 'claim:ACTING>STOPPING', 'claim:COMPENSATING>COMPENSATING', 'claim:COMPENSATING>STOPPED', 'claim:PLANNING>COMPENSATING', 'claim:PLANNING>PLANNING', 'claim:PLANNING>STOPPED', 'claim:PLANNING>STOPPING', 'claim:QUEUED>COMPENSATING', 'claim:QUEUED>PLANNING', 'claim:QUEUED>STOPPED', 'claim:QUEUED>STOPPING', 'claim:STOPPING>COMPENSATING', 'claim:STOPPING>STOPPED', 'claim:STOPPING>STOPPING', 'recover:COMPENSATING>COMPENSATING', 'recover:PLANNING>PLANNING', 'recover:STOPPING>STOPPING', 'repair:ACTING>COMPENSATING', 'repair:ACTING>STOPPED', 'repair:ACTING>STOPPING', 'repair:PLANNING>COMPENSATING', 'repair:PLANNING>STOPPED', 'repair:PLANNING>STOPPING', 'repair:STOPPED>COMPENSATING', 'repair:STOPPING>COMPENSATING', 'repair:STOPPING>STOPPED', 'term:COMPENSATING>COMPENSATING', 'term:COMPENSATING>STOPPED', 'term:PLANNING>ACTING', 'term:PLANNING>COMPENSATING', 'term:PLANNING>COMPLETED', 'term:PLANNING>PLANNING', 'term:PLANNING>STOPPED', 'term:PLANNING>STOPPING') THEN
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

CREATE OR REPLACE FUNCTION fencepost.guard_operation() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    holder record;
    offsetting text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'operation keys are never forgotten' USING ERRCODE = 'FP004';
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'released' OR NEW.doubt OR NEW.reused <> 0 OR NEW.arguments_hash <> ''
           OR NEW.releases OR num_nonnulls(NEW.run, NEW.call, NEW.first_sent_at, NEW.expires_at, NEW.receipt,
                NEW.result, NEW.preview, NEW.proof) <> 0 THEN
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
           OR NEW.reused <> 0 OR NEW.arguments_hash <> '' OR NEW.releases
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
        c.proof INTO holder FROM fencepost.calls c WHERE c.id = NEW.call AND c.tenant = NEW.tenant;
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
    IF NEW.releases <> OLD.releases AND holder.attempts < 1 THEN
        RAISE EXCEPTION 'operation %: what a contract says of it is noted as it is sent', NEW.key
            USING ERRCODE = 'FP001';
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

CREATE OR REPLACE FUNCTION fencepost.guard_policy() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE TRIGGER guard_policy BEFORE INSERT ON fencepost.policies
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_policy();

CREATE OR REPLACE FUNCTION fencepost.note_authority() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    found jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
BEGIN
    INSERT INTO fencepost.authority_changes (tenant, id, at, login, made_by, reason, about, change, said)
    VALUES (coalesce(found ->> 'tenant', ''), gen_random_uuid(), fencepost.now(), session_user,
        nullif(current_setting('fencepost.by', true), ''),
        nullif(current_setting('fencepost.reason', true), ''), TG_TABLE_NAME, lower(TG_OP), found::text);
    RETURN NULL;
END $$;

REVOKE ALL ON FUNCTION fencepost.note_authority FROM PUBLIC;

CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON fencepost.principals
    FOR EACH ROW EXECUTE FUNCTION fencepost.note_authority();

CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON fencepost.delegations
    FOR EACH ROW EXECUTE FUNCTION fencepost.note_authority();

CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON fencepost.withdrawn
    FOR EACH ROW EXECUTE FUNCTION fencepost.note_authority();

CREATE OR REPLACE FUNCTION fencepost.guard_allowance() RETURNS trigger LANGUAGE plpgsql AS $$
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
        JOIN fencepost.calls c ON c.id = e.call AND c.tenant = e.tenant
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
            FROM fencepost.events e JOIN fencepost.calls c ON c.id = e.call AND c.tenant = e.tenant
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

CREATE TRIGGER guard_allowance BEFORE INSERT OR UPDATE OR DELETE ON fencepost.allowances
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_allowance();

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
