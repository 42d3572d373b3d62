"""`fencepost demo`: orders on a fleet whose processes are killed and frozen; a verdict on every invariant.

The services fail as well, each way they can. Nothing that is started here outlives it, however it ends.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

import click

from fencepost.errors import Unreachable
from fencepost_ops.demo_havoc import Havoc
from fencepost_ops.demo_plan import FREEZES, LEAST_FOR_ALL, Plan, make_plan
from fencepost_ops.demo_result import DemoResult, print_result
from fencepost_ops.demo_screen import FleetLog, Screen
from fencepost_ops.fleet import SHRUNK, Fleet, FleetOptions, new_seed
from fencepost_ops.installation import need_parts
from fencepost_ops.local import LocalServerError
from fencepost_ops.trial import Trial, data_folder, interruptible

SCALE: Final = {"planner": 2, "dispatcher": 2}
PAUSE_S: Final = 0.4  # between a wave of orders and the act that follows it


class Demo:
    """One demo on a fleet that is up."""

    def __init__(self, fleet: Fleet, plan: Plan, screen: Screen) -> None:
        self.trial = Trial(fleet, screen, self._look)
        self._plan = plan
        self._screen = screen
        self.havoc = Havoc(fleet, self.trial.reader, screen.say, self.trial.enqueue, self._arrived)

    def run(self) -> None:
        """Enqueue wave after wave with an act after each, then wait until all is settled."""
        self.trial.seed(self._plan.poor, self._plan.scarce)
        for wave, act in zip(self._plan.waves, self._plan.acts, strict=True):
            self.trial.enqueue(wave)
            self.trial.rest(PAUSE_S)
            self.havoc.act(act)
        self._screen.say("no more orders, no more kills: waiting until everything is settled")
        self.trial.settle()

    def close(self) -> None:
        """Wake whoever is frozen, and let go of the ledger."""
        self.havoc.thaw()
        self.trial.close()

    def _look(self) -> bool:
        self.havoc.look()
        return self.havoc.asleep == 0

    def _arrived(self, key: str) -> bool:
        return bool(self.trial.sandbox.book.requests(key=key))


def _result(plan: Plan, demo: Demo, log: FleetLog, screen: Screen) -> DemoResult:
    """Check everything, and count it. `seconds` is until here: stopping the fleet comes after."""
    screen.say("checking the ledger against the services' own books")
    outcome = demo.trial.judge()
    runs = len(plan.orders)
    return DemoResult(
        seed=plan.seed,
        runs=runs,
        settled=demo.trial.settled,
        killed=demo.havoc.killed,
        frozen=demo.havoc.frozen,
        fenced_writes=log.fenced_writes,
        repaired=demo.trial.repaired,
        seconds=screen.elapsed,
        reasons=outcome.reasons,
        effects=outcome.effects,
        faults=outcome.faults,
        missing_faults=(tuple(sorted(plan.kinds - outcome.faults.keys())) if runs >= LEAST_FOR_ALL else ()),
        expected=(plan.kills, FREEZES),
        report=outcome.report,
    )


def _run(plan: Plan, folder: Path) -> DemoResult:
    runs = len(plan.orders)
    with Screen(runs) as screen, ExitStack() as stack:
        log = stack.enter_context(FleetLog(folder / "fleet.log"))
        options = FleetOptions(
            data=folder, scale=SCALE, env=SHRUNK, sandbox_faults=list(plan.faults), out=log, flower=True
        )
        fleet = Fleet(options)
        fleet.start(screen.say)
        stack.callback(fleet.stop)
        fleet.wait_ready()
        screen.say(f"the fleet is up: {len(fleet.pids())} processes; {runs} orders come in waves")
        screen.say(f"its workers and queues: {fleet.flower_url}")
        demo = Demo(fleet, plan, screen)
        stack.callback(demo.close)
        demo.run()
        result = _result(plan, demo, log, screen)
        screen.say("stopping the fleet")
    return result


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
    need_parts("demo", flower=True)
    plan = make_plan(new_seed() if seed is None else seed, runs)
    kept = Path(tempfile.mkdtemp(prefix="fencepost-demo-")) if keep else None
    click.echo(f"demo with seed {plan.seed}: {runs} orders" + (f", in {kept}" if kept else ""))
    try:
        with interruptible(), data_folder("fencepost-demo-", kept) as folder:
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
