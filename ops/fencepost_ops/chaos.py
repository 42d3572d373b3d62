"""`fencepost chaos`: seeded strikes of every kind on a real fleet, weather on top; then every verdict.

Processes of every role are killed, frozen and woken, hosts die, fault points fire, Redis and Postgres go away
while orders run whose services fail as well. Nothing that is started here outlives it, however it ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from fencepost.errors import Unreachable
from fencepost_ops.chaos_plan import SCALE, ChaosPlan, make_chaos
from fencepost_ops.chaos_strikes import Strikes, fault_files
from fencepost_ops.chaos_takeovers import Takeovers, merged, told
from fencepost_ops.check import print_report
from fencepost_ops.commands.output import print_json, print_table
from fencepost_ops.demo_screen import FleetLog, Screen
from fencepost_ops.fleet import SHRUNK, Fleet, FleetOptions, new_seed
from fencepost_ops.installation import need_parts
from fencepost_ops.local import LocalServerError
from fencepost_ops.trial import SETTLE_WITHIN_S, Outcome, Trial, data_folder, interruptible

TIMES: Final = {**SHRUNK, "FENCEPOST_SWEEP_S": "2"}


@dataclass(frozen=True, slots=True)
class ChaosResult:
    """What came of one seed. `takeovers`: seconds from a strike to the next claim, by kind of strike."""

    plan: ChaosPlan
    outcome: Outcome
    settled: bool
    repaired: int
    fenced_writes: int
    strikes: Mapping[str, int]
    fired: tuple[str, ...]
    takeovers: Mapping[str, list[float]]
    seconds: float

    @property
    def problems(self) -> list[str]:
        """Why it has failed, one sentence each; empty when it has not."""
        report, runs = self.outcome.report, len(self.plan.orders)
        ended = report.totals.completed + report.totals.stopped
        found = []
        if not self.settled:
            found.append(f"not everything settled within {SETTLE_WITHIN_S:g} s of the last strike")
        if report.violated:
            found.append(f"violated: {', '.join(report.violated)}")
        if report.totals.runs != runs or ended != runs:
            found.append(f"{runs} runs were enqueued, {report.totals.runs} are there, {ended} have ended")
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        totals, said = self.outcome.report.totals, self.outcome.report.to_json()
        return {
            "seed": self.plan.seed,
            "ok": not self.problems,
            "problems": self.problems,
            "seconds": round(self.seconds, 1),
            "runs": totals.runs,
            "completed": totals.completed,
            "stopped": totals.stopped,
            "stop_reasons": dict(self.outcome.reasons),
            "calls": totals.calls,
            "attempts": totals.attempts,
            "effects": totals.effects,
            "evidence": totals.evidence,
            "strikes": dict(self.strikes),
            "fired": list(self.fired),
            "fenced_writes": self.fenced_writes,
            "repaired": self.repaired,
            "faults": dict(self.outcome.faults),
            "takeover_seconds": {how: [round(s, 3) for s in found] for how, found in self.takeovers.items()},
            "invariants": said["invariants"],
            "waiting": said["waiting"],
        }


def _strike(plan: ChaosPlan, trial: Trial, strikes: Strikes, screen: Screen) -> None:
    trial.seed(plan.poor, plan.scarce)
    for wave, gap, strike in zip(plan.waves, plan.gaps, plan.strikes, strict=True):
        if wave:
            trial.enqueue(wave)
        trial.rest(gap)
        strikes.strike(strike)
    strikes.calm()
    screen.say("no more orders, no more strikes: waiting until everything is settled")
    trial.settle()


def _run(plan: ChaosPlan, folder: Path, *, err: bool) -> ChaosResult:
    with Screen(len(plan.orders), err=err) as screen, ExitStack() as stack:
        log = stack.enter_context(FleetLog(folder / "fleet.log"))
        fleet = Fleet(
            FleetOptions(
                data=folder,
                scale=SCALE,
                env=TIMES,
                env_of=fault_files(folder, dict(SCALE)),
                sandbox_faults=list(plan.faults),
                out=log,
            )
        )
        fleet.start(screen.say)
        stack.callback(fleet.stop)
        fleet.wait_ready()
        screen.say(f"seed {plan.seed}: {len(fleet.pids())} processes, {len(plan.strikes)} strikes to come")
        trial = Trial(fleet, screen)
        stack.callback(trial.close)
        strikes = Strikes(fleet, Takeovers(trial.reader), folder, screen.say)
        trial.look_on = strikes.look
        stack.callback(strikes.calm)
        _strike(plan, trial, strikes, screen)
        screen.say("checking the ledger against the services' own books")
        return ChaosResult(
            plan=plan,
            outcome=trial.judge(),
            settled=trial.settled,
            repaired=trial.repaired,
            fenced_writes=log.fenced_writes,
            strikes=dict(strikes.done),
            fired=tuple(strikes.fired),
            takeovers=strikes.takeovers.seconds(),
            seconds=screen.elapsed,
        )


def print_result(result: ChaosResult) -> None:
    """The numbers of one seed, then its verdicts, then what is wrong."""
    totals, outcome = result.outcome.report.totals, result.outcome
    rows = [
        ("seed", f"{result.plan.seed}, {result.seconds:.1f} s"),
        ("orders", f"{totals.runs}: {totals.completed} completed, {totals.stopped} stopped"),
        ("stopped for", _counted(outcome.reasons)),
        ("calls", f"{totals.calls}, in {totals.attempts} attempts"),
        ("effects", f"{totals.effects}: {_counted(outcome.effects)}"),
        ("strikes", _counted(result.strikes)),
        ("fault points", f"{len(result.fired)} fired"),
        ("fenced out", f"{result.fenced_writes} late writes, {totals.evidence} filed as evidence"),
        ("repaired", f"{result.repaired} by a person who looked into the services' books"),
        *((f"takeover after {how}", told(found)) for how, found in sorted(result.takeovers.items())),
    ]
    click.echo()
    print_table(["what!", "how many"], rows)
    click.echo()
    print_report(outcome.report)
    click.echo()
    for problem in result.problems:
        click.echo(f"FAILED: {problem}")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


@click.command()
@click.option("--runs", type=click.IntRange(1, 10_000), default=200, show_default=True, help="Orders a seed.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="The first seed; else a new one.")
@click.option(
    "--seeds", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many, in a row."
)
@click.option("--keep", is_flag=True, help="Keep the data folders, and say where they are.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document at the end instead of tables.")
def chaos(runs: int, seed: int | None, seeds: int, keep: bool, as_json: bool) -> None:
    """Strike a fleet at random, then every verdict.

    For each seed: servers, workers, relays and services in a folder of their own; orders whose services fail
    in every way they can; kills, freezes, dead hosts, fault points, and servers that go away, all when the
    seed says. Afterwards every run must end within two minutes, and the ledger and the services' own books
    are held against the invariants. Exit code 1 if one is violated or not everything settled.
    """
    need_parts("chaos", flower=False)
    first = new_seed() if seed is None else seed
    results = []
    for number in range(first, first + seeds):
        kept = Path(tempfile.mkdtemp(prefix="fencepost-chaos-")) if keep else None
        click.echo(f"chaos with seed {number}: {runs} orders" + (f", in {kept}" if kept else ""), err=as_json)
        try:
            with interruptible(), data_folder("fencepost-chaos-", kept) as folder:
                results.append(_run(make_chaos(number, runs), folder, err=as_json))
        except (LocalServerError, TimeoutError, RuntimeError) as error:
            raise Unreachable(str(error)) from error
        if not as_json:
            print_result(results[-1])
    failed = [result.plan.seed for result in results if result.problems]
    if as_json:
        print_json([result.to_json() for result in results])
    else:
        _print_end(results, failed)
    for number in failed:
        click.echo(f"the same plan again: fencepost chaos --seed {number} --runs {runs} --keep", err=True)
    if failed:
        click.get_current_context().exit(1)


def _print_end(results: list[ChaosResult], failed: list[int]) -> None:
    for how, found in sorted(merged([dict(result.takeovers) for result in results]).items()):
        click.echo(f"takeover after {how}, all seeds: {told(found)}")
    good = len(results) - len(failed)
    click.echo(f"{good} of {len(results)} seeds: every order settled, every invariant holds.")
