"""What Postgres refuses of epochs: each is opened after a restore, released once, and never forgotten."""

from __future__ import annotations

GUARD_EPOCHS = """
CREATE FUNCTION fencepost.guard_epoch() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF num_nonnulls(NEW.released_at, NEW.released_by, NEW.release_reason) <> 0
           OR greatest(NEW.since, NEW.opened_at) > fencepost.now() THEN
            RAISE EXCEPTION 'epoch %: it begins in the past, and is not released yet', NEW.epoch
                USING ERRCODE = 'FP001';
        END IF;
    ELSIF (NEW.epoch, NEW.since, NEW.opened_at, NEW.opened_by, NEW.reason, NEW.marked)
           IS DISTINCT FROM (OLD.epoch, OLD.since, OLD.opened_at, OLD.opened_by, OLD.reason, OLD.marked)
          OR OLD.released_at IS NOT NULL OR NEW.released_at IS NULL OR NEW.released_by IS NULL THEN
        RAISE EXCEPTION 'epoch %: it is released once, and nothing else of it changes', OLD.epoch
            USING ERRCODE = 'FP004';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_epoch BEFORE INSERT OR UPDATE ON fencepost.epochs
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_epoch();
CREATE TRIGGER append_only BEFORE DELETE ON fencepost.epochs
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.epochs
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON fencepost.audits
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.audits
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();
"""

HOLD = """
INSERT INTO fencepost.ledger DEFAULT VALUES;
CREATE FUNCTION fencepost.hold_if_gone(p_tenant text, p_event uuid, p_at timestamptz) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A loss that an epoch tells of is known: once it is released the ledger is not held for it again.
    IF EXISTS (SELECT 1 FROM fencepost.events e WHERE e.id = p_event AND e.tenant = p_tenant)
       OR EXISTS (SELECT 1 FROM fencepost.epochs p WHERE (p.since <= p_at AND p.opened_at >= p_at)
            OR strpos(p.reason, p_event::text) > 0) THEN
        RETURN false;
    END IF;
    INSERT INTO fencepost.epochs (epoch, since, opened_at, opened_by, reason, marked)
    SELECT coalesce(max(epoch), 0) + 1, least(p_at, fencepost.now()), fencepost.now(), session_user,
        format('the ledger went back: event %s of %s, which was committed, is gone', p_event, p_at), false
    FROM fencepost.epochs ON CONFLICT DO NOTHING;
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION fencepost.hold_if_gone FROM PUBLIC;
CREATE FUNCTION fencepost.note_audit(p_scope text, p_since timestamptz, p_differences integer) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO fencepost.audits (scope, at, since, differences, login)
    SELECT p_scope, fencepost.now(), p_since, p_differences, session_user ON CONFLICT DO NOTHING
$$;
REVOKE ALL ON FUNCTION fencepost.note_audit FROM PUBLIC;
"""
