"""A fleet as the acceptance tests see it: send runs, arm faults, freeze and wake processes, await the end."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from fencepost import Client
from fencepost.budgets import Budget
from fencepost.events import Event
from fencepost.ledger import connect, listings
from fencepost.ledger.listings import History
from fencepost.subjects import Call
from fencepost.testing import arm_by_file, parse_faults
from fencepost.tools import OnStop
from fencepost_ops.checker import TOLERANCE, check
from fencepost_ops.fleet import Fleet, FleetOptions
from fencepost_ops.local import TemporaryFolder
from fencepost_ops.sandbox.book import Book
from fencepost_ops.sandbox.process import SandboxProcess
from tests.acceptance.books import Books, read_deeds
from tests.awaiting import until
from tests.databases import Kept, in_memory

__all__ = ["ENDS", "ROLES", "Armed", "Stage", "Step", "is_frozen", "staged", "step", "until"]

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 30.0
ROLES = ("planner", "dispatcher", "reconciler", "compensator")
TIMES = {
    "FENCEPOST_REPUBLISH_S": "1",
    "FENCEPOST_WORKER_TTL_S": "2",
    "FENCEPOST_COMPENSATION_S": "2",
    "FENCEPOST_PLANNER_GRACE_S": "1",
    "FENCEPOST_TAKEOVER_LIMIT": "3",
}

ENDS = ("COMPLETED", "STOPPED")
Step = dict[str, Any]


def is_frozen(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state == "T"


def step(tool: str, call_id: str = "", /, **arguments: Any) -> Step:
    """One step for the planner `steps`."""
    return {"tool": tool, "call_id": call_id or tool, "arguments": arguments}


@dataclass(frozen=True)
class Armed:
    """Faults armed in the processes of one role; each fires once among all of them."""

    role: str
    once: Path
    markers: tuple[str, ...]

    @property
    def fired(self) -> bool:
        return all((self.once / marker).exists() for marker in self.markers)


@dataclass
class Stage:
    """One fleet and the folder through which its application is told what to do."""

    fleet: Fleet
    folder: Path
    tenant: str = "t"
    sent: list[UUID] = field(default_factory=list)
    """The runs of the current test."""
    tolerance: timedelta = TOLERANCE
    """How far the services' clock may be behind the ledger's."""

    # -- runs --

    def send(
        self,
        *turns: Sequence[Step],
        key: str = "",
        deadline_s: float = 60,
        on_stop: OnStop = OnStop.COMPENSATE,
        budget: Budget | None = None,
        **more: Any,
    ) -> UUID:
        """Enqueue a run of the planner `steps`."""
        return self._enqueue("steps", {"turns": turns, **more}, key, deadline_s, on_stop, budget)

    def order(self, reference: str, *, key: str = "", deadline_s: float = 60) -> UUID:
        """Enqueue an order of the example: reserve, debit, ship."""
        amount = {"currency": "EUR", "amount_minor": 100, "scale": 2}
        goods = {"order_id": reference, "sku": "apple", "quantity": 1, "account": "acc", "address_id": "a-1"}
        return self._enqueue("fulfil", {**goods, "amount": amount}, key, deadline_s, OnStop.COMPENSATE, None)

    def enqueue(
        self, planner: str, given: Any, *, key: str = "", deadline_s: float = 60, budget: Budget | None = None
    ) -> UUID:
        """Enqueue a run of any planner."""
        return self._enqueue(planner, given, key, deadline_s, OnStop.COMPENSATE, budget)

    def _enqueue(
        self, planner: str, given: Any, key: str, deadline_s: float, on_stop: OnStop, budget: Budget | None
    ) -> UUID:
        with self.client("producer") as client:
            sent = client.enqueue(
                planner,
                given,
                run_key=key or uuid.uuid4().hex,
                tenant=self.tenant,
                principal="svc:test",
                deadline=timedelta(seconds=deadline_s),
                on_stop=on_stop,
                budget=budget,
            )
        if sent.run_id not in self.sent:
            self.sent.append(sent.run_id)
        return sent.run_id

    @contextmanager
    def client(self, role: str) -> Iterator[Client]:
        broker = self.fleet.env(role)["FENCEPOST_REDIS_URL"]  # over a wire, where the fleet has one
        with Client(self.fleet.database.dsns[role], broker) as client:
            yield client

    def cancel(self, run: UUID) -> None:
        with self.client("operator") as client:
            client.cancel(run, by="person:tester", reason="the test says so")

    # -- what the ledger says --

    @cached_property
    def kept(self) -> Kept:
        return Kept(lambda: connect.connect(self.fleet.database.dsns["reader"], "acceptance"))

    @contextmanager
    def reader(self) -> Iterator[connect.Connection]:
        with self.kept.session() as session:
            yield session

    def history(self, run: UUID) -> History:
        with self.reader() as connection:
            found = listings.history(connection, self.tenant, run)
        assert found is not None
        return found

    def status(self, run: UUID) -> str:
        return str(self.value("SELECT status FROM fencepost.runs WHERE id = %s", run))

    def value(self, statement: str, *values: Any) -> Any:
        with self.reader() as connection:
            row = connection.execute(statement, list(values)).fetchone()
        return None if row is None else row[0]

    def calls(self, run: UUID) -> dict[str, Call]:
        """The calls of a run by label."""
        return {call.label: call for call in self.history(run).calls}

    def call(self, run: UUID, label: str) -> Call:
        return until(f"a call {label}", lambda: self.calls(run).get(label))

    def events(self, run: UUID, *types: str) -> list[Event]:
        return [event for event in self.history(run).events if not types or event.type in types]

    def until_state(self, run: UUID, label: str, *states: str, within_s: float = WITHIN_S) -> Call:
        """Await a call's state."""

        def look() -> Call | None:
            call = self.calls(run).get(label)
            return call if call is not None and call.state in states else None

        return until(f"call {label} {' or '.join(states)}", look, within_s)

    def until_held_up(self, run: UUID) -> None:
        """Await that a call was refused for now, or not even sent because others were."""
        kinds = ("ToolAttemptFailed", "DispatchDeferred")
        until(f"a call of run {run} that is held up", lambda: self.events(run, *kinds), WITHIN_S)

    def until_event(self, run: UUID, kind: str, within_s: float = WITHIN_S, **body: Any) -> Event:
        """Await an event whose body holds these values."""

        def look() -> Event | None:
            found = (e for e in self.events(run, kind) if body.items() <= e.data.items())
            return next(found, None)

        return until(f"an event {kind} with {body}", look, within_s)

    def ended(self, *runs: UUID, within_s: float = WITHIN_S) -> list[str]:
        """Await the end of these runs; their statuses."""
        wanted = list(runs or self.sent)
        statement = "SELECT count(*) FROM fencepost.runs WHERE id = ANY(%s) AND status = ANY(%s)"

        def look() -> bool:
            return int(self.value(statement, wanted, list(ENDS))) == len(set(wanted))

        try:
            until(f"the end of {len(wanted)} runs", look, within_s)
        except AssertionError as late:
            late.add_note("\n".join(self.told(run) for run in wanted if self.status(run) not in ENDS))
            raise
        return [self.status(run) for run in wanted]

    def told(self, run: UUID) -> str:
        """A run's history as text, for a failure."""
        found = self.history(run)
        lines = [f"run {run} {found.run.status} {found.run.stop_reason} {found.run.stop_detail}"]
        lines += [f"  {e.recorded_at:%M:%S.%f} {e.type} {e.fence} {e.body[:200]}" for e in found.events]
        lines += [f"  {call}" for call in found.calls]
        lines += [f"  {row} (now {found.now})" for row in found.steps]
        return "\n".join(lines)

    # -- what the services say --

    @property
    def sandbox(self) -> SandboxProcess:
        assert self.fleet.sandbox is not None
        return self.fleet.sandbox

    @property
    def book(self) -> Book:
        return self.sandbox.book

    def effects(self, reference: str) -> list[str]:
        """The kinds of all effects under a reference, in order."""
        return [effect.kind for effect in self.book.effects() if effect.reference == reference]

    def requests(self, reference: str) -> int:
        """How many requests for an effect there were under a reference."""
        return sum(request.reference == reference for request in self.book.requests())

    def attempts_sent(self, reference: str) -> list[str]:
        """Of which attempts the requests for an effect under a reference were, in order."""
        asked = [request for request in self.book.requests() if request.reference == reference]
        return [request.headers["fencepost-attempt"] for request in asked]

    def books(self) -> Books:
        return Books(self.book, self.folder / "deeds")

    def deeds_of(self, call: Call) -> int:
        """How many effects the Python tool of a call had under its key."""
        return sum(deed.key == call.operation for deed in read_deeds(self.folder / "deeds"))

    def verdict(self, *, whole: bool = False) -> list[str]:
        """What the checker has against the runs of this test, or against everything there is."""
        runs = None if whole else self.sent
        with psycopg.connect(self.fleet.database.dsns["reader"], autocommit=True) as reader:
            report = check(reader, self.books(), settled=True, runs=runs, tolerance=self.tolerance)
        return [f"{v.invariant}: {wrong.message}" for v in report.verdicts for wrong in v.violations]

    # -- faults --

    def arm(self, role: str, spec: str) -> Armed:
        """Arm faults in all living processes of a role, relays too; each fires once, restarts included."""
        once = self.folder / "once" / uuid.uuid4().hex
        pids = list(self.fleet.pids(role).values()) if role == "relay" else self.pids(role)
        arm_by_file(self.folder / f"faults.{role}", spec, once)
        assert pids, f"no {role} is running"

        def ready() -> bool:
            living = [pid for pid in self.fleet.pids(role).values() if pid in pids and not is_frozen(pid)]
            return all((once / f"armed.{pid}").exists() for pid in living)

        until(f"{spec} armed in {role}", ready)
        return Armed(role, once, tuple(fault.marker for fault in parse_faults(spec)))

    def deny(self, *tools: str) -> None:
        """Have the authority deny these tools from now on, and nothing else."""
        fresh = self.folder / "denied.new"
        fresh.write_text("\n".join(tools))
        fresh.rename(self.folder / "denied")

    def pids(self, role: str) -> list[int]:
        """The workers of a role that have stamped themselves and live."""
        with self.reader() as connection:
            rows = connection.execute(
                "SELECT pid FROM fencepost.workers WHERE role = %s AND ended_at IS NULL", [role]
            ).fetchall()
        living = set(self.fleet.pids(role).values())
        return [pid for (pid,) in rows if pid in living]

    def has_stamped(self, name: str) -> bool:
        """Whether the process of this name is a worker that lives."""
        pid = self.fleet.pids().get(name)
        statement = "SELECT count(*) FROM fencepost.workers WHERE pid = %s AND ended_at IS NULL"
        return pid is not None and int(self.value(statement, pid)) > 0

    def holder(self, run: UUID, label: str) -> int:
        """The process whose term a call is under."""
        call = self.calls(run)[label]
        taken = [e.data for e in self.events(run, "LeaseAcquired") if e.call == call.id]
        return int(self.value("SELECT pid FROM fencepost.workers WHERE token = %s", taken[-1]["worker"]))

    def kill_holder(self, run: UUID, label: str) -> datetime:
        """Kill the process whose term a call is under; the ledger's time just before."""
        pid = self.holder(run, label)
        at: datetime = self.value("SELECT fencepost.now()")
        os.kill(pid, signal.SIGKILL)
        return at

    def whole(self) -> bool:
        """Whether every process of the fleet runs and every worker has stamped itself."""
        return all(len(self.pids(role)) == self.fleet.count(role) for role in ROLES)

    def works(self) -> bool:
        """Whether every role has at least one worker."""
        return all(self.pids(role) for role in ROLES)

    def frozen(self, role: str) -> int:
        """Await that a process of the role is stopped; its pid."""
        return until(f"a frozen {role}", lambda: next(filter(is_frozen, self.fleet.pids(role).values()), 0))

    def dying_relay(self, point: str) -> subprocess.Popen[bytes]:
        """A further relay, which dies at a point once it has rows; the others should be frozen."""
        env = {**os.environ, **self.fleet.env("relay"), "FENCEPOST_FAULT": f"{point}=crash"}
        command = [sys.executable, "-m", "fencepost_relay"]
        return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)

    def wake_all(self) -> None:
        for pid in self.fleet.pids().values():
            if is_frozen(pid):
                os.kill(pid, signal.SIGCONT)

    def move_clock(self, ahead_s: float) -> None:
        """Put the ledger's clock ahead of the machine's, or behind."""
        with self.fleet.connect("owner") as connection:
            connection.execute("UPDATE fencepost.clock SET ahead = make_interval(secs => %s)", [ahead_s])

    def calm(self) -> None:
        """Take back everything a test may have changed."""
        self.wake_all()
        self.fleet.mend()
        self.sandbox.clear_faults()
        with self.fleet.connect("owner") as connection:  # what was left alone for others is used again
            connection.execute("DELETE FROM fencepost.dependencies")
        for role in (*ROLES, "relay"):
            (self.folder / f"faults.{role}").unlink(missing_ok=True)
        (self.folder / "denied").unlink(missing_ok=True)


def fault_files(folder: Path, options: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """By process name, its environment: from where it is armed, and what `env_of` adds."""
    named = Fleet(FleetOptions(scale=options.get("scale", {})))
    found = {
        name: {"FENCEPOST_FAULT_FOLLOW": str(folder / f"faults.{role}")}
        for role in (*ROLES, "relay")
        for name in named.names(role)
    }
    return {name: {**env, **options.get("env_of", {}).get(name, {})} for name, env in found.items()}


@contextmanager
def staged(
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    kind: Callable[[FleetOptions], Fleet] = Fleet,
    **options: Any,
) -> Iterator[Stage]:
    """A fleet of the acceptance application, ready to work."""
    folder.mkdir(parents=True, exist_ok=True)
    options["env_of"] = fault_files(folder, options)
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    common = {"ACCEPTANCE_DIR": str(folder), "PYTHONPATH": path, **TIMES, **(env or {})}
    with (
        (folder / "fleet.log").open("w") as log,
        TemporaryFolder("fencepost-fleet-", parent=in_memory()) as data,
    ):
        options = {"env": common, "fsync": False, "out": log, "data": data, **options}
        asked = FleetOptions("tests.acceptance.apps:app", **options)
        with kind(asked) as fleet:
            fleet.wait_ready()
            stage = Stage(fleet, folder)
            with closing(stage.kept):
                yield stage
