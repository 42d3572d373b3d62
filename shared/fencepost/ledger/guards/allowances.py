"""What Postgres refuses of allowances: a counter moves only with an event of the same change that says why,
never by an attempt beyond its limit, and is forgotten only once its window is long past.

That a counter is what the calls hold is not checked here but by the checker (I13): it would mean adding up.
"""

from __future__ import annotations

from typing import Final

FORGOTTEN_AFTER: Final = "1 day"
"""How long after its window's end a counter stays, for whoever looks at it."""
TAKES: Final = ("ToolAttemptStarted", "RepairRequested")
"""An attempt reserves; evidence against an end brings back what had been released."""
CATCHES_UP: Final = ("ToolOutcomeMarkedUnknown", "LeaseAcquired")
"""They have a call of a restored ledger take its share, where they tell of one: it may have been sent."""
RELEASES: Final = (
    "ToolAttemptFailed",
    "ToolEffectReconciled",
    "RepairDecided",
    "ApprovalDecided",
    "CallCancelled",
    "AuthorizationDenied",
    "ProposalRejected",
)


def _words(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


GUARD_ALLOWANCES = f"""
CREATE FUNCTION fencepost.guard_allowance() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    told text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.until IS NULL OR OLD.until > fencepost.now() - interval '{FORGOTTEN_AFTER}' THEN
            RAISE EXCEPTION 'allowance %: what is used of it still counts', OLD.allowance
                USING ERRCODE = 'FP004';
        END IF;
        RETURN OLD;
    END IF;
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
    -- An event of this very transaction: one that was there before has been counted.
    SELECT e.type INTO told FROM fencepost.events e
        WHERE e.id = NEW.event AND e.tenant = NEW.tenant AND e.xmin = pg_current_xact_id()::xid
            AND (e.type NOT IN ({_words(CATCHES_UP)}) OR e.body -> 'reserved' IS NOT NULL);
    IF (CASE WHEN NEW.used_count < OLD.used_count OR NEW.used_minor < OLD.used_minor
            THEN told IN ({_words(RELEASES)})
            ELSE told IN ({_words((*TAKES, *CATCHES_UP))}) END) IS NOT TRUE THEN
        RAISE EXCEPTION 'allowance %: it changes only with what a call has come to', OLD.allowance
            USING ERRCODE = 'FP004';
    END IF;
    IF told = 'ToolAttemptStarted'
       AND (NEW.used_count > NEW.limit_count OR NEW.used_minor > NEW.limit_minor) THEN
        RAISE EXCEPTION 'allowance %: no attempt goes beyond it', OLD.allowance USING ERRCODE = 'FP003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_allowance BEFORE INSERT OR UPDATE OR DELETE ON fencepost.allowances
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_allowance();
"""
