"""Orders on a fleet under fire, as the demo and chaos have them: sent, watched, settled, judged.

A trial outlives its servers: what it asks of Postgres it asks again, under a new session if it must.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol
from uuid import UUID

import psycopg

from fencepost import Client, Enqueued
from fencepost.commands import LEAVE, OFFSET
from fencepost.errors import FaultInjected, FencepostError, Unreachable
from fencepost.ledger.abandoned import abandoned
from fencepost.loading import load_app
from fencepost.runrequest import RunRequest
from fencepost_ops.check import terms
from fencepost_ops.checker import TOLERANCE, Report, SandboxBooks, check
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.demo_plan import TENANT, Order
from fencepost_ops.fleet import ORDERS
from fencepost_ops.local import TemporaryFolder
from fencepost_ops.sandbox.process import SandboxProcess

DEADLINE: Final = timedelta(minutes=5)
SETTLE_WITHIN_S: Final = 120.0  # after the last order and the last strike; on two idle cores a tenth of it
LOOK_EVERY_S: Final = 0.1
_AWAY_FOR_S: Final = 60.0  # how long Postgres may take to come back

_ENDED: Final = """
SELECT id FROM fencepost.runs WHERE tenant = %s AND id = ANY(%s) AND status IN ('COMPLETED', 'STOPPED')
"""
PRINCIPAL: Final = "svc:checkout"
"""Whose authority all orders use."""
_OUTBOX: Final = "SELECT count(*) FROM fencepost.outbox WHERE tenant = %s"
_REASONS: Final = """
SELECT stop_reason, count(*) FROM fencepost.runs WHERE tenant = %s AND status = 'STOPPED' GROUP BY 1
"""
_TO_REPAIR: Final = "SELECT id, operation FROM fencepost.calls WHERE tenant = %s AND state = 'NEEDS_REPAIR'"


class _Redis(Protocol):
    def url(self) -> str:
        """Where it is."""
        ...


class Ground(Protocol):
    """The fleet of a trial, as far as a trial needs it: one of our own, or one that was found."""

    @property
    def database(self) -> LedgerDatabase:
        """Where the ledger is."""
        ...

    @property
    def valkey(self) -> _Redis:
        """Where Redis is."""
        ...

    @property
    def sandbox(self) -> SandboxProcess | None:
        """The example services."""
        ...

    def connect(self, role: str) -> psycopg.Connection[Any]:
        """A session in the ledger, autocommit."""
        ...


class Shown(Protocol):
    """Where a trial says how far it is."""

    def say(self, text: str) -> None:
        """One line about what happens."""
        ...

    def ended(self, count: int) -> None:
        """So many orders have ended by now."""
        ...


class Reader:
    """A reader's session that outlives its Postgres."""

    def __init__(self, fleet: Ground) -> None:
        self._fleet = fleet
        self._session: psycopg.Connection[Any] | None = None

    def execute(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> psycopg.Cursor[Any]:
        """The answer, asked again while Postgres is away, for a minute at most."""
        until = time.monotonic() + _AWAY_FOR_S
        while True:
            try:
                return self.session.execute(statement, values)
            except psycopg.OperationalError:
                self.close()
                if time.monotonic() > until:
                    raise
            time.sleep(LOOK_EVERY_S)

    @property
    def session(self) -> psycopg.Connection[Any]:
        """The session as it is now, opened if there is none."""
        if self._session is None:
            self._session = self._fleet.connect("reader")
        return self._session

    def close(self) -> None:
        """Let go of it."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a trial. `effects` and `faults` are the services' own, all else the ledger's."""

    report: Report
    reasons: Mapping[str, int]
    effects: Mapping[str, int]
    faults: Mapping[str, int]


class Trial:
    """One trial on a fleet that is up; `look` is called while it rests, and says whether all is calm.

    Its runs are those of a tenant, of which nobody else enqueues any meanwhile. `waits` are seconds from an
    order's enqueueing to the look that found its run ended.
    """

    def __init__(
        self,
        fleet: Ground,
        screen: Shown,
        look: Callable[[], bool] = lambda: True,
        *,
        tenant: str = TENANT,
        deadline: timedelta = DEADLINE,
        settle_within_s: float = SETTLE_WITHIN_S,
    ) -> None:
        self.fleet = fleet
        self.reader = Reader(fleet)
        self.enqueued = 0
        self.repaired = 0
        self.settled = False
        self.look_on = look
        self.tenant = tenant
        self.waits: list[float] = []
        self.runs: list[UUID] = []
        self._deadline = deadline
        self.settle_within_s = settle_within_s
        self._open: dict[UUID, float] = {}
        self._screen = screen
        self._client = Client(fleet.database.dsns["producer"], fleet.valkey.url())

    @property
    def sandbox(self) -> SandboxProcess:
        """The services; a trial's fleet has them."""
        assert self.fleet.sandbox is not None
        return self.fleet.sandbox

    @property
    def ended(self) -> int:
        """How many runs have ended, as of the last look."""
        return len(self.runs) - len(self._open)

    def seed(self, poor: str, scarce: tuple[str, int]) -> None:
        """An account that cannot pay, and goods of which there are too few."""
        self.sandbox.seed_account(poor, 0)
        self.sandbox.seed_item(*scarce)

    def enqueue(self, orders: Sequence[Order]) -> None:
        """Send orders, again until they are taken: the same request again is the same run."""
        began = time.monotonic()
        while True:
            try:
                sent = self._client.enqueue_many(
                    request_of(order, self.tenant, self._deadline) for order in orders
                )
            except (FaultInjected, Unreachable):
                if time.monotonic() > began + _AWAY_FOR_S:
                    raise
                time.sleep(LOOK_EVERY_S)
            else:
                taken = [one.run_id for one in sent if isinstance(one, Enqueued)]
                self.runs += taken
                self._open |= dict.fromkeys(taken, began)
                self.enqueued += len(orders)
                return

    def rest(self, seconds: float) -> None:
        """Look on for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            time.sleep(min(LOOK_EVERY_S, max(0.0, until - time.monotonic())))

    def look(self) -> bool:
        """Show how far it is; whether everything has ended, nobody sleeps and the outbox is empty."""
        calm = self.look_on()
        if self._open:
            ended = self.reader.execute(_ENDED, [self.tenant, list(self._open)]).fetchall()
            now = time.monotonic()
            self.waits += [now - self._open.pop(run) for (run,) in ended]
        self._screen.ended(self.ended)
        return self.ended == self.enqueued and calm and self._left() == 0

    def settle(self) -> None:
        """Wait until everything is settled, for `settle_within_s` at most, and be the person it takes."""
        until = time.monotonic() + self.settle_within_s
        while not self.settled and time.monotonic() < until:
            calm, waited = self.look(), self._repair()
            self.settled = calm and not waited
            time.sleep(LOOK_EVERY_S)
        self.rest(1.0)  # whoever was frozen may still bring what it holds
        self.settled = self.settled and self.look()

    def judge(self, tolerance: timedelta = TOLERANCE, *, alone: bool = True) -> Outcome:
        """Hold ledger and books against the invariants, and count.

        `alone`: the ledger is this trial's, all of which must be settled; else only its own runs are judged.
        `tolerance`: how far the services' clock may be behind the ledger's.
        """
        report = check(
            self.reader.session,
            SandboxBooks(self.sandbox.book),
            settled=True,
            terms=terms(load_app(ORDERS)),
            runs=None if alone else self.runs,
            tolerance=tolerance,
        )
        effects: dict[str, int] = {}
        for effect in self.sandbox.book.effects():
            effects[effect.kind] = effects.get(effect.kind, 0) + 1
        reasons = dict(self.reader.execute(_REASONS, [self.tenant]).fetchall())
        return Outcome(report, reasons, effects, dict(self.sandbox.get("/faults")["fired"]))

    def close(self) -> None:
        """Let go of the ledger."""
        self._client.close()
        self.reader.close()

    def _repair(self) -> int:
        """Be the person: look into the service's own book, ask again for what was not offset; how many."""
        asked = [*self._to_settle(), *self._to_offset()]
        if not asked:
            return 0
        with Client(self.fleet.database.dsns["operator"], self.fleet.valkey.url()) as client:
            for call, decision, why, receipt in asked:
                # Refused while the call's last request may still land; the next look tries again.
                with suppress(FencepostError):
                    client.repair(call, decision, "trial", why, receipt)
                    self.repaired += 1
                    self._screen.say(f"call {call} waited for a person, who {why}: {decision}")
        return len(asked)

    def _to_settle(self) -> Iterator[tuple[UUID, str, str, str | None]]:
        for call, key in self.reader.execute(_TO_REPAIR, [self.tenant]).fetchall():
            found = self.sandbox.book.effects(key=key)
            decision, receipt = ("SUCCEEDED", found[0].id) if found else ("FAILED", None)
            yield call, decision, "looked into the service's own book", receipt

    def _to_offset(self) -> Iterator[tuple[UUID, str, str, str | None]]:
        for effect in abandoned(self.reader.session, tenant=self.tenant):
            if effect.again:
                yield effect.call, OFFSET, "its run was to offset it", None
            else:
                yield effect.call, LEAVE, f"nothing offsets it: {effect.why}", None

    def _left(self) -> int:
        row = self.reader.execute(_OUTBOX, [self.tenant]).fetchone()
        return int(row[0]) if row is not None else 0


def request_of(order: Order, tenant: str = TENANT, deadline: timedelta = DEADLINE) -> RunRequest:
    """The run that an order is."""
    return RunRequest(
        planner="fulfil",
        input=dict(order.input),
        run_key=order.id,
        tenant=tenant,
        principal=PRINCIPAL,
        deadline=deadline,
    )


@contextmanager
def data_folder(prefix: str, keep: Path | None = None) -> Iterator[Path]:
    """A folder that vanishes, or the one to keep."""
    if keep is not None:
        yield keep
    else:
        with TemporaryFolder(prefix) as folder:
            yield folder


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP stop a trial as Ctrl-C does; while it is stopping they change nothing."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in handled:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [(number, signal.signal(number, interrupt)) for number in handled]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
