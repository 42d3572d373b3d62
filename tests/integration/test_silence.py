"""A Postgres that neither answers nor ends its sessions is given up, and soon asked anew."""

import time
from collections.abc import Iterator

import psycopg
import pytest

from fencepost.errors import Unreachable
from fencepost.ledger.connect import CHECK_S, TRANSACTION_S, Pool
from fencepost.ledger.session import Session
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres
from fencepost_ops.weather import Proxy


@pytest.fixture
def wire(postgres: LocalPostgres) -> Iterator[Proxy]:
    with Proxy(postgres.port) as proxy:
        yield proxy


@pytest.fixture
def dsn(postgres: LocalPostgres, database: LedgerDatabase, wire: Proxy) -> str:
    return database.dsns["reader"].replace(f":{postgres.port}/", f":{wire.port}/")


def test_a_session_that_falls_silent_ends_with_an_error(dsn: str, wire: Proxy) -> None:
    with Session.connect(dsn, autocommit=True) as session:
        session.answer_s = 0.3
        wire.black_hole()
        began = time.monotonic()
        with pytest.raises(psycopg.OperationalError, match=r"no answer within 0\.3 s"):
            session.execute("SELECT 1")
        assert time.monotonic() - began >= 0.3
        assert session.closed


def test_an_answer_that_takes_its_time_is_waited_for(dsn: str) -> None:
    with Session.connect(dsn, autocommit=True) as session:
        session.answer_s = 5
        assert session.execute("SELECT 1 FROM pg_sleep(0.5)").fetchone() == (1,)


def test_an_error_of_the_server_leaves_the_session_as_it_is(dsn: str) -> None:
    with Session.connect(dsn, autocommit=True) as session:
        session.execute("SET statement_timeout = '50ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            session.execute("SELECT pg_sleep(5)")
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_a_pipeline_that_falls_silent_ends_too(dsn: str, wire: Proxy) -> None:
    session = Session.connect(dsn, autocommit=True)
    session.answer_s = 0.3

    def ask() -> None:
        with session.pipeline():
            session.execute("SELECT 1")
            wire.black_hole()
            session.execute("SELECT 2").fetchone()

    with pytest.raises(psycopg.OperationalError):
        ask()
    assert session.closed


def test_a_pool_gives_up_what_fell_silent_and_serves_again(dsn: str, wire: Proxy) -> None:
    pool = Pool(dsn, "test", 2, transaction_s=1)

    def ask(*, into_silence: bool) -> object:
        with pool.connection() as session:
            if into_silence:
                wire.black_hole()
            return session.execute("SELECT 1").fetchone()

    try:
        with pytest.raises(Unreachable, match="no answer within"):
            ask(into_silence=True)
        assert ask(into_silence=False) == (1,)  # another that fell silent is found out before it is given
    finally:
        pool.close()


def test_a_pool_replaces_idle_sessions_that_fell_silent(dsn: str, wire: Proxy) -> None:
    pool = Pool(dsn, "test", 1, transaction_s=1)
    try:
        with pool.connection() as session:
            session.execute("SELECT 1")
        wire.black_hole()
        with pool.connection() as session:
            assert session.execute("SELECT 1").fetchone() == (1,)
    finally:
        pool.close()


def test_an_idle_session_is_found_out_long_before_a_transaction_would_be(dsn: str, wire: Proxy) -> None:
    pool = Pool(dsn, "test", 1)  # whose transactions may take ten seconds
    try:
        with pool.connection() as session:
            session.execute("SELECT 1")
        wire.black_hole()
        began = time.monotonic()
        with pool.connection() as session:
            assert session.execute("SELECT 1").fetchone() == (1,)
        assert CHECK_S <= time.monotonic() - began < TRANSACTION_S / 2
    finally:
        pool.close()
