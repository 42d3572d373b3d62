"""What an outage costs: a service answers 429 with a Retry-After under many runs, another goes on beside it.

    python -m fencepost_ops.bench_outage [--runs N] [--outage S] [--retry-after S] [--concurrency N] [--json]

Printed: amplification (attempts by calls), how the other service's runs fared before and meanwhile, how long
the recovery took once the service answered again, and what the waiting wrote into the histories.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TextIO

import click

from fencepost_ops.bench_beside import Beside, Load
from fencepost_ops.commands.output import plain, print_json, print_table
from fencepost_ops.fleet import Fleet, FleetOptions
from fencepost_ops.sandbox.book import Effect, Request

APP: Final = "fencepost_ops.examples.outage_app:app"
MOST_AMPLIFICATION: Final = 1.1
_ENQUEUE: Final = """
SELECT count(*) FROM generate_series(%(first)s::int, %(last)s::int) AS n, LATERAL fencepost.enqueue_run(
    'bench', %(name)s || '-' || n, 'one', 1, 'svc:bench',
    jsonb_build_object('key', %(name)s || '-' || n, 'tool', %(what)s::text), interval '2 hours')
"""
_CALLS: Final = """
SELECT count(*), coalesce(sum(c.attempts), 0), count(*) FILTER (WHERE c.state = 'SUCCEEDED')
FROM fencepost.calls c JOIN fencepost.runs r ON r.id = c.run AND r.tenant = c.tenant
WHERE r.run_key LIKE 'hit-%%'
"""
_WRITTEN: Final = """
SELECT coalesce(max(n), 0), coalesce(sum(n), 0) FROM (
    SELECT count(*) AS n FROM fencepost.events WHERE type = 'DispatchDeferred' GROUP BY run) AS w
"""
_SUCCESSES: Final = """
SELECT min(e.recorded_at), max(e.recorded_at) FROM fencepost.events e
JOIN fencepost.runs r ON r.id = e.run AND r.tenant = e.tenant AND r.run_key LIKE 'hit-%%'
WHERE e.type = 'ToolResultRecorded'
"""


@dataclass(frozen=True)
class Outage:
    """What an outage cost, in seconds; `beside` are the runs of the other service.

    `first_s` and `all_s` are from the moment the service answered again to its first success and to its last.
    `requests` and `effects` are by the service's own books. `deferrals` are events written by calls that
    waited, `most_deferrals` those of one call.
    """

    runs: int
    outage_s: float
    retry_after_s: int
    calls: int
    attempts: int
    succeeded: int
    requests: int
    effects: int
    first_s: float
    all_s: float
    deferrals: int
    most_deferrals: int
    beside: Beside

    @property
    def amplification(self) -> float:
        """Attempts by calls."""
        return self.attempts / self.calls if self.calls else 0.0

    @property
    def problems(self) -> list[str]:
        """Why this is no outage that is borne well, one sentence each; empty if it is one."""
        found = []
        if self.succeeded != self.runs:
            found.append(f"{self.runs - self.succeeded} of {self.runs} calls did not succeed")
        if (self.requests, self.effects) != (self.attempts, self.succeeded):
            found.append(f"the service counts {self.requests} requests and {self.effects} effects")
        if self.amplification > MOST_AMPLIFICATION:
            found.append(f"{self.attempts} attempts for {self.calls} calls: {self.amplification:.3f}")
        return found + self.beside.problems


def measure(
    runs: int,
    outage_s: float,
    retry_after_s: int,
    concurrency: int | None,
    recover_s: float,
    *,
    env: Mapping[str, str] | None = None,
    out: TextIO | None = None,
    meanwhile: Callable[[Fleet], object] = lambda _: None,
) -> Outage:
    """Start a fleet, let the service throttle, enqueue, wait, let it answer again, and see all runs end.

    `meanwhile` is called once, when half of the outage is over.
    """
    env = {**(env or {}), **({"OUTAGE_CONCURRENCY": str(concurrency)} if concurrency is not None else {})}
    with ExitStack() as stack:
        options = FleetOptions(app=APP, scale={"dispatcher": 2}, env=env, fsync=False, out=out)
        fleet = stack.enter_context(Fleet(options))
        fleet.wait_ready()
        bench = Load(fleet, _ENQUEUE)
        stack.callback(bench.close)
        sandbox = fleet.sandbox
        assert sandbox is not None
        with bench.one_by_one("before", "mail") as sent:  # what the same load costs them without an outage
            bench.enqueue("well", "debit", runs)
            bench.await_ended("well", runs, recover_s)
        left = bench.await_ended("before", sent[0], recover_s)
        sandbox.fault(kind="throttle_429", service="wallet", retry_after_s=retry_after_s)
        with bench.one_by_one("beside", "mail") as sent:
            bench.enqueue("hit", "debit", runs)
            time.sleep(outage_s / 2)
            meanwhile(fleet)
            time.sleep(outage_s / 2)
            sandbox.clear_faults()
            over = bench.now()
            bench.await_ended("hit", runs, recover_s)
        left += bench.await_ended("beside", sent[0], recover_s)
        return _found(bench, runs, outage_s, retry_after_s, over, left)


def _found(bench: Load, runs: int, outage_s: float, retry_after_s: int, over: datetime, left: int) -> Outage:
    assert bench.fleet.sandbox is not None
    book = bench.fleet.sandbox.book
    calls, attempts, succeeded = bench.row(_CALLS)
    most, deferrals = bench.row(_WRITTEN)
    first, last = bench.row(_SUCCESSES)
    return Outage(
        runs=runs,
        outage_s=outage_s,
        retry_after_s=retry_after_s,
        calls=calls,
        attempts=int(attempts),
        succeeded=succeeded,
        requests=sum(_hit(one) for one in book.requests()),
        effects=sum(_hit(one) for one in book.effects()),
        first_s=(first - over).total_seconds() if first else float("inf"),
        all_s=(last - over).total_seconds() if last else float("inf"),
        deferrals=int(deferrals),
        most_deferrals=most,
        beside=bench.fared("before", "beside", left),
    )


def _hit(one: Request | Effect) -> bool:
    return one.service == "wallet" and (one.reference or "").startswith("hit-")


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--outage", "outage_s", type=float, default=20.0, show_default=True, help="Seconds of 429s.")
@click.option("--retry-after", "retry_after_s", type=click.IntRange(min=0), default=1, show_default=True)
@click.option(
    "--concurrency",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Requests at once, fleet-wide, as the dependency declares; 0: none declared, so what slots allow.",
)
@click.option(
    "--recover", "recover_s", type=float, default=180.0, show_default=True, help="Seconds to recover at most."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def outage(
    runs: int,
    outage_s: float,
    retry_after_s: int,
    concurrency: int,
    recover_s: float,
    as_json: bool,
) -> None:
    """Measure what an outage of one service costs, and whether another one goes on unharmed.

    Exit code 1 if a call did not succeed, amplification is above 1.1, or the other service's runs starved.
    """
    found = measure(runs, outage_s, retry_after_s, concurrency or None, recover_s)
    if as_json:
        print_json({**plain(found), "amplification": found.amplification, "problems": found.problems})
    else:
        _print(found)
    for problem in found.problems:
        click.echo(f"FAILED: {problem}", err=True)
    sys.exit(bool(found.problems))


def _print(found: Outage) -> None:
    lines = [
        ("outage", f"{found.outage_s:g} s of 429 with Retry-After {found.retry_after_s} s"),
        ("calls", f"{found.calls}, of which {found.succeeded} succeeded"),
        ("attempts", f"{found.attempts}: amplification {found.amplification:.3f}"),
        ("recovery", f"first success after {found.first_s:.1f} s, the last after {found.all_s:.1f} s"),
        ("waiting", f"{found.deferrals} events, {found.most_deferrals} of one call at most"),
        *found.beside.lines("other service"),
    ]
    print_table(["WHAT", "MEASURED"], lines)


if __name__ == "__main__":
    outage()
