"""The pytest plugin: the fixture `fencepost_drill`, which sweeps faults over your own tools in seconds.

    def test_charge(fencepost_drill):
        sweep = fencepost_drill(app, "billing.charge", {"order": "o-1"}, service=fake, book=fake.book)
        sweep.assert_one_effect()

Imported by every test run of an environment that has Fencepost, so it imports nothing until it is used. The
Postgres it needs is started by the first test that asks for it, once per process (with pytest-xdist: once per
worker), and vanishes with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fencepost_ops.drill.users.engine import Told, UserDrill

_TOLD: pytest.StashKey[Told] = pytest.StashKey()


@pytest.fixture(scope="session")
def fencepost_drill(pytestconfig: pytest.Config) -> Iterator[UserDrill]:
    """Calls put a tool of yours through every fault its own run passes; see `UserDrill.__call__`, and
    for its options `fencepost_ops.drill.users.options`.

    Proved is what was swept, in one process and in virtual time, against your fake; not races inside your
    service, nor what a real network does to real connections (`fencepost chaos` strikes a real fleet).
    """
    with ExitStack() as stack:
        drill = _opened(stack)
        pytestconfig.stash[_TOLD] = drill.told
        yield drill


def _opened(stack: ExitStack) -> UserDrill:
    began = time.monotonic()
    try:
        from fencepost_ops.drill.drill import Drill
        from fencepost_ops.drill.users.engine import Told, UserDrill
        from fencepost_ops.processes import LocalServerError
    except ImportError as error:
        missing = (error.name or "more").partition(".")[0]
        pytest.fail(f"fencepost_drill needs {missing}: pip install 'fencepost[local,fleet]'", pytrace=False)
    try:
        drill = stack.enter_context(Drill.opened())
    except LocalServerError as error:
        pytest.fail(f"fencepost_drill cannot start its Postgres: {error}", pytrace=False)
    return UserDrill(drill, Told(started_s=time.monotonic() - began))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """How long it took, where it was used."""
    told = config.stash.get(_TOLD, None)
    if told is not None:
        terminalreporter.write_line(
            f"fencepost_drill: {told.sweeps} sweeps, {told.histories} histories in {told.took_s:.1f} s; "
            f"its Postgres was started in {told.started_s:.1f} s"
        )
