"""How memory is written, and what Postgres refuses of it: gaps, changes, and values that come back.

`write_memory` takes the lock of its slot first and holds it until its COMMIT can be seen, also while that
waits for a standby. `written_memory` tells what an operation wrote only while it has that lock: so it has
seen every write of the slot that ever began, and those that are yet to begin are refused after their time.

A database that holds runs is a ledger: there what is written is what a call of it asks for whose attempt is
under way. Where there are none, memory is kept for a ledger elsewhere, and Postgres takes its workers' word.
"""

from __future__ import annotations

from typing import Final


def _slot(tenant: str, space: str, key: str) -> str:
    return f"hashtextextended(jsonb_build_array({tenant}, {space}, {key})::text, 0)"


_SLOT: Final = _slot("p_tenant", "p_space", "p_key")

# Arguments are canonical text, and so is a value: `->` gives it as it stands there.
_ASKED: Final = """
        SELECT 1 FROM fencepost.calls c
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
                AND e.call IS NOT DISTINCT FROM c.id AND e.type = 'ToolAttemptStarted'))
"""

GUARD_MEMORY: Final = f"""
CREATE FUNCTION fencepost.guard_memory() RETURNS trigger LANGUAGE plpgsql
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
    PERFORM pg_advisory_xact_lock({_slot("NEW.tenant", "NEW.space", "NEW.key")});
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
    IF NOT EXISTS ({_ASKED.strip()}) AND EXISTS (SELECT 1 FROM fencepost.runs) THEN
        RAISE EXCEPTION 'version % of %: no attempt that is under way asks for it', NEW.version, NEW.key
            USING ERRCODE = 'FP002';
    END IF;
    NEW.written_at := fencepost.now();
    RETURN NEW;
END $$;
CREATE TRIGGER guard_memory BEFORE INSERT OR UPDATE OR DELETE ON fencepost.memory
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_memory();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.memory
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();

CREATE FUNCTION fencepost.write_memory(
    p_tenant text, p_space text, p_key text, p_expected bigint, p_value text, p_restores bigint,
    p_untrusted boolean, p_operation text, p_run uuid, p_call uuid, p_until timestamptz
) RETURNS TABLE (said text, at_version bigint) LANGUAGE plpgsql AS $$
DECLARE
    done fencepost.memory;
    old fencepost.memory;
    newest bigint;
    expected boolean;
BEGIN
    PERFORM pg_advisory_xact_lock({_SLOT});
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

CREATE FUNCTION fencepost.written_memory(p_tenant text, p_space text, p_key text, p_operation text)
RETURNS TABLE (said text, at_version bigint) LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock({_SLOT}) THEN
        RETURN QUERY SELECT 'busy', NULL::bigint;
        RETURN;
    END IF;
    RETURN QUERY SELECT 'known', (SELECT m.version FROM fencepost.memory m
        WHERE m.operation = p_operation AND m.tenant IS NOT DISTINCT FROM p_tenant);
END $$;
REVOKE ALL ON FUNCTION fencepost.written_memory FROM PUBLIC;
"""
