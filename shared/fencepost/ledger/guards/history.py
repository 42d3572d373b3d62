"""What Postgres refuses of histories: edits, gaps, forks, loose ends; and evidence of what never was."""

from __future__ import annotations

from fencepost.ledger.guards.cancels import ONLY_CANCEL_EVENTS

GUARD_HISTORY = """
CREATE FUNCTION fencepost.append_only() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
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

CREATE FUNCTION fencepost.guard_events() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
@ONLY_CANCEL_EVENTS@
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
CREATE TRIGGER guard_events AFTER INSERT ON fencepost.events REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.guard_events();

CREATE FUNCTION fencepost.guard_head() RETURNS trigger LANGUAGE plpgsql
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
CREATE CONSTRAINT TRIGGER guard_head AFTER INSERT ON fencepost.events DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.projection IS NOT NULL OR NEW.call IS NOT NULL)
    EXECUTE FUNCTION fencepost.guard_head();

CREATE FUNCTION fencepost.guard_evidence() RETURNS trigger LANGUAGE plpgsql
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
CREATE TRIGGER guard_evidence BEFORE INSERT ON fencepost.evidence
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_evidence();
""".replace("@ONLY_CANCEL_EVENTS@", ONLY_CANCEL_EVENTS.strip("\n"))
