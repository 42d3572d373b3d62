"""What a provider of models costs: a thousand runs that wait for it, one that answers 429, one that is slow.

    python -m fencepost_ops.bench_models [--only NAME]... [--runs N] [--each S] [--fault S] [--wire W]

`waiting`: so many runs ask a model that takes four seconds, all at once; the time until the last has ended,
the fleet's memory, and what its sessions with Postgres do meanwhile (R8). `throttled` and `slow`: a provider
that answers 429 with Retry-After, and one that takes ten times as long (p99 40 s, not 4 s), for a while;
the questions by turn (amplification), how long the recovery took once the fault was over, and how runs
without a model fared beside it, before and meanwhile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from fencepost.models import Wire
from fencepost_ops.bench_models_measures import EACH_S, Faulty, Waiting, slow, started, throttled, waiting
from fencepost_ops.commands.output import plain, print_json, print_table

WIRES: Final = [str(one) for one in Wire]
MEASURES: Final = ("waiting", "throttled", "slow")


@click.command()
@click.option("--only", multiple=True, type=click.Choice(MEASURES), help="Measure these alone.")
@click.option("--runs", type=click.IntRange(min=2), default=1000, show_default=True)
@click.option("--each", "each_s", type=float, default=EACH_S, show_default=True, help="Seconds of waiting.")
@click.option("--fault", "fault_s", type=float, default=20.0, show_default=True, help="Seconds of a fault.")
@click.option("--cap", "cap_s", type=float, default=60.0, show_default=True, help="Seconds of one answer.")
@click.option("--wire", type=click.Choice(WIRES), default=str(Wire.MESSAGES), show_default=True)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Requests at once, fleet-wide, under a fault.",
)
@click.option("--recover", "recover_s", type=float, default=240.0, show_default=True, help="Seconds at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def models(
    only: Sequence[str],
    runs: int,
    each_s: float,
    fault_s: float,
    cap_s: float,
    wire: str,
    concurrency: int,
    recover_s: float,
    as_json: bool,
) -> None:
    """Measure what waiting for models costs, and what a provider that throttles or is slow does to a fleet.

    Exit code 1 if a thousand runs take too long or too much memory, a run does not complete, amplification is
    above 1.1, or runs without a model starve.
    """
    chosen = only or MEASURES
    found: dict[str, Waiting | Faulty] = {}
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,  # noqa: PTH123 - a device
        started(cap_s, wire, concurrency, nowhere) as bench,
    ):
        for name in chosen:
            click.echo(f"{name} ...", err=True)
            if name == "waiting":
                found[name] = waiting(bench, runs, each_s)
            else:
                measure = throttled if name == "throttled" else slow
                found[name] = measure(bench, runs, fault_s, recover_s)
    if as_json:
        print_json({name: _told(one) for name, one in found.items()})
    else:
        print_table(["WHAT", "MEASURED"], [line for one in found.values() for line in _lines(one)])
    problems = [problem for one in found.values() for problem in one.problems]
    for problem in problems:
        click.echo(f"FAILED: {problem}", err=True)
    sys.exit(bool(problems))


def _told(found: Waiting | Faulty) -> dict[str, Any]:
    more = {"amplification": found.amplification} if isinstance(found, Faulty) else {}
    return {**plain(found), **more, "problems": found.problems}


def _lines(found: Waiting | Faulty) -> list[tuple[str, str]]:
    if isinstance(found, Waiting):
        inside = (
            f"{found.in_transaction} in a transaction, the oldest for {found.transaction_s * 1000:.0f} ms"
        )
        return [
            ("waiting", f"{found.runs} runs, {found.each_s:g} s each: {found.seconds:.2f} s"),
            ("CPU", f"{sum(found.cpu_ms.values()):.1f} ms a run: {_busiest(found.cpu_ms)}"),
            ("memory", f"fleet {found.fleet_mib:.0f} MiB, provider {found.provider_mib:.0f} MiB"),
            ("planners' sessions", f"{found.sessions} at most with {found.open} requests open; {inside}"),
        ]
    asked = f"{found.requests} for {found.turns} turns, {found.refused} refused, {found.left} given up"
    return [
        ("fault", f"{found.fault}, for {found.fault_s:g} s under {found.runs} runs"),
        ("requests", f"{asked}: amplification {found.amplification:.3f}"),
        ("recovery", f"first answer after {found.first_s:.1f} s, the last run after {found.all_s:.1f} s"),
        ("waiting", f"{found.deferrals} events of {found.runs} runs"),
        *found.beside.lines("without a model"),
    ]


def _busiest(cpu_ms: dict[str, float]) -> str:
    most = sorted(cpu_ms.items(), key=lambda one: -one[1])[:4]
    return ", ".join(f"{name} {ms:.1f}" for name, ms in most)


if __name__ == "__main__":
    models()
