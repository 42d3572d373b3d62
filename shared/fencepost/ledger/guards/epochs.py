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
    ELSIF (NEW.epoch, NEW.since, NEW.opened_at, NEW.opened_by, NEW.reason)
           IS DISTINCT FROM (OLD.epoch, OLD.since, OLD.opened_at, OLD.opened_by, OLD.reason)
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
"""
