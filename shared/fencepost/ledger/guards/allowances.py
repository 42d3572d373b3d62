"""What Postgres refuses of allowances: a counter moves once in a transaction, with an event of it whose call
has a share of the counter, and by no more than the shares of the calls whose events are presented; never by
an attempt beyond the limit that attempt tells of; and it is forgotten only once its window is long past.

That a counter is what the calls hold is not checked here but by the checker (I13): it would mean adding up.
"""

from __future__ import annotations

from typing import Final

FORGOTTEN_AFTER: Final = "1 day"
"""How long after its window's end a counter stays, for whoever looks at it."""
STARTS: Final = "ToolAttemptStarted"
TAKES: Final = (STARTS, "RepairRequested")
"""An attempt reserves; evidence against an end brings back what had been released."""
CATCHES_UP: Final = ("ToolOutcomeMarkedUnknown", "LeaseAcquired")
"""They have a call of a restored ledger take its share, where they tell of one: it may have been sent."""
TELLS: Final = (STARTS, *CATCHES_UP)
"""Their bodies tell all shares that the call then has."""
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
CREATE FUNCTION fencepost.guard_allowance() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    told text;
    said json;
    by_events uuid[];
    sums record;
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.until IS NULL OR OLD.until > fencepost.now() - interval '{FORGOTTEN_AFTER}' THEN
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
            WHERE e.type IN ({_words(TELLS)}) AND share ->> 'key' = NEW.key LIMIT 1) s ON true
        WHERE e.id = NEW.event AND e.tenant = NEW.tenant AND e.xmin = pg_current_xact_id()::xid
            AND (e.type NOT IN ({_words(TELLS)}) OR s.share IS NOT NULL)
            AND c.reserved::jsonb @> jsonb_build_array(jsonb_build_object('key', NEW.key));
    IF (CASE WHEN NEW.used_count < OLD.used_count OR NEW.used_minor < OLD.used_minor
            THEN told IN ({_words(RELEASES)})
            ELSE told IN ({_words((*TAKES, *CATCHES_UP))}) END) IS NOT TRUE THEN
        RAISE EXCEPTION 'allowance %: it changes only with what a call has come to', OLD.allowance
            USING ERRCODE = 'FP004';
    END IF;
    IF told = '{STARTS}' AND (NEW.limit_count::text, NEW.limit_minor::text, NEW.currency)
       IS DISTINCT FROM (said ->> 'limit_count', said ->> 'limit_minor', said ->> 'currency') THEN
        RAISE EXCEPTION 'allowance %: its limits are those of the attempt let go', OLD.allowance
            USING ERRCODE = 'FP004';
    END IF;
    -- A window of another length would be forgotten before it ends, and all that was used with it.
    IF told = '{STARTS}' AND (NEW.since, NEW.until)
       IS DISTINCT FROM ((said ->> 'since')::timestamptz, (said ->> 'until')::timestamptz) THEN
        RAISE EXCEPTION 'allowance %: its window is that of the attempt let go', OLD.allowance
            USING ERRCODE = 'FP004';
    END IF;
    IF told = '{STARTS}'
       AND (NEW.used_count > NEW.limit_count OR NEW.used_minor > NEW.limit_minor) THEN
        RAISE EXCEPTION 'allowance %: no attempt goes beyond it', OLD.allowance USING ERRCODE = 'FP003';
    END IF;
    -- A call takes or gives back its share once, however many events of it are told.
    SELECT coalesce(sum(m.calls) FILTER (WHERE m.takes), 0) AS took_count,
            coalesce(sum(m.minor) FILTER (WHERE m.takes), 0) AS took_minor,
            coalesce(sum(m.calls) FILTER (WHERE m.gives), 0) AS gave_count,
            coalesce(sum(m.minor) FILTER (WHERE m.gives), 0) AS gave_minor
        INTO sums FROM (
            SELECT bool_or(e.type IN ({_words((*TAKES, *CATCHES_UP))})) AS takes,
                bool_or(e.type IN ({_words(RELEASES)})) AS gives,
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
CREATE TRIGGER guard_allowance BEFORE INSERT OR UPDATE OR DELETE ON fencepost.allowances
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_allowance();
"""
