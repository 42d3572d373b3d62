"""`fencepost chaos`: seeded strikes of every kind on a live fleet while orders come; then every verdict.

Nothing that is started here outlives it, however it ends. Of a fleet that was found, whoever sleeps is woken
again, unless chaos itself is killed with SIGKILL: then the pulses, none of which are frozen there, kill the
workers that slept too long, and `up` starts them again.
"""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from fencepost.errors import Unreachable, UsageError
from fencepost.loading import load_app
from fencepost_ops.chaos_figures import count
from fencepost_ops.chaos_found import FoundFleet
from fencepost_ops.chaos_own import OwnFleet, own_fleet
from fencepost_ops.chaos_plan import FAULTS, OWN_ONLY, SCALE, ChaosPlan, for_found, make_chaos
from fencepost_ops.chaos_result import ChaosResult, print_result
from fencepost_ops.chaos_screen import ChaosScreen
from fencepost_ops.chaos_storm import Storm
from fencepost_ops.chaos_strikes import Strikes
from fencepost_ops.chaos_takeovers import Takeovers
from fencepost_ops.check import terms
from fencepost_ops.checker import TOLERANCE, SandboxBooks, check
from fencepost_ops.commands.output import print_json
from fencepost_ops.demo_plan import TENANT, Order
from fencepost_ops.demo_screen import FleetLog
from fencepost_ops.fleet import ORDERS, new_seed
from fencepost_ops.installation import need_parts
from fencepost_ops.local import LocalServerError
from fencepost_ops.sandbox.process import SandboxError
from fencepost_ops.trial import Trial, data_folder, interruptible
from fencepost_ops.up import Scale

DEADLINE_S: Final = 900.0  # of a run, on top of the seconds: jumps of the clock must not use it up
SETTLE_WITHIN_S: Final = 180.0  # after the last strike, with the short timeouts of a fleet of our own
FOUND_SETTLE_WITHIN_S: Final = 300.0  # with those of production
SETTLE_A_RUN_S: Final = 0.1  # on top for each run: on a busy machine all of them may be left for the end


class Faults(click.ParamType[tuple[str, ...]]):
    """`kill,freeze,...`: which faults there are to be."""

    name = "fault,..."

    def convert(
        self, value: str | tuple[str, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The faults, each once, in the order of all; fails for one there is not."""
        if isinstance(value, tuple):
            return value
        wanted = {part.strip() for part in value.split(",") if part.strip()}
        if not wanted or (unknown := wanted - set(FAULTS)):
            names = ", ".join(sorted(unknown)) if wanted else "nothing"
            self.fail(f"{names!r} is no fault; there are {', '.join(FAULTS)}", param, ctx)
        return tuple(fault for fault in FAULTS if fault in wanted)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was asked for, beside the plan."""

    scale: dict[str, int]
    data: Path | None
    err: bool


@click.command()
@click.option("--runs", type=click.IntRange(1, 100_000), default=500, show_default=True, help="Orders.")
@click.option(
    "--seconds",
    type=click.FloatRange(5, 86_400),
    default=120.0,
    show_default=True,
    help="For how long orders come and strikes fall; settling and judging come on top.",
)
@click.option(
    "--faults", type=Faults(), help=f"Which of {','.join(FAULTS)}; by default all that are possible."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), help="The plan of an earlier chaos; else a new one."
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Strike the fleet of the `fencepost up` that runs on this folder, and start none.",
)
@click.option(
    "--scale", type=Scale(), multiple=True, metavar="ROLE=N", help="Of a role in its own fleet, e.g. relay=1."
)
@click.option("--keep", is_flag=True, help="Keep the data folder; one of a chaos that failed is always kept.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document at the end instead of tables.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the report to this file, as Markdown.",
)
def chaos(
    runs: int,
    seconds: float,
    faults: tuple[str, ...] | None,
    seed: int | None,
    data: Path | None,
    scale: Sequence[tuple[str, int]],
    keep: bool,
    as_json: bool,
    report: Path | None,
) -> None:
    """Strike a live fleet at random, then every verdict.

    Starts servers, workers, relays and services in a folder of its own, behind wires of its own, or strikes
    the fleet that --data names. While orders come, processes are killed and frozen, hosts die, fault points
    fire, Redis and Postgres are lost, wires are cut, slow or eat answers, services fail and the clock of the
    ledger jumps, all when the seed says. Afterwards every run must end, and ledger and services' own books
    are held against the invariants. Exit code 1 if one is violated, if not everything settled, if an order or
    an effect is missing or there twice, if a strike of the plan could not be made, if fewer than half of the
    fault points fired, or if what a struck process held was never claimed again.

    On a fleet that was found only its processes are struck and its servers lost; neither a relay nor a worker
    with its pulse is frozen, since nobody would wake them if chaos itself were killed. Its runs are orders
    under a tenant of their own, and what else is in its ledger is held against the invariants too.
    """
    need_parts("chaos", flower=False)
    wanted = _possible(faults, found=data is not None)
    if data is not None and scale:
        raise click.UsageError("--scale is for a fleet that chaos starts, --data names one that runs")
    if report is not None:
        _write(report, "")
    plan = make_chaos(new_seed() if seed is None else seed, runs, seconds, wanted)
    without = ""
    if data is not None:
        plan, without = for_found(plan), "; no freezes of relays or of pulses"
    click.echo(
        f"chaos with seed {plan.seed}: {runs} orders in {seconds:g} s, {', '.join(wanted)}{without}",
        err=as_json,
    )
    asked = _Asked({**SCALE, **dict(scale)}, data, as_json)
    result, kept = _tried(plan, asked, keep=keep)
    if report is not None:
        _write(report, result.to_markdown())
    _tell(result, kept, asked)
    if result.problems:
        click.echo(f"the same plan again: {_again(plan, asked)}", err=True)
        click.get_current_context().exit(1)


def _tell(result: ChaosResult, kept: Path | None, asked: _Asked) -> None:
    if asked.err:
        print_json({**result.to_json(), "kept": None if kept is None else str(kept)})
    else:
        print_result(result)
    if kept is not None:
        look = (
            f"; look at it with `fencepost up --data {kept}`, then `fencepost show`"
            if asked.data is None
            else ""
        )
        click.echo(f"kept: {kept}{look}", err=asked.err)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--report: {file} cannot be written: {error.strerror}") from error


def _possible(faults: tuple[str, ...] | None, *, found: bool) -> tuple[str, ...]:
    """The faults to inject. UsageError for one that was asked for and cannot be."""
    if not found:
        return FAULTS if faults is None else faults
    impossible = [fault for fault in faults or () if fault in OWN_ONLY]
    if impossible:
        raise UsageError(
            f"{', '.join(impossible)}: only on a fleet that chaos starts itself, with wires, fault points "
            "and a clock to move; leave it out of --faults, or leave --data out"
        )
    return tuple(fault for fault in faults or FAULTS if fault not in OWN_ONLY)


def _again(plan: ChaosPlan, asked: _Asked) -> str:
    scale = "".join(f" --scale {role}={n}" for role, n in asked.scale.items() if SCALE.get(role) != n)
    return (
        f"fencepost chaos --seed {plan.seed} --runs {len(plan.arrivals)} --seconds {plan.seconds:g} "
        f"--faults {','.join(plan.faults)}{scale}{'' if asked.data is None else f' --data {asked.data}'}"
    )


def _tried(plan: ChaosPlan, asked: _Asked, *, keep: bool) -> tuple[ChaosResult, Path | None]:
    """The result, and the folder in which everything is kept: if asked, if it failed or broke down."""
    kept: Path | None = None
    try:
        with interruptible(), data_folder("fencepost-chaos-") as folder:
            try:
                result = _own(plan, asked, folder) if asked.data is None else _found(plan, asked, folder)
            except Exception:
                if any(folder.glob("fleet.log")):  # a fleet of ours was begun
                    click.echo(f"kept: {_kept(folder)}", err=True)
                raise
            if keep or result.problems:
                kept = _kept(folder)
    except (LocalServerError, TimeoutError, SandboxError) as error:
        raise Unreachable(str(error)) from error
    return result, kept


def _kept(folder: Path) -> Path:
    """A folder that stays, with all that is in this one; nothing runs on it any more."""
    kept = Path(tempfile.mkdtemp(prefix="fencepost-chaos-kept-"))
    for entry in folder.iterdir():
        entry.rename(kept / entry.name)
    return kept


def _own(plan: ChaosPlan, asked: _Asked, folder: Path) -> ChaosResult:
    with ChaosScreen(folder / "chaos.log", err=asked.err) as screen, ExitStack() as stack:
        log = stack.enter_context(FleetLog(folder / "fleet.log"))
        fleet = own_fleet(plan, asked.scale, folder, log)
        stack.callback(fleet.stop)
        fleet.start(screen.note)
        fleet.wait_ready()
        screen.say(f"{len(fleet.pids())} processes are up; {len(plan.strikes)} strikes to come")
        trial = _trial(plan, fleet, screen, TENANT, SETTLE_WITHIN_S)
        stack.callback(trial.close)
        result = _struck(plan, fleet, trial, folder, screen, stack)
        return replace(result, fenced_writes=log.fenced_writes)


def _found(plan: ChaosPlan, asked: _Asked, folder: Path) -> ChaosResult:
    assert asked.data is not None
    fleet, stamp = FoundFleet(asked.data.absolute()), f"chaos-{plan.seed}-{secrets.token_hex(4)}"
    with ChaosScreen(folder / "chaos.log", err=asked.err) as screen, ExitStack() as stack:
        screen.say(
            f"{len(fleet.pids())} processes found; {len(plan.strikes)} strikes to come, tenant {stamp}"
        )
        trial = _trial(plan, fleet, screen, stamp, FOUND_SETTLE_WITHIN_S)
        stack.callback(trial.close)
        return _struck(renamed(plan, stamp), fleet, trial, folder, screen, stack)


def _trial(
    plan: ChaosPlan, fleet: OwnFleet | FoundFleet, screen: ChaosScreen, tenant: str, settle_within_s: float
) -> Trial:
    within = settle_within_s + SETTLE_A_RUN_S * len(plan.arrivals)
    deadline = timedelta(seconds=plan.seconds + DEADLINE_S)
    return Trial(fleet, screen, tenant=tenant, deadline=deadline, settle_within_s=within)


def _struck(
    plan: ChaosPlan,
    fleet: OwnFleet | FoundFleet,
    trial: Trial,
    folder: Path,
    screen: ChaosScreen,
    stack: ExitStack,
) -> ChaosResult:
    takeovers = Takeovers(trial.reader, note=screen.note)
    strikes = Strikes(fleet, takeovers, folder, screen.note)
    stack.callback(strikes.calm)
    Storm(plan, trial, strikes, screen).run()
    takeovers.look()
    screen.say("checking the ledger against the services' own books")
    found = isinstance(fleet, FoundFleet)
    tolerance = TOLERANCE + timedelta(seconds=plan.furthest_s)  # theirs stays behind while ours jumps
    books = SandboxBooks(trial.sandbox.book)
    others = (
        check(trial.reader.session, books, settled=False, terms=terms(load_app(ORDERS))) if found else None
    )
    outcome = trial.judge(tolerance, alone=not found)
    if isinstance(fleet, OwnFleet):
        outcome = replace(outcome, faults=fleet.met + Counter(outcome.faults))
    return ChaosResult(
        plan=plan,
        found=found,
        figures=count(trial.reader, trial.tenant, trial.sandbox.book.effects(), trial.enqueued),
        outcome=outcome,
        others=others,
        settled=trial.settled,
        settle_within_s=trial.settle_within_s,
        repaired=trial.repaired,
        fenced_writes=None,
        injected=strikes.injected,
        armed=strikes.armed,
        in_hand=dict(strikes.in_hand),
        fired=tuple(strikes.fired),
        waits=tuple(trial.waits),
        takeovers=takeovers.seconds(),
        in_calm=takeovers.seconds(calm=True),
        never_claimed=takeovers.never,
        ended_unclaimed=takeovers.ended,
        tolerance_s=tolerance.total_seconds(),
        seconds=screen.elapsed,
    )


def renamed(plan: ChaosPlan, stamp: str) -> ChaosPlan:
    """The same plan with names of its own for everything that services share with others' runs."""
    names = {plan.poor: f"{stamp}-{plan.poor}", plan.scarce[0]: f"{stamp}-{plan.scarce[0]}"}

    def renamed_order(order: Order) -> Order:
        given = {
            name: names.get(value, value) if isinstance(value, str) else value
            for name, value in order.input.items()
        }
        named = f"{stamp}.{order.id}"
        return Order(named, {**given, "order_id": named})

    return replace(
        plan,
        arrivals=tuple((at, renamed_order(order)) for at, order in plan.arrivals),
        poor=names[plan.poor],
        scarce=(names[plan.scarce[0]], plan.scarce[1]),
    )
