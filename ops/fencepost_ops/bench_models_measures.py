"""What `bench_models` measures, each on a running fleet whose provider is the sandbox."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TextIO

from fencepost_ops.bench_beside import LOOK_S, Beside, Load
from fencepost_ops.bench_measures import Bencher
from fencepost_ops.examples.models_app import KEY, THINKS, WORKS
from fencepost_ops.fleet import Fleet, FleetOptions
from fencepost_ops.sandbox.process import SandboxProcess
from fencepost_ops.sandbox.provider_book import BOOK_FILE, Asking, ModelBook

APP: Final = "fencepost_ops.examples.models_app:app"
EACH_S: Final = 4.0
WARM_UP: Final = 50
LONGEST_S: Final = 6.0
MOST_MIB: Final = 1024.0
LONGEST_TRANSACTION_S: Final = 2.0
"""What a session may stand still in a transaction before Postgres ends it (R8)."""
MOST_AMPLIFICATION: Final = 1.1
QUICK: Final = {"p50": 0.8, "p99": 4.0}
SLOW: Final = {"p50": 8.0, "p99": 40.0}
_ENQUEUE: Final = """
SELECT count(*) FROM generate_series(%(first)s::int, %(last)s::int) AS n, LATERAL fencepost.enqueue_run(
    'bench', %(name)s || '-' || n, %(what)s, 1, 'svc:bench', jsonb_build_object('key', %(name)s || '-' || n),
    interval '2 hours')
"""
_SPAN: Final = """
SELECT extract(epoch FROM max(e.recorded_at) - min(r.created_at))::float8 FROM fencepost.runs r
JOIN fencepost.events e ON e.run = r.id AND e.tenant = r.tenant AND e.type = 'RunCompleted'
WHERE r.run_key LIKE %s || '-%%'
"""
_TOLD: Final = """
SELECT count(*) FILTER (WHERE e.type IN ('ModelResponseRecorded', 'RunCompleted')),
       count(*) FILTER (WHERE e.type = 'RunCompleted'),
       count(*) FILTER (WHERE e.type = 'PlanDeferred'),
       min(e.recorded_at) FILTER (
           WHERE e.recorded_at > %s AND e.type IN ('ModelResponseRecorded', 'RunCompleted')),
       max(e.recorded_at) FILTER (WHERE e.type = 'RunCompleted'),
       count(*) FILTER (
           WHERE e.recorded_at <= %s AND e.type IN ('ModelResponseRecorded', 'RunCompleted'))
FROM fencepost.events e JOIN fencepost.runs r ON r.id = e.run AND r.tenant = e.tenant
WHERE r.run_key LIKE %s || '-%%'
"""
# Whoever looks is not of the fleet. A session that has just ended its transaction is idle.
_SESSIONS: Final = """
SELECT count(*), count(*) FILTER (WHERE xact_start IS NOT NULL),
       coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::float8
FROM pg_stat_activity WHERE application_name LIKE 'fencepost-planner%'
"""


@dataclass(frozen=True)
class Waiting:
    """Runs that wait for a model at the same time. `fleet_mib` is without the provider, whose own memory is
    `provider_mib`; `open` is how many requests were under way when most were, `sessions` of the planners with
    Postgres there were then at most, `in_transaction` of them in one, `transaction_s` the oldest such;
    `cpu_ms` is what a run cost in each process.
    """

    runs: int
    each_s: float
    seconds: float
    fleet_mib: float
    provider_mib: float
    open: int
    sessions: int
    in_transaction: int
    transaction_s: float
    cpu_ms: dict[str, float]

    @property
    def problems(self) -> list[str]:
        """Why this is not how a fleet waits, one sentence each; empty if it is."""
        found = []
        if self.seconds > self.each_s + LONGEST_S - EACH_S:
            found.append(f"{self.runs} runs took {self.seconds:.1f} s, each of which waits {self.each_s:g} s")
        if self.fleet_mib > MOST_MIB:
            found.append(f"the fleet took {self.fleet_mib:.0f} MiB; at most {MOST_MIB:.0f} are due")
        if self.transaction_s > LONGEST_TRANSACTION_S:
            found.append(
                f"a session was in a transaction for {self.transaction_s:.1f} s while models thought"
            )
        if self.open < self.runs // 2:
            found.append(f"{self.open} of {self.runs} requests were open at once")
        return found


@dataclass(frozen=True)
class Faulty:
    """What a fault of the provider cost, in seconds.

    `requests` are by the provider's own book, `refused` of them answered with an error, `left` given up
    by us; `meanwhile` are answers recorded while the fault lasted. `first_s` and `all_s` are from the
    end of the fault to the first answer recorded and to the last run's end. `beside` are runs without a
    model; `deferrals` are events of runs that waited.
    """

    fault: str
    runs: int
    fault_s: float
    completed: int
    turns: int
    requests: int
    refused: int
    left: int
    meanwhile: int
    first_s: float
    all_s: float
    deferrals: int
    beside: Beside

    @property
    def amplification(self) -> float:
        """Requests by turns."""
        return self.requests / self.turns if self.turns else 0.0

    @property
    def problems(self) -> list[str]:
        """Why this is no fault that is borne well, one sentence each; empty if it is one."""
        found = []
        if self.completed != self.runs:
            found.append(f"{self.runs - self.completed} of {self.runs} runs did not complete")
        if self.amplification > MOST_AMPLIFICATION:
            found.append(f"{self.requests} requests for {self.turns} turns: {self.amplification:.3f}")
        return found + self.beside.problems


class Bench(Load):
    """A fleet whose provider is the sandbox, and what is asked of both."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet, _ENQUEUE)
        assert fleet.sandbox is not None
        self.sandbox: SandboxProcess = fleet.sandbox

    def script(self, first: Any, each: Any = 0) -> None:
        """What the models say; `thinks` takes `each` to its first token, `works` `first`."""
        call = {"name": "mail_send", "arguments": {"key": {"$input": "key"}}}
        models = {
            THINKS: {"turns": [{"text": "Done."}], "latency": {"first_s": each}},
            WORKS: {"turns": [{"calls": [call]}, {"text": "Done."}], "latency": {"first_s": first}},
        }
        self.sandbox.post("/models/script", {"models": models})

    def requests(self, model: str) -> list[Asking]:
        """What the provider was asked of this model."""
        return ModelBook(self.sandbox.data / BOOK_FILE).requests(model=model)


@contextmanager
def started(cap_s: float, wire: str, concurrency: int, out: TextIO | None = None) -> Iterator[Bench]:
    """A fleet with two planners, and its models; `cap_s` is how long one answer may take."""
    env = {
        KEY: "any",
        "MODELS_WIRE": wire,
        "MODELS_CONCURRENCY": str(concurrency),
        "MODELS_TIMEOUT_S": str(cap_s),
    }
    with ExitStack() as stack:
        options = FleetOptions(app=APP, scale={"planner": 2}, env=env, out=out)
        fleet = stack.enter_context(Fleet(options))
        fleet.wait_ready()
        bench = Bench(fleet)
        stack.callback(bench.close)
        bench.script(0.0)
        for planner in ("beside", THINKS, WORKS):  # a first request imports an SDK
            bench.enqueue(f"warm{planner}", planner, WARM_UP)
            bench.await_ended(f"warm{planner}", WARM_UP, 60)
        yield bench


def waiting(bench: Bench, runs: int, each_s: float = EACH_S, within_s: float = 120.0) -> Waiting:
    """Have so many runs wait for a model at once."""
    bench.script(QUICK, each_s)
    measures = Bencher(bench.fleet)
    before = measures.cpu()
    bench.enqueue("wait", THINKS, runs)
    enqueued = time.monotonic()
    memory: dict[str, float] = {}
    sessions = busy = most = 0
    oldest = 0.0
    while bench.left("wait", runs) and time.monotonic() < enqueued + within_s:
        under_way = int(bench.sandbox.get("/models/requests?since=1000000000")["open"])
        most = max(most, under_way)
        if under_way >= runs // 2:
            has, inside, age = bench.row(_SESSIONS)
            sessions, busy, oldest = max(sessions, has), max(busy, inside), max(oldest, age)
            memory = memory or measures.memory()
        time.sleep(LOOK_S)
    bench.await_ended("wait", runs, 0)
    memory = memory or measures.memory()
    provider = memory.pop("sandbox", 0.0)
    seconds = float(bench.row(_SPAN, "wait")[0] or "inf")
    used = {name: round((s - before.get(name, 0.0)) * 1000 / runs, 2) for name, s in measures.cpu().items()}
    return Waiting(runs, each_s, seconds, sum(memory.values()), provider, most, sessions, busy, oldest, used)


def throttled(bench: Bench, runs: int, fault_s: float, recover_s: float) -> Faulty:
    """Have the provider answer 429 for a while."""

    def begin() -> None:
        bench.sandbox.post("/models/faults", {"kind": "status", "status": 429, "retry_after_s": 1})

    return _faulty(bench, "429, Retry-After 1 s", runs, fault_s, recover_s, begin)


def slow(bench: Bench, runs: int, fault_s: float, recover_s: float) -> Faulty:
    """Have the provider take ten times as long for a while."""
    told = f"p99 {SLOW['p99']:g} s instead of {QUICK['p99']:g} s"
    return _faulty(bench, told, runs, fault_s, recover_s, lambda: bench.script(SLOW))


def _faulty(
    bench: Bench, fault: str, runs: int, fault_s: float, recover_s: float, begin: Callable[[], object]
) -> Faulty:
    bench.script(QUICK)
    name = fault.split(",", maxsplit=1)[0].replace(" ", "")
    with bench.one_by_one(f"before{name}", "beside") as sent:  # what the same load costs them without a fault
        bench.enqueue(f"well{name}", WORKS, runs)
        bench.await_ended(f"well{name}", runs, recover_s)
    left = bench.await_ended(f"before{name}", sent[0], recover_s)
    asked = len(bench.requests(WORKS))
    begin()
    with bench.one_by_one(f"beside{name}", "beside") as sent:
        began = time.monotonic()
        bench.enqueue(f"hit{name}", WORKS, runs)
        while time.monotonic() < began + fault_s:
            time.sleep(LOOK_S)
        bench.sandbox.clear_faults()
        bench.script(QUICK)
        over = bench.now()
        bench.await_ended(f"hit{name}", runs, recover_s)
    left += bench.await_ended(f"beside{name}", sent[0], recover_s)
    turns, completed, deferrals, first, last, meanwhile = bench.row(_TOLD, over, over, f"hit{name}")
    met = bench.requests(WORKS)[asked:]
    return Faulty(
        fault=fault,
        runs=runs,
        fault_s=fault_s,
        completed=completed,
        turns=turns,
        requests=len(met),
        refused=sum(one.outcome == "refused" for one in met),
        left=sum(one.outcome == "left" for one in met),
        meanwhile=meanwhile,
        first_s=(first - over).total_seconds() if first else float("inf"),
        all_s=max(0.0, (last - over).total_seconds()) if last else float("inf"),
        deferrals=deferrals,
        beside=bench.fared(f"before{name}", f"beside{name}", left),
    )
