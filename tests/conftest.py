"""One embedded Postgres for all tests; every test that asks for a ledger gets a database of its own.

The process that only shares the tests out imports this too: what a fixture needs is imported by it.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from fencepost_ops.database import LedgerDatabase
    from fencepost_ops.local import LocalPostgres

# A shell starts what it runs in the background with Ctrl-C ignored, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest-xdist tells its workers how large its terminal is; tests make terminals of their own.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# A slow machine is no failure. Where CI judges a change the examples are the same every time; elsewhere new
# ones are looked for.
hypothesis.settings.register_profile(
    "here", deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("here"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(scope="module", autouse=True)
def own_credentials() -> Iterator[None]:
    """What a module has its process log in with is no credential of the next one."""
    from fencepost import redaction

    kept = redaction._OWN
    before = kept.values, kept.forms, kept.escaped
    yield
    kept.values, kept.forms, kept.escaped = before


SETTINGS = {"max_connections": "400", "max_wal_size": "128MB"}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """A million things are made that stay: the collector of garbage need not look at them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.lanes import lanes

    return lanes(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[LocalPostgres]:
    from fencepost_ops.local import LocalPostgres, TemporaryFolder
    from tests.databases import in_memory

    with (
        TemporaryFolder("fencepost-tests-", parent=in_memory()) as folder,
        LocalPostgres.start(folder / "postgres", fsync=False, settings=SETTINGS) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def template(postgres: LocalPostgres) -> dict[str, str]:
    """A migrated database with a movable clock, copied for every test; the logins are the cluster's."""
    from fencepost_ops.database import make_logins, prepare_database

    prepare_database(postgres, "template_ledger", movable_clock=True)
    return make_logins(postgres, "template_ledger")


@pytest.fixture
def database(postgres: LocalPostgres, template: dict[str, str]) -> Iterator[LedgerDatabase]:
    from tests.databases import copied

    with copied(postgres, template) as database:
        yield database
