"""Strikes: each does what it says to real processes and wires, waits for nothing, and ends when it must."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from fencepost.errors import FaultInjected
from fencepost.testing import FAULTS, Faults
from fencepost_ops import chaos_strikes, chaos_takeovers
from fencepost_ops.chaos_plan import PRODUCER, Arm, Doze, Foul, HostDeath, Jump, Loss, Shut
from fencepost_ops.chaos_processes import descendants, stopped
from fencepost_ops.chaos_strikes import COMPANY_WITHIN_S, PATIENCE_S, Strikes
from fencepost_ops.chaos_takeovers import Takeovers
from fencepost_ops.demo_plan import Kill
from fencepost_ops.weather import Proxy
from tests.awaiting import until

HOST = ["sh", "-c", "sleep 600 & wait"]  # a process with a pulse


class FakeReader:
    """A ledger in which these processes have work in hand."""

    def __init__(self) -> None:
        self.busy: list[int] = []
        self.at_work: list[int] = []

    def execute(self, statement: str, values: Any) -> Any:
        pids = {chaos_strikes.BUSY: self.busy, chaos_strikes.AT_WORK: self.at_work}
        self.rows: list[Any] = [(pid,) for pid in pids.get(statement, [])]
        if statement == chaos_takeovers.HELD and values[0] in self.busy:
            self.rows = [(uuid4(), None, 1, 1, "t")]
        return self

    def fetchall(self) -> list[Any]:
        return self.rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


class FakeFleet:
    """Two real processes that do nothing, a real wire, and what else it was asked for."""

    def __init__(self) -> None:
        self.children = {f"planner-{n}": subprocess.Popen(HOST, start_new_session=True) for n in (1, 2)}
        self.wire = Proxy()
        self.wires = {"redis": self.wire}
        self.lost: list[str] = []
        self.ahead: list[float] = []
        self.shut_out: list[bool] = []

    def pids(self, role: str | None = None) -> dict[str, int]:
        alive = {name: child.pid for name, child in self.children.items() if child.poll() is None}
        return alive if role in (None, "planner") else {}

    def lose(self, fault: str) -> None:
        self.lost.append(fault)

    def move_clock(self, ahead_s: float) -> None:
        self.ahead.append(ahead_s)

    def shut(self, *, principal: bool) -> Callable[[], object]:
        self.shut_out.append(principal)
        return lambda: self.shut_out.remove(principal)

    def close(self) -> None:
        for child in self.children.values():
            with suppress(ProcessLookupError):  # nothing is left of its group
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self.wire.close()


class World:
    def __init__(self, folder: Path) -> None:
        self.fleet = FakeFleet()
        self.reader = FakeReader()
        self.reader.at_work = [child.pid for child in self.fleet.children.values()]
        self.said: list[str] = []
        takeovers = Takeovers(self.reader)  # type: ignore[arg-type]
        self.strikes = Strikes(self.fleet, takeovers, folder, self.said.append)

    @property
    def first(self) -> int:
        return min(child.pid for child in self.fleet.children.values())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.strikes.calm()
    made.fleet.close()


def test_a_kill_waits_a_while_for_a_busy_process(world: World) -> None:
    assert not world.strikes.strike(Kill("planner"), waited_s=PATIENCE_S - 0.1)
    busy = world.fleet.children["planner-2"]
    world.reader.busy = [busy.pid]
    assert world.strikes.strike(Kill("planner"), waited_s=0)
    assert busy.wait() == -signal.SIGKILL
    assert world.strikes.strike(Kill("planner"))  # whoever there is
    until("both are dead", lambda: world.fleet.pids() == {})
    assert not world.strikes.strike(Kill("planner"))
    assert not world.strikes.strike(Kill("relay"))
    assert world.strikes.done == {"kill": 2}


def test_strikes_at_work_in_hand_are_counted_by_themselves(world: World) -> None:
    world.reader.busy = [world.fleet.children["planner-2"].pid]
    assert world.strikes.strike(Doze("planner", host=False, for_s=600))
    assert world.strikes.strike(Doze("planner", host=False, for_s=600))
    assert world.strikes.done == {"freeze": 2}
    assert world.strikes.in_hand == {"freeze": 1}


def test_a_kill_waits_longer_for_another_of_the_role_to_be_at_work(world: World) -> None:
    first, second = world.reader.at_work
    world.reader.busy, world.reader.at_work = [first], [first]
    assert not world.strikes.strike(Kill("planner"), waited_s=COMPANY_WITHIN_S - 0.1)
    world.reader.at_work = [first, second]
    assert world.strikes.strike(Kill("planner"), waited_s=0)
    until("it is dead", lambda: len(world.fleet.pids()) == 1)
    world.reader.busy = [second]
    assert not world.strikes.strike(Kill("planner"), waited_s=COMPANY_WITHIN_S - 0.1)
    assert world.strikes.strike(Kill("planner"), waited_s=COMPANY_WITHIN_S)


def test_who_was_always_alone_is_killed_all_the_same(world: World) -> None:
    only = world.fleet.children.pop("planner-1")
    world.fleet.children, other = {"planner-1": only}, world.fleet.children
    world.reader.busy = [only.pid]
    assert world.strikes.strike(Kill("planner"), waited_s=0)
    world.fleet.children |= other


def test_a_death_of_a_host_takes_the_pulse_with_it(world: World) -> None:
    pid = world.first
    until("a pulse", lambda: descendants(pid))
    (pulse,) = descendants(pid)
    assert world.strikes.strike(HostDeath("planner"))
    until("the pulse is gone", lambda: not Path(f"/proc/{pulse}").exists() or _zombie(pulse))
    until("the worker too", lambda: pid not in world.fleet.pids().values())


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_frozen_process_is_woken_in_time_and_not_struck_meanwhile(world: World) -> None:
    assert world.strikes.strike(Doze("planner", host=False, for_s=0.0))
    until("a frozen process", lambda: stopped(world.first))
    assert world.strikes.strike(Doze("planner", host=False, for_s=600))
    assert not world.strikes.strike(Kill("planner"))  # both are asleep
    assert not world.strikes.look()
    assert not stopped(world.first)
    other = world.fleet.children["planner-2"].pid
    until("the other one frozen", lambda: stopped(other))
    world.strikes.calm()
    assert not stopped(other)
    assert world.strikes.look()


class Away(FakeReader):
    """A ledger whose Postgres has gone for good."""

    def execute(self, statement: str, _values: Any) -> Any:
        raise psycopg.OperationalError("away")


def test_whoever_sleeps_is_woken_though_postgres_has_gone_for_good(world: World) -> None:
    for _ in range(2):
        assert world.strikes.strike(Doze("planner", host=False, for_s=600))
    pids = list(world.fleet.pids().values())
    until("both asleep", lambda: all(map(stopped, pids)))
    for strike in (1, 2):
        world.strikes.takeovers.struck("freeze", [(uuid4(), None, strike, 1, "t")])
    world.strikes.takeovers.reader = Away()  # type: ignore[assignment]
    world.strikes.calm()
    until("nobody asleep", lambda: not any(map(stopped, pids)))


@pytest.mark.parametrize("host", [False, True])
def test_whoever_sleeps_is_woken_though_the_strike_was_cut_short(
    host: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = world.first
    until("a pulse", lambda: descendants(pid))
    everybody = [pid, *descendants(pid)] if host else [pid]

    def cut_short(*_: Any) -> int:
        until("asleep", lambda: all(map(stopped, everybody)))
        raise KeyboardInterrupt

    monkeypatch.setattr(Takeovers, "struck", cut_short)
    with pytest.raises(KeyboardInterrupt):
        world.strikes.strike(Doze("planner", host=host, for_s=600))
    world.strikes.calm()
    until("nobody asleep", lambda: not any(map(stopped, everybody)))


def test_the_pulse_of_one_that_had_just_died_does_not_go_on_sleeping(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = world.first
    until("a pulse", lambda: descendants(pid))
    (pulse,) = descendants(pid)

    def held(*_: Any) -> tuple[()]:
        child = next(one for one in world.fleet.children.values() if one.pid == pid)
        child.kill()
        child.wait()
        return ()

    monkeypatch.setattr(Takeovers, "held", held)
    assert not world.strikes.strike(Doze("planner", host=True, for_s=600))
    until("its pulse awake", lambda: not stopped(pulse))
    assert world.strikes.look()
    assert world.strikes.done == {}


def test_who_was_paused_by_a_fault_point_is_found_and_woken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_strikes, "PAUSED_S", 0.0)
    os.kill(world.first, signal.SIGSTOP)
    until("a paused process", lambda: stopped(world.first))
    world.strikes.look()
    until("a woken process", lambda: not stopped(world.first))


@pytest.mark.parametrize(
    ("foul", "switches"),
    [
        (Foul("partition", "redis", 600), {"refusing": True}),
        (Foul("partition", "redis", 600, silent=True), {"hanging": True}),
        (Foul("slow", "redis", 600, latency_s=0.2), {"latency_s": 0.2}),
        (Foul("drop-response", "redis", 600), {"swallowing": True}),
    ],
)
def test_a_wire_has_one_weather_at_a_time_and_a_clear_sky_afterwards(
    foul: Foul, switches: dict[str, Any], world: World
) -> None:
    fair = {"refusing": False, "hanging": False, "latency_s": 0.0, "swallowing": False}

    def now() -> dict[str, Any]:
        return {name: getattr(world.fleet.wire, name) for name in fair}

    assert world.strikes.strike(foul)
    assert now() == fair | switches
    assert not world.strikes.strike(Foul("slow", "redis", 1))
    assert not world.strikes.look()
    world.strikes.calm()
    assert now() == fair
    assert world.strikes.done == {foul.fault: 1}


def test_who_is_shut_out_is_let_in_again(world: World) -> None:
    assert world.strikes.strike(Shut(principal=True, for_s=600))
    assert not world.strikes.strike(Shut(principal=True, for_s=1))
    assert world.strikes.strike(Shut(principal=False, for_s=0))
    assert world.fleet.shut_out == [True, False]
    assert world.strikes.done["authority"] == 2
    world.strikes.look()
    assert world.fleet.shut_out == [True]
    world.strikes.calm()
    assert world.fleet.shut_out == []


def test_the_clock_jumps_and_is_set_back(world: World) -> None:
    assert world.strikes.strike(Jump(12.0, 600))
    assert not world.strikes.strike(Jump(3.0, 1))
    world.strikes.calm()
    assert world.fleet.ahead == [12.0, 0]


def test_a_server_is_lost_as_the_fault_is_named(world: World) -> None:
    assert world.strikes.strike(Loss("postgres-restart"))
    assert (world.fleet.lost, world.strikes.done) == (["postgres-restart"], {"postgres-restart": 1})


def test_what_has_not_fired_stays_armed_and_what_has_may_fire_again(world: World, tmp_path: Path) -> None:
    def armed() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((tmp_path / "faults.planner").read_text())
        return found

    world.strikes.strike(Arm("planner", "planner.after_claim=crash"))
    world.strikes.strike(Arm("planner", "planner.after_model=pause"))
    assert armed()["spec"] == "planner.after_claim=crash,planner.after_model=pause"
    (Path(armed()["once"]) / "planner.after_claim.crash.1").touch()
    assert world.strikes.fired == ["planner: planner.after_claim.crash.1"]
    before = armed()["once"]
    world.strikes.strike(Arm("planner", "planner.after_claim=crash"))
    assert armed()["spec"] == "planner.after_model=pause,planner.after_claim=crash"
    assert armed()["once"] != before
    world.strikes.calm()
    assert not (tmp_path / "faults.planner").exists()


def test_a_fault_point_is_injected_when_it_fires_and_the_same_one_twice_fires_twice(
    world: World, tmp_path: Path
) -> None:
    for _ in range(2):
        assert world.strikes.strike(Arm("planner", "planner.after_claim=crash"))
    assert (world.strikes.armed, world.strikes.fired, world.strikes.injected) == (2, [], {"fault-point": 0})
    armed = json.loads((tmp_path / "faults.planner").read_text())
    sent: list[int] = []
    process = Faults(sent.append)
    process.arm(armed["spec"], armed["once"])
    for _ in range(3):
        process.passed("planner.after_claim")
    assert sent == [signal.SIGKILL] * 2
    assert world.strikes.injected == {"fault-point": 2}


def test_who_enqueues_is_armed_in_this_process_and_what_has_not_fired_stays_armed(world: World) -> None:
    assert world.strikes.strike(Arm(PRODUCER, "enqueue.before_commit=error"))
    assert world.strikes.strike(Arm(PRODUCER, "enqueue.after_commit=error"))
    assert FAULTS.armed
    assert world.strikes.fired == []
    for point in ("enqueue.before_commit", "enqueue.after_commit"):
        with pytest.raises(FaultInjected):
            FAULTS.passed(point)
    assert world.strikes.fired == [
        "producer: enqueue.after_commit.error.1",
        "producer: enqueue.before_commit.error.1",
    ]
    assert world.strikes.injected == {"fault-point": 2}
    world.strikes.calm()
    assert not FAULTS.armed
