"""`fencepost chaos` as anybody runs it: a fleet under every fault at once, and nothing left behind.

What is struck alone only with FENCEPOST_CHAOS=1 (Redis wiped and killed, Postgres crashed, wires that are
silent, slow, or eat answers) is in every soak.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fencepost_ops.chaos_plan import FAULTS, OWN_ONLY, WIRE_FAULTS, Foul, make_chaos
from fencepost_ops.checker import PROMISES
from tests.acceptance import upped
from tests.acceptance.upped import lives, tree
from tests.acceptance.weather import long_only
from tests.awaiting import until

ROOT = Path(__file__).resolve().parents[2]
SAYS_WITHIN_S = 240.0
RUNS, SECONDS, SEED = 120, 51, 1673  # as few seconds as have a whole host freeze
SMALL = [
    word for role in ("relay", "planner", "reconciler", "compensator") for word in ("--scale", f"{role}=1")
]
PLAN = make_chaos(SEED, RUNS, SECONDS)
SERVERS = ("redis", "ledger")


@dataclass
class Running:
    """A chaos in a process of its own, with temporary folders of its own."""

    process: subprocess.Popen[bytes]
    tmp: Path
    told: Path
    said: str = ""
    trees: set[tuple[int, str]] = field(default_factory=set)

    def read_until(self, text: str) -> None:
        """Read what it says meanwhile until it has said so."""
        assert self.process.stderr is not None
        end = time.monotonic() + SAYS_WITHIN_S
        while text not in self.said:
            ready, _, _ = select.select([self.process.stderr], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"not in {SAYS_WITHIN_S:g} s: {text}\n{self.said}"
            chunk = os.read(self.process.stderr.fileno(), 65536)
            assert chunk, f"it ended ({self.process.wait()}): {self.said}"
            self.said += chunk.decode()
            self.trees |= tree(self.process.pid)

    def ended(self) -> int:
        assert self.process.stderr is not None
        while chunk := os.read(self.process.stderr.fileno(), 65536):
            self.said += chunk.decode()
        return self.process.wait()

    def json(self) -> Any:
        return json.loads(self.told.read_text())

    def leaves_nothing(self) -> None:
        until("every process of its tree is gone", lambda: not any(map(lives, self.trees)), 60)
        until("its temporary folders are gone", lambda: not list(self.tmp.iterdir()), 60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(*options: str) -> Running:
        tmp, told = tmp_path / "tmp", tmp_path / "told.json"
        tmp.mkdir()
        env = {**os.environ, "TMPDIR": str(tmp), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "fencepost_ops.cli", "chaos", "--json", *options]
        with told.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, env=env, cwd=ROOT)
        started.append(Running(process, tmp, told))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.wait()
        assert one.process.stderr is not None
        one.process.stderr.close()


def test_the_soak_fouls_the_wires_to_both_servers_in_every_way() -> None:
    """Of the seed: another has other weather."""
    fouls = [strike for _, strike in PLAN.strikes if isinstance(strike, Foul)]
    assert {(one.fault, one.wire) for one in fouls} == {(f, w) for f in WIRE_FAULTS for w in SERVERS}
    assert all(one.silent for one in fouls if one.fault == "partition")


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_soak_of_every_fault_settles_every_run_and_every_invariant_holds(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    report = tmp_path / "report.md"
    given = ["--runs", str(RUNS), "--seconds", str(SECONDS), "--seed", str(SEED)]
    soak = start(*given, *SMALL, "--scale", "dispatcher=2", "--report", str(report))
    soak.read_until("no more orders, no more strikes")
    assert soak.ended() == 0, soak.said + soak.told.read_text()
    told = soak.json()
    assert (told["ok"], told["problems"], told["waiting"], told["kept"]) == (True, [], [], None)
    assert (told["fleet"], told["seed"], told["seconds"]) == ("own", SEED, SECONDS)
    assert list(told["injected"]) == list(FAULTS)
    fired, armed = len(told["fault_points_fired"]), PLAN.counts["fault-point"]
    assert told["planned"] == PLAN.counts
    assert told["injected"] == {**PLAN.counts, "fault-point": fired}
    assert told["fault_points_armed"] == armed
    assert fired >= armed // 2 >= 1
    assert sum(told["service_faults"].values()) > 0  # some orders are always refused
    assert told["runs"] == told["completed"] + told["stopped"] == told["settle_seconds"]["count"] == RUNS
    assert sum(told["stop_reasons"].values()) == told["stopped"]
    assert told["calls"] >= told["effects"] >= 2 * told["completed"]
    assert told["attempts"] >= told["effects"]  # of calls that were denied or cancelled there is none
    assert (told["duplicates"], told["lost"]) == (0, 0)
    unknown = told["unknown"]
    assert unknown["marks"] >= unknown["calls"]  # how many, if any, is chance
    assert unknown["calls"] == unknown["automatically"] + unknown["by_person"]
    assert unknown["open"] == 0
    # Whether the victim of one strike held work is chance in so small a fleet, of all together it is not.
    assert sum(told["injected_with_work"].values()) > 0
    assert told["never_claimed"] == 0
    recovery, in_calm = told["recovery_seconds"], told["recovery_seconds_in_calm"]
    assert set(recovery) == set(in_calm) == {"kill", "host-death", "freeze"}
    for fault, found in recovery.items():
        assert in_calm[fault]["count"] <= found["count"]
        assert found["count"] == 0 or 0 <= found["p50"] <= found["p99"] <= found["max"]
    verdicts = {name: one["verdict"] for name, one in told["invariants"].items()}
    assert verdicts == dict.fromkeys(PROMISES, "holds")
    assert f"of {RUNS} orders enqueued" in soak.said
    assert report.read_text().startswith(f"# Chaos, seed {SEED}: passed\n")
    soak.leaves_nothing()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("moment", "number", "code"),
    [
        pytest.param("processes are up", signal.SIGINT, 130, marks=long_only),
        (" kill", signal.SIGINT, 130),
        pytest.param("2 kill", signal.SIGTERM, 130, marks=long_only),
        pytest.param("1 freeze", signal.SIGHUP, 130, marks=long_only),
        pytest.param("1 partition", signal.SIGKILL, -9, marks=long_only),
    ],
)
def test_a_chaos_that_is_cut_short_leaves_nothing_behind(
    start: Callable[..., Running], moment: str, number: signal.Signals, code: int
) -> None:
    chaos = start("--seed", "5", "--seconds", "300", "--runs", "50", *SMALL)
    chaos.read_until(moment)
    chaos.process.send_signal(number)
    assert chaos.ended() == code
    assert chaos.told.read_text() == ""
    chaos.leaves_nothing()


@long_only
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fleet_that_was_found_is_struck_and_left_running(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    up = upped.start(tmp_path / "data", tmp_path / "up", "--no-flower")
    try:
        up.read_until("Ctrl-C stops everything")
        up.remember()
        up.enqueue(1, 2, 3)
        given = ["--data", str(up.data), "--seed", "3", "--seconds", "30", "--runs", "40"]
        chaos = start(*given)
        assert chaos.ended() == 0, chaos.said + chaos.told.read_text()
        told = chaos.json()
        assert (told["ok"], told["fleet"], told["runs"]) == (True, "found", 40)
        assert set(told["injected"]) == set(FAULTS) - OWN_ONLY
        assert told["injected"] == told["planned"]
        assert told["invariants_of_all"]["I6"]["count"] > told["invariants"]["I6"]["count"]
        # What was there before is still there, and so is the fleet, with nobody asleep.
        up.enqueue(4)
        wanted = {f"o-{n}": "COMPLETED" for n in (1, 2, 3, 4)}
        until("its own orders", lambda: wanted.items() <= up.statuses().items(), 120)
        assert not list(chaos.tmp.iterdir())
    finally:
        up.process.send_signal(signal.SIGINT)
        assert up.ended() == 0
        os.close(up.out)
    up.leaves_nothing()
