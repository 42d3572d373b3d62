"""Sessions of the ledger: confirmed commits, settings that hold, instants in UTC, and what heals alone."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from fencepost import commands as c
from fencepost.client import Client
from fencepost.errors import Unreachable
from fencepost.leases import RedisLeases, Want
from fencepost.ledger.connect import Pool, connect, kept_session, writable
from fencepost.ledger.session import Session
from fencepost.settings import load_settings
from fencepost_ops.database import LedgerDatabase, prepare_database
from fencepost_ops.local import LocalPostgres
from fencepost_relay.publisher import Publisher
from fencepost_workers.broker import Transport
from fencepost_workers.celery import configure
from tests.awaiting import until
from tests.integration.ledger_bench import Bench, open_bench
from tests.integration.test_outbound_connections import certified

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    """A server of our own, whose settings are changed."""
    with LocalPostgres.start(fsync=False) as server:
        yield server


@pytest.fixture(scope="module")
def ledger(server: LocalPostgres) -> LedgerDatabase:
    return prepare_database(server, "sessions")


@pytest.fixture
def own(ledger: LedgerDatabase) -> Iterator[Bench]:
    with open_bench(ledger) as bench:
        yield bench


def order(server: LocalPostgres, *statements: str) -> None:
    with psycopg.connect(server.superuser_dsn, autocommit=True) as session:
        for statement in statements:
            session.execute(statement)


def commits_wait(server: LocalPostgres) -> bool:
    """Whether the server has heard of its standbys: a commit waits for them, until it is cancelled."""
    with ThreadPoolExecutor(1) as other:
        commit = other.submit(order, server, "SELECT pg_logical_emit_message(true, 'test', '')")
        return (
            until(
                "a commit is through or waits",
                lambda: (
                    (commit.done() and "through") or (waits(server, "pg_cancel_backend(pid)") and "waits")
                ),
            )
            == "waits"
        )


@contextmanager
def no_standby(server: LocalPostgres) -> Iterator[None]:
    """Every commit waits for a standby that is not there."""
    order(server, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    until("commits wait", lambda: commits_wait(server))
    try:
        yield
    finally:
        order(server, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")


def waits(server: LocalPostgres, then: str = "pid") -> bool:
    """Whether a commit waits for its standby, and what is done to its session then."""
    with psycopg.connect(server.superuser_dsn, autocommit=True) as session:
        return bool(
            session.execute(f"SELECT {then} FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchall()
        )


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_commit_no_standby_has_confirmed_is_not_answered_however_often_it_is_asked(
    server: LocalPostgres, own: Bench, how: str
) -> None:
    claim = own.claim_run(own.enqueue(how))
    with ThreadPoolExecutor(1) as other:
        with no_standby(server):
            for _ in range(2):  # the second time it finds what is visible, and may vanish
                claimed = other.submit(own.ledger.apply, [claim])
                until("it waits", lambda: waits(server, f"{how}(pid)"))
                with pytest.raises(Unreachable):
                    claimed.result()
            again = other.submit(own.ledger.apply, [claim])
            until("it waits", lambda: waits(server))
            assert not again.done()
        assert isinstance(again.result()[0], c.Plan)


def test_a_run_no_standby_has_confirmed_is_not_accepted_when_it_is_sent_again(
    server: LocalPostgres, ledger: LedgerDatabase
) -> None:
    def send(client: Client) -> bool:
        return client.enqueue(
            "p", {}, run_key="unconfirmed", tenant="shop", principal="svc", deadline=timedelta(minutes=1)
        ).created

    with Client(ledger.dsns["producer"]) as client, ThreadPoolExecutor(1) as other:
        with no_standby(server):
            for _ in range(2):
                sent = other.submit(send, client)
                until("it waits", lambda: waits(server, "pg_cancel_backend(pid)"))
                with pytest.raises(Unreachable, match="not confirmed"):
                    sent.result()
        assert send(client) is False


# -- settings, and instants --------------------------------------------------------------------------

BERLIN = {"PGTZ": "Europe/Berlin", "PGDATESTYLE": "German", "PGCLIENTENCODING": "LATIN1"}
LAX = "-c lock_timeout=0 -c transaction_timeout=0 -c synchronous_commit=off -c work_mem=7MB"


def lax(dsn: str) -> str:
    return psycopg.conninfo.make_conninfo(dsn, options=LAX)


def test_no_environment_option_role_or_database_changes_what_a_session_is_set_to(
    server: LocalPostgres, ledger: LedgerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (BERLIN | {"PGOPTIONS": "-c lock_timeout=9s"}).items():
        monkeypatch.setenv(name, value)
    order(
        server,
        f"ALTER DATABASE {ledger.name} SET timezone = 'Europe/Berlin'",
        f"ALTER DATABASE {ledger.name} SET idle_in_transaction_session_timeout = 0",
    )
    try:
        for session in (
            connect(lax(ledger.dsns["worker"]), "set", autocommit=True),
            kept_session(lax(ledger.dsns["worker"]), "set"),
        ):
            with session:
                for name, value in {
                    "TimeZone": "UTC",
                    "DateStyle": "ISO, MDY",
                    "client_encoding": "UTF8",
                    "lock_timeout": "1s",
                    "transaction_timeout": "10s",
                    "idle_in_transaction_session_timeout": "2s",
                    "synchronous_commit": "on",
                    "work_mem": "7MB",  # the DSN's own, of which we say nothing
                }.items():
                    assert session.execute(f"SHOW {name}").fetchone() == (value,)
    finally:
        order(server, f"ALTER DATABASE {ledger.name} RESET ALL")


@pytest.mark.parametrize("binary", [False, True])
def test_a_day_is_24_hours_whatever_the_session_says_of_time_zones(
    ledger: LedgerDatabase, binary: bool
) -> None:
    before_summer = datetime(2026, 3, 28, 12, tzinfo=UTC)
    with Session.connect(ledger.dsns["reader"], autocommit=True) as session:
        session.execute("SET timezone = 'Europe/Berlin'")
        cursor = session.cursor(binary=binary)
        (found,) = cursor.execute("SELECT %s::timestamptz", [before_summer]).fetchone()  # type: ignore[misc]
        assert (found, found.tzinfo) == (before_summer, UTC)
        assert found + timedelta(days=1) - before_summer == timedelta(hours=24)


def test_a_session_that_lost_its_settings_is_replaced_and_a_pooler_that_keeps_none_is_named(
    ledger: LedgerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(ledger.dsns["worker"], "lost", 1)
    try:
        with pool.connection() as session:
            session.execute("SELECT set_config('lock_timeout', '0', false)")  # as a pooler's DISCARD does
        with pool.connection() as session:
            assert session.execute("SHOW lock_timeout").fetchone() == ("1s",)
    finally:
        pool.close()
    monkeypatch.setattr("fencepost.ledger.session._SET", "SELECT unnest(%s::text[]), unnest(%s::text[])")
    with pytest.raises(Unreachable, match="a pooler stands between"):
        connect(ledger.dsns["worker"], "dropped")


def test_a_session_of_a_postgres_that_was_read_only_is_not_used_again(
    server: LocalPostgres, ledger: LedgerDatabase
) -> None:
    pool = Pool(ledger.dsns["worker"], "read-only", 1, trusted_s=60)

    def write() -> None:
        with pool.connection() as session:
            session.execute("UPDATE fencepost.outbox SET publish_at = publish_at WHERE false")

    order(server, f"ALTER DATABASE {ledger.name} SET default_transaction_read_only = on")
    try:
        with pytest.raises(Unreachable, match="is read-only"):
            write()
    finally:
        order(server, f"ALTER DATABASE {ledger.name} RESET ALL")

    def written() -> bool:
        with suppress(Unreachable):  # a session that was opened before it was over
            write()
            return True
        return False

    until("it is written again", written, within_s=10)
    pool.close()


def test_of_several_hosts_the_one_that_takes_writes_is_found(
    server: LocalPostgres, ledger: LedgerDatabase
) -> None:
    asked = {"dbname": ledger.name, "host": "127.0.0.1,127.0.0.1", "port": f"{server.port},{server.port}"}
    assert writable(psycopg.conninfo.make_conninfo("", **asked)) == {"target_session_attrs": "read-write"}
    own = psycopg.conninfo.make_conninfo("", **asked, target_session_attrs="any")
    assert writable(own) == writable(ledger.dsns["worker"]) == {}


def test_no_text_of_the_ledger_sorts_by_a_collation_that_may_change(own: Bench) -> None:
    found = own.sql(
        "SELECT attrelid::regclass::text, attname FROM pg_attribute a"
        " JOIN pg_collation c ON c.oid = a.attcollation JOIN pg_class r ON r.oid = a.attrelid"
        " WHERE r.relnamespace = 'fencepost'::regnamespace AND r.relkind IN ('r', 'p') AND attnum > 0"
        " AND collname <> 'C' AND relname <> 'alembic_version'"
    )
    assert found == []


# -- Redis over TLS ----------------------------------------------------------------------------------


HANDSHAKE = b"\x16"


@contextmanager
def listening(context: ssl.SSLContext, heard: list[bytes]) -> Iterator[int]:
    """A server that notes what it is told first by whoever trusts its certificate, and closes."""

    def hear(plain: socket.socket) -> None:
        if plain.recv(1, socket.MSG_PEEK) != HANDSHAKE:
            heard.append(plain.recv(1000))
            return
        with suppress(OSError), context.wrap_socket(plain, server_side=True) as told:
            heard.append(told.recv(1000))

    def serve(taken: socket.socket) -> None:
        with suppress(OSError):  # until it is shut down
            while True:
                with taken.accept()[0] as plain:
                    hear(plain)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        threading.Thread(target=serve, args=[taken], daemon=True).start()
        yield int(taken.getsockname()[1])
        taken.shutdown(socket.SHUT_RDWR)


def by_leases(url: str) -> None:
    RedisLeases(url).grant([Want("k", "o", 0, None, timedelta(seconds=1))])


def by_relay(url: str) -> None:
    Publisher(url).lengths()


def by_worker(url: str) -> None:
    app = Celery("test", set_as_current=False)
    app.conf.update(configure(load_settings(redis_url=url)))
    with app.connection_for_read() as connection:
        transport: Any = connection.get_transport_cls()
        assert transport is Transport
        channel: Any = connection.default_channel
        channel.queue_declare("planner")


@pytest.mark.parametrize("client", [by_leases, by_relay, by_worker])
def test_a_password_of_redis_is_told_to_nobody_whose_certificate_is_not_trusted(
    client: Callable[[str], None], tmp_path: Path
) -> None:
    server_side, _ = certified(tmp_path, "localhost")
    heard: list[bytes] = []
    with listening(server_side, heard) as port:
        url = f"rediss://:geheim@localhost:{port}/0"
        with pytest.raises((Unreachable, OSError, OperationalError, redis.RedisError)):
            client(url)
        assert heard == []
        with suppress(Exception):
            client(f"{url}?ssl_ca_certs={tmp_path / 'localhost.pem'}")
        until("whom it trusts hears the password", lambda: b"geheim" in b"".join(heard), within_s=10)
