"""What Postgres refuses of what persons decide: parts of the guard of calls."""

from __future__ import annotations

from typing import Final

# Who decides is who is logged in. What takes two is asked for under one login and confirmed under another:
# that very decision, while nothing has changed and before it expires.
PERSONS: Final = """
        IF via = 'repair' AND (coalesce(said.body ->> 'login', session_user) <> session_user
               OR said.type NOT IN ('RepairProposed', 'RepairDecided')
               OR (said.type = 'RepairProposed') <> (NEW.state = 'NEEDS_REPAIR')
               OR (said.body -> 'asked' IS NOT NULL AND (said.body #>> '{asked,login}' <> session_user
                   AND said.body #>> '{asked,login}' = OLD.proposed::json ->> 'login') IS NOT TRUE)) THEN
            RAISE EXCEPTION 'call %: it is not for login % to decide this', NEW.id, session_user
                USING ERRCODE = 'FP002';
        END IF;
        IF via = 'repair' AND OLD.state IN ('NEEDS_REPAIR', 'ACCEPTED_UNKNOWN')
           AND said.type = 'RepairDecided' THEN
            IF said.body -> 'asked' IS NULL
               AND EXISTS (SELECT 1 FROM fencepost.rules r WHERE r.name = 'repair_by_two') THEN
                RAISE EXCEPTION
                    'call %: a decision takes two persons here: one asks for it, another confirms it', NEW.id
                    USING ERRCODE = 'FP002';
            END IF;
            asked := OLD.proposed::json;
            offset_too := asked ->> 'decision' = 'COMPENSATE';
            IF said.body -> 'asked' IS NOT NULL
               AND ((asked ->> 'version')::bigint = OLD.version
                    AND (asked ->> 'expires_at')::timestamptz > fencepost.now()
                    AND NEW.state = CASE WHEN offset_too THEN 'SUCCEEDED' ELSE asked ->> 'decision' END
                    AND said.body ->> 'to' = NEW.state
                    AND coalesce(said.body ->> 'compensate', 'false') = offset_too::text
                    AND said.body ->> 'receipt' IS NOT DISTINCT FROM asked ->> 'receipt'
                    AND (NEW.state <> 'SUCCEEDED' OR NEW.receipt IS NOT DISTINCT FROM asked ->> 'receipt')
                    ) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: what is confirmed is not what was asked for, or is so no longer',
                    NEW.id USING ERRCODE = 'FP002';
            END IF;
        END IF;
        IF NEW.proposed IS DISTINCT FROM OLD.proposed AND (via = 'repair' AND CASE said.type
                WHEN 'RepairProposed' THEN NEW.proposed = said.body::text
                WHEN 'RepairDecided' THEN NEW.proposed IS NULL
                ELSE false END) IS NOT TRUE THEN
            RAISE EXCEPTION 'call %: a decision is asked for by a person, and only by its event', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
"""

# On an effect that a stopped run left a person may have a word, and that changes nothing else of it.
WORDS: Final = """
        IF (NEW.offset_asked, NEW.offset_left) IS DISTINCT FROM (OLD.offset_asked, OLD.offset_left) THEN
            IF via <> 'repair' OR NEW.state <> 'SUCCEEDED' OR said.type <> 'RepairDecided'
               OR (NEW.version IN (NEW.offset_asked, NEW.offset_left)) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: whether its effect is offset again is a person''s word', NEW.id
                    USING ERRCODE = 'FP001';
            END IF;
        ELSIF via = 'repair' AND (OLD.state = 'SUCCEEDED'
                OR (OLD.state = 'FAILED' AND coalesce(said.body ->> 'release', '') <> 'true')) THEN
            RAISE EXCEPTION 'call %: a person who says nothing changes nothing', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
"""
