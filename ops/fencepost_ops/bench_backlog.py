"""What a backlog costs: many due runs and no worker for a while, then the workers come.

    python -m fencepost_ops.bench_backlog [--rows N] [--wait S] [--relays N] [--old-transaction] [--json]

Every second line by line: messages in Redis, rows the relays update, publications beyond those needed, the
relays' memory, runs done. With --old-transaction a transaction stays open from the start to the end, as a
report or a forgotten console would, so that Postgres can remove no dead row.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import psycopg
import redis

from fencepost.states import Queue
from fencepost_ops.commands.output import print_json, print_table
from fencepost_ops.fleet import Fleet, FleetOptions

APP: Final = "fencepost_ops.examples.bench_app:app"
BATCH: Final = 5000
_ENQUEUE: Final = """
SELECT count(*) FROM generate_series(%s::int, %s::int) AS n, LATERAL fencepost.enqueue_run(
    'bench', 'backlog-' || n, 'one', 1, 'svc:bench',
    jsonb_build_object('key', 'backlog-' || n, 'tool', 'note'), interval '2 hours')
"""
_LOOK: Final = """
SELECT (SELECT count(*) FROM fencepost.runs WHERE status IN ('COMPLETED', 'STOPPED')),
       (SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'outbox'),
       (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'outbox')
"""
_NEEDED: Final = """
SELECT (SELECT count(*) FROM fencepost.events WHERE type = 'LeaseAcquired'),
       (SELECT count(*) FROM fencepost.outbox WHERE publish_count > 0),
       (SELECT count(*) FROM fencepost.runs WHERE status NOT IN ('COMPLETED', 'STOPPED'))
"""
_REPORT: Final = re.compile(r"took (\d+) rows, published (\d+); longest pass (\d+) ms")


@dataclass(frozen=True)
class Sample:
    """One look: seconds since the runs were there, and what was found.

    `updates` are row versions of the outbox written per second by whomever, `done` runs ended per second.
    """

    at_s: float
    messages: int
    redis_mib: float
    updates: float
    dead_rows: int
    relay_mib: float
    done: float


@dataclass(frozen=True)
class Backlog:
    """What a backlog cost. Publications count subjects, not messages; of those that were needed each led to a
    claim, or is waiting for one. `left` runs were not done when the watch ended.
    """

    rows: int
    enqueue_s: float
    waited_s: float
    drained_s: float
    published_waiting: int
    published: int
    beyond: int
    left: int
    longest_pass_ms: int
    samples: tuple[Sample, ...]

    @property
    def problems(self) -> list[str]:
        """Why this is no backlog that drains without a storm, one sentence each; empty if it is one."""
        found = []
        if self.left:
            found.append(f"{self.left} runs were not done in {self.drained_s:.0f} s")
        if self.beyond > self.rows // 10:
            found.append(f"{self.beyond} publications more than needed, for {self.rows} runs")
        return found


class _Watch:
    """Looks at a fleet every so often."""

    def __init__(self, fleet: Fleet, log: Path) -> None:
        self._fleet = fleet
        self._log = log
        self._sql = fleet.connect("owner")
        self._redis = redis.Redis.from_url(fleet.valkey.url())
        self._begun = time.monotonic()
        self._last: tuple[float, int, int] | None = None
        self.samples: list[Sample] = []

    def look(self) -> int:
        """Take a sample; how many runs have ended."""
        row = self._sql.execute(_LOOK).fetchone()
        assert row is not None
        ended, updates, dead = row
        now = time.monotonic() - self._begun
        before = self._last or (now - 1, updates, ended)
        passed = max(now - before[0], 0.001)
        self._last = now, updates, ended
        info: Any = self._redis.info("memory")
        self.samples.append(
            Sample(
                at_s=now,
                messages=sum(int(self._redis.llen(str(queue))) for queue in Queue),
                redis_mib=info["used_memory"] / 2**20,
                updates=(updates - before[1]) / passed,
                dead_rows=dead,
                relay_mib=sum(map(_resident_mib, self._fleet.pids("relay").values())),
                done=(ended - before[2]) / passed,
            )
        )
        return int(ended)

    def published(self) -> int:
        """How often what waits has been published."""
        row = self._sql.execute("SELECT coalesce(sum(publish_count), 0) FROM fencepost.outbox").fetchone()
        return int(row[0]) if row is not None else 0

    def needed(self) -> tuple[int, int, int]:
        """Claims there were; rows that have been published and wait for one; runs that have not ended."""
        row = self._sql.execute(_NEEDED).fetchone()
        assert row is not None
        return row[0], row[1], row[2]

    def said(self) -> tuple[int, int]:
        """What the relays have published so far by their own word, and their longest pass in ms."""
        found = _REPORT.findall(self._log.read_text())
        return sum(int(sent) for _, sent, _ in found), max((int(ms) for *_, ms in found), default=0)

    def close(self) -> None:
        """Let go of Postgres and Redis."""
        self._sql.close()
        self._redis.close()


def _resident_mib(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else 0.0


@contextmanager
def _old_transaction(fleet: Fleet) -> Iterator[None]:
    with psycopg.connect(fleet.database.owner) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT count(*) FROM fencepost.runs")
        yield


def measure(rows: int, wait_s: float, drain_s: float, relays: int, every_s: float, *, old: bool) -> Backlog:
    """Start relays alone, enqueue, wait, start the workers, and watch until all runs have ended, or for so
    long.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fencepost-backlog-")))
        log = folder / "fleet.log"
        out = stack.enter_context(log.open("w", encoding="utf-8"))
        scale = {"relay": relays, **{str(queue): 0 for queue in Queue}}
        fleet = stack.enter_context(Fleet(FleetOptions(app=APP, scale=scale, sandbox=False, out=out)))
        if old:
            stack.enter_context(_old_transaction(fleet))
        begun = time.monotonic()
        with psycopg.connect(fleet.database.dsns["producer"], autocommit=True) as producer:
            for start in range(1, rows + 1, BATCH):
                producer.execute(_ENQUEUE, [start, min(start + BATCH - 1, rows)])
        enqueued = time.monotonic()
        watch = _Watch(fleet, log)
        stack.callback(watch.close)
        _until(watch, enqueued + wait_s, every_s, rows)
        waiting = watch.published()
        opened = time.monotonic()
        for queue in Queue:
            fleet.add(str(queue), [sys.executable, "-m", "fencepost_workers", queue, str(queue)], "worker")
        _until(watch, opened + drain_s, every_s, rows)
        drained = time.monotonic()
        fleet.group.stop()  # a relay says at its end what it has not said yet
        published, longest = watch.said()
        claimed, offered, left = watch.needed()
        return Backlog(
            rows=rows,
            enqueue_s=enqueued - begun,
            waited_s=opened - enqueued,
            drained_s=drained - opened,
            published_waiting=waiting,
            published=published,
            beyond=published - claimed - offered,
            left=left,
            longest_pass_ms=longest,
            samples=tuple(watch.samples),
        )


def _until(watch: _Watch, end: float, every_s: float, rows: int) -> bool:
    """Look every so often until `end`, or until all runs have ended; whether they have."""
    while time.monotonic() < end:
        if watch.look() >= rows:
            return True
        time.sleep(every_s)
    return False


@click.command()
@click.option("--rows", type=click.IntRange(min=1), default=100_000, show_default=True)
@click.option(
    "--wait", "wait_s", type=float, default=120.0, show_default=True, help="Seconds without workers."
)
@click.option(
    "--drain", "drain_s", type=float, default=3600.0, show_default=True, help="Seconds of draining."
)
@click.option("--relays", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--every", "every_s", type=float, default=5.0, show_default=True, help="Seconds between looks.")
@click.option("--old-transaction", "old", is_flag=True, help="Hold a transaction open all the while.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def backlog(
    rows: int, wait_s: float, drain_s: float, relays: int, every_s: float, old: bool, as_json: bool
) -> None:
    """Measure what a backlog costs while it waits and while it drains.

    Exit code 1 if runs are left, or a tenth as many publications as runs were not needed.
    """
    found = measure(rows, wait_s, drain_s, relays, every_s, old=old)
    if as_json:
        print_json(found)
    else:
        _print(found)
    for problem in found.problems:
        click.echo(f"FAILED: {problem}", err=True)
    sys.exit(bool(found.problems))


def _print(found: Backlog) -> None:
    lines = [
        (
            f"{one.at_s:.0f} s",
            one.messages,
            f"{one.redis_mib:.1f} MiB",
            f"{one.updates:.0f}/s",
            one.dead_rows,
            f"{one.relay_mib:.0f} MiB",
            f"{one.done:.0f}/s",
        )
        for one in found.samples
    ]
    columns = ["AT>", "MESSAGES>", "REDIS>", "ROWS WRITTEN>", "DEAD ROWS>", "RELAYS>", "RUNS DONE>"]
    print_table(columns, lines)
    done = found.rows - found.left
    click.echo(
        f"{found.rows} runs: enqueued in {found.enqueue_s:.1f} s; {found.published_waiting} publications in"
        f" {found.waited_s:.0f} s without workers; {done} done in {found.drained_s:.0f} s with them,"
        f" {done / found.drained_s:.0f} runs/s; {found.published} publications in all,"
        f" {found.beyond} more than needed; longest pass {found.longest_pass_ms} ms"
    )


if __name__ == "__main__":
    backlog()
