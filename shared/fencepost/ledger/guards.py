"""What Postgres itself refuses, whoever asks (R7): triggers generated from the state tables of `states.py`.

An UPDATE that changes a protected column presents a term or an office. The guards then check the move against
the table, that no fence falls, that nothing ends in doubt without the proof that clears it, that no run
completes with an open or doubtful call, and that `seq` and `head_hash` move only with events. They cannot
check that Redis granted a fence, nor reach outside: that is what leases and drills are for.

Errors carry SQLSTATE `FP001` (refused move), `FP002` (stale or missing term), `FP003` (doubt), `FP004`
(history).
"""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.events import PROOFS
from fencepost.ledger.rows import OPEN_SQL
from fencepost.states import CALL_BORN, CALL_ENDS, CALL_HOPS, CALL_UNSETTLED, RUN_HOPS, Hops, OperationStatus


def _list(values: Iterable[str]) -> str:
    return ", ".join(f"'{v}'" for v in sorted(values))


def _hop_list(hops: Hops) -> str:
    return ", ".join(f"'{via}:{s}>{t}'" for via in sorted(hops) for s, t in sorted(hops[via]))


def _offices(hops: Hops) -> frozenset[str]:
    """The presentations that need no term, only the version of the row they saw."""
    return frozenset(hops) - {"term", "claim", "call"}


FREE_KEYS = frozenset({OperationStatus.RELEASED, OperationStatus.FAILED})

CLOCK = """
CREATE FUNCTION fencepost.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT clock_timestamp() $$;
"""

MOVABLE_CLOCK = """
CREATE TABLE fencepost.clock (one boolean PRIMARY KEY DEFAULT true CHECK (one), ahead interval NOT NULL);
INSERT INTO fencepost.clock VALUES (true, interval '0');
CREATE OR REPLACE FUNCTION fencepost.now() RETURNS timestamptz LANGUAGE sql VOLATILE
AS $$ SELECT clock_timestamp() + (SELECT ahead FROM fencepost.clock) $$;
GRANT SELECT ON fencepost.clock TO PUBLIC;
"""

GUARD_CALLS = f"""
CREATE FUNCTION fencepost.guard_call() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    run_status text;
    run_owner text;
    run_fence bigint;
    via text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'calls are never deleted' USING ERRCODE = 'FP004';
    END IF;
    -- The run's lock serialises every change of its calls with its completion.
    SELECT status, owner, fence INTO run_status, run_owner, run_fence
        FROM fencepost.runs WHERE tenant = NEW.tenant AND id = NEW.run FOR NO KEY UPDATE;
    IF TG_OP = 'INSERT' THEN
        IF NEW.presented_owner IS NULL OR NEW.presented_owner IS DISTINCT FROM run_owner
           OR NEW.presented_fence IS DISTINCT FROM run_fence THEN
            RAISE EXCEPTION 'call %: proposed without the term of its run', NEW.id USING ERRCODE = 'FP002';
        END IF;
        IF NEW.state NOT IN ({_list(CALL_BORN)})
           OR NEW.doubt OR NEW.attempts <> 0 OR NEW.owner IS NOT NULL THEN
            RAISE EXCEPTION 'call %: cannot begin %', NEW.id, NEW.state USING ERRCODE = 'FP001';
        END IF;
        IF run_status NOT IN ('PLANNING', 'COMPENSATING') THEN
            RAISE EXCEPTION 'call %: its run is %', NEW.id, run_status USING ERRCODE = 'FP001';
        END IF;
    ELSE
        IF (NEW.tenant, NEW.id, NEW.run, NEW.turn, NEW.ordinal, NEW.label, NEW.tool, NEW.tool_version,
            NEW.effect, NEW.operation, NEW.scope, NEW.compensates, NEW.arguments, NEW.arguments_hash,
            NEW.required)
           IS DISTINCT FROM
           (OLD.tenant, OLD.id, OLD.run, OLD.turn, OLD.ordinal, OLD.label, OLD.tool, OLD.tool_version,
            OLD.effect, OLD.operation, OLD.scope, OLD.compensates, OLD.arguments, OLD.arguments_hash,
            OLD.required)
           OR (OLD.request IS NOT NULL AND NEW.request IS DISTINCT FROM OLD.request) THEN
            RAISE EXCEPTION 'call %: what was proposed and sent does not change', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
        IF NEW.version IS DISTINCT FROM OLD.version AND (NEW.version < OLD.version OR NOT EXISTS (
            SELECT 1 FROM fencepost.events e WHERE e.tenant = NEW.tenant AND e.run = NEW.run
                AND e.seq = NEW.version AND e.call = NEW.id)) THEN
            RAISE EXCEPTION 'call %: its version moves only with its events', NEW.id USING ERRCODE = 'FP004';
        END IF;
        IF NEW.fence < OLD.fence THEN
            RAISE EXCEPTION 'call %: a fence never falls', NEW.id USING ERRCODE = 'FP002';
        END IF;
        IF NEW.attempts < OLD.attempts OR NEW.in_flight_until < OLD.in_flight_until
           OR (OLD.in_flight_until IS NOT NULL AND NEW.in_flight_until IS NULL) THEN
            RAISE EXCEPTION 'call %: an attempt cannot be unmade', NEW.id USING ERRCODE = 'FP001';
        END IF;
        IF (NEW.state, NEW.owner, NEW.fence, NEW.doubt, NEW.attempts, NEW.receipt, NEW.result, NEW.proof,
            NEW.in_flight_until, NEW.quiet_at, NEW.reconcile_until, NEW.request)
           IS DISTINCT FROM
           (OLD.state, OLD.owner, OLD.fence, OLD.doubt, OLD.attempts, OLD.receipt, OLD.result, OLD.proof,
            OLD.in_flight_until, OLD.quiet_at, OLD.reconcile_until, OLD.request) THEN
            IF NEW.presented_office IS NOT NULL THEN
                via := NEW.presented_office;
                IF via NOT IN ({_list(_offices(CALL_HOPS))}) THEN
                    RAISE EXCEPTION 'call %: there is no office %', NEW.id, via USING ERRCODE = 'FP002';
                END IF;
                IF via = 'repair' AND NOT pg_has_role(current_user, 'fencepost_operator', 'member') THEN
                    RAISE EXCEPTION 'call %: % is not an operator', NEW.id, current_user
                        USING ERRCODE = 'FP002';
                END IF;
                IF NEW.presented_version IS DISTINCT FROM OLD.version THEN
                    RAISE EXCEPTION 'call %: office % saw version %, it is %', NEW.id, via,
                        NEW.presented_version, OLD.version USING ERRCODE = 'FP002';
                END IF;
                IF NEW.fence <= OLD.fence OR NEW.owner IS NOT NULL THEN
                    RAISE EXCEPTION 'call %: an office raises the fence and clears the owner', NEW.id
                        USING ERRCODE = 'FP002';
                END IF;
            ELSIF NEW.presented_owner IS NULL OR NEW.presented_fence IS NULL THEN
                RAISE EXCEPTION 'call %: no term and no office', NEW.id USING ERRCODE = 'FP002';
            ELSIF NEW.presented_owner = OLD.owner AND NEW.presented_fence = OLD.fence THEN
                via := 'term';
                IF NEW.fence <> OLD.fence OR (NEW.owner IS NOT NULL AND NEW.owner <> OLD.owner) THEN
                    RAISE EXCEPTION 'call %: a term does not change itself', NEW.id USING ERRCODE = 'FP002';
                END IF;
            ELSIF NEW.presented_fence > OLD.fence THEN
                via := 'claim';
                IF NEW.fence <> NEW.presented_fence
                   OR (NEW.owner IS NOT NULL AND NEW.owner <> NEW.presented_owner) THEN
                    RAISE EXCEPTION 'call %: a claim takes the term it presents', NEW.id
                        USING ERRCODE = 'FP002';
                END IF;
            ELSE
                RAISE EXCEPTION 'call %: term %/% is not the accepted one', NEW.id, NEW.presented_owner,
                    NEW.presented_fence USING ERRCODE = 'FP002';
            END IF;
            IF (via || ':' || OLD.state || '>' || NEW.state) NOT IN ({_hop_list(CALL_HOPS)}) THEN
                RAISE EXCEPTION 'call %: % may not move it from % to %', NEW.id, via, OLD.state, NEW.state
                    USING ERRCODE = 'FP001';
            END IF;
            IF (OLD.doubt AND NOT NEW.doubt)
               AND (NEW.proof IS NULL OR NEW.proof IS NOT DISTINCT FROM OLD.proof OR NOT EXISTS (
                    SELECT 1 FROM fencepost.events e
                    WHERE e.id = NEW.proof
                      AND (e.tenant, e.run, e.call) IS NOT DISTINCT FROM (NEW.tenant, NEW.run, NEW.id)
                      AND e.type IN ({_list(PROOFS)}))) THEN
                RAISE EXCEPTION 'call %: doubt is cleared only by a proof', NEW.id USING ERRCODE = 'FP003';
            END IF;
            IF NEW.doubt AND NEW.state IN ({_list(CALL_ENDS)}) THEN
                RAISE EXCEPTION 'call %: it cannot end % in doubt', NEW.id, NEW.state USING ERRCODE = 'FP003';
            END IF;
            IF NEW.version = OLD.version THEN
                RAISE EXCEPTION 'call %: changed without an event', NEW.id USING ERRCODE = 'FP004';
            END IF;
            -- Nothing but a repair, evidence or a reconciliation touches calls of a run that has completed.
            IF run_status = 'COMPLETED' AND via NOT IN ('evidence', 'repair')
               AND OLD.state NOT IN ({_list(CALL_UNSETTLED)}) THEN
                RAISE EXCEPTION 'call %: its run has completed', NEW.id USING ERRCODE = 'FP001';
            END IF;
        END IF;
    END IF;
    NEW.presented_owner := NULL;
    NEW.presented_fence := NULL;
    NEW.presented_version := NULL;
    NEW.presented_office := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_call BEFORE INSERT OR UPDATE OR DELETE ON fencepost.calls
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_call();
"""

GUARD_RUNS = f"""
CREATE FUNCTION fencepost.guard_run() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    via text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'runs are never deleted' USING ERRCODE = 'FP004';
    END IF;
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'QUEUED' OR NEW.seq <> 0 OR NEW.owner IS NOT NULL OR NEW.fence <> 0 THEN
            RAISE EXCEPTION 'run %: a run begins QUEUED, with no history and no owner', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
    ELSE
        IF (NEW.tenant, NEW.id, NEW.run_key, NEW.planner, NEW.planner_version, NEW.principal, NEW.request,
            NEW.on_stop, NEW.created_at, NEW.deadline)
           IS DISTINCT FROM
           (OLD.tenant, OLD.id, OLD.run_key, OLD.planner, OLD.planner_version, OLD.principal, OLD.request,
            OLD.on_stop, OLD.created_at, OLD.deadline) THEN
            RAISE EXCEPTION 'run %: its request does not change', NEW.id USING ERRCODE = 'FP001';
        END IF;
        IF NEW.fence < OLD.fence THEN
            RAISE EXCEPTION 'run %: a fence never falls', NEW.id USING ERRCODE = 'FP002';
        END IF;
        IF (NEW.seq, NEW.head_hash) IS DISTINCT FROM (OLD.seq, OLD.head_hash)
           AND (NEW.seq <= OLD.seq OR NOT EXISTS (
                SELECT 1 FROM fencepost.events e WHERE e.tenant = NEW.tenant AND e.run = NEW.id
                    AND e.seq = NEW.seq AND e.hash = NEW.head_hash)) THEN
            RAISE EXCEPTION 'run %: seq and head_hash move only with events', NEW.id USING ERRCODE = 'FP004';
        END IF;
        IF (NEW.status, NEW.stop_reason, NEW.owner, NEW.fence, NEW.result)
           IS DISTINCT FROM (OLD.status, OLD.stop_reason, OLD.owner, OLD.fence, OLD.result) THEN
            IF NEW.seq = OLD.seq THEN
                RAISE EXCEPTION 'run %: changed without an event', NEW.id USING ERRCODE = 'FP004';
            END IF;
            IF NEW.presented_office = 'call' THEN
                via := 'call';
                IF NOT EXISTS (SELECT 1 FROM fencepost.calls c
                        WHERE c.tenant = NEW.tenant AND c.id = NEW.presented_call
                        AND c.run IS NOT DISTINCT FROM NEW.id AND (c.fence < NEW.presented_fence
                            OR (c.fence = NEW.presented_fence AND c.owner = NEW.presented_owner))) THEN
                    RAISE EXCEPTION 'run %: the presented term of its call is not the accepted one', NEW.id
                        USING ERRCODE = 'FP002';
                END IF;
            ELSIF NEW.presented_office IS NOT NULL THEN
                via := NEW.presented_office;
                IF via NOT IN ({_list(_offices(RUN_HOPS))}) THEN
                    RAISE EXCEPTION 'run %: there is no office %', NEW.id, via USING ERRCODE = 'FP002';
                END IF;
                IF via = 'repair' AND NOT pg_has_role(current_user, 'fencepost_operator', 'member') THEN
                    RAISE EXCEPTION 'run %: % is not an operator', NEW.id, current_user
                        USING ERRCODE = 'FP002';
                END IF;
                IF NEW.presented_version IS DISTINCT FROM OLD.seq THEN
                    RAISE EXCEPTION 'run %: office % saw version %, it is %', NEW.id, via,
                        NEW.presented_version, OLD.seq USING ERRCODE = 'FP002';
                END IF;
            ELSIF NEW.presented_owner IS NULL OR NEW.presented_fence IS NULL THEN
                RAISE EXCEPTION 'run %: no term and no office', NEW.id USING ERRCODE = 'FP002';
            ELSIF NEW.presented_owner = OLD.owner AND NEW.presented_fence = OLD.fence THEN
                via := 'term';
                IF NEW.fence <> OLD.fence OR (NEW.owner IS NOT NULL AND NEW.owner <> OLD.owner) THEN
                    RAISE EXCEPTION 'run %: a term does not change itself', NEW.id USING ERRCODE = 'FP002';
                END IF;
            ELSIF NEW.presented_fence > OLD.fence THEN
                via := 'claim';
                IF NEW.fence <> NEW.presented_fence
                   OR (NEW.owner IS NOT NULL AND NEW.owner <> NEW.presented_owner) THEN
                    RAISE EXCEPTION 'run %: a claim takes the term it presents', NEW.id
                        USING ERRCODE = 'FP002';
                END IF;
            ELSE
                RAISE EXCEPTION 'run %: term %/% is not the accepted one', NEW.id, NEW.presented_owner,
                    NEW.presented_fence USING ERRCODE = 'FP002';
            END IF;
            IF via NOT IN ('term', 'claim') AND (NEW.fence <= OLD.fence OR NEW.owner IS NOT NULL) THEN
                RAISE EXCEPTION 'run %: % raises the fence and clears the owner', NEW.id, via
                    USING ERRCODE = 'FP002';
            END IF;
            IF (via || ':' || OLD.status || '>' || NEW.status) NOT IN ({_hop_list(RUN_HOPS)}) THEN
                RAISE EXCEPTION 'run %: % may not move it from % to %', NEW.id, via, OLD.status, NEW.status
                    USING ERRCODE = 'FP001';
            END IF;
            IF NEW.status = 'COMPLETED' AND OLD.status <> 'COMPLETED' AND EXISTS (
                SELECT 1 FROM fencepost.calls c
                    WHERE c.run = NEW.id AND c.tenant IS NOT DISTINCT FROM NEW.tenant
                    AND (c.state IN ({OPEN_SQL}) OR c.doubt)) THEN
                RAISE EXCEPTION 'run %: it has an open or doubtful call', NEW.id USING ERRCODE = 'FP001';
            END IF;
        END IF;
    END IF;
    NEW.presented_owner := NULL;
    NEW.presented_fence := NULL;
    NEW.presented_version := NULL;
    NEW.presented_office := NULL;
    NEW.presented_call := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_run BEFORE INSERT OR UPDATE OR DELETE ON fencepost.runs
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_run();

CREATE FUNCTION fencepost.guard_stopped() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Judged at COMMIT: the last call's outcome and the run's end are one change, but two statements.
    IF EXISTS (SELECT 1 FROM fencepost.runs r
            WHERE r.tenant = NEW.tenant AND r.id = NEW.id AND r.status = 'STOPPED')
       AND EXISTS (SELECT 1 FROM fencepost.calls c
            WHERE c.run = NEW.id AND c.tenant IS NOT DISTINCT FROM NEW.tenant
            AND c.state IN ('AWAITING_APPROVAL', 'INTENT_RECORDED', {_list(CALL_UNSETTLED)})) THEN
        RAISE EXCEPTION 'run %: it cannot stop while a call is unsent or unsettled', NEW.id
            USING ERRCODE = 'FP001';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER guard_stopped AFTER UPDATE ON fencepost.runs DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.status = 'STOPPED' AND OLD.status <> 'STOPPED')
    EXECUTE FUNCTION fencepost.guard_stopped();
"""

GUARD_OPERATIONS = f"""
CREATE FUNCTION fencepost.guard_operation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'operation keys are never forgotten' USING ERRCODE = 'FP004';
    END IF;
    IF (NEW.tenant, NEW.key, NEW.scope) IS DISTINCT FROM (OLD.tenant, OLD.key, OLD.scope)
       OR (OLD.first_sent_at IS NOT NULL AND NEW.first_sent_at IS DISTINCT FROM OLD.first_sent_at) THEN
        RAISE EXCEPTION 'operation %: its identity and first send do not change', NEW.key
            USING ERRCODE = 'FP001';
    END IF;
    IF OLD.doubt AND NEW.call IS DISTINCT FROM OLD.call THEN
        RAISE EXCEPTION 'operation %: a key in doubt is not handed on', NEW.key USING ERRCODE = 'FP003';
    END IF;
    IF NEW.call IS DISTINCT FROM OLD.call AND OLD.status NOT IN ({_list(FREE_KEYS)}) THEN
        RAISE EXCEPTION 'operation %: a key that is % is not handed on', NEW.key, OLD.status
            USING ERRCODE = 'FP001';
    END IF;
    IF OLD.doubt AND NOT NEW.doubt
       AND (NEW.proof IS NULL OR NEW.proof IS NOT DISTINCT FROM OLD.proof OR NOT EXISTS (
            SELECT 1 FROM fencepost.events e
            WHERE e.id = NEW.proof
                AND (e.tenant, e.call) IS NOT DISTINCT FROM (NEW.tenant, NEW.call)
                AND e.type IN ({_list(PROOFS)}))) THEN
        RAISE EXCEPTION 'operation %: doubt is cleared only by a proof', NEW.key USING ERRCODE = 'FP003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_operation BEFORE UPDATE OR DELETE ON fencepost.operations
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_operation();
"""

GUARD_OUTBOX = """
CREATE FUNCTION fencepost.guard_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.tenant, NEW.subject, NEW.kind, NEW.run)
       IS DISTINCT FROM (OLD.tenant, OLD.subject, OLD.kind, OLD.run) THEN
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
    RETURN NEW;
END $$;
CREATE TRIGGER guard_outbox BEFORE UPDATE ON fencepost.outbox
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_outbox();

CREATE FUNCTION fencepost.guard_outbox_end() RETURNS trigger LANGUAGE plpgsql AS $$
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

APPEND_ONLY = """
CREATE FUNCTION fencepost.append_only() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE FUNCTION fencepost.guard_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- What a foreign key would ask of every row, asked once of a statement's; runs are never deleted.
    IF EXISTS (SELECT 1 FROM (SELECT DISTINCT tenant, run FROM added) a
            WHERE NOT EXISTS (SELECT 1 FROM fencepost.runs r WHERE r.tenant = a.tenant AND r.id = a.run)) THEN
        RAISE EXCEPTION 'an event of a run that does not exist' USING ERRCODE = 'FP004';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER guard_events AFTER INSERT ON fencepost.events REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.guard_events();

CREATE FUNCTION fencepost.guard_evidence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM fencepost.events e WHERE e.tenant = NEW.tenant AND e.run = NEW.run
            AND e.type = 'ToolAttemptStarted' AND e.call = NEW.call AND e.attempt = NEW.attempt
            AND e.worker = NEW.owner AND e.fence = NEW.fence) THEN
        RAISE EXCEPTION 'evidence %: no such attempt was ever started', NEW.id USING ERRCODE = 'FP002';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_evidence BEFORE INSERT ON fencepost.evidence
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_evidence();
"""

GUARDS = (CLOCK, GUARD_CALLS, GUARD_RUNS, GUARD_OPERATIONS, GUARD_OUTBOX, APPEND_ONLY)
