"""A Postgres, a Valkey and relays of our own, for tests that freeze them."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import redis

from fencepost.leases import connect
from fencepost.ledger.migrate import upgrade
from fencepost_ops.local import LocalPostgres, LocalValkey
from fencepost_relay.publisher import Publisher
from fencepost_relay.relay import Relay
from tests.integration.relay.bench import MINUTE, Process
from tests.integration.rows import Sql


@pytest.fixture(scope="package")
def postgres() -> Iterator[LocalPostgres]:
    with LocalPostgres.start(fsync=False) as server:
        upgrade(server.superuser_dsn)
        with psycopg.connect(server.superuser_dsn, autocommit=True) as sql:
            sql.execute("CREATE ROLE relay LOGIN PASSWORD 'relay-secret' IN ROLE fencepost_relay")
        yield server


@pytest.fixture(scope="package")
def valkey() -> Iterator[LocalValkey]:
    with LocalValkey.start() as server:
        yield server


@pytest.fixture
def sql(postgres: LocalPostgres) -> Iterator[Sql]:
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as session:
        session.execute("TRUNCATE fencepost.outbox, fencepost.workers")
        yield session


@pytest.fixture
def raw(valkey: LocalValkey) -> Iterator[redis.Redis]:
    client = connect(valkey.url(), size=1)
    client.flushall()
    client.config_resetstat()
    yield client
    client.connection_pool.disconnect()


@pytest.fixture
def dsn(postgres: LocalPostgres) -> str:
    return postgres.dsn("relay", "relay-secret", "postgres")


@pytest.fixture
def make_relay(dsn: str, valkey: LocalValkey, raw: redis.Redis) -> Iterator[Callable[..., Relay]]:
    made: list[Relay] = []

    def make(publisher: Publisher | None = None, **settings: Any) -> Relay:
        made.append(
            Relay(
                dsn, publisher or Publisher(valkey.url()), **{"republish": MINUTE, "ahead": MINUTE} | settings
            )
        )
        return made[-1]

    yield make
    for relay in made:
        relay.close()


@pytest.fixture
def start_relay(dsn: str, valkey: LocalValkey, raw: redis.Redis) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(**environment: str) -> Process:
        started.append(Process({"FENCEPOST_DSN": dsn, "FENCEPOST_REDIS_URL": valkey.url(), **environment}))
        return started[-1]

    yield start
    for relay in started:
        relay.process.kill()
        relay.wait()
