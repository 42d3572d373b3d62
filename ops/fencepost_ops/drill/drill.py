"""`Drill`: a Postgres, and any number of histories on it, one after the other."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from fencepost.app import App, load_app
from fencepost.clock import driven
from fencepost.testing import FAULTS
from fencepost_ops.check import terms
from fencepost_ops.checker import check
from fencepost_ops.drill.app import MANNERS
from fencepost_ops.drill.history import History
from fencepost_ops.drill.ledger import DrillLedger
from fencepost_ops.drill.outcome import CallEnd, Outcome, RunEnd
from fencepost_ops.drill.protocol import Limits, Protocol
from fencepost_ops.drill.sabotage import sabotage
from fencepost_ops.drill.services import Manners, Services
from fencepost_ops.drill.virtual import START, VirtualClock
from fencepost_ops.postgres import LocalPostgres

_RUNS: Final = """
SELECT r.id::text, r.run_key, r.status, r.stop_reason, r.head_hash,
       (SELECT e.projection FROM fencepost.events e WHERE e.run = r.id AND e.projection IS NOT NULL
        ORDER BY e.seq DESC LIMIT 1)
FROM fencepost.runs r ORDER BY r.created_at, r.run_key
"""
_CALLS: Final = """
SELECT c.id::text, c.run::text, c.label, c.tool, c.state, c.doubt, c.attempts, c.receipt,
       CASE WHEN c.state = 'NEEDS_REPAIR' THEN 'person' ELSE o.queue END
FROM fencepost.calls c LEFT JOIN fencepost.outbox o ON o.subject = c.id
ORDER BY c.run, c.turn, c.ordinal, c.id
"""
_EVENTS: Final = """
SELECT e.recorded_at, e.seq, e.type, c.label, e.attempt, e.fence, r.run_key, e.body
FROM fencepost.events e JOIN fencepost.runs r ON r.id = e.run LEFT JOIN fencepost.calls c ON c.id = e.call
ORDER BY e.recorded_at, r.run_key, e.seq
"""


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
        self, protocol: Protocol, *, app: App | None = None, manners: Mapping[str, Manners] = MANNERS
    ) -> Outcome:
        """One history. The same protocol gives the same outcome. UsageError for an app that is none."""
        application = _limited(app or self._app(protocol.app), protocol.limits)
        clock = VirtualClock(protocol.seed)
        services = Services(manners, clock)
        self.ledger.empty()
        names = [*protocol.sabotage, *(["blind_retry"] if protocol.recovery == "blind_retry" else [])]
        with driven(clock), ExitStack() as stack, _quiet():
            for name in names:
                stack.enter_context(sabotage(name).off(self.ledger))
            history = History(self.ledger, protocol, application, services, clock)
            FAULTS.drive(history.strikes.passed)
            stack.callback(FAULTS.drive, None)
            history.run()
        return self._judged(history, application, services)

    def _app(self, name: str) -> App:
        if name not in self._apps:
            self._apps[name] = load_app(name)
        return self._apps[name]

    def _judged(self, history: History, app: App, services: Services) -> Outcome:
        with self.ledger.sessions["reader"].reading() as connection:
            report = check(connection, services, settled=history.settled, terms=terms(app))
        rows = self.ledger.owner.execute(_CALLS).fetchall()
        calls = tuple(CallEnd(*row) for row in rows)
        ends = {call.id: call.state for call in calls}
        fired = {(one.fault.at, one.fault.nth) for one in history.struck}
        return Outcome(
            protocol=history.protocol,
            struck=tuple(replace(one, ended=ends.get(one.left.call or "")) for one in history.struck),
            never=tuple(f for f in history.protocol.faults if (f.at, f.nth) not in fired),
            steps=history.taken,
            seconds=history.clock.seconds,
            runs=tuple(RunEnd(*row) for row in self.ledger.owner.execute(_RUNS).fetchall()),
            calls=calls,
            effects={s: len(services.effects(s)) for s in services.services() if services.effects(s)},
            dispatches=sum(len(services.requests(s)) for s in services.services()),
            timeline=tuple(self._timeline(history)),
            report=report,
            passages=dict(history.strikes.passages),
            before=history.strikes.before or {},
            settled=history.settled,
        )

    def _timeline(self, history: History) -> Iterator[str]:
        lines: list[tuple[float, int, str]] = []
        for at, seq, kind, label, attempt, fence, key, body in self.ledger.owner.execute(_EVENTS):
            seconds = (at - START).total_seconds()
            who = history.fleet.names.get((body or {}).get("worker") or "", "")
            what = f"{key} {label or ''}".strip() + (f" attempt {attempt}" if attempt else "")
            held = f" fence {fence}" if fence else ""
            lines.append((seconds, seq, f"{kind} · {what}{held}{' · ' + who if who else ''}"))
        for number, one in enumerate(history.struck):
            lines.append((one.at_s, 10_000 + number, f"*** {one.fault.named} · {one.process}"))
        for seconds, _, text in sorted(lines):
            yield f"{seconds:9.3f}  {text}"


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
    logger = logging.getLogger("fencepost")
    others = [logger, logging.getLogger("fencepost_workers"), logging.getLogger("fencepost_relay")]
    before = [one.disabled for one in others]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        for one, disabled in zip(others, before, strict=True):
            one.disabled = disabled
