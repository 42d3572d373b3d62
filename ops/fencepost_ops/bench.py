"""`make bench`: what this machine does, with every defence on and nothing made durable later than usual.

    python -m fencepost_ops.bench [--runs N] [--only NAME]... [--finished N] [--scale ROLE=N]... [--json]

Everything runs here: Postgres (fsync on), Valkey, sandbox, relay, two planners and one worker for each other
queue: an interpreter keeps one core busy at most, and planners have most to do. Other load on the machine
shows in the figures; so does a virtual disk.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from fencepost_ops.bench_measures import COMMIT_TIMES, Bencher, Finished
from fencepost_ops.commands.output import print_json, print_table
from fencepost_ops.examples.bench_app import PER_TURN, SLOW_S
from fencepost_ops.fleet import Fleet, FleetOptions
from fencepost_ops.up import Scale

APP: Final = "fencepost_ops.examples.bench_app:app"
WAITING: Final = 1000
WARM_UP: Final = 200
SCALE: Final = {"planner": 2}

Measure = Callable[[Bencher, int], Any]
MEASURES: Final[dict[str, tuple[str, Measure]]] = {
    "python": ("one-call runs, Python tool", lambda b, n: b.throughput("note", n)),
    "http": ("one-call runs, HTTP tool", lambda b, n: b.throughput("debit", n)),
    "latency": ("one run at a time", lambda b, n: b.latency("note", min(n, 200))),
    "models": ("waiting for models", lambda b, n: b.waiting("thinking", "", SLOW_S, min(n, WAITING))),
    "tools": ("waiting for tools", lambda b, n: b.waiting("one", "slow", SLOW_S, min(n, WAITING))),
    "history": ("one long run", lambda b, n: b.history(min(10_000, 5 * n), PER_TURN, min(1000, n // 2))),
}


@click.command()
@click.option("--runs", type=click.IntRange(min=20), default=2000, show_default=True, help="Runs at most.")
@click.option("--only", multiple=True, type=click.Choice(list(MEASURES)), help="Measure these alone.")
@click.option("--finished", type=click.IntRange(min=1), help="Measure again among so many finished runs.")
@click.option(
    "--scale",
    type=Scale(),
    multiple=True,
    metavar="ROLE=N",
    help="Workers of a role; two planners at first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--data", type=click.Path(path_type=Path), help="Where the data lies; a temporary folder.")
@click.option("--log", type=click.File("w"), help="Where the fleet's own output goes.")
def bench(
    runs: int,
    only: Sequence[str],
    finished: int | None,
    scale: Sequence[tuple[str, int]],
    as_json: bool,
    data: Path | None,
    log: Any,
) -> None:
    """Measure runs per second, latency and memory on this machine."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123 - a device
        options = FleetOptions(
            app=APP,
            data=data,
            scale=SCALE | dict(scale),
            env={"FENCEPOST_SLOTS": str(WAITING)},
            postgres_settings=COMMIT_TIMES,
            out=log or nowhere,
        )
        begun = time.monotonic()
        _say("starting a fleet")
        with Fleet(options) as fleet:
            fleet.wait_ready()
            ready_s = time.monotonic() - begun
            bencher = Bencher(fleet)
            _say("warming up")
            bencher.throughput("note", min(WARM_UP, runs))
            idle = bencher.memory()
            chosen = only or ([] if finished else list(MEASURES))
            results = {name: _measured(bencher, name, runs) for name in chosen}
            if finished:
                _say(f"adding {finished:,} finished runs")
                results["finished"] = bencher.finished(finished, runs)
    if as_json:
        print_json({"machine": _machine(), "ready_s": ready_s, "memory_mib": idle, **results})
        return
    _print(ready_s, idle, results)


def _measured(bencher: Bencher, name: str, runs: int) -> Any:
    title, measure = MEASURES[name]
    _say(title)
    return measure(bencher, runs)


def _say(what: str) -> None:
    click.echo(f"{what} ...", err=True)


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def _print(ready_s: float, idle: dict[str, float], results: dict[str, Any]) -> None:
    rows = [
        ("fleet started in", f"{ready_s:.1f} s", ""),
        ("fleet's memory at rest", f"{sum(idle.values()):.0f} MiB", f"{len(idle)} processes and theirs"),
    ]
    for name, result in results.items():
        rows += _finished(result) if name == "finished" else [(MEASURES[name][0], *_line(name, result))]
    print_table(["WHAT", "RESULT>", "HOW"], rows)


def _finished(found: Finished) -> list[tuple[str, str, str]]:
    size = f"{sum(found.mib.values()) / 1024:.1f} GiB, copied in {found.seeded_s:.0f} s"
    return [
        ("finished runs added", f"{found.added:,}", size),
        ("one-call runs before", *_line("python", found.throughput_before)),
        ("one-call runs among them", *_line("python", found.throughput_after)),
        ("one run at a time before", *_line("latency", found.latency_before)),
        ("one run at a time among them", *_line("latency", found.latency_after)),
    ]


def _line(name: str, result: Any) -> tuple[str, str]:
    values = dataclasses.asdict(result)
    if name in {"python", "http"}:
        cpu = f", {sum(values['cpu_ms'].values()):.1f} ms CPU each" if values["cpu_ms"] else ""
        how = f"{values['runs']} runs in {values['seconds']:.2f} s{cpu}"
        return f"{values['per_second']:.0f} runs/s", how
    if name == "latency":
        return f"p50 {values['p50_ms']:.1f} ms", f"p99 {values['p99_ms']:.1f} ms, {values['runs']} runs"
    if name in {"models", "tools"}:
        how = f"{values['runs']} runs, {values['each_s']:g} s each, fleet {values['fleet_mib']:.0f} MiB"
        return f"{values['seconds']:.2f} s", how
    first = f"{values['first_ms']:.2f} ms/event up to {values['first']}"
    return f"{values['last_ms']:.2f} ms/event", f"at {values['last']} events; {first}"


if __name__ == "__main__":
    sys.exit(bench())
