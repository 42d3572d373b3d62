"""Whose rows a login may see: a producer's, the runs it asked for; the HTTP interface's, those of the tenants
whose tokens it presents. Row-level security, which no other code has to remember.

A run keeps the login that asked for it, and so do the runs its calls start. A session of the interface
presents tokens by the setting `fencepost.tokens`, `ID:DIGEST` by commas: it may set what it likes, but only
what somebody was given as a token counts, and no login of it reads digests. All others see everything: their
policies are constantly true, which Postgres folds away before it plans.
"""

from __future__ import annotations

from typing import Final

_OTHERS: Final = "fencepost_worker, fencepost_relay, fencepost_operator, fencepost_reader"
_OF_TENANTS: Final = "tenant = ANY ((SELECT fencepost.bearers())::text[])"
TABLES: Final = {
    "runs": _OF_TENANTS,
    "events": _OF_TENANTS,
    "calls": _OF_TENANTS,
    "payloads": _OF_TENANTS,
    "signals": _OF_TENANTS,
    "operations": _OF_TENANTS,
    "outbox": _OF_TENANTS,
    "allowances": _OF_TENANTS,
    "principals": _OF_TENANTS,
    "delegations": _OF_TENANTS,
    "policies": f"tenant = '' OR {_OF_TENANTS}",
}
_POLICIES: Final = "".join(
    f"""
ALTER TABLE fencepost.{table} ENABLE ROW LEVEL SECURITY;
CREATE POLICY others ON fencepost.{table} TO {_OTHERS} USING (true);
CREATE POLICY of_token ON fencepost.{table} TO fencepost_api USING ({rule});"""
    for table, rule in TABLES.items()
)

CONFINED: Final = """pg_has_role(session_user, 'fencepost_api', 'member')
       AND NOT pg_has_role(session_user, 'fencepost_producer', 'member')
       AND NOT pg_has_role(session_user, 'fencepost_operator', 'member')
       AND p_tenant <> ALL (fencepost.bearers())"""
"""Of a function with its owner's rights: whether it is asked by the interface for a tenant of no token."""

_LIVES: Final = "t.revoked_at IS NULL AND coalesce(t.expires_at > fencepost.now(), true)"
_PRESENTED: Final = f"""
    FROM unnest(string_to_array(current_setting('fencepost.tokens', true), ',')) AS said
    JOIN fencepost.api_tokens t ON t.id = split_part(said, ':', 1) AND t.digest = split_part(said, ':', 2)
    WHERE {_LIVES}"""

TENANTS: Final = f"""
CREATE FUNCTION fencepost.bearers() RETURNS text[] LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(DISTINCT t.tenant), '{{}}'){_PRESENTED}
$$;
REVOKE ALL ON FUNCTION fencepost.bearers FROM PUBLIC;
CREATE FUNCTION fencepost.living_tokens() RETURNS text[] LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(t.id || ':' || t.digest), '{{}}'){_PRESENTED}
$$;
REVOKE ALL ON FUNCTION fencepost.living_tokens FROM PUBLIC;
CREATE FUNCTION fencepost.bearer(p_id text, p_digest text)
RETURNS TABLE (id text, tenant text, principals text, scopes text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Its use is noted to the minute: a busy one costs an update a minute.
    UPDATE fencepost.api_tokens t SET last_used_at = fencepost.now()
    WHERE t.id = p_id AND t.digest = p_digest AND {_LIVES}
        AND coalesce(t.last_used_at < fencepost.now() - interval '1 min', true);
    RETURN QUERY SELECT t.id, t.tenant, t.principals, t.scopes FROM fencepost.api_tokens t
    WHERE t.id = p_id AND t.digest = p_digest AND {_LIVES};
END $$;
REVOKE ALL ON FUNCTION fencepost.bearer FROM PUBLIC;
{_POLICIES}
CREATE POLICY own ON fencepost.runs TO fencepost_producer USING (login = session_user);
"""

TENANTS_GRANTS: Final = """
GRANT EXECUTE ON FUNCTION fencepost.bearers, fencepost.living_tokens, fencepost.bearer TO fencepost_api;
"""
