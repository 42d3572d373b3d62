"""What an outage costs: a service answers 429 with a Retry-After under many runs, another goes on beside it.

    python -m fencepost_ops.bench_outage [--runs N] [--outage S] [--retry-after S] [--concurrency N] [--json]

Printed: amplification (attempts by calls), how the other service's runs fared before and meanwhile, how long
the recovery took once the service answered again, and what the waiting wrote into the histories.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from threading import Event, Thread
from typing import Any, Final, TextIO

import click
import psycopg

from fencepost_ops.commands.output import plain, print_json, print_table
from fencepost_ops.fleet import Fleet, FleetOptions
from fencepost_ops.sandbox.book import Effect, Request

APP: Final = "fencepost_ops.examples.outage_app:app"
MOST_AMPLIFICATION: Final = 1.1
SLOWEST_BESIDE_S: Final = 2.0
_EVERY_S: Final = 0.1  # between two runs of the other service
_ENQUEUE: Final = """
SELECT count(*) FROM generate_series(%s::int, %s::int) AS n, LATERAL fencepost.enqueue_run(
    'bench', %s || '-' || n, 'one', 1, 'svc:bench',
    jsonb_build_object('key', %s || '-' || n, 'tool', %s::text), interval '2 hours')
"""
_ENDED: Final = """
SELECT count(*) FROM fencepost.runs WHERE run_key LIKE %s || '-%%' AND status IN ('COMPLETED', 'STOPPED')
"""
_TOOK: Final = """
SELECT extract(epoch FROM e.recorded_at - r.created_at)::float8 FROM fencepost.runs r
JOIN fencepost.events e ON e.run = r.id AND e.tenant = r.tenant AND e.type = 'RunCompleted'
WHERE r.run_key LIKE %s || '-%%' ORDER BY 1
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
    """What an outage cost. Seconds; `beside` are the runs of the other service, from enqueueing to their end,
    `beside_before` those while as many runs as later met the outage went through without one.

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
    beside_before: int
    beside_before_p99_s: float
    beside: int
    beside_p50_s: float
    beside_p99_s: float
    beside_left: int

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
        if self.beside_left:
            found.append(f"{self.beside_left} runs of the other service did not end")
        slowest = max(SLOWEST_BESIDE_S, 2 * self.beside_before_p99_s)
        if self.beside_p99_s > slowest:
            found.append(
                f"the other service took {self.beside_p99_s:.1f} s for a run; at most {slowest:.1f} s are due"
            )
        return found


class _Bench:
    """A fleet, and what is asked of it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._owner = fleet.connect("owner")

    def enqueue(self, name: str, first: int, last: int, tool: str) -> None:
        with psycopg.connect(self.fleet.database.dsns["producer"], autocommit=True) as producer:
            producer.execute(_ENQUEUE, [first, last, name, name, tool])

    def await_ended(self, name: str, count: int, within_s: float) -> int:
        """How many runs of this name are left after so long at most."""
        until = time.monotonic() + within_s
        while (left := count - int(self.row(_ENDED, name)[0])) and time.monotonic() < until:
            time.sleep(0.1)
        return left

    def row(self, statement: str, *values: Any) -> Any:
        row = self._owner.execute(statement, values).fetchone()
        assert row is not None
        return row

    def took(self, name: str) -> list[float]:
        return [seconds for (seconds,) in self._owner.execute(_TOOK, [name])]

    def now(self) -> datetime:
        at: datetime = self.row("SELECT fencepost.now()")[0]
        return at

    @contextmanager
    def others(self, name: str) -> Iterator[list[int]]:
        """Runs of the other service, one after another for as long as this lasts; how many there were."""
        stop, sent = Event(), [0]

        def send() -> None:
            with psycopg.connect(self.fleet.database.dsns["producer"], autocommit=True) as producer:
                while not stop.wait(_EVERY_S):
                    sent[0] += 1
                    producer.execute(_ENQUEUE, [sent[0], sent[0], name, name, "mail"])

        thread = Thread(target=send)
        thread.start()
        try:
            yield sent
        finally:
            stop.set()
            thread.join()

    def close(self) -> None:
        self._owner.close()


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
        bench = _Bench(fleet)
        stack.callback(bench.close)
        sandbox = fleet.sandbox
        assert sandbox is not None
        with bench.others("before") as sent:  # what the same load costs them without an outage
            bench.enqueue("well", 1, runs, "debit")
            bench.await_ended("well", runs, recover_s)
        left = bench.await_ended("before", sent[0], recover_s)
        sandbox.fault(kind="throttle_429", service="wallet", retry_after_s=retry_after_s)
        with bench.others("beside") as sent:
            bench.enqueue("hit", 1, runs, "debit")
            time.sleep(outage_s / 2)
            meanwhile(fleet)
            time.sleep(outage_s / 2)
            sandbox.clear_faults()
            over = bench.now()
            bench.await_ended("hit", runs, recover_s)
        left += bench.await_ended("beside", sent[0], recover_s)
        return _found(bench, runs, outage_s, retry_after_s, over, left)


def _found(
    bench: _Bench, runs: int, outage_s: float, retry_after_s: int, over: datetime, left: int
) -> Outage:
    assert bench.fleet.sandbox is not None
    book = bench.fleet.sandbox.book
    calls, attempts, succeeded = bench.row(_CALLS)
    most, deferrals = bench.row(_WRITTEN)
    first, last = bench.row(_SUCCESSES)
    before, beside = bench.took("before"), bench.took("beside")
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
        beside_before=len(before),
        beside_before_p99_s=_share(before, 0.99),
        beside=len(beside),
        beside_p50_s=_share(beside, 0.5),
        beside_p99_s=_share(beside, 0.99),
        beside_left=left,
    )


def _hit(one: Request | Effect) -> bool:
    return one.service == "wallet" and (one.reference or "").startswith("hit-")


def _share(values: list[float], part: float) -> float:
    """The value below which this part of the sorted values lies."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("inf")


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
    beside = f"{found.beside} meanwhile: p50 {found.beside_p50_s:.3f} s, p99 {found.beside_p99_s:.3f} s"
    lines = [
        ("outage", f"{found.outage_s:g} s of 429 with Retry-After {found.retry_after_s} s"),
        ("calls", f"{found.calls}, of which {found.succeeded} succeeded"),
        ("attempts", f"{found.attempts}: amplification {found.amplification:.3f}"),
        ("recovery", f"first success after {found.first_s:.1f} s, the last after {found.all_s:.1f} s"),
        ("waiting", f"{found.deferrals} events, {found.most_deferrals} of one call at most"),
        (
            "other service, before",
            f"{found.beside_before} under the same load: p99 {found.beside_before_p99_s:.3f} s",
        ),
        ("other service", beside),
    ]
    print_table(["WHAT", "MEASURED"], lines)


if __name__ == "__main__":
    outage()
