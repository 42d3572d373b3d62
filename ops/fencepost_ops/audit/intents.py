"""The ledger's side of an audit, read by pages: which intents of a dependency were sent, and when first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from fencepost.app import App
from fencepost.clock import new_id
from fencepost.contracts import Natural
from fencepost.ledger.connect import Connection
from fencepost.states import CALL_ENDS, CallState
from fencepost.wire import StoredRequest
from fencepost_ops.audit.compare import Intent, body_digest

PAGE: Final = 2000
_SLACK: Final = timedelta(hours=1)  # by which the clock of whoever made an event's id may be wrong
_KEY: Final = re.compile(r"[0-9a-f]{64}")
_CUT: Final = re.compile(r"[0-9a-f]{32,63}")
_UUID: Final = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

_INTENT: Final = """
c.tenant, c.id, c.run, r.run_key, c.tool, c.tool_version, c.label, c.state, c.operation, c.receipt,
c.arguments, c.request, c.version, c.in_flight_until, fencepost.now()
"""
# The first attempts of the period, whatever their dependency: the page ends where they end.
_SENT: Final = f"""
SELECT e.id, e.recorded_at, {_INTENT}
FROM (SELECT id, tenant, run, call, recorded_at FROM fencepost.events
      WHERE id > %(after)s AND id <= %(high)s AND type = 'ToolAttemptStarted' AND attempt = 1
        AND recorded_at >= %(since)s AND recorded_at < %(until)s ORDER BY id LIMIT %(page)s) e
LEFT JOIN fencepost.calls c ON c.id = e.call AND c.tenant = e.tenant AND c.scope = %(scope)s
    AND c.effect <> 'read'
LEFT JOIN fencepost.runs r ON r.id = c.run AND r.tenant = c.tenant
ORDER BY e.id
"""
# Whatever was sent again or settled in the period, however long ago it was first sent.
_TOUCHED: Final = f"""
SELECT e.id, o.first_sent_at, {_INTENT}
FROM (SELECT id, tenant, run, call FROM fencepost.events
      WHERE id > %(after)s AND id <= %(high)s AND call IS NOT NULL AND type = ANY(%(types)s)
        AND recorded_at >= %(since)s AND recorded_at < %(until)s ORDER BY id LIMIT %(page)s) e
LEFT JOIN (fencepost.calls c JOIN fencepost.operations o
        ON o.key = c.operation AND o.tenant = c.tenant AND o.call = c.id)
    ON c.id = e.call AND c.tenant = e.tenant AND c.scope = %(scope)s AND c.effect <> 'read'
LEFT JOIN fencepost.runs r ON r.id = c.run AND r.tenant = c.tenant
ORDER BY e.id
"""
_TOUCHES: Final = ["ToolAttemptStarted", "ToolResultRecorded", "ToolEffectReconciled", "RepairDecided"]
_KEYED: Final = f"""
SELECT o.scope, o.first_sent_at, {_INTENT}
FROM unnest(%(keys)s::text[]) AS k (key) JOIN fencepost.operations o ON o.key = k.key
JOIN fencepost.calls c ON c.id = o.call AND c.tenant = o.tenant
JOIN fencepost.runs r ON r.id = c.run AND r.tenant = c.tenant
"""
# A shortened key is the beginning of a whole one; hex digits sort before g under any collation.
_BEGINNING: Final = """
SELECT o.key FROM unnest(%(keys)s::text[]) AS k (key) CROSS JOIN LATERAL (
    SELECT key FROM fencepost.operations WHERE key >= k.key AND key < k.key || 'g' LIMIT 10) o
"""
_NOW: Final = f"""
SELECT NULL, NULL::timestamptz, {_INTENT}
FROM unnest(%(calls)s::uuid[]) AS k (id) JOIN fencepost.calls c ON c.id = k.id
JOIN fencepost.runs r ON r.id = c.run AND r.tenant = c.tenant
"""


class Intents:
    """Reads the intents of one dependency. The connection is in autocommit: no page holds a snapshot."""

    def __init__(self, connection: Connection, scope: str, app: App | None) -> None:
        self._connection = connection
        self._scope = scope
        self._app = app

    def sent(self, since: datetime, until: datetime) -> Iterator[list[Intent]]:
        """Pages of the intents that were first sent in the period."""
        return self._pages(_SENT, since, until)

    def touched(self, since: datetime, until: datetime) -> Iterator[list[Intent]]:
        """Pages of the intents that were sent, sent again or settled in the period; some repeatedly."""
        return self._pages(_TOUCHED, since, until)

    def _pages(self, wanted: str, since: datetime, until: datetime) -> Iterator[list[Intent]]:
        row = self._connection.execute("SELECT fencepost.now(), clock_timestamp()").fetchone()
        assert row is not None
        ahead = row[0] - row[1]  # ids carry the real time, also where the ledger's clock was moved
        low = max(since - max(ahead, timedelta(0)) - _SLACK, datetime.fromtimestamp(0, since.tzinfo))
        after, high = new_id(_millis(low), 0), new_id(_millis(max(until, row[1]) + _SLACK), 0)
        asked: dict[str, Any] = {"since": since, "until": until, "scope": self._scope, "page": PAGE}
        asked["types"] = _TOUCHES
        while True:
            found = self._connection.execute(wanted, asked | {"after": after, "high": high}).fetchall()
            yield [self._intent(first, *rest) for _, first, *rest in found if rest[0] is not None]
            if len(found) < PAGE:
                return
            after = found[-1][0]

    def keyed(self, keys: Sequence[str]) -> tuple[list[Intent], set[str]]:
        """Those of these keys that the ledger knows, whenever they were sent; and the keys that belong to
        another dependency. Keys in another form than the ledger's own are found where the application
        declares it of the tool.
        """
        whole = [key for key in keys if _KEY.fullmatch(key)]
        if beginnings := [found for key in keys if (found := _beginning(key)) is not None]:
            whole += [key for (key,) in self._connection.execute(_BEGINNING, {"keys": beginnings})]
        mine, strange = [], set()
        for scope, first, *rest in self._connection.execute(_KEYED, {"keys": whole}):
            intent = self._intent(first, *rest)
            if scope == self._scope:
                mine.append(intent)
            else:
                strange.add(intent.key)
        return mine, strange

    def again(self, intents: Sequence[Intent]) -> Iterator[Intent]:
        """The same intents as they stand now; one that has changed is `moving`."""
        before = {intent.call: intent for intent in intents}
        for _, _, *rest in self._connection.execute(_NOW, {"calls": [UUID(call) for call in before]}):
            old = before[str(rest[1])]
            new = self._intent(old.first_at, *rest)
            yield replace(new, moving=new.moving or new.version != old.version)

    def _intent(self, first_at: datetime | None, *row: Any) -> Intent:
        tenant, call, run, run_key, tool, version, label, state, operation, receipt = row[:10]
        arguments, request, changed, in_flight_until, now = row[10:]
        sent, digest = _body(request)
        declared = self._app.registry.get((tool, version)) if self._app is not None else None
        carrier = declared.key if declared is not None else None
        on_its_way = in_flight_until is not None and now <= in_flight_until and state not in CALL_ENDS
        return Intent(
            tenant=tenant,
            call=str(call),
            run=str(run),
            run_key=run_key,
            tool=tool,
            label=label,
            state=state,
            key=operation if carrier is None else carrier.spell(operation),
            receipt=receipt,
            first_at=first_at or now,
            arguments=_object(arguments),
            sent=sent,
            digest=digest,
            version=changed,
            in_flight_until=in_flight_until,
            moving=on_its_way or state == CallState.DISPATCHING,
            set_semantics=declared is not None and isinstance(declared.contract.repeat, Natural),
        )


def _beginning(key: str) -> str | None:
    """How the ledger's key begins that the downstream knows as this one, if it can be one."""
    if (parts := _UUID.fullmatch(key)) is not None:
        return parts[1] + parts[2]
    return key if _CUT.fullmatch(key) else None


def _body(request: str | None) -> tuple[dict[str, Any] | None, str | None]:
    if request is None:
        return None, None
    stored = StoredRequest.from_text(request)
    return _object(stored.body) if stored.body else None, body_digest(stored.body)


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
