"""A desk at which two operators decide, on a ledger of the module's own."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from fencepost.ledger.apply import Ledger
from fencepost.ledger.connect import Pool
from fencepost_ops.local import LocalPostgres
from tests.integration.approvals.desk import USUAL, Desk, Policy, login
from tests.integration.ledger_bench import Bench

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def second(postgres: LocalPostgres, module_bench: Bench) -> Iterator[str]:
    """The DSN of another operator."""
    name = f"approving_operator_{next(_numbers)}"
    first = module_bench.database.dsns["operator"]
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'second' IN ROLE fencepost_operator")
    yield f"postgresql://{name}:second@{first.rpartition('@')[2]}"
    module_bench.close()
    with psycopg.connect(postgres.superuser_dsn, autocommit=True) as connection:
        connection.execute(f"DROP ROLE {name}")


@pytest.fixture(scope="module")
def module_desk(module_bench: Bench, second: str) -> Iterator[Desk]:
    policy = Policy()
    module_bench.known = replace(module_bench.known, authority=policy)
    module_bench.ledger = module_bench.ledger_as("worker")
    pool = Pool(second, "second", 4)
    ledgers = {"ann": module_bench.ledger_as("operator"), "bob": Ledger(pool, module_bench.known)}
    logins = {"ann": login(module_bench.database.dsns["operator"]), "bob": login(second)}
    yield Desk(module_bench, policy, ledgers, logins)
    pool.close()


@pytest.fixture
def desk(bench: Bench, module_desk: Desk) -> Desk:
    module_desk.policy.grants = USUAL
    module_desk.policy.seen.clear()
    module_desk.clean()
    return module_desk
