"""What the bench measures, each on a running fleet: throughput, latency, waiting, the cost of a long
history.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import psycopg

from fencepost import Budget, Client
from fencepost.client import Enqueued
from fencepost.runrequest import RunRequest
from fencepost_ops.bench_finished import add_finished, sizes
from fencepost_ops.fleet import Fleet

DEADLINE: Final = timedelta(minutes=5)
WITHIN_S: Final = 240.0
TENANT: Final = "bench"
LOOK_EVERY_S: Final = 0.01  # rarely: who looks is load as well
COMMIT_TIMES: Final = {"track_commit_timestamp": "on"}
"""What Postgres must be started with to measure latency."""

# Asked again and again: it looks at what is open, however much has ended, and goes no further than the first.
_OPEN = "SELECT EXISTS (SELECT 1 FROM fencepost.runs r WHERE NOT r.ended AND r.tenant = %s)"
_LEFT = "SELECT count(*) FROM fencepost.runs r WHERE NOT r.ended AND r.tenant = %s"
_SPAN = """
SELECT extract(epoch FROM max(e.recorded_at) - min(r.created_at))::float8,
       count(*) FILTER (WHERE r.status = 'COMPLETED')
FROM fencepost.runs r JOIN fencepost.events e ON e.tenant = r.tenant AND e.run = r.id AND e.seq = r.seq
WHERE r.tenant = %s AND r.id = ANY(%s)
"""
_TOOK = """
SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - created_at)::float8 * 1000
FROM fencepost.runs WHERE tenant = %s AND id = ANY(%s)
"""
_AT = """
SELECT seq, extract(epoch FROM recorded_at)::float8 FROM fencepost.events
WHERE tenant = %s AND run = %s ORDER BY seq
"""


@dataclass(frozen=True)
class Throughput:
    """Runs that were enqueued together and completed.

    `cpu_ms` is what one of them cost in each process of the fleet and its children, in milliseconds: less at
    the mercy of other load on the machine than runs per second. Linux only, else empty.
    """

    runs: int
    seconds: float
    per_second: float
    cpu_ms: dict[str, float]


@dataclass(frozen=True)
class Latency:
    """One run at a time, from the statement that enqueues it to the COMMIT that completes it."""

    runs: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Waiting:
    """Runs that wait at the same time for something slow."""

    runs: int
    each_s: float
    seconds: float
    fleet_mib: float


@dataclass(frozen=True)
class History:
    """What one event costs in one long run: the milliseconds per event up to `first` and before `last`."""

    first: int
    first_ms: float
    last: int
    last_ms: float


@dataclass(frozen=True)
class Finished:
    """The same measures on a ledger with few runs, and with `added` finished ones more."""

    added: int
    seeded_s: float
    mib: dict[str, float]
    throughput_before: Throughput
    latency_before: Latency
    throughput_after: Throughput
    latency_after: Latency


class Bencher:
    """Drives one fleet. Every measure raises TimeoutError when the fleet does not finish in four minutes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._series = 0

    @contextmanager
    def _client(self) -> Iterator[Client]:
        with Client(self._fleet.database.dsns["producer"], self._fleet.valkey.url()) as client:
            yield client

    def _requests(self, planner: str, count: int, **given: Any) -> list[RunRequest]:
        self._series += 1
        keys = [f"{planner}-{self._series}-{n}" for n in range(count)]
        return [_request(planner, key, {"key": key, **given}) for key in keys]

    def _enqueue(self, requests: Sequence[RunRequest]) -> list[UUID]:
        with self._client() as client:
            return [_enqueued(outcome) for outcome in client.enqueue_many(requests)]

    def throughput(self, tool: str, count: int) -> Throughput:
        """One-call runs: enqueue, plan, dispatch, plan, complete."""
        requests = self._requests("one", count, tool=tool)
        before = self.cpu()
        runs = self._enqueue(requests)
        self._await()
        used = {name: round((s - before.get(name, 0.0)) * 1000 / count, 3) for name, s in self.cpu().items()}
        seconds = self._span(runs)
        return Throughput(count, seconds, count / seconds, used)

    def latency(self, tool: str, count: int) -> Latency:
        """One-call runs, each enqueued when the one before is done."""
        runs: list[UUID] = []
        with self._client() as client, self._fleet.connect("reader") as connection:
            for request in self._requests("one", count, tool=tool):
                (outcome,) = client.enqueue_many([request])
                runs.append(_enqueued(outcome))
                _await_run(connection, runs[-1])
            took = [ms for (ms,) in connection.execute(_TOOK, [TENANT, runs]).fetchall()]
        return Latency(count, statistics.median(took), _percentile(took, 99))

    def waiting(self, planner: str, tool: str, each_s: float, count: int) -> Waiting:
        """Runs that each wait `each_s` for a model or a tool, all at once; and the fleet's memory
        meanwhile.
        """
        runs = self._enqueue(self._requests(planner, count, tool=tool))
        time.sleep(each_s / 2)
        memory = sum(self.memory().values())
        self._await()
        return Waiting(count, each_s, self._span(runs), memory)

    def history(self, events: int, per_turn: int, window: int) -> History:
        """One run that grows to about so many events."""
        turns = -(-events // (8 * per_turn + 3))
        self._series += 1
        key = f"many-{self._series}"
        budget = Budget(turns=turns + 2, calls=turns * per_turn + 1, attempts=2 * turns * per_turn)
        request = _request("many", key, {"key": key, "turns": turns}, budget)
        with self._client() as client, self._fleet.connect("reader") as connection:
            (outcome,) = client.enqueue_many([request])
            run = _enqueued(outcome)
            _await_run(connection, run)
            at = dict(connection.execute(_AT, [TENANT, run]).fetchall())
        last = max(at)
        first_ms = (at[window] - at[1]) / (window - 1) * 1000
        last_ms = (at[last] - at[last - window]) / window * 1000
        return History(window, first_ms, last, last_ms)

    def finished(self, count: int, runs: int) -> Finished:
        """Throughput and latency before and after the tables hold `count` more finished runs."""
        before = self.throughput("note", runs), self.latency("note", min(runs, 100))
        began = time.monotonic()
        with self._fleet.connect() as owner:
            added = add_finished(owner, TENANT, "one-%", count)
            seeded_s = time.monotonic() - began
            held = sizes(owner)
        self.throughput("note", min(runs, 100))  # warms what the copies have pushed out
        after = self.throughput("note", runs), self.latency("note", min(runs, 100))
        return Finished(added, seeded_s, held, *before, *after)

    def memory(self) -> dict[str, float]:
        """MiB by process, shared pages counted once; Linux only, else empty."""
        return {name: sum(map(_proportional_mib, _tree(pid))) for name, pid in self._pids().items()}

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU used so far by process, what its ended children used included; Linux only."""
        return {name: sum(map(cpu_s, _tree(pid))) for name, pid in self._pids().items()}

    def _pids(self) -> dict[str, int]:
        pids = self._fleet.pids() | {"postgres": self._fleet.postgres.pid, "valkey": self._fleet.valkey.pid}
        return pids if self._fleet.sandbox is None else pids | {"sandbox": self._fleet.sandbox.pid}

    def _await(self) -> None:
        until = time.monotonic() + WITHIN_S
        with self._fleet.connect("reader") as connection:
            while _asked(connection, _OPEN):
                if time.monotonic() > until:
                    left = _asked(connection, _LEFT)
                    raise TimeoutError(f"{left} runs are still open after {WITHIN_S:g} s")
                time.sleep(0.1)

    def _span(self, runs: Sequence[UUID]) -> float:
        with self._fleet.connect("reader") as connection:
            row = connection.execute(_SPAN, [TENANT, list(runs)]).fetchone()
        assert row is not None
        if row[1] != len(runs):
            raise TimeoutError(f"{len(runs) - row[1]} of {len(runs)} runs ended without completing")
        return float(row[0])


def _asked(connection: psycopg.Connection[Any], question: str) -> Any:
    row = connection.execute(question, [TENANT]).fetchone()
    assert row is not None
    return row[0]


def _enqueued(outcome: object) -> UUID:
    assert isinstance(outcome, Enqueued), outcome
    return outcome.run_id


def _request(planner: str, key: str, given: Any, budget: Budget | None = None) -> RunRequest:
    return RunRequest(
        planner=planner,
        input=given,
        run_key=key,
        tenant=TENANT,
        principal="svc:bench",
        deadline=DEADLINE,
        budget=budget,
    )


def _await_run(connection: psycopg.Connection[Any], run: UUID) -> None:
    until = time.monotonic() + WITHIN_S
    question = "SELECT status FROM fencepost.runs WHERE tenant = %s AND id = %s"
    while (row := connection.execute(question, [TENANT, run]).fetchone()) is not None:
        if row[0] in {"COMPLETED", "STOPPED"}:
            return
        if time.monotonic() > until:
            raise TimeoutError(f"run {run} is still {row[0]} after {WITHIN_S:g} s")
        time.sleep(LOOK_EVERY_S)


def _percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _tree(root: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = [], [root]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def cpu_s(pid: int) -> float:
    """What a process and those of its children that have ended have used; 0.0 where nobody tells."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _proportional_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
