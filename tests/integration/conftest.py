"""Fixtures of the ledger tests: a database per module; after every test, proof that rows follow events. And
`fencepost` in this process.
"""

import os
from collections.abc import Iterator
from uuid import UUID

import pytest

from fencepost.ledger.verify import verify_run
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalPostgres, LocalValkey
from fencepost_ops.sandbox.process import SandboxProcess
from tests.databases import copied
from tests.integration.guards_bench import CallTarget, attack
from tests.integration.ledger_bench import TENANT, Bench, open_bench
from tests.integration.model_desk import KEY, WIRES, Desk, modelled, seated
from tests.integration.shell import Shell

__all__ = ["copied"]


@pytest.fixture(scope="module")
def module_bench(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[Bench]:
    """One database and one `apply` for all tests of a module; every test starts runs of its own."""
    with copied(postgres, template) as database, open_bench(database) as bench:
        yield bench


@pytest.fixture
def bench(module_bench: Bench) -> Iterator[Bench]:
    """The module's bench. Afterwards every run the test started must replay to its rows exactly (I6)."""
    module_bench.started.clear()
    module_bench.gate.closed.clear()
    module_bench.sql("DELETE FROM fencepost.dependencies")  # what an earlier test has done to one
    yield module_bench
    with module_bench.verifier.session() as session:
        for run in dict.fromkeys(module_bench.started):
            result = verify_run(session, TENANT, run)
            assert result.ok, result.fault


@pytest.fixture(scope="module")
def planned(module_bench: Bench) -> tuple[UUID, UUID, UUID, int]:
    """A run with two unsent calls, never changed: every attack is undone."""
    run, order = module_bench.start(), module_bench.order()
    call, other = module_bench.plan(
        run, ("wallet.debit", {"order": order}), ("wallet.note", {"order": order})
    )
    return run, call, other, module_bench.call(call).version


@pytest.fixture
def target(module_bench: Bench, planned: tuple[UUID, UUID, UUID, int]) -> Iterator[CallTarget]:
    """The first of them, to be attacked in plain SQL."""
    with attack(module_bench) as opened:
        yield CallTarget(planned, opened)


@pytest.fixture(scope="module")
def valkey() -> Iterator[LocalValkey]:
    """A Valkey for all tests of a module."""
    with LocalValkey.start() as server:
        yield server


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    """A sandbox that speaks for the models of a module."""
    with SandboxProcess(tmp_path_factory.mktemp("provider")) as process:
        yield process


@pytest.fixture
def desk(
    database: LedgerDatabase, valkey: LocalValkey, provider: SandboxProcess, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    """Models by every wire that plan runs, and nothing wrong with them yet."""
    monkeypatch.setenv("TEST_MODEL_KEY", KEY)
    with seated(database, valkey, provider, modelled(provider)) as desk:
        for model in WIRES:
            desk.script(model)
        yield desk


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have settings of their own in the environment: they are taken out of it."""
    for name in [name for name in os.environ if name.startswith("FENCEPOST_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def shell(database: LedgerDatabase, no_settings: None) -> Shell:
    """`fencepost` on a database of this test's own."""
    return Shell(database, {"COLUMNS": "240"})
