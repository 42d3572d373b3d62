"""What Postgres refuses of an operation key: a key says what the call that holds it says."""

from __future__ import annotations

from fencepost.clock import NEVER
from fencepost.ledger.guards.cancels import ONLY_RELEASES
from fencepost.ledger.guards.words import words
from fencepost.ledger.rows import OPEN_SQL
from fencepost.states import CALL_ENDS, CALL_UNSENT, CallState

_DEAD = words({CallState.REJECTED, CallState.FAILED, CallState.CANCELLED})

_HANDED_ON = f"""
    IF NEW.call IS DISTINCT FROM OLD.call AND OLD.call IS NOT NULL THEN
        IF OLD.doubt THEN
            RAISE EXCEPTION 'operation %: a key in doubt is not handed on', NEW.key USING ERRCODE = 'FP003';
        END IF;
        SELECT c.state, c.doubt INTO holder FROM fencepost.calls c
            WHERE c.id = OLD.call AND c.tenant = NEW.tenant;
        IF OLD.status NOT IN ('released', 'failed') OR holder.state NOT IN ({_DEAD}) OR holder.doubt THEN
            RAISE EXCEPTION 'operation %: a key that is % is not handed on by a call that is %', NEW.key,
                OLD.status, holder.state USING ERRCODE = 'FP001';
        END IF;
    END IF;
"""

# A call that is written together with its key has been written before it.
_HELD = f"""
    SELECT c.operation, c.run, c.state, c.doubt, c.attempts, c.arguments_hash, c.receipt, c.result, c.preview,
        c.proof, c.version INTO holder FROM fencepost.calls c WHERE c.id = NEW.call AND c.tenant = NEW.tenant;
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
       AND (holder.state IN ({words(CALL_ENDS)}) OR (NEW.receipt, NEW.result, NEW.preview, NEW.proof)
            IS DISTINCT FROM (OLD.receipt, OLD.result, OLD.preview, OLD.proof)) THEN
        RAISE EXCEPTION 'operation %: its result is that of the call that holds it', NEW.key
            USING ERRCODE = 'FP001';
    END IF;
    IF (NEW.first_sent_at, NEW.expires_at) IS DISTINCT FROM (OLD.first_sent_at, OLD.expires_at)
       AND ((holder.attempts > 0 OR holder.doubt) AND NEW.first_sent_at <= fencepost.now()
            AND coalesce(NEW.expires_at >= NEW.first_sent_at, true)) IS NOT TRUE THEN
        RAISE EXCEPTION 'operation %: it was not sent then', NEW.key USING ERRCODE = 'FP001';
    END IF;
    -- How long its downstream deduplicates, and what it forgets, is noted only as it is sent.
    IF (NEW.first_sent_at, NEW.expires_at, NEW.releases)
            IS DISTINCT FROM (OLD.first_sent_at, OLD.expires_at, OLD.releases)
       AND (SELECT e.xmin FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
            AND e.call IS NOT DISTINCT FROM NEW.call AND e.seq <= holder.version
            AND e.type IN ('ToolAttemptStarted', 'ToolOutcomeMarkedUnknown')
            ORDER BY e.seq DESC LIMIT 1) IS DISTINCT FROM pg_current_xact_id()::xid THEN
        RAISE EXCEPTION 'operation %: it is not being sent', NEW.key USING ERRCODE = 'FP001';
    END IF;
    IF NEW.releases <> OLD.releases AND holder.attempts < 1 THEN
        RAISE EXCEPTION 'operation %: what a contract says of it is noted as it is sent', NEW.key
            USING ERRCODE = 'FP001';
    END IF;
    -- By what it was sent is what its latest attempt tells; whoever takes it has not been sent yet.
    IF (NEW.meaning, NEW.call) IS DISTINCT FROM (OLD.meaning, OLD.call)
       AND (NEW.meaning IS NOT NULL OR NEW.call IS NOT DISTINCT FROM OLD.call)
       AND (NEW.meaning = (SELECT e.body ->> 'meaning' FROM fencepost.events e
            WHERE e.run = NEW.run AND e.tenant = NEW.tenant AND e.call IS NOT DISTINCT FROM NEW.call
            AND e.seq <= holder.version AND e.type = 'ToolAttemptStarted'
            AND e.xmin = pg_current_xact_id()::xid ORDER BY e.seq DESC LIMIT 1)) IS NOT TRUE THEN
        RAISE EXCEPTION 'operation %: it was not sent as that', NEW.key USING ERRCODE = 'FP001';
    END IF;
    -- Whoever takes a result has to know whose words it is: the event that proved it says so. A key that is
    -- taken anew, or let go unsent, has none: what proved its last holder's failure stays beside it.
    IF (NEW.proof, NEW.untrusted, NEW.status) IS DISTINCT FROM (OLD.proof, OLD.untrusted, OLD.status) THEN
        IF (NEW.call IS NOT DISTINCT FROM OLD.call AND OLD.untrusted AND NOT NEW.untrusted)
           OR (NEW.status NOT IN ('open', 'released')
               AND NEW.proof IS NOT NULL AND NOT NEW.untrusted AND EXISTS (
                SELECT 1 FROM fencepost.events e WHERE e.id = NEW.proof AND e.tenant = NEW.tenant
                AND e.body ->> 'untrusted' = 'true')) THEN
            RAISE EXCEPTION 'operation %: nobody vouches for its result, and it says otherwise', NEW.key
                USING ERRCODE = 'FP001';
        END IF;
    END IF;
    IF NEW.reused < OLD.reused OR (NEW.reused > OLD.reused AND NEW.status <> 'completed') THEN
        RAISE EXCEPTION 'operation %: a result taken stays taken', NEW.key USING ERRCODE = 'FP001';
    END IF;
"""

_STATUS = f"""
    IF NEW.status IN ('compensating', 'compensated') OR OLD.status IN ('compensating', 'compensated') THEN
        -- At most one living compensation: its index is unique.
        SELECT c.state INTO offsetting FROM fencepost.calls c WHERE c.offsets = NEW.key
            AND c.tenant = NEW.tenant;
    END IF;
    IF (CASE NEW.status
        WHEN 'open' THEN holder.state IN ({OPEN_SQL})
        WHEN 'completed' THEN holder.state = 'SUCCEEDED'
            AND (OLD.status NOT IN ('compensating', 'compensated') OR offsetting IS NULL)
        WHEN 'failed' THEN holder.state = 'FAILED'
        WHEN 'unknown' THEN holder.state = 'ACCEPTED_UNKNOWN'
        WHEN 'released' THEN holder.state IN ('REJECTED', 'CANCELLED') OR (holder.state = 'FAILED'
            AND EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.seq = holder.version
                AND e.tenant = NEW.tenant AND e.type = 'RepairDecided' AND e.body ->> 'release' = 'true'))
        WHEN 'compensating' THEN offsetting <> 'SUCCEEDED'
            AND (OLD.status IN ('compensating', 'compensated') OR offsetting NOT IN ({words(CALL_UNSENT)}))
        WHEN 'compensated' THEN offsetting = 'SUCCEEDED'
        ELSE false END) IS NOT TRUE THEN
        RAISE EXCEPTION 'operation %: it is not % while the call that holds it is % and what offsets it %',
            NEW.key, NEW.status, holder.state, coalesce(offsetting, 'nothing') USING ERRCODE = 'FP001';
    END IF;
"""

# What natural tools set: held by the call that was sent last, from its first attempt until it has ended.
_RESOURCE = f"""
    IF NEW.resource THEN
        IF NEW.call IS DISTINCT FROM OLD.call AND OLD.call IS NOT NULL THEN
            SELECT c.state, c.doubt INTO holder FROM fencepost.calls c
                WHERE c.id = OLD.call AND c.tenant = NEW.tenant;
            IF OLD.status <> 'released' OR OLD.doubt OR holder.doubt
               OR holder.state NOT IN ({words(CALL_ENDS)}) THEN
                RAISE EXCEPTION 'resource %: a call that was sent to set it has not ended', NEW.key
                    USING ERRCODE = 'FP003';
            END IF;
            IF OLD.expires_at > fencepost.now() THEN
                RAISE EXCEPTION 'resource %: what was sent may still set it', NEW.key USING ERRCODE = 'FP003';
            END IF;
        END IF;
        SELECT c.resource, c.run, c.state, c.doubt, c.attempts, c.proof, CASE WHEN c.quiet_at < '{NEVER}'
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
        IF NEW.status <> (CASE WHEN holder.state IN ({OPEN_SQL}) THEN 'open' ELSE 'released' END)
           OR (NEW.status = 'open' AND NEW.expires_at IS NOT NULL)
           OR NEW.reused <> 0 OR NEW.arguments_hash <> '' OR NEW.releases OR NEW.untrusted
           OR num_nonnulls(NEW.meaning, NEW.first_sent_at, NEW.receipt, NEW.result, NEW.preview,
                NEW.proof) <> 0 THEN
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
"""

GUARD_KEYS = f"""
CREATE FUNCTION fencepost.guard_operation() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    holder record;
    offsetting text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'operation keys are never forgotten' USING ERRCODE = 'FP004';
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'released' OR NEW.doubt OR NEW.reused <> 0 OR NEW.arguments_hash <> ''
           OR NEW.releases OR NEW.untrusted
           OR num_nonnulls(NEW.meaning, NEW.run, NEW.call, NEW.first_sent_at, NEW.expires_at, NEW.receipt,
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
{ONLY_RELEASES.strip(chr(10))}
{_RESOURCE.strip(chr(10))}
{_HANDED_ON.strip(chr(10))}
{_HELD.strip(chr(10))}
{_STATUS.strip(chr(10))}
    RETURN NEW;
END $$;
CREATE TRIGGER guard_operation BEFORE INSERT OR UPDATE OR DELETE ON fencepost.operations
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_operation();

CREATE FUNCTION fencepost.guard_setter() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Judged at COMMIT, when the keys are written too: two calls cannot both hold one.
    IF NEW.resource IS NOT NULL AND NOT EXISTS (SELECT 1 FROM fencepost.operations o
            WHERE o.key = NEW.resource AND o.tenant = NEW.tenant AND o.resource AND o.call = NEW.id
            AND o.status = 'open') THEN
        RAISE EXCEPTION 'call %: sent without holding what it sets', NEW.id USING ERRCODE = 'FP003';
    END IF;
    IF NEW.operation IS NOT NULL AND NOT EXISTS (SELECT 1 FROM fencepost.operations o
            WHERE o.key = NEW.operation AND o.tenant = NEW.tenant AND o.call = NEW.id AND o.status = 'open'
            AND o.first_sent_at IS NOT NULL) THEN
        RAISE EXCEPTION 'call %: sent without holding its key', NEW.id USING ERRCODE = 'FP003';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER guard_setter AFTER UPDATE ON fencepost.calls DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.state = 'DISPATCHING' AND (NEW.resource IS NOT NULL OR NEW.operation IS NOT NULL))
    EXECUTE FUNCTION fencepost.guard_setter();
"""
