"""`Drill`: a Postgres, and any number of histories on it, one after the other."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from fencepost.app import App
from fencepost.clock import driven
from fencepost.errors import UsageError
from fencepost.loading import load_app
from fencepost.testing import FAULTS
from fencepost_ops.drill.app import MANNERS
from fencepost_ops.drill.history import History
from fencepost_ops.drill.judged import judged
from fencepost_ops.drill.ledger import DrillLedger
from fencepost_ops.drill.outcome import Outcome
from fencepost_ops.drill.protocol import Limits, Protocol
from fencepost_ops.drill.sabotage import sabotage
from fencepost_ops.drill.services import Manners, Services
from fencepost_ops.drill.virtual import VirtualClock
from fencepost_ops.postgres import LocalPostgres


class Drill:
    """Histories in one process, on a server of its own or one that is there. Not safe for several threads."""

    def __init__(self, server: LocalPostgres, name: str = "drill") -> None:
        self.ledger = DrillLedger(server, name)
        self._apps: dict[str, App] = {}

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Drill]:
        """On a Postgres of its own, which vanishes with it."""
        with LocalPostgres.start(fsync=False) as server:
            drill = cls(server)
            try:
                yield drill
            finally:
                drill.close()

    def close(self) -> None:
        """Let go of the ledger."""
        self.ledger.close()

    def run(
        self,
        protocol: Protocol,
        *,
        app: App | None = None,
        manners: Mapping[str, Manners] = MANNERS,
        downstream: Callable[[VirtualClock], Services] | None = None,
    ) -> Outcome:
        """One history. The same protocol gives the same outcome. UsageError for an app that is none.

        `downstream` makes other services than the drill's own.
        """
        application = _limited(app or self._app(protocol.app), protocol.limits)
        clock = VirtualClock(protocol.seed)
        services = downstream(clock) if downstream else Services(_changed(manners, protocol), clock)
        self.ledger.empty()
        names = [*protocol.sabotage, *(["blind_retry"] if protocol.recovery == "blind_retry" else [])]
        with driven(clock), ExitStack() as stack, _quiet():
            for name in names:
                stack.enter_context(sabotage(name).off(self.ledger))
            history = History(self.ledger, protocol, application, services, clock)
            FAULTS.drive(history.strikes.passed)
            stack.callback(FAULTS.drive, None)
            history.run()
        return judged(self.ledger, history, application, services)

    def _app(self, name: str) -> App:
        if name not in self._apps:
            self._apps[name] = load_app(name)
        return self._apps[name]


def _changed(manners: Mapping[str, Manners], protocol: Protocol) -> Mapping[str, Manners]:
    """The services' manners with what the protocol says of some; UsageError for a service that is none."""
    if unknown := sorted(protocol.services.keys() - manners.keys()):
        known = ", ".join(sorted(manners))
        raise UsageError(f"services.{unknown[0]}: there is no such service; there are {known}")
    return {**manners, **{name: manners[name].changed(one) for name, one in protocol.services.items()}}


def _limited(app: App, limits: Limits) -> App:
    """The application with the protocol's limits in place of its dependencies' own.

    Rates and concurrency are lifted: what they hold up they hold up in real time, by threads.
    """
    given: dict[str, Any] = {
        name: timedelta(seconds=value)
        for name, value in (
            ("per_attempt", limits.per_attempt_s),
            ("grace", limits.grace_s),
            ("reserve", limits.reserve_s),
            ("reconcile_for", limits.reconcile_for_s),
        )
        if value is not None
    }
    if limits.attempts is not None:
        given["attempts"] = limits.attempts
    changed = copy.copy(app)
    changed.registry = {
        place: replace(
            tool, dependency=replace(tool.dependency, rate=None, concurrency=None, slots=None, **given)
        )
        for place, tool in app.registry.items()
    }
    return changed


@contextmanager
def _quiet() -> Iterator[None]:
    """What the fleet logs of injected faults is no news."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
