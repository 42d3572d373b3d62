"""What Postgres refuses of policies: what was once in force is never edited, and is never forgotten. Versions
have no gap, lest somebody's last number close policies for ever; Postgres says when and by which login.

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

CREATE FUNCTION fencepost.guard_policy() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    following bigint := (SELECT coalesce(max(version), 0) + 1 FROM fencepost.policies);
BEGIN
    IF NEW.version < following THEN
        RAISE EXCEPTION 'policy version % was published before', NEW.version USING ERRCODE = '23505';
    ELSIF NEW.version IS DISTINCT FROM following THEN
        RAISE EXCEPTION 'policy version % is not the next, which is %', NEW.version, following
            USING ERRCODE = 'FP004';
    END IF;
    IF '' IN (trim(NEW.name), trim(NEW.digest), trim(NEW.bundle), trim(NEW.published_by), trim(NEW.note))
        OR NEW.tenant <> '' AND trim(NEW.tenant) = ''
    THEN
        RAISE EXCEPTION 'policy version %: its name, digest, bundle, publisher and note must be said',
            NEW.version USING ERRCODE = 'FP004';
    END IF;
    NEW.login := session_user;
    NEW.published_at := fencepost.now();
    RETURN NEW;
END $$;
CREATE TRIGGER guard_policy BEFORE INSERT ON fencepost.policies
    FOR EACH ROW EXECUTE FUNCTION fencepost.guard_policy();

CREATE FUNCTION fencepost.note_authority() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
