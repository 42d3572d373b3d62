"""A worker that lives but does not work is found and replaced; one that is told to stop costs nothing."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from fencepost.budgets import Budget
from fencepost.tools import OnStop
from fencepost_ops.fleet import Fleet, FleetOptions
from fencepost_ops.weather import Proxy
from tests.acceptance.books import read_deeds
from tests.acceptance.conftest import HOSTILE, checked
from tests.acceptance.stage import ROLES, Stage, staged, step
from tests.acceptance.weather import LONG, long_only, patient
from tests.awaiting import until

pytestmark = patient

_numbers = itertools.count(1)

SCALE = {"dispatcher": 3}
DEAF_S, STALL_S, DRAIN_S = 2, 3, 2
LOST = 3 if LONG else 2
"""How often in a row a call may lose its worker."""
ENV = {
    "FENCEPOST_APP": "tests.acceptance.liveness_app:app",
    "FENCEPOST_REPUBLISH_S": "0.3",
    "FENCEPOST_POOL_SIZE": "5",
    "FENCEPOST_TAKEOVER_LIMIT": str(LOST),
}
ENV_OF = {
    # Its broker connections never find out by themselves that they are dead.
    "compensator": {"FENCEPOST_DEAF_S": str(DEAF_S), "FENCEPOST_BROKER_TIMEOUT_S": "600"},
    "reconciler": {"FENCEPOST_STALL_S": str(STALL_S)},
    "dispatcher-1": {"FENCEPOST_SLOTS": "2"},
}
ROUNDS = 5 if LONG else 1
"""How often every worker is restarted."""
DEATHS = 5 if LONG else 1
"""How many deaths of its workers a run is left alone for; five it may have."""
WASTE = ("ToolOutcomeMarkedUnknown", "ModelOutcomeUnknown", "ToolAttemptFailed")
RESTARTS_S = 90.0
"""For interpreters and applications to start, after whatever pause the group makes, on a crowded machine."""


class WiredFleet(Fleet):
    """Its compensator speaks to the broker over a wire that can fall silent."""

    def __init__(self, options: FleetOptions) -> None:
        super().__init__(options)
        self.wire = Proxy(0)

    def add(self, name: str, argv: list[str], role: str, env: Mapping[str, str] | None = None) -> None:
        if name == "compensator":
            self.wire.target = self.valkey.port
            url = self.valkey.url().replace(f":{self.valkey.port}/", f":{self.wire.port}/")
            env = {**(env or {}), "FENCEPOST_REDIS_URL": url}
        super().add(name, argv, role, env)

    def stop(self) -> None:
        super().stop()
        self.wire.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("liveness")
    health = {
        name: {"FENCEPOST_HEALTH_FILE": str(folder / f"{name}.health")} for name in ("relay", "planner")
    }
    options: dict[str, Any] = {"kind": WiredFleet, "scale": SCALE, "env_of": {**ENV_OF, **health}}
    with staged(folder, env={**ENV, **HOSTILE}, **options) as stage:
        yield stage
        assert stage.verdict(whole=True) == []


@pytest.fixture
def stage(fleet: Stage) -> Iterator[Stage]:
    back(fleet)
    yield from checked(fleet)


def back(stage: Stage) -> None:
    """Await that every process is at work again."""
    until("all workers", stage.whole, RESTARTS_S)


def said(stage: Stage) -> str:
    return (stage.folder / "fleet.log").read_text(errors="replace")


def replaced(stage: Stage, name: str, pid: int) -> bool:
    """Whether another process of that name is at work."""
    return stage.fleet.pids().get(name) not in {None, pid} and stage.has_stamped(name)


def to_offset(stage: Stage) -> tuple[UUID, str]:
    """A run with an effect that its compensator has to offset, now."""
    reference = f"live-{next(_numbers)}"
    run = stage.send(
        [step("bank.debit", "one", reference=reference)],
        [step("local.do", "two", reference=reference, then="refuse")],
    )
    return run, reference


def black_hole(stage: Stage) -> None:
    """Every connection it has falls silent, without an end; new ones work."""
    assert isinstance(stage.fleet, WiredFleet)
    assert stage.fleet.wire.black_hole() > 0


def stick(stage: Stage) -> None:
    """The thread that speaks to the broker does not return, and hears no signal."""
    stage.fleet.signal("compensator", signal.SIGUSR2)


@pytest.mark.parametrize("deafen", [pytest.param(black_hole, marks=long_only), stick])
def test_a_deaf_consumer_is_found_and_replaced(stage: Stage, deafen: Callable[[Stage], None]) -> None:
    run, _ = to_offset(stage)
    assert stage.ended(run) == ["STOPPED"]  # it hears
    pid = stage.fleet.pids()["compensator"]
    before = said(stage)
    deafen(stage)
    run, reference = to_offset(stage)
    until("a replaced compensator", partial(replaced, stage, "compensator", pid))
    told = said(stage)[len(before) :]
    assert f"messages have been waiting for {DEAF_S} s and none was taken" in told
    assert "ended: exit code 1" in told
    assert stage.ended(run) == ["STOPPED"]
    assert stage.effects(reference) == ["debit", "refund"]


def test_a_frozen_worker_is_killed_and_replaced_within_its_time(stage: Stage) -> None:
    pid = stage.fleet.signal("reconciler", signal.SIGSTOP)
    began = time.monotonic()
    until("a replaced reconciler", partial(replaced, stage, "reconciler", pid))
    assert time.monotonic() - began >= STALL_S - 1
    assert f"worker {pid} has stood still for {STALL_S} s" in said(stage)
    assert "killed by SIGKILL" in said(stage)


@pytest.mark.parametrize("name", ["planner", "relay"])
def test_a_container_is_told_who_is_well(stage: Stage, name: str) -> None:
    path = str(stage.folder / f"{name}.health")
    command = [sys.executable, "-m", "fencepost.health", "--within", "2"]

    def ask() -> int:
        return subprocess.run(
            command, env={**os.environ, "FENCEPOST_HEALTH_FILE": path}, stdout=subprocess.DEVNULL, check=False
        ).returncode

    until(f"a healthy {name}", lambda: ask() == 0)
    stage.fleet.signal(name, signal.SIGSTOP)
    until(f"an unhealthy {name}", lambda: ask() == 1)
    stage.wake_all()
    until(f"a healthy {name}", lambda: ask() == 0)


def test_runs_that_kill_who_touches_them_are_parked_with_their_reason(stage: Stage) -> None:
    """Wherever an application's code may run under a claim: in a parse, a lookup, a compensation."""
    refs = {name: f"live-{next(_numbers)}" for name in ("parse", "lookup", "offset")}
    stage.sandbox.fault("drop_after_commit", reference=refs["lookup"], nth=1)
    runs = {
        name: stage.send(
            [step(f"dies.{name}", name, reference=reference)],
            [step("local.do", "stop", reference=reference, then="refuse")],
        )
        for name, reference in refs.items()
    }
    for name in ("parse", "lookup"):
        stage.until_state(runs[name], name, "NEEDS_REPAIR", within_s=RESTARTS_S)
        (parked,) = stage.events(runs[name], "RepairRequested")
        assert f"its worker was lost {LOST} times in a row" in parked.body
    assert stage.ended(runs["offset"], within_s=RESTARTS_S) == ["STOPPED"]  # and says what was not offset
    assert [stage.effects(reference) for reference in refs.values()] == [["debit"]] * 3
    # Nothing of them is left that kills anybody.
    back(stage)
    healthy = [stage.order(f"live-{next(_numbers)}") for _ in range(2)]
    assert stage.ended(*healthy) == ["COMPLETED"] * 2
    for name in ("parse", "lookup"):
        stage.cancel(runs[name])
        call = stage.calls(runs[name])[name]
        (effect,) = stage.book.effects("wallet", key=call.operation)
        with stage.client("operator") as client:
            client.repair(call.id, "SUCCEEDED", by="person:tester", reason="it did", receipt=effect.id)
    assert stage.ended(runs["parse"], runs["lookup"]) == ["STOPPED", "STOPPED"]


def test_a_run_that_kills_its_workers_before_any_claim_is_counted_and_cancelled(stage: Stage) -> None:
    """Others flow, through the same three dispatchers."""
    reference = f"live-{next(_numbers)}"
    run = stage.send([step("dies.request", "c", reference=reference)])
    failures = "SELECT failures FROM fencepost.outbox WHERE run = %s AND kind = 'call'"
    until("deaths that count", lambda: (stage.value(failures, run) or 0) >= DEATHS, RESTARTS_S)
    row = "SELECT error FROM fencepost.outbox WHERE run = %s AND kind = 'call' AND (dead_at IS NOT NULL) = %s"
    assert "its worker died in code that runs before the claim" in stage.value(row, run, LONG)
    healthy = [stage.order(f"live-{next(_numbers)}") for _ in range(2)]
    assert stage.ended(*healthy, within_s=RESTARTS_S) == ["COMPLETED"] * 2
    stage.cancel(run)
    assert stage.ended(run) == ["STOPPED"]
    assert stage.requests(reference) == 0
    back(stage)


@long_only
def test_rolling_restarts_use_up_no_attempts(stage: Stage) -> None:
    """Under load, slots full and messages queued in processes: what is in flight ends, the rest goes back."""
    enough = stage.folder / "enough"
    stage.sandbox.fault("delay_before", path="/wallet/debits", reference_prefix="roll-", delay_s=0.4)
    budget = Budget(turns=1000, calls=2000, attempts=2000)
    given = [{"reference": f"roll-{next(_numbers)}"} for _ in range(8)]
    runs = [stage._enqueue("until_told", each, "", 300, OnStop.COMPENSATE, budget) for each in given]
    try:
        for _ in range(ROUNDS):
            restart_all(stage)
    finally:
        enough.touch()
    assert stage.ended(within_s=60) == ["COMPLETED"] * len(runs)
    enough.unlink()
    for run in runs:
        events = stage.events(run)
        assert Counter(event.type for event in events if event.type in WASTE) == {}
        assert max(event.attempt or 0 for event in events) == 1
        turns = len(stage.events(run, "ModelResponseRecorded"))
        claims = Counter(
            "run" if event.call is None else "call" for event in events if event.type == "LeaseAcquired"
        )
        assert claims == {"run": turns + 1, "call": 2 * turns}
    assert len(stage.events(runs[0], "ModelResponseRecorded")) >= ROUNDS


def restart_all(stage: Stage) -> None:
    """One process after the other, as a deploy does; each drains before the next is told."""
    before = stage.fleet.pids()
    for role in ROLES:
        for name in stage.fleet.names(role):
            until(f"{name} at work", partial(stage.has_stamped, name))
            stage.fleet.signal(name, signal.SIGTERM)
            until(f"{name} gone", lambda name=name: stage.fleet.pids().get(name) != before[name])  # type: ignore[misc]
    back(stage)


@pytest.mark.parametrize("tool", ["fork.thread", "fork.loop"])
def test_a_fork_that_comes_back_from_a_tool_repeats_nobody(stage: Stage, tool: str) -> None:
    """Many items of a process are in flight when it forks: HTTP calls, and tools whose effect is to come."""
    name = f"fork-{next(_numbers)}"
    stage.sandbox.fault("delay_before", reference_prefix=name, delay_s=0.8)
    stage.fleet.signal("dispatcher-1", signal.SIGSTOP)  # it has but two slots: let others have all of it
    late = [step("late.do", f"late-{n}", reference=f"{name}-{n}", hundredths=80) for n in range(9)]
    debits = [step("bank.debit", f"debit-{n}", reference=f"{name}-{n}") for n in range(9)]
    forks = [step(tool, f"fork-{n}", reference=f"{name}-f{n}", hundredths=10) for n in range(3)]
    run = stage.send([*late, *debits, *forks])
    assert stage.ended(run) == ["COMPLETED"]
    calls = stage.calls(run)
    assert {label: call.attempts for label, call in calls.items()} == dict.fromkeys(calls, 1)
    deeds = Counter(deed.key for deed in read_deeds(stage.folder / "deeds"))
    assert [deeds[calls[each["call_id"]].operation or ""] for each in [*late, *forks]] == [1] * 12
    assert [stage.requests(f"{name}-{n}") for n in range(9)] == [1] * 9
    assert "forked came back" in said(stage)
    until("no child but the pulse", lambda: max(map(children, stage.pids("dispatcher"))) <= 1)
    # Not one answer went to a child instead.
    assert stage.events(run, "ToolOutcomeMarkedUnknown") == []


def children(pid: int) -> int:
    """How many processes have this one for a parent, those that ended and wait for it left out."""
    found = subprocess.run(
        ["ps", "-o", "stat=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return sum(not line.startswith("Z") for line in found.stdout.split())


def test_no_session_of_postgres_is_held_across_calls(stage: Stage) -> None:
    """Twenty slow calls in a process whose pool holds five: everything else is done meanwhile (R8)."""
    name = f"slow-{next(_numbers)}"
    stage.fleet.signal("dispatcher-1", signal.SIGSTOP)  # it has but two slots
    stage.sandbox.fault("delay_before", reference_prefix=name, delay_s=3)
    slow = stage.send([step("bank.debit", f"debit-{n}", reference=f"{name}-{n}") for n in range(20)])
    in_flight = "SELECT count(*) FROM fencepost.calls WHERE run = %s AND state = 'DISPATCHING'"
    until("calls in flight", lambda: stage.value(in_flight, slow) == 20)
    busy = "SELECT max(busy) FROM fencepost.workers WHERE ended_at IS NULL"
    until("all of them in one process, by its next stamp", lambda: stage.value(busy) == 20)
    held = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencepost-dispatcher'"
        " AND xact_start IS NOT NULL"
    )
    with stage.fleet.connect("reader") as reader:
        until("no session in a transaction", lambda: reader.execute(held).fetchone() == (0,))
    quick = stage.send([step("local.do", "quick", reference=name)])
    assert stage.ended(quick) == ["COMPLETED"]
    assert stage.value(in_flight, slow) == 20
    assert stage.ended(slow) == ["COMPLETED"]


def test_a_dead_broker_and_a_dead_ledger_are_outlived(stage: Stage) -> None:
    """Both are gone until every worker has noticed; nobody restarts anybody by hand."""
    pids = stage.fleet.pids()
    runs = [stage.order(f"live-{next(_numbers)}") for _ in range(5)]
    os.kill(stage.fleet.valkey.pid, signal.SIGKILL)
    os.kill(stage.fleet.postgres.pid, signal.SIGQUIT)
    before = len(said(stage))
    until("workers that notice", lambda: said(stage)[before:].count("cannot stamp") >= len(pids) - 1)
    assert set(stage.fleet.mend()) == {"Postgres", "Valkey"}
    assert stage.ended(*runs, within_s=60) == ["COMPLETED"] * 5
    back(stage)


@long_only
def test_what_takes_longer_than_a_drain_is_taken_over_and_settled_by_its_contract(stage: Stage) -> None:
    worker = [sys.executable, "-m", "fencepost_workers", "dispatcher", "hurried"]
    stage.fleet.add("hurried", worker, "worker", {"FENCEPOST_DRAIN_S": str(DRAIN_S)})
    until("the hurried one at work", partial(stage.has_stamped, "hurried"), RESTARTS_S)
    for other in stage.fleet.names("dispatcher"):
        stage.fleet.signal(other, signal.SIGSTOP)
    reference = f"live-{next(_numbers)}"
    run = stage.send([step("patient.do", "slow", reference=reference, hundredths=800)])
    stage.until_event(run, "ToolAttemptStarted")
    holder = stage.holder(run, "slow")
    assert stage.fleet.signal("hurried", signal.SIGTERM) == holder
    draining = "SELECT draining FROM fencepost.workers WHERE pid = %s AND ended_at IS NULL"
    until("a drain that is seen", lambda: stage.value(draining, holder))
    assert stage.ended(run) == ["COMPLETED"]
    taken = stage.until_event(run, "ToolOutcomeMarkedUnknown")
    started, _ = stage.events(run, "ToolAttemptStarted")
    assert (taken.recorded_at - started.recorded_at).total_seconds() < 8  # it did not wait for the tool
    assert [e.attempt for e in stage.events(run, "ToolAttemptStarted")] == [1, 2]
    assert stage.deeds_of(stage.calls(run)["slow"]) == 1
