"""What Postgres refuses of policies: what was once in force is never edited, and is never forgotten.

And how it notes who changed what of principals, delegations and withdrawn tools, whichever way they did it.
"""

from __future__ import annotations

_NOTED = ("principals", "delegations", "withdrawn")
_NOTES = "".join(
    f"""
CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON fencepost.{table}
    FOR EACH ROW EXECUTE FUNCTION fencepost.note_authority();"""
    for table in _NOTED
)

GUARD_AUTHORITY = f"""
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON fencepost.policies
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.policies
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON fencepost.authority_changes
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.authority_changes
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();

CREATE FUNCTION fencepost.note_authority() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    found jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
BEGIN
    INSERT INTO fencepost.authority_changes (tenant, id, at, login, made_by, reason, about, change, said)
    VALUES (coalesce(found ->> 'tenant', ''), gen_random_uuid(), fencepost.now(), session_user,
        nullif(current_setting('fencepost.by', true), ''),
        nullif(current_setting('fencepost.reason', true), ''), TG_TABLE_NAME, lower(TG_OP), found::text);
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION fencepost.note_authority FROM PUBLIC;{_NOTES}
"""
