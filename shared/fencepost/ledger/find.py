"""Which run or call a person means: by id, by the unique beginning of an id, a run also by its run key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from fencepost.canonical import sanitize
from fencepost.errors import NotFound, UsageError
from fencepost.ledger.connect import Connection
from fencepost.ledger.listings import CallRef
from fencepost.ledger.reads import Subject

_HEX = re.compile(r"[0-9a-f]{4,32}")
_SHOWN = 5  # candidates an ambiguous answer names

_RUNS = """
SELECT tenant, id, run_key, run_key = %(text)s FROM fencepost.runs
WHERE (run_key = %(text)s OR id BETWEEN %(low)s AND %(high)s)
  AND (tenant = %(tenant)s OR %(tenant)s::text IS NULL)
ORDER BY run_key = %(text)s DESC, tenant, id LIMIT %(limit)s
"""
_CALLS = """
SELECT tenant, run, id, state, label, tool FROM fencepost.calls
WHERE id BETWEEN %(low)s AND %(high)s AND (tenant = %(tenant)s OR %(tenant)s::text IS NULL)
ORDER BY tenant, id LIMIT %(limit)s
"""


# A run key may hold slashes, and so may a label.
_LABELLED = """
SELECT c.tenant, c.run, c.id, c.state, c.label, c.tool
FROM fencepost.runs r JOIN fencepost.calls c ON c.run = r.id AND c.tenant = r.tenant
WHERE (r.run_key = ANY(%(keys)s) AND r.run_key <> '' AND r.run_key || '/' || c.label = %(text)s
       OR r.id BETWEEN %(low)s AND %(high)s AND c.label = %(label)s)
  AND (r.tenant = %(tenant)s OR %(tenant)s::text IS NULL)
ORDER BY c.tenant, c.turn, c.ordinal, c.id LIMIT %(limit)s
"""


def find_run(connection: Connection, text: str, tenant: str | None = None) -> Subject:
    """The one run of this run key, id or beginning of an id (four digits or more); a run key goes first.

    NotFound if there is none, UsageError naming some of them if there are several.
    """
    low, high = id_range(text)
    parameters = {"text": text, "low": low, "high": high, "tenant": tenant, "limit": _SHOWN + 1}
    found = connection.execute(_RUNS, parameters).fetchall()
    keyed = [row for row in found if row[3]]
    candidates = keyed or found
    if not candidates:
        raise NotFound(f"there is no run {_name(text)}{_within(tenant)}{_else(connection, parameters)}")
    if len(candidates) > 1:
        described = [f"{run} ({_name(key)} of tenant {_name(owner)})" for owner, run, key, _ in candidates]
        hint = "give the tenant as well" if keyed else "give more of the id"
        raise UsageError(f"{_name(text)} names several runs: {_listed(described)}; {hint}")
    return candidates[0][0], candidates[0][1]


def find_call(connection: Connection, text: str, tenant: str | None = None) -> CallRef:
    """The one call of this id or beginning of an id (four digits or more), or of this label in a run, as
    RUN/LABEL by the run's key or id.

    NotFound if there is none, UsageError naming some of them if there are several.
    """
    low, high = id_range(text)
    parameters = {"text": text, "low": low, "high": high, "tenant": tenant, "limit": _SHOWN + 1}
    found = connection.execute(_CALLS, parameters).fetchall() or _labelled(connection, text, tenant)
    if not found:
        raise NotFound(f"there is no call {_name(text)}{_within(tenant)}{_else(connection, parameters)}")
    if len(found) > 1:
        owners = {owner for owner, *_ in found}
        hint = "give the tenant as well" if "/" in text and len(owners) > 1 else "give more of the id"
        hint = hint if "/" not in text or len(owners) > 1 else "give the id of one"
        described = [f"{call} ({_name(tool)} {_name(label)})" for _, _, call, _, label, tool in found]
        raise UsageError(f"{_name(text)} names several calls: {_listed(described)}; {hint}")
    return CallRef(*found[0][:4])


def _labelled(connection: Connection, text: str, tenant: str | None) -> list[tuple[Any, ...]]:
    """The calls that this text names as RUN/LABEL."""
    if "/" not in text:
        return []
    run, _, label = text.partition("/")
    low, high = id_range(run)
    keys = [text[:at] for at, letter in enumerate(text) if letter == "/"]
    asked = {"keys": keys, "text": text, "low": low, "high": high, "label": label, "tenant": tenant}
    return connection.execute(_LABELLED, asked | {"limit": _SHOWN + 1}).fetchall()


def _else(connection: Connection, asked: Mapping[str, Any]) -> str:
    """What else this text names, so that nobody has to guess; else where such names are listed."""
    anywhere = {**asked, "tenant": None, "limit": 1}
    for owner, run, _key, _keyed in connection.execute(_RUNS, anywhere).fetchall():
        return f"; there is a run {run} of tenant {_name(owner)}"
    readable = connection.execute("SELECT has_table_privilege('fencepost.calls', 'SELECT')").fetchone()
    if asked["low"] is not None and readable is not None and readable[0]:
        for owner, run, call, *_ in connection.execute(_CALLS, anywhere).fetchall():
            return f"; there is a call {call} of run {run} of tenant {_name(owner)}"
    return "; fencepost runs lists runs, fencepost show RUN its calls"


def id_range(text: str) -> tuple[UUID | None, UUID | None]:
    """The first and last id that begin with `text`; None twice if none can, so that nothing lies between."""
    digits = text.strip().lower().replace("-", "")
    if not _HEX.fullmatch(digits):
        return None, None
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


def _name(text: str) -> str:
    return sanitize(text, 60) or "''"


def _within(tenant: str | None) -> str:
    return "" if tenant is None else f" of tenant {_name(tenant)}"


def _listed(described: list[str]) -> str:
    return ", ".join(described[:_SHOWN]) + (" and more" if len(described) > _SHOWN else "")
