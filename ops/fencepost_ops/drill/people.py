"""Who stands outside the fleet: producers that ask for runs, and the people who cancel and repair."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final
from uuid import UUID

import psycopg

from fencepost.app import App
from fencepost.budgets import Budget
from fencepost.client import Client
from fencepost.errors import FencepostError
from fencepost.ledger.abandoned import abandoned
from fencepost.runrequest import RunRequest
from fencepost.tools import OnStop
from fencepost_ops.checker.books import BookReader
from fencepost_ops.drill.ledger import DrillLedger, Sessions
from fencepost_ops.drill.protocol import Asked

_TO_REPAIR: Final = """
SELECT id, operation FROM fencepost.calls WHERE state = 'NEEDS_REPAIR' ORDER BY run, turn, ordinal, id
"""
_LOOK_AGAIN_S: Final = 20.0  # a refused decision is tried again: the last request may still land
_LOOKS: Final = 20


class DrillClient(Client):
    """A client on sessions that are kept from history to history."""

    def __init__(self, sessions: Sessions, app: App | None = None) -> None:
        self._dsn = "postgresql://drill"
        self._app = app
        self._bell = None
        self._by_two = False
        self._tries = 2
        self._confirm_within = timedelta(hours=1)
        self._pool = sessions


class Producer:
    """Asks for runs."""

    def __init__(self, sessions: Sessions) -> None:
        self._client = DrillClient(sessions)

    def ask(self, asked: Asked, number: int) -> None:
        """Have a run carried out; the same again is the same run."""
        named = ("turns", "calls", "attempts", "tokens", "cost")
        limits = {name: may for name in named if (may := getattr(asked, name)) is not None}
        self._client.enqueue_many(
            [
                RunRequest(
                    planner=asked.planner,
                    input=dict(asked.input),
                    run_key=asked.run_key or f"run-{number + 1}",
                    tenant=asked.tenant,
                    principal=asked.principal,
                    deadline=timedelta(seconds=asked.deadline_s),
                    budget=Budget(**limits) if limits else None,
                    on_stop=OnStop(asked.on_stop),
                )
            ]
        )


class Office:
    """People. They know the services' own books, and nothing of what the fleet believes."""

    def __init__(self, ledger: DrillLedger, books: BookReader) -> None:
        self._ledger = ledger
        self._books = books
        self._client = DrillClient(ledger.sessions["operator"])
        self._looks = 0
        self.repaired = 0

    def cancel(self, number: int) -> None:
        """Cancel a run, by its place among the runs."""
        rows = self._ledger.owner.execute("SELECT id FROM fencepost.runs ORDER BY created_at, run_key")
        runs = [row[0] for row in rows]
        if number < len(runs):
            with suppress(FencepostError):  # it may have ended
                self._client.cancel(runs[number], "pat", "the drill's protocol says so")

    def straight(self, statement: str) -> None:
        """SQL straight at the tables, with a worker's login; what Postgres refuses, it refuses."""
        with suppress(psycopg.Error, FencepostError), self._ledger.sessions["worker"].connection() as session:
            session.execute(statement)

    def settle(self, wait: Callable[[float], None]) -> bool:
        """Answer whatever waits for a person; whether there was anything, and patience left for it."""
        calls = self._ledger.owner.execute(_TO_REPAIR).fetchall()
        left = [one for one in abandoned(self._ledger.owner) if one.again]
        self._looks += 1
        if not (calls or left) or self._looks > _LOOKS:
            return False
        wait(_LOOK_AGAIN_S)
        for call, key in calls:
            receipt = self._receipt(key)
            self._decide(call, "SUCCEEDED" if receipt else "FAILED", receipt)
        for one in left:
            self._decide(one.call, "OFFSET", None)
        return True

    def _receipt(self, key: str) -> str | None:
        for service in self._books.services():
            for effect in self._books.effects(service):
                if effect.key == key:
                    return effect.receipt
        return None

    def _decide(self, call: UUID, decision: str, receipt: str | None) -> None:
        with suppress(FencepostError):
            self._client.repair(call, decision, "pat", "looked into the service's own book", receipt)
            self.repaired += 1
