"""How a run is sent a message, and what Postgres refuses of messages and tokens.

`signal_run` numbers the messages of a run under its lock, so that whoever holds the run sees all there are
and none is taken once it has ended. A token never changes but for its end, and for when it was last used.
"""

from __future__ import annotations

from typing import Final

from fencepost import names
from fencepost.ledger.guards.tenants import CONFINED

MAX_SIGNALS: Final = 1000
"""Of one run."""
MAX_SIGNAL_BYTES: Final = 64 * 1024
"""Of the JSON text of one, as Postgres writes it: each is part of every later context of its run."""
MAX_SIGNALS_BYTES: Final = 1024 * 1024
"""Of the JSON texts of all of one run together: they are read anew for each of its turns."""

SIGNAL: Final = f"""
CREATE FUNCTION fencepost.signal_run(
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
    IF NOT {names.sql("p_sender", "by")} THEN
        RAISE EXCEPTION 'sender % is no name: {names.SPELLING}', p_sender USING ERRCODE = 'FP422';
    END IF;
    IF length(p_key) > 200 OR length(p_name) > 100 THEN
        RAISE EXCEPTION 'a signal''s key has at most 200 characters, its name 100'
            USING ERRCODE = 'FP422';
    END IF;
    IF {CONFINED} THEN
        RAISE EXCEPTION 'there is no run %', p_run USING ERRCODE = 'FP404';
    END IF;
    IF jsonb_path_exists(p_body, 'strict $.**{{64}} ? (@.type() == "object" || @.type() == "array")') THEN
        RAISE EXCEPTION 'a signal''s body is nested at most 64 levels deep' USING ERRCODE = 'FP422';
    END IF;
    IF octet_length(p_body::text) > {MAX_SIGNAL_BYTES} THEN
        RAISE EXCEPTION 'a signal''s body is at most {MAX_SIGNAL_BYTES} bytes of JSON; refer to the rest'
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
    IF v_number > {MAX_SIGNALS} THEN
        RAISE EXCEPTION 'run % has {MAX_SIGNALS} signals, and takes no more', p_run USING ERRCODE = 'FP422';
    END IF;
    IF octet_length(p_body::text) + coalesce((SELECT sum(octet_length(s.body::text)) FROM fencepost.signals s
           WHERE s.run = p_run AND s.tenant = p_tenant), 0) > {MAX_SIGNALS_BYTES} THEN
        RAISE EXCEPTION 'the signals of run % are at most {MAX_SIGNALS_BYTES} bytes of JSON together', p_run
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
"""

GUARD_API: Final = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON fencepost.signals
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.signals
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();

CREATE FUNCTION fencepost.guard_api_token() RETURNS trigger LANGUAGE plpgsql
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
"""
