"""Persons with authority in a drill: they approve and deny, and change who may have what done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Final

import psycopg

from fencepost.app import App
from fencepost.errors import FencepostError
from fencepost.ledger import principals
from fencepost.ledger.connect import Connection
from fencepost_ops.drill.ledger import SECOND, DrillLedger
from fencepost_ops.drill.people import DrillClient
from fencepost_ops.drill.protocol import Event

_CALL: Final = "SELECT id FROM fencepost.calls WHERE label = %s ORDER BY run, turn, ordinal LIMIT 1"
_DELEGATION: Final = "SELECT id FROM fencepost.delegations WHERE principal = %s AND revoked_at IS NULL"
_BY: Final = "pat"
_WHY: Final = "the drill's protocol says so"


def _disable(session: Connection, event: Event) -> None:
    principals.disable(session, event.tenant, event.who or "", by=_BY, reason=_WHY)


def _enable(session: Connection, event: Event) -> None:
    principals.enable(session, event.tenant, event.who or "", by=_BY, reason=_WHY)


def _roles(session: Connection, event: Event) -> None:
    known = {one.principal: one.roles for one in principals.listed(session, event.tenant)}
    lost = set(known.get(event.who or "", ())) - set(event.roles)
    principals.set_roles(
        session, event.tenant, event.who or "", add=event.roles, remove=lost, by=_BY, reason=_WHY
    )


def _delegate(session: Connection, event: Event) -> None:
    (now,) = session.execute("SELECT fencepost.now()").fetchall()[0]
    until = now + timedelta(seconds=event.seconds or 0.0)
    given, tools = event.who or "", event.tool or "*"
    principals.delegate(
        session, event.tenant, given, event.to or "", until=until, tools=tools, by=_BY, reason=_WHY
    )


def _revoke(session: Connection, event: Event) -> None:
    for (found,) in session.execute(_DELEGATION, [event.who]).fetchall():
        principals.revoke(session, str(found), by=_BY, reason=_WHY)


def _withdraw(session: Connection, event: Event) -> None:
    principals.withdraw(session, event.tool or "", 1, by=_BY, reason=_WHY)


_CHANGES: Final[Mapping[str, Callable[[Connection, Event], None]]] = {
    "disable": _disable,
    "enable": _enable,
    "roles": _roles,
    "delegate": _delegate,
    "revoke": _revoke,
    "withdraw": _withdraw,
}
DUTIES: Final = frozenset({"approve", "deny", *_CHANGES})
"""What persons with authority do."""


class Desk:
    """Where they sit. The first who decides has one operator's login, everybody else the other."""

    def __init__(self, ledger: DrillLedger, app: App) -> None:
        self._ledger = ledger
        self._clients = [DrillClient(ledger.sessions[login], app) for login in ("operator", SECOND)]
        self._first: str | None = None

    def do(self, event: Event) -> None:
        """What the event says; what is refused, is refused."""
        with suppress(FencepostError, psycopg.Error):
            if event.do in _CHANGES:
                with self._ledger.sessions["operator"].connection() as session:
                    _CHANGES[event.do](session, event)
            else:
                self._decide(event)

    def _decide(self, event: Event) -> None:
        found = self._ledger.owner.execute(_CALL, [event.call]).fetchone()
        who = event.who or ""
        if found is None:
            return
        self._first = self._first or who
        client = self._clients[who != self._first]
        decide = client.approve if event.do == "approve" else client.deny
        decide(found[0], who, _WHY)
