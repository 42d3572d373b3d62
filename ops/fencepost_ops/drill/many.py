"""`fencepost drill` with many histories: `--sweep`, `--explore N`, and what is shown of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import click

from fencepost_ops.commands.output import print_json, print_table
from fencepost_ops.drill.explore import Exploration, Explored, explored
from fencepost_ops.drill.jobs import HUNG, Crew, Runs, Told
from fencepost_ops.drill.protocol import Protocol
from fencepost_ops.drill.races import Raced, Races
from fencepost_ops.drill.shrink import shrink
from fencepost_ops.drill.sweep import Sweep, Swept
from fencepost_ops.postgres import LocalPostgres

QUICK: Final = 180
"""Histories with faults of a quick sweep: each action at each point once, and some pairs."""
_SAY_EVERY_S: Final = 5.0
_SHRUNK_WITHIN_S: Final = 300.0
_SHRUNK: Final = 3  # of failures of the same kinds; more are most likely the same bug


def sweep_all(*, quick: bool, seed: int, jobs: int, failures: Path, as_json: bool) -> bool:
    """Run a sweep and print what came of it; whether nothing failed. Raises Unreachable without Postgres."""
    with Crew(jobs) as crew:
        sweep = Sweep(crew, budget=QUICK if quick else None, seed=seed)
        for told in _followed(sweep):
            if not told.ok:  # at once: whoever ends it early has them
                keep(failures, told.protocol, _about(told))
    files = [failures / f"{told.protocol.name}.json" for told in sweep.result.failures]
    if as_json:
        print_json({**sweep.result.to_json(), "files": [str(file) for file in files]})
    else:
        _print_sweep(sweep.result)
        _print_failures(sweep.result.failures, files)
    return sweep.result.ok


def explore_all(count: int, *, seed: int, jobs: int, failures: Path, as_json: bool) -> bool:
    """Run random histories, shrink what fails, and print it; whether nothing failed.

    Raises Unreachable without Postgres.
    """
    with Crew(jobs) as crew:
        exploration = Exploration(crew, seed, range(1, count + 1))
        for told in _followed(exploration):
            if not told.ok:  # at once: whoever ends it early has them, as they were
                keep(failures, told.protocol, _about(told))
        files = [keep(failures, *shortened(crew, told)) for told in _to_shrink(exploration.result.failures)]
    if as_json:
        print_json({**exploration.result.to_json(), "files": [str(file) for file in files]})
    else:
        _print_exploration(exploration.result)
        _print_failures(_to_shrink(exploration.result.failures), files)
    return exploration.result.ok


def race_all(rounds: int, *, seed: int, as_json: bool) -> bool:
    """Run so many rounds of real sessions at once and print what came of them; whether nothing failed."""
    with LocalPostgres.start(fsync=False) as server, closing(Races(server, seed)) as races:
        for number in range(1, rounds + 1):
            failures = races.round(number)
            said = f": {failures[0]}" if failures else ""
            click.echo(f"{number} of {rounds} rounds, {len(failures)} failures{said}", err=True)
            if races.result.stuck:
                break
    if as_json:
        print_json(races.result.to_json())
    else:
        _print_races(races.result)
    return races.result.ok


def explored_text(seed: int, number: int) -> str:
    """The protocol file of one random history."""
    return explored(seed, number).to_text()


def shortened(runs: Runs, told: Told) -> tuple[Protocol, str]:
    """A failed history's protocol, shrunk, and what it shows."""

    def fails(protocol: Protocol) -> tuple[str, ...]:
        return next(told.kinds for told in runs.run([(0, protocol)]))

    if told.kinds[0] == HUNG:
        return told.protocol, f"Not shrunk, as each try would hang for minutes. {_about(told)}"
    until = time.monotonic() + _SHRUNK_WITHIN_S
    short = shrink(told.protocol, told.kinds, fails, over=lambda: time.monotonic() > until)
    (last,) = runs.run([(0, short.protocol)])
    how = f"The shortest found in {short.tries} tries{', more were left' if short.cut_short else ''}. "
    return short.protocol, how + _about(last if last.kinds else told)


def keep(folder: Path, protocol: Protocol, about: str) -> Path:
    """The protocol as a file in this folder, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{protocol.name}.json"
    file.write_text(protocol.model_copy(update={"about": about}).to_text(), "utf-8")
    return file


def _about(told: Told) -> str:
    return f"Fails: {'; '.join(told.problems[-3:])}"


def _to_shrink(failures: list[Told]) -> list[Told]:
    seen: Counter[tuple[str, ...]] = Counter()
    chosen = []
    for told in sorted(failures, key=lambda told: told.number):
        seen[told.kinds] += 1
        if seen[told.kinds] <= _SHRUNK:
            chosen.append(told)
    return chosen


def _followed(many: Sweep | Exploration) -> Iterator[Told]:
    """Its histories, with a line on stderr now and then that says how far it is."""
    failed = 0
    said = time.monotonic()
    for done, told in enumerate(many.events(), 1):
        failed += not told.ok
        if not told.ok:
            click.echo(f"{told.protocol.name}: {', '.join(told.kinds)}", err=True)
        if time.monotonic() - said > _SAY_EVERY_S:
            said = time.monotonic()
            click.echo(f"{done} of {many.planned} histories, {failed} failed", err=True)
        yield told


def _print_sweep(swept: Swept) -> None:
    proved = Counter(swept.points)
    print_table(["fault point!", "faults struck>"], sorted(proved.items()))
    click.echo(
        f"{len(swept.contracts)} contracts × {len(swept.shapes)} shapes: {swept.bases} histories without a "
        f"fault, {swept.singles} with one, {swept.pairs} with two, of {len(swept.pairs_of)} pairs of points; "
        f"{swept.histories} in {swept.took_s:.0f} s"
    )
    if swept.left_out:
        click.echo(f"left out by the budget: {swept.left_out}")
    if swept.never:
        click.echo(f"of {swept.never} a fault never struck: they prove nothing")
    _print_rest(swept.noted, swept.slowest)


def _print_exploration(found: Explored) -> None:
    print_table(["fault point!", "passages>"], sorted(found.points.items()))
    click.echo(
        f"seed {found.seed}: {found.histories} histories in {found.took_s:.0f} s, {found.interleaved} "
        f"interleaved: {found.runs} runs, {found.attempts} attempts, {found.effects} effects, {found.struck} "
        f"faults struck ({found.missed} more were never reached), {found.waiting} calls waited for a person"
    )
    befell = ", ".join(f"{name} {count}" for name, count in sorted(found.events.items()))
    click.echo(f"what befell them besides: {befell or 'nothing'}")
    _print_rest(found.noted, found.slowest)


def _print_races(raced: Raced) -> None:
    print_table(["what happened!", "how often>"], sorted(raced.counts.items()))
    click.echo(
        f"seed {raced.seed}: {raced.rounds} rounds in {raced.took_s:.0f} s: {raced.runs} runs, "
        f"{raced.attempts} attempts, {raced.effects} effects, {raced.evidence} pieces of evidence, "
        f"{raced.repairs} repairs, {raced.deadlocks} deadlocks"
    )
    _print_rest(raced.noted, [])
    for failure in raced.failures:
        click.echo(failure)
    if raced.ok:
        click.echo("every invariant held in every one")


def _print_rest(noted: Counter[str], slowest: list[Told]) -> None:
    for invariant, count in sorted(noted.items()):
        click.echo(f"not asserted in full: {invariant}, in {count} histories (see `fencepost check`)")
    for told in slowest[:1]:
        click.echo(f"slowest: {told.protocol.name}, {told.took_s:.1f} s, {told.steps} steps")


def _print_failures(failed: list[Told], files: list[Path]) -> None:
    if not failed:
        click.echo("every invariant held in every one")
    for told, file in zip(failed, files, strict=True):
        click.echo(f"{', '.join(told.kinds)}: {'; '.join(told.problems[:3])}")
        click.echo(f"    run it again: fencepost drill {file}")
