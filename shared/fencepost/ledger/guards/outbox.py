"""What Postgres refuses of the outbox and of the stamps of workers."""

from __future__ import annotations

from fencepost.ledger.rows import OPEN_SQL

GUARD_OUTBOX = """
CREATE FUNCTION fencepost.guard_outbox() RETURNS trigger LANGUAGE plpgsql
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
CREATE TRIGGER guard_outbox BEFORE UPDATE ON fencepost.outbox
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_outbox();

CREATE FUNCTION fencepost.guard_outbox_end() RETURNS trigger LANGUAGE plpgsql
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
       OR (OLD.kind = 'call' AND state IN (@OPEN@)) THEN
        RAISE EXCEPTION 'outbox %: its subject is open', OLD.subject USING ERRCODE = 'FP001';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER guard_outbox_end AFTER DELETE ON fencepost.outbox DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_outbox_end();
""".replace("@OPEN@", OPEN_SQL)

GUARD_WORKERS = """
CREATE FUNCTION fencepost.guard_worker() RETURNS trigger LANGUAGE plpgsql
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
CREATE TRIGGER guard_worker BEFORE INSERT OR UPDATE ON fencepost.workers
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_worker();
"""
