"""The ledger of a drill: a database of its own with a clock that stands still, emptied between histories."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, LiteralString

import psycopg

from fencepost.ledger.connect import Connection, Pool, kept_session, translate
from fencepost_ops.database import LedgerDatabase, prepare_database
from fencepost_ops.drill.baton import Execution
from fencepost_ops.logins import Login, give_logins
from fencepost_ops.postgres import LocalPostgres

_STILL: Final = """
ALTER TABLE fencepost.clock ADD at timestamptz NOT NULL DEFAULT '2030-01-01 00:00:00+00';
CREATE OR REPLACE FUNCTION fencepost.now() RETURNS timestamptz LANGUAGE sql VOLATILE
AS $$ SELECT at + ahead FROM fencepost.clock $$;
"""
_TABLES: Final = (
    "events",
    "evidence",
    "calls",
    "operations",
    "outbox",
    "runs",
    "payloads",
    "memory",
    "signals",
    "workers",
    "dependencies",
    "intake_refusals",
    "epochs",
    "policies",
    "principals",
    "delegations",
    "withdrawn",
    "allowances",
    "authority_changes",
)
_EMPTY: Final = "".join(f"DELETE FROM fencepost.{table};" for table in _TABLES)
SECOND: Final = "second operator"
"""Whose login decides where a decision takes two."""
REFUSED_STATES: Final = ("FP", "23", "42501")
"""How the states of a refusal begin: a guard's, a constraint's, a privilege's."""
_EMPTIED_ANEW: Final = 200  # histories after which the tables are given new files


def _second_operator(server: LocalPostgres, name: str) -> str:
    login = Login("operator", f"fencepost_second_of_{name}", secrets.token_urlsafe(24))
    with psycopg.connect(server.superuser_dsn, autocommit=True) as connection:
        give_logins(connection, [login])
    return server.dsn(login.name, login.password, name)


class Sessions(Pool):
    """Sessions of one login, opened when needed and kept for the next history. For one thread at a time.

    `checkpoint` is called before each transaction: there another process may go first, and a dead one ends.
    """

    def __init__(self, dsn: str, checkpoint: Callable[[], None]) -> None:
        super().__init__(dsn, "fencepost drill", 1)
        self._free: list[Connection] = []
        self._checkpoint = checkpoint
        self.held: dict[Execution | None, Connection] = {}
        self.losing: set[Execution | None] = set()
        """Executions that will not hear that their transaction was committed."""
        self.refused: list[str] = []
        """What Postgres has refused in this history: guards, constraints, privileges."""

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """See `Pool.connection`."""
        self._checkpoint()
        session = self._free.pop() if self._free else kept_session(self._dsn, "fencepost drill")
        here = Execution.here()
        self.held[here] = session
        try:
            yield session
            session.commit()
            if here in self.losing:
                self.losing.discard(here)
                raise psycopg.OperationalError("the answer to COMMIT was lost")
        except BaseException as error:
            self._undo(session)
            if not isinstance(error, psycopg.Error):
                raise
            if (error.sqlstate or "").startswith(REFUSED_STATES):
                self.refused.append(str(error).partition("\n")[0])
            translated = translate(error, self._dsn)
            if translated is error:
                raise
            raise translated from error
        finally:
            del self.held[here]
            if not session.closed:
                self._free.append(session)

    def _undo(self, session: Connection) -> None:
        with suppress(psycopg.Error):
            session.rollback()

    def close(self) -> None:
        """Close all sessions."""
        for session in self._free:
            session.close()


class DrillLedger:
    """The drill's database, as its owner, and the sessions of those who log in."""

    def __init__(self, server: LocalPostgres, name: str) -> None:
        self.database: LedgerDatabase = prepare_database(
            server, name, movable_clock=True, logins=f"login_of_{name}"
        )
        self.owner = psycopg.connect(self.database.owner, autocommit=True)
        self.owner.execute(_STILL)
        self._eraser = psycopg.connect(self.database.owner, autocommit=True)
        self._eraser.execute("SET session_replication_role = replica")  # no guard: to empty what only grows
        self.sessions = {
            role: Sessions(dsn, self._passed) for role, dsn in self.database.dsns.items() if role != "relay"
        }
        self.sessions[SECOND] = Sessions(_second_operator(server, name), self._passed)
        self.checkpoint: Callable[[], None] | None = None
        self.once_empty: list[LiteralString] = []
        """What is to be executed as soon as this history is forgotten: constraints that it does not meet."""
        self._emptied = 0

    def _passed(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint()

    def empty(self) -> None:
        """Forget all histories; the clock stands at the beginning."""
        self._emptied += 1
        if self._emptied % _EMPTIED_ANEW == 0:
            self._eraser.execute(f"TRUNCATE {', '.join('fencepost.' + table for table in _TABLES)}")
        else:
            self._eraser.execute(_EMPTY)
        self.owner.execute("UPDATE fencepost.clock SET at = '2030-01-01 00:00:00+00', ahead = interval '0'")
        while self.once_empty:
            self.owner.execute(self.once_empty[0])
            del self.once_empty[0]
        for sessions in self.sessions.values():
            sessions.refused.clear()

    @property
    def refused(self) -> list[str]:
        """What Postgres has refused to anybody in this history."""
        return [message for sessions in self.sessions.values() for message in sessions.refused]

    def jump(self, seconds: float) -> None:
        """Set the ledger's clock ahead of everybody's, or back."""
        self.owner.execute("UPDATE fencepost.clock SET ahead = ahead + make_interval(secs => %s)", [seconds])

    def break_session(self, execution: Execution) -> None:
        """End the session an execution holds in a transaction: Postgres ends one that stands still."""
        for sessions in self.sessions.values():
            if (held := sessions.held.get(execution)) is not None:
                self.owner.execute("SELECT pg_terminate_backend(%s, 2000)", [held.info.backend_pid])

    def close(self) -> None:
        """Let go of it."""
        for sessions in self.sessions.values():
            sessions.close()
        self._eraser.close()
        self.owner.close()
