"""Asks Postgres, Redis and this installation for facts; judges nothing. What cannot be had is `Unread`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import psycopg
import redis

from fencepost.errors import Unreachable
from fencepost.leases import connect
from fencepost.ledger import listings, providers, revision, tail
from fencepost.ledger.connect import translate
from fencepost.ledger.held import HOLDS
from fencepost.ledger.roles import GROUPS
from fencepost.settings import address, redact
from fencepost.states import Queue
from fencepost_ops.doctor.facts import (
    Dependency,
    Login,
    PostgresFacts,
    Provider,
    RedisFacts,
    Retries,
    Standbys,
    Table,
    Versions,
)
from fencepost_ops.doctor.findings import Unread

T = TypeVar("T")

PACKAGES: Final = ("celery", "kombu", "redis", "psycopg", "flower")
SETTINGS: Final = (
    "max_connections",
    "superuser_reserved_connections",
    "reserved_connections",
    "synchronous_commit",
    "synchronous_standby_names",
    "fsync",
    "full_page_writes",
    "autovacuum",
    "default_transaction_read_only",
)
HOT_TABLES: Final = ("calls", "operations", "outbox", "runs", "workers")
QUEUES: Final = tuple(map(str, Queue))
MOST_KEYS: Final = 20_000  # looked at; of more these are a sample
MOST_SUBJECTS: Final = 200
_FENCE: Final = "fencepost:fence:{"
_BROKER: Final = ("fencepost:", "unacked", "_kombu.binding", "celery", "/")

_LIMITS: Final = (
    ("statement_timeout", "5s"),
    ("lock_timeout", "1s"),
    ("default_transaction_read_only", "on"),
)
_SETTINGS: Final = """
SELECT name, CASE name WHEN 'default_transaction_read_only' THEN reset_val ELSE setting END
FROM pg_settings WHERE name = ANY(%s)
"""
_DRIFTED: Final = """
SELECT 'of database ' || datname FROM pg_database
WHERE datname = current_database() AND datcollversion <> pg_database_collation_actual_version(oid)
UNION ALL
SELECT collname FROM pg_collation c WHERE collversion <> pg_collation_actual_version(oid)
  AND EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attcollation = c.oid)
"""
_LOGIN: Final = """
SELECT current_user, r.rolsuper,
       coalesce((SELECT pg_has_role(n.nspowner, 'MEMBER') FROM pg_namespace n WHERE n.nspname = 'fencepost'),
                false),
       ARRAY(SELECT g.rolname::text FROM pg_roles g WHERE g.rolname = ANY(%s)
             AND pg_has_role(g.oid, 'MEMBER') ORDER BY 1)
FROM pg_roles r WHERE r.rolname = current_user
"""
_STANDBYS: Final = """
SELECT count(*), CASE WHEN count(*) = count(sync_state)
                      THEN count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) END
FROM pg_stat_replication
"""
# Of other logins' sessions only a member of pg_read_all_stats sees since when a transaction is open.
_OLDEST: Final = """
SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::float8,
       pg_has_role('pg_read_all_stats', 'USAGE')
FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_TABLES: Final = """
SELECT relname, n_live_tup, n_dead_tup FROM pg_stat_user_tables
WHERE schemaname = 'fencepost' AND relname = ANY(%s) ORDER BY 1
"""
_SESSIONS: Final = """
SELECT application_name, count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name <> '' GROUP BY 1
"""
_UNKNOWN: Final = """
SELECT count(*) FROM unnest(%s::uuid[]) AS s (id)
WHERE NOT EXISTS (SELECT 1 FROM fencepost.runs r WHERE r.id = s.id)
  AND NOT EXISTS (SELECT 1 FROM fencepost.calls c WHERE c.id = s.id)
"""

# One that nobody needs stays as it was when it was last tried: it is no news.
_DEPENDENCIES: Final = """
SELECT * FROM (
  SELECT d.scope, d.state, coalesce(d.reason, ''),
         coalesce(extract(epoch FROM now - d.opened_at), 0)::float8,
         greatest(0, coalesce(extract(epoch FROM d.closed_until - now), 0))::float8 AS remaining,
         (SELECT count(*) FROM fencepost.calls c
          WHERE c.live AND c.scope = d.scope AND c.state IN ('INTENT_RECORDED', 'UNKNOWN')) AS waiting
  FROM fencepost.dependencies d, fencepost.now() AS now WHERE d.state <> 'closed') AS found
WHERE remaining > 0 OR waiting > 0 ORDER BY scope
"""
_HIDDEN: Final = """
SELECT count(*) FROM fencepost.events
WHERE type = 'HiddenRetrySeen' AND recorded_at > fencepost.now() - interval '1 day'
"""

_HELD: Final = f"SELECT count(*) FROM fencepost.calls c WHERE {HOLDS}"

Session = psycopg.Connection[Any]


def versions() -> Versions:
    """Of this installation."""
    return Versions(
        python=(sys.version_info.major, sys.version_info.minor),
        packages={name: _version(name) for name in PACKAGES},
        kombu_speaks_redis=all(importlib.util.find_spec(part) is not None for part in ("redis", "packaging")),
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def open_postgres(dsn: str) -> Session:
    """A session of our own making: an older server refuses those of the fleet, and shall be asked why.

    Raises Unreachable, and UsageError for a wrong login or DSN.
    """
    try:
        session = psycopg.connect(
            dsn,
            application_name="fencepost doctor",
            connect_timeout=5,
            autocommit=True,
        )
        # By SQL: a pooler may drop what a session begins with, and the server's own default shall be seen.
        for name, value in _LIMITS:
            session.execute("SELECT set_config(%s, %s, false)", [name, value])
    except psycopg.OperationalError as error:
        raise translate(error, dsn) from error
    except psycopg.ProgrammingError:  # libpq cannot read it, and would quote it with its password
        raise Unreachable(f"{address(dsn)} is no DSN of a Postgres") from None
    return session


def postgres(session: Session) -> PostgresFacts:
    """Everything a server says. Raises Unreachable if it goes away meanwhile."""
    latency, ahead = min(_clock(session) for _ in range(3))
    settings = session.execute(_SETTINGS, [list(SETTINGS)])
    login = _asked(session, lambda: Login(*_row(session, _LOGIN, list(GROUPS))))
    return PostgresFacts(
        version=session.info.server_version,
        latency_s=latency,
        clock_ahead_s=ahead,
        in_recovery=_row(session, "SELECT pg_is_in_recovery()")[0],
        settings=dict(settings.fetchall()),
        login=login if isinstance(login, Unread) else _with_tuple(login),
        standbys=_asked(session, lambda: Standbys(*_row(session, _STANDBYS))),
        oldest_transaction_s=_asked(session, lambda: _oldest(session)),
        tables=_asked(session, lambda: tuple(Table(*row) for row in _rows(session, _TABLES, [*HOT_TABLES]))),
        sessions=_asked(session, lambda: dict(_rows(session, _SESSIONS))),
        revision=_asked(session, lambda: revision.read(session)),
        movable_clock=_asked(
            session, lambda: bool(_row(session, "SELECT to_regclass('fencepost.clock') IS NOT NULL")[0])
        ),
        fleet=_asked(session, lambda: tail.overview(session, ended=False)),
        retries=_asked(session, lambda: _retries(session)),
        pooler=_row(session, "SELECT pg_backend_pid()")[0] != session.info.backend_pid,
        drifted=_asked(session, lambda: tuple(name for (name,) in _rows(session, _DRIFTED))),
    )


def _retries(session: Session) -> Retries:
    found = tuple(Dependency(*row) for row in _rows(session, _DEPENDENCIES))
    hidden, held = int(_row(session, _HIDDEN)[0]), int(_row(session, _HELD)[0])
    return Retries(found, hidden, _asked(session, lambda: _providers(session)), held)


def _providers(session: Session) -> tuple[Provider, ...]:
    now = listings.now(session)
    return tuple(
        Provider(
            one.provider,
            one.runs,
            (now - one.since).total_seconds(),
            max(0.0, (one.until - now).total_seconds()),
            one.why,
            one.person,
        )
        for one in providers.awaited(session)
    )


def _with_tuple(login: Login) -> Login:
    return Login(login.user, login.superuser, login.owner, tuple(login.groups))


def _clock(session: Session) -> tuple[float, float]:
    """A round trip in seconds, and how far the server's clock was ahead in the middle of it."""
    began, before = time.perf_counter(), datetime.now(UTC)
    server = _row(session, "SELECT clock_timestamp()")[0]
    took = time.perf_counter() - began
    return took, (server - before - timedelta(seconds=took / 2)).total_seconds()


def _oldest(session: Session) -> float | Unread | None:
    oldest, sees_all = _row(session, _OLDEST)
    if not sees_all:
        return Unread("this login sees its own transactions only; it takes a member of pg_read_all_stats")
    return cast("float | None", oldest)


def _asked(session: Session, question: Callable[[], T]) -> T | Unread:
    """The answer, or why this login, or this ledger, gives none. Raises Unreachable."""
    try:
        return question()
    except psycopg.Error as error:
        if session.closed:
            raise Unreachable(f"Postgres went away while it was asked: {error}") from error
        return Unread(error.diag.message_primary or str(error).splitlines()[0])


def _rows(session: Session, statement: str, *values: Any) -> list[Any]:
    return session.execute(statement, values or None).fetchall()


def _row(session: Session, statement: str, *values: Any) -> Any:
    row = session.execute(statement, values or None).fetchone()
    assert row is not None  # each of them gives one
    return row


def broker(url: str, intake: str, session: Session | None) -> RedisFacts:
    """Everything a Redis says, and whether it serves the ledger of this session only. `intake` is the queue
    of plain Celery clients. Raises Unreachable.
    """
    try:
        client = connect(url, size=1)
        try:
            return _broker(client, (*QUEUES, intake), session)
        finally:
            client.close()
    except (redis.RedisError, OSError, ValueError) as error:
        raise Unreachable(f"cannot reach Redis at {redact(url)}: {redact(str(error))}") from error


def _broker(client: redis.Redis, queues: Sequence[str], session: Session | None) -> RedisFacts:
    latency = min(_ping(client) for _ in range(3))
    info: dict[str, Any] = client.info()
    names = [key.decode(errors="replace") for key in _keys(client)]
    subjects = [subject for name in names if (subject := _subject(name)) is not None][:MOST_SUBJECTS]
    valkey = info.get("valkey_version")
    return RedisFacts(
        server="valkey" if valkey else "redis",
        version=str(valkey or info["redis_version"]),
        latency_s=latency,
        policy=str(info.get("maxmemory_policy", "unknown")),
        maxmemory=int(info.get("maxmemory", 0)),
        used=int(info["used_memory"]),
        aof=bool(int(info.get("aof_enabled", 0))),
        snapshots=_snapshots(client),
        lengths={queue: _length(client, queue) for queue in queues},
        keys=client.dbsize(),
        foreign=tuple(sorted(name for name in names if not _ours(name, queues))),
        subjects=len(subjects),
        unknown=_unknown(session, subjects),
        replica=info.get("role") == "slave",
        no_lists=tuple(queue for queue in queues if client.type(queue) not in (b"none", b"list")),
    )


def _ping(client: redis.Redis) -> float:
    began = time.perf_counter()
    client.ping()
    return time.perf_counter() - began


def _keys(client: redis.Redis) -> Iterator[bytes]:
    return islice(client.scan_iter(count=1000), MOST_KEYS)


def _ours(name: str, queues: Sequence[str]) -> bool:
    """Whether a key is one that Fencepost, Celery or kombu makes."""
    queue = name.partition("\x06\x16")[0]  # kombu appends a priority
    return name.startswith(_BROKER) or queue in queues or name.endswith(".pidbox")


def _subject(name: str) -> UUID | None:
    """The subject a fence was granted for lately; None for any other key."""
    if not name.startswith(_FENCE):
        return None
    try:
        return UUID(name.removesuffix("}").rpartition("/")[2])
    except ValueError:
        return None


def _snapshots(client: redis.Redis) -> bool | Unread:
    try:
        return bool(cast("dict[str, str]", client.config_get("save")).get("save"))
    except redis.ResponseError as error:
        return Unread(str(error))


def _length(client: redis.Redis, queue: str) -> int:
    try:
        return client.llen(queue)
    except redis.ResponseError:
        return 0  # a key of this name that is no list is somebody else's


def _unknown(session: Session | None, subjects: list[UUID]) -> int | Unread:
    if session is None:
        return Unread("Postgres was not reached")
    return _asked(session, lambda: int(_row(session, _UNKNOWN, subjects)[0]))
