"""What Postgres refuses of a call."""

from __future__ import annotations

from fencepost.ledger.guards.approvals import APPROVALS, BORN_APPROVAL
from fencepost.ledger.guards.cancels import only_cancels
from fencepost.ledger.guards.children import CHILD, DETACHED, NOT_DENIED, SETTLED
from fencepost.ledger.guards.persons import PERSONS, WORDS
from fencepost.ledger.guards.words import hop_words, offices, words
from fencepost.states import CALL_BORN, CALL_ENDS, CALL_HOPS, CALL_UNSETTLED

_SETTLED = "'SUCCEEDED', 'FAILED', 'ACCEPTED_UNKNOWN'"

_BORN = f"""
        IF by_owner IS NULL OR by_owner IS DISTINCT FROM run_owner OR by_fence IS DISTINCT FROM run_fence THEN
            RAISE EXCEPTION 'call %: proposed without the term of its run', NEW.id USING ERRCODE = 'FP002';
        END IF;
        IF NEW.state NOT IN ({words(CALL_BORN)})
           OR NEW.doubt OR NEW.attempts <> 0 OR NEW.owner IS NOT NULL OR NEW.reused OR NEW.lost
           OR (NEW.asks, NEW.throttled) <> (0, 0)
           OR num_nonnulls(NEW.request, NEW.in_flight_until, NEW.quiet_at, NEW.lookup,
                NEW.receipt, NEW.result, NEW.proof, NEW.fingerprint, NEW.restored,
                NEW.reserved, NEW.child) <> 0 OR NEW.detached THEN
            RAISE EXCEPTION 'call %: cannot begin %, or with a past', NEW.id, NEW.state
                USING ERRCODE = 'FP001';
        END IF;
{BORN_APPROVAL.strip(chr(10))}
        -- What offsets an effect is proposed by a run that stops, and nothing else is.
        IF run_status <> (CASE WHEN NEW.compensates IS NULL THEN 'PLANNING' ELSE 'COMPENSATING' END) THEN
            RAISE EXCEPTION 'call %: its run is %', NEW.id, run_status USING ERRCODE = 'FP001';
        END IF;
        IF NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.seq = NEW.version
                AND e.tenant = NEW.tenant AND e.call IS NOT DISTINCT FROM NEW.id) THEN
            RAISE EXCEPTION 'call %: proposed without an event', NEW.id USING ERRCODE = 'FP004';
        END IF;
"""

_UNCHANGING = f"""
        IF (NEW.tenant, NEW.id, NEW.run, NEW.turn, NEW.ordinal, NEW.label, NEW.tool, NEW.tool_version,
            NEW.effect, NEW.operation, NEW.scope, NEW.compensates, NEW.arguments, NEW.arguments_hash,
            NEW.required, NEW.resource)
           IS DISTINCT FROM
           (OLD.tenant, OLD.id, OLD.run, OLD.turn, OLD.ordinal, OLD.label, OLD.tool, OLD.tool_version,
            OLD.effect, OLD.operation, OLD.scope, OLD.compensates, OLD.arguments, OLD.arguments_hash,
            OLD.required, OLD.resource)
           OR (OLD.request IS NOT NULL AND NEW.request IS DISTINCT FROM OLD.request)
           OR (OLD.fingerprint IS NOT NULL AND NEW.fingerprint IS DISTINCT FROM OLD.fingerprint) THEN
            RAISE EXCEPTION 'call %: what was proposed and sent does not change', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        IF NEW.version = OLD.version THEN
            OLD.live := NULL;  -- computed after this
            OLD.offsets := NULL;
            IF NEW IS DISTINCT FROM OLD THEN
                RAISE EXCEPTION 'call %: changed without an event', NEW.id USING ERRCODE = 'FP004';
            END IF;
            RETURN NEW;
        END IF;
        SELECT e.id, e.type, e.attempt, e.worker, e.fence, e.body INTO said FROM fencepost.events e
            WHERE e.run = NEW.run AND e.seq = NEW.version AND e.tenant = NEW.tenant
                AND e.call IS NOT DISTINCT FROM NEW.id;
        IF NOT FOUND OR NEW.version < OLD.version THEN
            RAISE EXCEPTION 'call %: its version moves only with its events', NEW.id USING ERRCODE = 'FP004';
        END IF;
        -- Evidence wakes the reconciler of a doubt that nobody holds; whatever else changes is presented.
        IF said.type = 'EvidenceFiled' THEN
            rest := NEW;
            rest.version := OLD.version;
            rest.ready_at := OLD.ready_at;
            rest.live := OLD.live;  -- computed after this
            rest.offsets := OLD.offsets;
            IF rest IS NOT DISTINCT FROM OLD THEN
                IF NEW.ready_at <> OLD.ready_at AND (OLD.state <> 'UNKNOWN' OR OLD.owner IS NOT NULL) THEN
                    RAISE EXCEPTION 'call %: evidence does not move it', NEW.id USING ERRCODE = 'FP002';
                END IF;
                RETURN NEW;
            END IF;
        END IF;
{DETACHED.strip(chr(10))}
        IF NEW.fence < OLD.fence THEN
            RAISE EXCEPTION 'call %: a fence never falls', NEW.id USING ERRCODE = 'FP002';
        END IF;
        IF NEW.attempts < OLD.attempts OR NEW.in_flight_until < OLD.in_flight_until
           OR (OLD.in_flight_until IS NOT NULL AND NEW.in_flight_until IS NULL) THEN
            RAISE EXCEPTION 'call %: an attempt cannot be unmade', NEW.id USING ERRCODE = 'FP001';
        END IF;
"""

_PRESENTED = f"""
        IF by_office IS NOT NULL THEN
            via := by_office;
            IF via NOT IN ({offices(CALL_HOPS)}) THEN
                RAISE EXCEPTION 'call %: there is no office %', NEW.id, via USING ERRCODE = 'FP002';
            END IF;
            IF via IN ('approval', 'repair', 'recover')
               AND NOT pg_has_role(current_user, 'fencepost_operator', 'member') THEN
                RAISE EXCEPTION 'call %: % is not an operator', NEW.id, current_user USING ERRCODE = 'FP002';
            END IF;
            IF by_version IS DISTINCT FROM OLD.version THEN
                RAISE EXCEPTION 'call %: office % saw version %, it is %', NEW.id, via, by_version,
                    OLD.version USING ERRCODE = 'FP002';
            END IF;
            IF NEW.fence <= OLD.fence OR NEW.owner IS NOT NULL THEN
                RAISE EXCEPTION 'call %: an office raises the fence and clears the owner', NEW.id
                    USING ERRCODE = 'FP002';
            END IF;
            IF via = 'recover' THEN
                IF (said.type, said.body ->> 'code')
                        IS DISTINCT FROM ('ToolOutcomeMarkedUnknown', 'ledger_restored')
                   OR NOT EXISTS (SELECT 1 FROM fencepost.epochs p WHERE p.released_at IS NULL
                        AND p.epoch::text = said.body ->> 'epoch') THEN
                    RAISE EXCEPTION 'call %: the ledger is not held after a restore', NEW.id
                        USING ERRCODE = 'FP002';
                END IF;
            END IF;
        ELSIF by_owner IS NULL OR by_fence IS NULL THEN
            RAISE EXCEPTION 'call %: no term and no office', NEW.id USING ERRCODE = 'FP002';
        ELSIF by_owner = OLD.owner AND by_fence = OLD.fence THEN
            via := 'term';
            IF NEW.fence <> OLD.fence OR (NEW.owner IS NOT NULL AND NEW.owner <> OLD.owner) THEN
                RAISE EXCEPTION 'call %: a term does not change itself', NEW.id USING ERRCODE = 'FP002';
            END IF;
        ELSIF by_fence > OLD.fence THEN
            via := 'claim';
            IF NEW.fence <> by_fence OR (NEW.owner IS NOT NULL AND NEW.owner <> by_owner) THEN
                RAISE EXCEPTION 'call %: a claim takes the term it presents', NEW.id USING ERRCODE = 'FP002';
            END IF;
        ELSE
            RAISE EXCEPTION 'call %: term %/% is not the accepted one', NEW.id, by_owner, by_fence
                USING ERRCODE = 'FP002';
        END IF;
        IF (via || ':' || OLD.state || '>' || NEW.state) NOT IN ({hop_words(CALL_HOPS)}) THEN
            RAISE EXCEPTION 'call %: % may not move it from % to %', NEW.id, via, OLD.state, NEW.state
                USING ERRCODE = 'FP001';
        END IF;
        IF via <> 'recover' AND NEW.restored IS DISTINCT FROM OLD.restored THEN
            RAISE EXCEPTION 'call %: what a restore has marked stays marked', NEW.id USING ERRCODE = 'FP003';
        END IF;
        IF NEW.state = 'NEEDS_REPAIR' AND OLD.state <> 'NEEDS_REPAIR' AND said.type <> 'RepairRequested' THEN
            IF NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq < NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type = 'RepairRequested') THEN
                RAISE EXCEPTION 'call %: nobody asked for a person to look at it', NEW.id
                    USING ERRCODE = 'FP004';
            END IF;
        END IF;
        -- Nothing but a repair, evidence or a reconciliation touches calls of a run that has completed.
        IF run_status = 'COMPLETED' AND via NOT IN ('evidence', 'repair')
           AND OLD.state NOT IN ({words(CALL_UNSETTLED)}) THEN
            RAISE EXCEPTION 'call %: its run has completed', NEW.id USING ERRCODE = 'FP001';
        END IF;
"""

# What an attempt leaves behind changes only as the next one is counted, and that only with its own event;
# but after a restore something may be under way that nobody here has counted.
_ATTEMPTS = """
        -- Nobody holds a call that waits for its run: a claim may find that it has nothing to do.
        waiting := via = 'claim' AND OLD.child IS NOT NULL AND NEW.owner IS NULL
            AND said.type = 'ReconciliationDeferred';
        IF NEW.attempts > OLD.attempts OR (via = 'claim' AND NEW.state = 'DISPATCHING' AND NOT waiting) THEN
            IF via <> 'claim' OR NEW.attempts <> OLD.attempts + 1 OR NOT (
                (said.type, said.attempt, said.worker, said.fence)
                    IS NOT DISTINCT FROM ('ToolAttemptStarted', NEW.attempts, by_owner, by_fence)
                OR EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq < NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type = 'ToolAttemptStarted' AND e.attempt = NEW.attempts
                    AND e.worker = by_owner AND e.fence = by_fence)) THEN
                RAISE EXCEPTION 'call %: nobody started attempt % under this term', NEW.id, NEW.attempts
                    USING ERRCODE = 'FP004';
            END IF;
            -- Nothing is sent for the first time but by a run that goes on, and none that outlives it (I10).
            IF OLD.state = 'INTENT_RECORDED' AND (
                run_status <> CASE WHEN NEW.compensates IS NULL THEN 'ACTING' ELSE 'COMPENSATING' END
                OR (NEW.compensates IS NULL AND OLD.in_flight_until IS NULL
                    AND NEW.in_flight_until > run_deadline)) THEN
                RAISE EXCEPTION 'call %: its run is % until %, and sends nothing', NEW.id, run_status,
                    run_deadline USING ERRCODE = 'FP001';
            END IF;
            -- What is sent again is what the event of the first attempt says was sent.
            IF OLD.request IS NOT NULL AND OLD.attempts > 0 THEN
                IF NEW.fingerprint IS DISTINCT FROM (
                    SELECT e.body ->> 'fingerprint' FROM fencepost.events e WHERE e.run = NEW.run
                        AND e.tenant = NEW.tenant AND e.call IS NOT DISTINCT FROM NEW.id
                        AND e.type = 'ToolAttemptStarted' AND e.attempt = 1) THEN
                    RAISE EXCEPTION 'call %: what is sent again has another fingerprint than what was sent',
                        NEW.id USING ERRCODE = 'FP004';
                END IF;
            END IF;
        ELSIF (NEW.request, NEW.fingerprint) IS DISTINCT FROM (OLD.request, OLD.fingerprint)
              OR (via <> 'recover' AND (NEW.in_flight_until, NEW.quiet_at)
                  IS DISTINCT FROM (OLD.in_flight_until, OLD.quiet_at))
              OR NEW.quiet_at < OLD.quiet_at THEN
            RAISE EXCEPTION 'call %: what is sent, and until when, changes with an attempt', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
"""

# What a call holds of allowances is told as an attempt begins; what has become of it its state says. Of one
# that a restore has marked it is told there, or by who takes it up first.
_HELD = """
        IF NEW.reserved IS DISTINCT FROM OLD.reserved THEN
            IF NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq <= NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.body ->> 'reserved' = NEW.reserved
                    AND ((e.type = 'ToolAttemptStarted' AND e.attempt = NEW.attempts)
                        OR (e.type = 'ToolOutcomeMarkedUnknown' AND via = 'recover')
                        OR (e.type = 'LeaseAcquired' AND via = 'claim' AND OLD.reserved IS NULL
                            AND OLD.restored IS NOT NULL AND OLD.attempts = 0))) THEN
                RAISE EXCEPTION 'call %: what it holds of allowances changes only as an attempt begins',
                    NEW.id USING ERRCODE = 'FP001';
            END IF;
        END IF;
"""

_DOUBT = f"""
        IF NEW.doubt AND NEW.state IN ({words(CALL_ENDS)}) THEN
            RAISE EXCEPTION 'call %: it cannot end % in doubt', NEW.id, NEW.state USING ERRCODE = 'FP003';
        END IF;
        IF NEW.state = 'INTENT_RECORDED' AND NEW.doubt THEN
            RAISE EXCEPTION 'call %: what may have happened is not sent as if it had not', NEW.id
                USING ERRCODE = 'FP003';
        END IF;
        -- Unknown is in doubt, and so is an attempt that takes the place of one nobody answered for.
        IF NOT NEW.doubt AND (NEW.state IN ('UNKNOWN', 'NEEDS_REPAIR')
                OR (OLD.doubt AND NEW.state NOT IN ({_SETTLED}))
                OR (OLD.state = 'DISPATCHING' AND NEW.state = 'DISPATCHING' AND NOT waiting)) THEN
            RAISE EXCEPTION 'call %: doubt is cleared only by a proof', NEW.id USING ERRCODE = 'FP003';
        END IF;
        IF OLD.state = 'DISPATCHING' AND NEW.state = 'INTENT_RECORDED' THEN
            IF NOT ((via = 'term' OR NEW.effect = 'read') AND OLD.child IS NULL AND (
                (said.type, said.attempt, said.worker, said.fence)
                    IS NOT DISTINCT FROM ('ToolAttemptFailed', NEW.attempts, by_owner, by_fence)
                OR EXISTS (SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq < NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type = 'ToolAttemptFailed' AND e.attempt = NEW.attempts
                    AND e.worker = by_owner AND e.fence = by_fence))) THEN
                RAISE EXCEPTION
                    'call %: an attempt is made again only after one that is known to have failed', NEW.id
                    USING ERRCODE = 'FP003';
            END IF;
        END IF;
"""

# `said` is the newest event of the call; mostly it is the proof as well.
_PROOF = f"""
        settles := NEW.state IN ({_SETTLED}) AND NEW.state <> OLD.state;
        IF NOT settles AND (NEW.receipt, NEW.result, NEW.proof, NEW.reused)
                IS DISTINCT FROM (OLD.receipt, OLD.result, OLD.proof, OLD.reused) THEN
            RAISE EXCEPTION 'call %: a result comes with the end it proves', NEW.id USING ERRCODE = 'FP001';
        END IF;
        IF settles AND OLD.state = 'INTENT_RECORDED' THEN
            IF NEW.reused IS NOT TRUE OR NEW.proof IS DISTINCT FROM OLD.proof OR NOT EXISTS (
                SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.tenant = NEW.tenant
                    AND e.seq > OLD.version AND e.seq <= NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type = 'ResultReused' AND EXISTS (
                        SELECT 1 FROM fencepost.operations o WHERE o.key = NEW.operation
                            AND o.tenant = NEW.tenant AND o.meaning = e.body ->> 'meaning'
                            AND (e.body ->> 'untrusted' = 'true' OR NOT o.untrusted)))
               OR NOT EXISTS (SELECT 1 FROM fencepost.operations o
                    WHERE o.key = NEW.operation AND o.tenant = NEW.tenant
                    AND o.status = 'completed' AND NOT o.doubt AND (o.arguments_hash, o.receipt, o.result)
                        IS NOT DISTINCT FROM (NEW.arguments_hash, NEW.receipt, NEW.result)) THEN
                RAISE EXCEPTION 'call %: there is no such result to reuse', NEW.id USING ERRCODE = 'FP003';
            END IF;
        ELSIF settles THEN
            IF said.id IS DISTINCT FROM NEW.proof THEN
                SELECT e.id, e.type, e.attempt, e.worker, e.fence, e.body INTO said FROM fencepost.events e
                    WHERE e.id = NEW.proof AND e.tenant = NEW.tenant AND e.seq > OLD.version
                        AND e.seq < NEW.version
                        AND (e.run, e.call) IS NOT DISTINCT FROM (NEW.run, NEW.id);
            END IF;
            IF NEW.reused OR (CASE
                -- The run that it has started goes on, whatever anybody says.
                WHEN OLD.child IS NOT NULL AND said.type NOT IN ('ChildRunSettled', 'RepairDecided')
                    THEN false ELSE CASE said.type
                WHEN 'ToolResultRecorded' THEN via = 'term' AND OLD.state = 'DISPATCHING'
                    AND NEW.state = 'SUCCEEDED' AND (said.attempt, said.worker, said.fence)
                        IS NOT DISTINCT FROM (NEW.attempts, by_owner, by_fence)
                WHEN 'ToolAttemptFailed' THEN (via = 'term' OR NEW.effect = 'read')
                    AND OLD.state = 'DISPATCHING' AND NEW.state = 'FAILED'
                    AND (said.attempt, said.worker, said.fence)
                        IS NOT DISTINCT FROM (NEW.attempts, by_owner, by_fence)
                    AND said.body ->> 'final' = 'true'
                    AND (NOT OLD.doubt OR coalesce(said.body ->> 'stored', '') = 'true')
                WHEN 'ToolEffectReconciled' THEN (via = 'claim' OR (via = 'term' AND OLD.state = 'UNKNOWN'))
                    AND (said.worker, said.fence) IS NOT DISTINCT FROM (by_owner, by_fence)
                    AND said.body ->> 'to' = NEW.state
                WHEN 'RepairDecided' THEN via = 'repair' AND said.body ->> 'to' = NEW.state
{NOT_DENIED.strip(chr(10))}
{SETTLED.strip(chr(10))}
                ELSE false END END) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: % only by a proof of its own, written in this change', NEW.id,
                    NEW.state USING ERRCODE = 'FP003';
            END IF;
        END IF;
"""

GUARD_CALLS = f"""
CREATE FUNCTION fencepost.guard_call() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run_status text;
    run_owner text;
    run_fence bigint;
    run_deadline timestamptz;
    run_principal text;
    by_owner text;
    by_fence bigint;
    by_version bigint;
    by_office text;
    via text;
    said record;
    rest fencepost.calls;
    asked json;
    offset_too boolean;
    word record;
    verdict jsonb;
    settles boolean;
    waiting boolean;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'calls are never deleted' USING ERRCODE = 'FP004';
    END IF;
    by_owner := NEW.presented_owner;
    by_fence := NEW.presented_fence;
    by_version := NEW.presented_version;
    by_office := NEW.presented_office;
    NEW.presented_owner := NULL;
    NEW.presented_fence := NULL;
    NEW.presented_version := NULL;
    NEW.presented_office := NULL;
    -- The run's lock serialises every change of its calls with its completion.
    SELECT status, owner, fence, deadline, principal
        INTO run_status, run_owner, run_fence, run_deadline, run_principal
        FROM fencepost.runs WHERE tenant = NEW.tenant AND id = NEW.run FOR NO KEY UPDATE;
    IF TG_OP = 'INSERT' THEN
{_BORN.rstrip()}
    ELSE
{only_cancels("call").strip(chr(10))}
{_UNCHANGING.strip(chr(10))}
{_PRESENTED.strip(chr(10))}
{_ATTEMPTS.strip(chr(10))}
{_HELD.strip(chr(10))}
{CHILD.strip(chr(10))}
{PERSONS.strip(chr(10))}
{APPROVALS.strip(chr(10))}
{WORDS.strip(chr(10))}
{_DOUBT.strip(chr(10))}
{_PROOF.strip(chr(10))}
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_call BEFORE INSERT OR UPDATE OR DELETE ON fencepost.calls
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_call();
"""
