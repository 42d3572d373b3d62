"""`fencepost demo` as anybody runs it: every verdict from a fleet under fire, and nothing left behind."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from fencepost import Client
from fencepost.client import Enqueued
from fencepost_ops.checker import PROMISES, SandboxBooks, check
from fencepost_ops.demo_plan import make_plan
from fencepost_ops.fleet import SHRUNK, Fleet, FleetOptions
from fencepost_ops.trial import request_of
from tests.acceptance.upped import lives, tree
from tests.acceptance.weather import long_only
from tests.awaiting import until

ROOT = Path(__file__).resolve().parents[2]
SAYS_WITHIN_S = 240.0
QUEUES = {"planner", "dispatcher", "reconciler", "compensator"}


def seen_by_flower(url: str) -> set[str]:
    """The queues of the workers that answer Flower; none while it starts."""
    try:
        with urllib.request.urlopen(f"{url}/api/workers?refresh=1", timeout=30) as answer:  # noqa: S310
            workers = json.load(answer)
    except (OSError, ValueError):
        return set()
    return {queue["name"] for worker in workers.values() for queue in worker.get("active_queues", ())}


@dataclass
class Running:
    """A demo in a process of its own, with temporary folders of its own."""

    process: subprocess.Popen[bytes]
    out: int
    tmp: Path
    said: str = ""
    trees: set[tuple[int, str]] = field(default_factory=set)

    def read_until(self, text: str) -> None:
        end = time.monotonic() + SAYS_WITHIN_S
        while text not in self.said:
            ready, _, _ = select.select([self.out], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"not in {SAYS_WITHIN_S:g} s: {text}\n{self.said}"
            chunk = os.read(self.out, 65536)
            assert chunk, f"it ended ({self.process.wait()}): {self.said}"
            self.said += chunk.decode()
            self.trees |= tree(self.process.pid)

    def ended(self) -> int:
        while chunk := os.read(self.out, 65536):
            self.said += chunk.decode()
        return self.process.wait()

    def leaves_nothing(self) -> None:
        until("every process of its tree is gone", lambda: not any(map(lives, self.trees)), 30)
        until("its temporary folders are gone", lambda: not list(self.tmp.iterdir()), 30)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(*options: str) -> Running:
        (tmp_path / "tmp").mkdir()
        env = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "fencepost_ops.cli", "demo", *options]
        out, ours = os.pipe()
        process = subprocess.Popen(command, stdout=ours, stderr=ours, env=env, cwd=ROOT)
        os.close(ours)
        started.append(Running(process, out, tmp_path / "tmp"))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.wait()
        os.close(one.out)


@long_only
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_demo_settles_every_order_and_every_invariant_holds(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    demo = start("--runs", "60", "--seed", "7", "--json", str(file))
    demo.read_until("its workers and queues: http")
    demo.read_until("killed ")
    (flower,) = re.findall(r"its workers and queues: (http://\S+)", demo.said)
    until("Flower shows the workers of every queue", lambda: seen_by_flower(flower) == QUEUES, 60)
    demo.read_until("stopping the fleet")
    assert demo.ended() == 0, demo.said
    told = json.loads(file.read_text())
    assert told["ok"] is True
    assert (told["runs"], told["completed"] + told["stopped"]) == (60, 60)
    assert told["stopped"] >= 3  # those that were refused; what they had done is offset
    assert (told["killed"], told["frozen"], told["seed"]) == (10, 2, 7)
    assert told["fenced_writes"] > 0
    assert told["evidence"] > 0
    assert told["effects"] > 100
    assert len(told["faults"]) == 16
    verdicts = {name: verdict["verdict"] for name, verdict in told["invariants"].items()}
    assert set(verdicts.values()) == {"holds"}, verdicts
    assert {"I1", "I2", "I4", "I5", "I6", "I7", "I8", "I9", "I11", "I12"} <= verdicts.keys()
    assert all(verdict["count"] > 0 for verdict in told["invariants"].values())
    assert "Every order is settled, every invariant holds." in demo.said
    demo.leaves_nothing()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_demo_of_few_orders_comes_to_its_good_end(start: Callable[..., Running], tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    demo = start("--runs", "8", "--seed", "7", "--json", str(file))
    demo.read_until("stopping the fleet")
    assert demo.ended() == 0, demo.said
    told = json.loads(file.read_text())
    assert (told["ok"], told["settled"], told["problems"]) == (True, True, [])
    assert (told["runs"], told["completed"] + told["stopped"]) == (8, 8)
    assert (told["killed"], told["frozen"], told["seed"]) == (5, 2, 7)
    verdicts = {name: verdict["verdict"] for name, verdict in told["invariants"].items()}
    assert verdicts == dict.fromkeys(PROMISES, "holds")
    assert "Every order is settled, every invariant holds." in demo.said
    demo.leaves_nothing()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param("looking at the ledger", signal.SIGINT, marks=long_only),
        pytest.param("killed", signal.SIGKILL, marks=long_only),
        pytest.param("froze", signal.SIGTERM, marks=long_only),
    ],
)
def test_a_demo_that_is_cut_short_leaves_nothing_behind(
    start: Callable[..., Running], moment: str, number: signal.Signals
) -> None:
    demo = start("--seed", "5")
    demo.read_until(moment)
    demo.process.send_signal(number)
    code = demo.ended()
    assert code == (-signal.SIGKILL if number is signal.SIGKILL else 130), demo.said
    assert "Traceback" not in demo.said
    demo.leaves_nothing()


@pytest.mark.slow
@pytest.mark.timeout(240)
@long_only
def test_a_service_that_breaks_its_word_is_found_out_by_its_own_book(tmp_path: Path) -> None:
    faults = [{"kind": "drop_after_commit", "service": "wallet", "nth": 1}]
    broken = {"wallet": {"dedupes": False, "lookup_lag_s": 3600}}  # the contract says otherwise of both
    order = make_plan(1, 1).orders[0]
    with (tmp_path / "log").open("w") as log:
        options = FleetOptions(
            data=tmp_path / "data", env=SHRUNK, sandbox_faults=faults, fsync=False, out=log
        )
        with Fleet(options) as fleet, fleet.connect("reader") as reader:
            assert fleet.sandbox is not None
            fleet.sandbox.configure(services=broken)
            fleet.wait_ready()
            with Client(fleet.database.dsns["producer"], fleet.valkey.url()) as client:
                (sent,) = client.enqueue_many([request_of(order)])
                assert isinstance(sent, Enqueued)
                run = sent.run_id
                (ended,) = client.wait([run], timedelta(seconds=60))
            assert ended.status == "COMPLETED"
            report = check(reader, SandboxBooks(fleet.sandbox.book), settled=True)
    assert report.violated == ["I1"]
    (violation,) = report.verdict("I1").violations
    assert violation.run == run
    assert "2 effects of one intent: wallet debit_" in violation.message
