"""Sessions of the ledger: short, bounded, never kept across a model or tool call (R8)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolTimeout

from fencepost.errors import NotFound, Unreachable, UsageError
from fencepost.ledger.session import Session, SettingsLostError, UnconfirmedError
from fencepost.redaction import own_address
from fencepost.settings import address, fresh, redact

# A worker frozen inside a transaction must not freeze the fleet: after these Postgres ends it and frees its
# locks.
IDLE_IN_TRANSACTION_S = 2
LOCK_S = 1
TRANSACTION_S = 10.0
SILENCE = 1.2  # transactions; whoever has said nothing after so long is not there any more
RECONNECT_S = 5.0  # after which a pool's pauses between tries to connect begin anew
CHECK_S = 2.0  # a session that does not answer to nothing within this is replaced


def _limits(transaction_s: float) -> dict[str, str]:
    return {
        "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_S}s",
        "lock_timeout": f"{LOCK_S}s",
        "transaction_timeout": f"{transaction_s * 1000:.0f}ms",
        "default_transaction_isolation": "read committed",
    }


# A pool's statements find a few rows by key among any number, over and over. They are planned once, for index
# lookups: a plan made while the tables were small and kept for good would read all of them ever after.
_BY_KEY = {
    "plan_cache_mode": "force_generic_plan",
    **dict.fromkeys(
        (
            "jit",
            "enable_seqscan",
            "enable_bitmapscan",
            "enable_hashjoin",
            "enable_mergejoin",
            "enable_memoize",
        ),
        "off",
    ),
}

# To the write-ahead log alone: a commit of something written is the only one that waits for standbys.
_WRITE = "SELECT pg_logical_emit_message(true, 'fencepost', '')"

# Shutting down, starting up, too many sessions; this session was ended for standing still in a transaction.
_AWAY = frozenset({"57P01", "57P02", "57P03", "53300", "25P03", "25P04", "57P05"})
# How a server says so that refuses a session: libpq passes on its words, not its SQLSTATE (53300).
_FULL = ("too many clients", "too many connections", "remaining connection slots are reserved")

Connection = psycopg.Connection[Any]
Pipeline = psycopg.Pipeline


def connect(dsn: str, name: str, *, autocommit: bool = False) -> Connection:
    """One session with the ledger's timeouts. Raises `Unreachable`, or `UsageError` (the DSN, the login)."""
    own_address(dsn)
    try:
        return Session.connect(
            fresh(dsn),
            application_name=name,
            settings=_limits(TRANSACTION_S),
            connect_timeout=5,
            autocommit=autocommit,
        )
    except psycopg.ProgrammingError as error:
        if error.sqlstate is not None:
            raise translate(error, dsn) from error
        # libpq cannot read it, and would quote it with its password
        raise UsageError(
            f"{address(dsn)} is no DSN of a Postgres, such as postgresql://host/database"
        ) from None
    except psycopg.Error as error:
        raise translate(error, dsn) from error


def writable(dsn: str) -> dict[str, str]:
    """How to find, among several hosts of a DSN, the one that takes writes, unless it says so itself."""
    found = conninfo_to_dict(dsn)
    several = any("," in str(found.get(name, "")) for name in ("host", "hostaddr"))
    return {"target_session_attrs": "read-write"} if several and "target_session_attrs" not in found else {}


def _kept(dsn: str, name: str, transaction_s: float) -> dict[str, Any]:
    """How a session is opened that is kept and used again."""
    return {
        "application_name": name,
        "settings": _limits(transaction_s) | _BY_KEY,
        "connect_timeout": 5,
        "prepare_threshold": 0,
        **writable(dsn),
    }


def kept_session(dsn: str, name: str) -> Session:
    """One session as pools keep them, for whoever keeps it himself. Raises as `connect` does."""
    where = fresh(dsn)
    try:
        return Session.connect(where, **_kept(where, name, TRANSACTION_S))
    except psycopg.Error as error:
        raise translate(error, dsn) from error


class Pool:
    """A bounded pool of such sessions. Raises `Unreachable` when none is to be had in 5 s.

    A session is tried at checkout and replaced if it is dead, unless it was used less than `trusted_s` ago:
    whoever asks again anyway need not pay a round trip each time. A statement is never re-run by the pool.
    Postgres ends a transaction after `transaction_s` seconds; a session that answers nothing for a fifth
    longer is given up, and its error is `Unreachable` too. So is one of a Postgres that became read-only.
    `opened` is told of each new session first; `presents` says which tokens whoever takes one presents with
    it (`guards.tenants`).

    After a commit that nobody confirmed, what is read back here may vanish in a switch-over. So the next
    transactions write something too, until one of them is confirmed, and with it all before it (R2).
    """

    def __init__(
        self,
        dsn: str,
        name: str,
        size: int,
        *,
        trusted_s: float = 0.0,
        transaction_s: float = TRANSACTION_S,
        opened: Callable[[Connection], None] | None = None,
        presents: Callable[[], str] | None = None,
    ) -> None:
        own_address(dsn)
        self._presents = presents
        self._dsn = dsn
        self._trusted_s = trusted_s
        self._answer_s = transaction_s * SILENCE
        self._pool: ConnectionPool[Session] = ConnectionPool(
            lambda: fresh(dsn),
            connection_class=Session,
            min_size=1,
            max_size=size,
            timeout=5,
            reconnect_timeout=RECONNECT_S,
            open=False,
            check=self._check,
            configure=opened,
            kwargs=lambda: _kept(fresh(dsn), name, transaction_s),
        )
        self._opened = False
        self._doubt: object | None = None
        self._used: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()

    def _check(self, connection: Session) -> None:
        if time.monotonic() - self._used.get(connection, -self._trusted_s) >= self._trusted_s:
            connection.answer_s = min(CHECK_S, self._answer_s)
            connection.verify()
        connection.answer_s = self._answer_s

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A session; committed at the end of the block, rolled back if it raises."""
        if not self._opened:
            connect(self._dsn, "probe").close()  # a wrong DSN is said at once, not after the pool's patience
            self._pool.open()
            self._opened = True
        doubt = self._doubt
        try:
            with self._pool.connection() as connection:
                connection.looks = False
                with _dropped_if_read_only(connection):
                    if self._presents is not None:
                        _present(connection, self._presents())
                    yield connection
                    if connection.looks:
                        doubt = None
                    elif doubt is not None:
                        connection.execute(_WRITE)
                self._used[connection] = time.monotonic()
        except PoolTimeout as error:
            raise Unreachable(f"no connection to Postgres at {redact(self._dsn)} within 5 s") from error
        except psycopg.Error as error:
            translated = translate(error, self._dsn)
            if isinstance(translated, Unreachable):
                self._doubt = object()
            if translated is error:
                raise
            raise translated from error
        if doubt is not None and self._doubt is doubt:  # else there is a later one
            self._doubt = None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A session whose every statement is a transaction of its own: for reads that decide nothing."""
        with self.connection() as connection:
            if isinstance(connection, Session):
                connection.looks = True
            connection.autocommit = True  # spares two round trips, BEGIN and COMMIT
            try:
                yield connection
            finally:
                if not connection.closed:
                    connection.autocommit = False

    def close(self) -> None:
        """Close all sessions."""
        self._pool.close()


@contextmanager
def _dropped_if_read_only(connection: Connection) -> Iterator[None]:
    """After a switch-over an old session leads to the old server, or keeps the old default, for good."""
    try:
        yield
    except psycopg.errors.ReadOnlySqlTransaction:
        connection.close()
        raise


def _present(connection: Connection, tokens: str) -> None:
    """For the session and by itself: no rollback brings back what was presented before."""
    connection.autocommit = True
    connection.execute("SELECT set_config('fencepost.tokens', %s, false)", [tokens])
    connection.autocommit = False


def translate(error: psycopg.Error, dsn: str) -> Exception:
    """The one place where a Postgres error becomes one of ours; one that needs no translation comes back."""
    reason, where = _reason(error), redact(dsn)
    if isinstance(
        error,
        psycopg.errors.UndefinedTable | psycopg.errors.UndefinedFunction | psycopg.errors.InvalidSchemaName,
    ):
        return NotFound(f"there is no ledger at {where}: run `fencepost migrate` first ({reason})")
    if isinstance(error, psycopg.errors.UndefinedColumn):
        return NotFound(
            f"the ledger at {where} is of another version: run `fencepost migrate` first ({reason})"
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return UsageError(f"this login may not do that at {where}: {reason}; use the DSN of another role")
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return Unreachable(
            f"Postgres at {where} is read-only: {reason}; after a switch-over the DSN must lead to the "
            "primary (name all hosts in it), and default_transaction_read_only must be off there"
        )
    if isinstance(error, UnconfirmedError | SettingsLostError):
        return Unreachable(f"Postgres at {where}: {reason}")
    if error.sqlstate in (None, "42704") and "transaction_timeout" in reason:  # no such setting
        return UsageError(f"Postgres at {where} is too old: Fencepost needs version 17 or later")
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        if "authentication failed" in reason or "does not exist" in reason:
            return UsageError(f"Postgres at {where} refuses the login: {reason}; check FENCEPOST_DSN")
        if any(full in reason for full in _FULL):
            return Unreachable(
                f"Postgres at {where} has no session left for us ({reason.rpartition('FATAL:')[2].strip()}): "
                "raise its max_connections, or lower FENCEPOST_POOL_SIZE or the number of processes; "
                "`fencepost doctor` adds them up"
            )
        return Unreachable(f"cannot reach Postgres at {where}: {reason}")
    if error.sqlstate in _AWAY:
        return Unreachable(f"Postgres at {where} is not accepting work: {reason}")
    return error


def _reason(error: psycopg.Error) -> str:
    """The server's own sentence, or the last line of libpq's that is not indented: those are hints."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line[0].isspace()]
    return error.diag.message_primary or (lines[-1] if lines else type(error).__name__)
