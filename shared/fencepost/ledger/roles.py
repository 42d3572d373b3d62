"""Who may touch what: group roles without login, of which a deployment's login users are members.

A worker cannot delete history or settle a repair, a relay cannot read a payload, a producer can do nothing
but enqueue and look at its runs, the HTTP interface also signal and cancel them (`guards.cancels`). Postgres
enforces it; every process of the fleet logs in as its own role.
"""

from __future__ import annotations

import json
from datetime import timedelta

from fencepost import names
from fencepost.budgets import LIMITS, MAX_WALL_CLOCK, OPTIONAL, Budget
from fencepost.ledger.guards.tenants import CONFINED
from fencepost.ledger.schema import SCHEMA, metadata
from fencepost.runrequest import OF_CALLS, TRACEPARENT

GROUPS = (
    "fencepost_worker",
    "fencepost_relay",
    "fencepost_producer",
    "fencepost_operator",
    "fencepost_reader",
    "fencepost_api",
)

_NAMES = ", ".join(f"'{group}'" for group in GROUPS)

CREATE_ROLES = f"""
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[{_NAMES}] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;  -- roles are shared by all databases of a cluster
        END;
    END LOOP;
END $$;
"""

_USUAL = json.dumps({name: value for name, value in Budget().to_json().items() if value is not None})


def _within(name: str, least: int, most: int, *, optional: bool) -> str:
    """What refuses one limit of a budget that is no whole number within its range."""
    given = "value <> 'null' AND " if optional else ""
    wrong = f"value::text !~ '^[0-9]{{1,16}}$' OR value::bigint NOT BETWEEN {least} AND {most}"
    return f"            WHEN name = '{name}' THEN {given}({wrong})"


_CLOCK_MS = MAX_WALL_CLOCK // timedelta(milliseconds=1)
_LIMITS = "\n".join(
    [
        *(_within(name, *ends, optional=name in OPTIONAL) for name, ends in LIMITS.items()),
        _within("wall_clock_ms", 1, _CLOCK_MS, optional=True),
    ]
)
_NAMED = ", ".join([*LIMITS, "wall_clock_ms"])

ENQUEUE = f"""
CREATE FUNCTION fencepost.enqueue_run(
    p_tenant text, p_run_key text, p_planner text, p_version integer, p_principal text, p_input jsonb,
    p_deadline interval, p_budget jsonb DEFAULT '{{}}', p_on_stop text DEFAULT 'compensate',
    p_id uuid DEFAULT gen_random_uuid(), p_traceparent text DEFAULT NULL
) RETURNS TABLE (run uuid, created boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := fencepost.now();
    v_request jsonb;
    v_deadline interval;
    v_usual CONSTANT jsonb := '{_USUAL}';
    v_run fencepost.runs;
BEGIN
    IF coalesce(p_tenant, '') = '' OR coalesce(p_run_key, '') = '' OR coalesce(p_planner, '') = ''
       OR coalesce(p_principal, '') = '' OR p_version IS NULL OR p_input IS NULL OR p_budget IS NULL THEN
        RAISE EXCEPTION 'tenant, run key, planner, version, principal, input and budget are required'
            USING ERRCODE = 'FP422';
    END IF;
    IF p_version < 1 THEN
        RAISE EXCEPTION 'version is a whole number from 1 on, not %', p_version USING ERRCODE = 'FP422';
    END IF;
    IF length(p_run_key) > 200 OR length(p_tenant) > 100 OR length(p_principal) > 200
       OR length(p_planner) > 200 THEN
        RAISE EXCEPTION 'a run key, principal or planner has at most 200 characters, a tenant 100'
            USING ERRCODE = 'FP422';
    END IF;
    IF NOT ({names.sql("p_tenant", "tenant")} AND {names.sql("p_principal")}) THEN
        RAISE EXCEPTION 'tenant % or principal % is no name: {names.SPELLING}', p_tenant, p_principal
            USING ERRCODE = 'FP422';
    END IF;
    IF {CONFINED} THEN
        RAISE EXCEPTION 'this session presents no token of tenant %', p_tenant USING ERRCODE = '42501';
    END IF;
    IF starts_with(p_run_key, '{OF_CALLS}') THEN
        RAISE EXCEPTION 'run keys that begin with {OF_CALLS} are those of runs that calls start; use another'
            USING ERRCODE = 'FP422';
    END IF;
    -- First, and no deeper than asked: what follows may not bear the rest.
    IF jsonb_path_exists(p_input, 'strict $.**{{64}} ? (@.type() == "object" || @.type() == "array")') THEN
        RAISE EXCEPTION 'a run''s input is nested at most 64 levels deep' USING ERRCODE = 'FP422';
    END IF;
    IF octet_length(p_input::text) > 1048576 THEN
        RAISE EXCEPTION 'a run''s input is at most 1 MiB; keep the rest elsewhere and pass a reference'
            USING ERRCODE = 'FP422';
    END IF;
    IF p_input::text ~ '([0-9.]{{200}}){{2}}[0-9.]' AND EXISTS (
        SELECT 1 FROM jsonb_path_query(p_input, 'strict $.** ? (@.type() == "number")') AS n
        WHERE length(translate(n::text, '-.', '')) > 400) THEN
        RAISE EXCEPTION 'a number in a run''s input has at most 400 digits; pass longer ones as text'
            USING ERRCODE = 'FP422';
    END IF;
    IF p_deadline IS NULL OR p_deadline <= interval '0' THEN
        RAISE EXCEPTION 'the deadline lies in the past; give one that lies ahead' USING ERRCODE = 'FP422';
    END IF;
    IF p_deadline > interval '3650 days' THEN
        RAISE EXCEPTION 'a deadline is at most 3650 days ahead' USING ERRCODE = 'FP422';
    END IF;
    IF jsonb_typeof(p_budget) <> 'object' OR EXISTS (
        SELECT 1 FROM jsonb_each(p_budget) AS b (name, value) WHERE CASE
            WHEN name = 'tainted' THEN value <> 'true'
{_LIMITS}
            ELSE true END) THEN
        RAISE EXCEPTION 'a budget holds whole numbers, within their ranges, under {_NAMED}, not %',
            left(p_budget::text, 200) USING ERRCODE = 'FP422';
    END IF;
    IF p_on_stop IS NULL OR p_on_stop NOT IN ('compensate', 'compensate_at_once', 'leave') THEN
        RAISE EXCEPTION 'on_stop is compensate, compensate_at_once or leave, not %', p_on_stop
            USING ERRCODE = 'FP422';
    END IF;
    IF p_traceparent !~ '^{TRACEPARENT}$' THEN
        RAISE EXCEPTION 'a traceparent is one of W3C Trace Context, not %', left(p_traceparent, 200)
            USING ERRCODE = 'FP422';
    END IF;
    -- In seconds: a day is 24 hours here, whatever the session's time zone makes of it.
    v_deadline := make_interval(secs => extract(epoch FROM p_deadline)::double precision);
    v_request := jsonb_build_object('planner', p_planner, 'version', p_version, 'principal', p_principal,
        'input', p_input, 'deadline', extract(epoch FROM p_deadline), 'budget', p_budget,
        'on_stop', p_on_stop);
    INSERT INTO fencepost.runs (tenant, id, run_key, planner, planner_version, principal, request, on_stop,
                                created_at, deadline, ready_at, traceparent)
    VALUES (p_tenant, p_id, p_run_key, p_planner, p_version, p_principal, v_request, p_on_stop,
            v_now, v_now + v_deadline, v_now, p_traceparent)
    ON CONFLICT (run_key, tenant) WHERE run_key <> '' DO NOTHING RETURNING * INTO v_run;
    IF FOUND THEN
        INSERT INTO fencepost.outbox (tenant, subject, kind, run, generation, queue, due_at, publish_at)
        VALUES (p_tenant, p_id, 'run', p_id, 1, 'planner', v_now, v_now);
        RETURN QUERY SELECT p_id, true;
        RETURN;
    END IF;
    SELECT * INTO v_run FROM fencepost.runs r
    WHERE r.tenant = p_tenant AND r.run_key = p_run_key AND r.run_key <> '';
    -- The same request by its values: 1 is 1.0, the order of keys is none, a budget's absent limits are the
    -- usual ones. Which version of its planner plans it was chosen as it was accepted first.
    IF v_run.request <> v_request AND (
            v_run.request - 'budget' - 'version' <> v_request - 'budget' - 'version'
            OR v_usual || jsonb_strip_nulls(v_run.request -> 'budget')
               <> v_usual || jsonb_strip_nulls(p_budget)) THEN
        RAISE EXCEPTION 'run key % of tenant % is taken by another request: that of run %',
            p_run_key, p_tenant, v_run.id USING ERRCODE = 'FP409',
            DETAIL = 'Input, planner, principal, deadline, budget and on_stop count.',
            HINT = 'Use another run key, or send what was sent first.',
            CONSTRAINT = v_run.id::text;
    END IF;
    RETURN QUERY SELECT v_run.id, false;
END $$;
REVOKE ALL ON FUNCTION fencepost.enqueue_run FROM PUBLIC;
"""

REFUSE_INTAKE = """
CREATE FUNCTION fencepost.refuse_intake(
    p_id uuid, p_queue text, p_tenant text, p_principal text, p_message text, p_error text
) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO fencepost.intake_refusals (id, queue, tenant, principal, message, error, received_at)
    VALUES (p_id, p_queue, p_tenant, p_principal, p_message, p_error, fencepost.now())
    ON CONFLICT (id) DO NOTHING
$$;
REVOKE ALL ON FUNCTION fencepost.refuse_intake FROM PUBLIC;
"""

GRANTS = """
GRANT USAGE ON SCHEMA fencepost TO fencepost_worker, fencepost_relay, fencepost_producer, fencepost_operator,
    fencepost_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA fencepost TO fencepost_worker, fencepost_operator, fencepost_reader;
GRANT INSERT ON fencepost.events, fencepost.calls, fencepost.operations, fencepost.evidence,
    fencepost.payloads, fencepost.workers, fencepost.outbox, fencepost.dependencies
    TO fencepost_worker, fencepost_operator;
GRANT UPDATE ON fencepost.runs, fencepost.calls, fencepost.operations, fencepost.outbox, fencepost.workers,
    fencepost.dependencies TO fencepost_worker, fencepost_operator;
GRANT DELETE ON fencepost.outbox TO fencepost_worker, fencepost_operator;
GRANT SELECT ON fencepost.outbox, fencepost.workers TO fencepost_relay;
GRANT UPDATE (publish_at, publish_count, due_at, failures, error, dead_at) ON fencepost.outbox
    TO fencepost_relay;
GRANT SELECT ON fencepost.runs, fencepost.epochs TO fencepost_producer;
GRANT EXECUTE ON FUNCTION fencepost.enqueue_run TO fencepost_producer, fencepost_operator, fencepost_worker;
GRANT EXECUTE ON FUNCTION fencepost.refuse_intake TO fencepost_producer;
GRANT SELECT ON fencepost.ledger TO fencepost_relay;
GRANT EXECUTE ON FUNCTION fencepost.hold_if_gone TO fencepost_relay, fencepost_worker;
GRANT EXECUTE ON FUNCTION fencepost.note_audit TO fencepost_operator, fencepost_reader;
GRANT DELETE ON fencepost.intake_refusals TO fencepost_operator;
GRANT INSERT ON fencepost.epochs TO fencepost_operator;
GRANT UPDATE (released_at, released_by, release_reason) ON fencepost.epochs TO fencepost_operator;
GRANT INSERT ON fencepost.policies, fencepost.principals, fencepost.delegations, fencepost.withdrawn
    TO fencepost_operator;
GRANT UPDATE ON fencepost.principals TO fencepost_operator;
GRANT UPDATE (revoked_at, revoked_by) ON fencepost.delegations TO fencepost_operator;
GRANT DELETE ON fencepost.withdrawn TO fencepost_operator;
GRANT INSERT, UPDATE, DELETE ON fencepost.allowances TO fencepost_worker, fencepost_operator;
"""


def _columns(table: str) -> str:
    """All columns that can be written: who may update columns only may not LOCK the table."""
    columns = metadata.tables[f"{SCHEMA}.{table}"].columns
    return ", ".join(column.name for column in columns if column.computed is None)


SPARING = """
DO $$
BEGIN
    -- What any login could fill a disk with. Of large objects only a superuser can take it away.
    EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
    IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        REVOKE EXECUTE ON FUNCTION lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea),
            lo_put(oid, bigint, bytea), lowrite(integer, bytea) FROM PUBLIC;
    END IF;
END $$;
"""

API_GRANTS = f"""
GRANT USAGE ON SCHEMA fencepost TO fencepost_api;
GRANT SELECT ON fencepost.runs, fencepost.events, fencepost.calls, fencepost.payloads, fencepost.signals,
    fencepost.operations, fencepost.outbox, fencepost.workers, fencepost.dependencies,
    fencepost.allowances, fencepost.epochs, fencepost.policies, fencepost.principals, fencepost.delegations,
    fencepost.withdrawn TO fencepost_api;
GRANT INSERT ON fencepost.events TO fencepost_api;
GRANT INSERT (tenant, subject, kind, run, generation, queue, due_at, takeovers, worker, fence, root,
    publish_at, publish_count) ON fencepost.outbox TO fencepost_api;
GRANT UPDATE ({_columns("runs")}) ON fencepost.runs TO fencepost_api;
GRANT UPDATE ({_columns("calls")}) ON fencepost.calls TO fencepost_api;
GRANT UPDATE ({_columns("operations")}) ON fencepost.operations TO fencepost_api;
GRANT UPDATE (generation, queue, due_at, takeovers, worker, fence, publish_at, publish_count)
    ON fencepost.outbox TO fencepost_api;
GRANT UPDATE (used_count, used_minor, event, presented_events, limit_count, limit_minor, currency)
    ON fencepost.allowances TO fencepost_api;
GRANT DELETE ON fencepost.outbox TO fencepost_api;
GRANT EXECUTE ON FUNCTION fencepost.enqueue_run TO fencepost_api;
GRANT EXECUTE ON FUNCTION fencepost.signal_run TO fencepost_producer, fencepost_operator, fencepost_api;
REVOKE SELECT ON fencepost.api_tokens FROM fencepost_worker, fencepost_reader;
GRANT INSERT ON fencepost.api_tokens TO fencepost_operator;
GRANT UPDATE (revoked_at, revoked_by) ON fencepost.api_tokens TO fencepost_operator;
GRANT SELECT (id, tenant, principals, scopes, note, created_at, created_by, login, expires_at, last_used_at,
    revoked_at, revoked_by) ON fencepost.api_tokens TO fencepost_reader;
"""
