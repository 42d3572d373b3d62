"""What Postgres refuses of policies: what was once in force is never edited, and is never forgotten."""

from __future__ import annotations

GUARD_AUTHORITY = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON fencepost.policies
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.policies
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();
"""
