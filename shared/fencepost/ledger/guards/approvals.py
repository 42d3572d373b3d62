"""What Postgres refuses of approvals: parts of the guard of calls."""

from __future__ import annotations

from typing import Final

from fencepost import names

_WHO: Final = names.sql("(verdict ->> 'who')", "by")

BORN_APPROVAL = """
        IF NEW.approval IS NULL AND NEW.state = 'AWAITING_APPROVAL'
           OR NEW.approval IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM fencepost.events e WHERE e.run = NEW.run AND e.seq <= NEW.version
                AND e.tenant = NEW.tenant AND e.call IS NOT DISTINCT FROM NEW.id
                AND e.type = 'ApprovalRequested' AND NEW.approval::jsonb
                    = jsonb_build_object('asked', e.body::jsonb -> 'asked', 'decisions', '[]'::jsonb)) THEN
            RAISE EXCEPTION 'call %: nobody was asked to approve it like this', NEW.id
                USING ERRCODE = 'FP001';
        END IF;
"""

# What persons were asked and have said changes only with the event that says so. A person decides under the
# login that is logged in, and no login approves twice; what takes two is sent on with two.
APPROVALS = f"""
        IF OLD.approval IS NOT NULL OR NEW.approval IS NOT NULL OR via = 'approval'
           OR 'AWAITING_APPROVAL' IN (OLD.state, NEW.state) THEN
            SELECT e.type, e.body::jsonb AS body INTO word FROM fencepost.events e
                WHERE e.run = NEW.run AND e.tenant = NEW.tenant AND e.seq > OLD.version
                    AND e.seq <= NEW.version AND e.call IS NOT DISTINCT FROM NEW.id
                    AND e.type IN ('ApprovalRequested', 'ApprovalDecided') ORDER BY e.seq DESC LIMIT 1;
            verdict := word.body -> 'decision';
            IF NEW.approval IS DISTINCT FROM OLD.approval AND (CASE word.type
                    WHEN 'ApprovalRequested' THEN via = 'claim' AND NEW.approval::jsonb
                        = jsonb_build_object('asked', word.body -> 'asked', 'decisions', '[]'::jsonb)
                    WHEN 'ApprovalDecided' THEN via = 'approval' AND NEW.approval::jsonb = jsonb_set(
                        OLD.approval::jsonb, '{{decisions}}', OLD.approval::jsonb -> 'decisions' || verdict)
                    ELSE false END) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: what persons were asked and said changes only with its event', NEW.id
                    USING ERRCODE = 'FP001';
            END IF;
            IF NEW.state = 'AWAITING_APPROVAL' AND OLD.state <> 'AWAITING_APPROVAL'
               AND (word.type = 'ApprovalRequested' AND NEW.approval::jsonb = jsonb_build_object(
                    'asked', word.body -> 'asked', 'decisions', '[]'::jsonb)) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: nobody was asked to approve it', NEW.id USING ERRCODE = 'FP004';
            END IF;
            IF via = 'approval' AND {_WHO} IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: who decides has no name with one spelling: %', NEW.id,
                    verdict ->> 'who' USING ERRCODE = 'FP002';
            END IF;
            IF via = 'approval' AND (word.type IS NOT DISTINCT FROM 'ApprovalDecided'
                    AND NEW.approval IS DISTINCT FROM OLD.approval AND verdict ->> 'login' = session_user
                    AND (OLD.approval::json #>> '{{asked,expires_at}}')::timestamptz > fencepost.now()
                    AND (verdict ->> 'approve' = 'true') = (NEW.state <> 'REJECTED')
                    AND (verdict ->> 'approve' <> 'true' OR NOT EXISTS (
                        SELECT 1 FROM jsonb_array_elements(OLD.approval::jsonb -> 'decisions') d
                            WHERE d ->> 'approve' = 'true'
                            AND (d ->> 'login' = session_user OR d ->> 'who' = verdict ->> 'who')))
                    AND (verdict ->> 'approve' <> 'true' OR verdict ->> 'who' <> run_principal)
                    AND (NEW.state <> 'INTENT_RECORDED' OR (
                        SELECT count(*) FROM jsonb_array_elements(NEW.approval::jsonb -> 'decisions') d
                            WHERE d ->> 'approve' = 'true')
                        >= (NEW.approval::json #>> '{{asked,count}}')::integer)) IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: login % cannot approve or deny it like this', NEW.id, session_user
                    USING ERRCODE = 'FP002';
            END IF;
            IF via = 'claim' AND OLD.state = 'AWAITING_APPROVAL'
               AND (word.type IS NOT DISTINCT FROM 'ApprovalDecided' AND verdict IS NULL
                    AND (OLD.approval::json #>> '{{asked,expires_at}}')::timestamptz <= fencepost.now())
                    IS NOT TRUE THEN
                RAISE EXCEPTION 'call %: persons may still approve it', NEW.id USING ERRCODE = 'FP002';
            END IF;
        END IF;
"""
