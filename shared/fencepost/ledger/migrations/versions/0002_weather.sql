SET LOCAL lock_timeout = '2s';

ALTER TABLE fencepost.outbox ADD COLUMN failures INTEGER DEFAULT 0 NOT NULL,
    ADD COLUMN error TEXT, ADD COLUMN dead_at TIMESTAMP WITH TIME ZONE;
CREATE INDEX outbox_dead ON fencepost.outbox (dead_at) WHERE dead_at IS NOT NULL;

ALTER TABLE fencepost.workers ADD COLUMN progress_at TIMESTAMP WITH TIME ZONE, ADD COLUMN busy INTEGER,
    ADD COLUMN slots INTEGER, ADD COLUMN draining BOOLEAN DEFAULT false NOT NULL;

CREATE TABLE fencepost.intake_refusals (
    id UUID NOT NULL,
    queue TEXT NOT NULL,
    tenant TEXT NOT NULL,
    principal TEXT NOT NULL,
    message TEXT NOT NULL,
    error TEXT NOT NULL,
    received_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT intake_refusals_pkey PRIMARY KEY (id)
);
CREATE INDEX intake_refusals_received_at ON fencepost.intake_refusals (received_at);
GRANT SELECT ON fencepost.intake_refusals TO fencepost_worker, fencepost_operator, fencepost_reader;
GRANT DELETE ON fencepost.intake_refusals TO fencepost_operator;
GRANT UPDATE (failures, error, dead_at) ON fencepost.outbox TO fencepost_relay;

-- Functions that are new or changed, as they are defined beside the schema.

CREATE OR REPLACE FUNCTION fencepost.guard_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE OR REPLACE FUNCTION fencepost.guard_worker() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE OR REPLACE FUNCTION fencepost.refuse_intake(
    p_id uuid, p_queue text, p_tenant text, p_principal text, p_message text, p_error text
) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$
    INSERT INTO fencepost.intake_refusals (id, queue, tenant, principal, message, error, received_at)
    VALUES (p_id, p_queue, p_tenant, p_principal, p_message, p_error, fencepost.now())
    ON CONFLICT (id) DO NOTHING
$$;

REVOKE ALL ON FUNCTION fencepost.refuse_intake FROM PUBLIC;

GRANT EXECUTE ON FUNCTION fencepost.refuse_intake TO fencepost_producer;
