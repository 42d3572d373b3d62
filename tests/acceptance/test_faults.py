"""Every fault point of every role, on real processes: crash, pause and error; the checker after each round.

A round arms one fault in every role at once, on orders that lead each role through its point. All of them
settle while whoever was paused still sleeps: it wakes to find that others have taken over. The quick form
strikes each point of each role in one of the three ways, FENCEPOST_CHAOS=1 in all of them.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from fencepost.testing import POINTS
from tests.acceptance.conftest import checked
from tests.acceptance.stage import Armed, Stage, is_frozen, staged, step, until

_numbers = itertools.count(1)

ACTIONS = ("crash", "pause", "error")
ORDER = ["debit", "reservation", "shipment"]
SCALE = {"relay": 2, "planner": 2, "dispatcher": 2, "reconciler": 2, "compensator": 2}
DISPATCH = ("before_wire", "response_lost", "after_effect")
DISPATCHER = (*(f"dispatch.{at}" for at in ("after_lease", "after_claim", *DISPATCH, "after_record")),)
RECONCILER = (
    "reconcile.after_lease",
    "reconcile.after_lookup",
    *(f"dispatch.{at}" for at in DISPATCH),
    "reconcile.after_record",
)
INSIDE = "ledger.in_transaction"
FORWARD = {
    "planner": ("planner.after_claim", "planner.after_model", "planner.after_record", INSIDE),
    "dispatcher": (*DISPATCHER, INSIDE),
    "reconciler": (*RECONCILER, INSIDE),
    "relay": ("relay.after_judge", "relay.after_take", "relay.after_publish"),
}
BACKWARD = {
    "compensator": ("compensate.after_plan", INSIDE),
    "dispatcher": (*DISPATCHER, INSIDE),
    "reconciler": (*RECONCILER, INSIDE, "sweep.after_look"),
}
PRODUCER = ("enqueue.before_commit", "enqueue.after_commit")
SHIFTS = range(len(ACTIONS)) if os.environ.get("FENCEPOST_CHAOS") else range(1)
PRODUCE = """
import sys
from datetime import timedelta
from fencepost import Client

with Client() as client:
    sent = client.enqueue("steps", {"turns": []}, run_key=sys.argv[1], tenant=sys.argv[2],
                          principal="svc:test", deadline=timedelta(minutes=1))
print(sent.run_id, sent.created)
"""


@dataclass(frozen=True)
class Struck:
    """A fault for one role in one round."""

    role: str
    point: str
    action: str

    @property
    def spec(self) -> str:
        return f"{self.point}={self.action}"


def rounds(points: dict[str, tuple[str, ...]]) -> list[tuple[Struck, ...]]:
    """Each point of each role with each action, one of a role at a time; neighbours differ in their action.

    The first third of it strikes every point of every role once.
    """
    longest = max(map(len, points.values()))
    return [
        tuple(
            Struck(role, at[n % len(at)], ACTIONS[(n + other + shift) % len(ACTIONS)])
            for other, (role, at) in enumerate(points.items())
        )
        for shift in SHIFTS
        for n in range(longest)
    ]


def named(faults: tuple[Struck, ...]) -> str:
    return "-".join(f"{one.role}:{one.spec}" for one in faults)


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("faults")
    with staged(folder, scale=SCALE, env={"FENCEPOST_SWEEP_S": "0.5"}) as stage:
        yield stage
        assert stage.verdict(whole=True) == []


@pytest.fixture
def stage(struck: Stage) -> Iterator[Stage]:
    yield from checked(struck)


def reference(kind: str) -> str:
    return f"{kind}-{next(_numbers)}"


def strike(stage: Stage, faults: tuple[Struck, ...]) -> dict[Struck, Armed]:
    return {one: stage.arm(one.role, one.spec) for one in faults}


def forward(stage: Stage) -> dict[UUID, tuple[str, list[str]]]:
    """Runs that go well, whose answer is lost and can be asked for, or only be repeated; their effects."""
    expected = {}
    for kind in ("plain", "plain", "lost", "lost"):
        name = reference(kind)
        if kind == "lost":
            stage.sandbox.fault("drop_after_commit", service="wallet", reference=name, nth=1)
        expected[stage.order(name)] = name, ORDER
    for name in (reference("repeat"), reference("repeat")):
        stage.sandbox.fault("drop_after_commit", reference=name, nth=1)
        expected[stage.send([step("blind.pay", "pay", reference=name)])] = name, ["debit"]
    return expected


def backward(stage: Stage) -> dict[UUID, tuple[str, list[str]]]:
    """Runs with an effect, held up; once cancelled they offset it, and some of those answers are lost."""
    expected = {}
    for kind, lost in (("plain", 0), ("plain-asked", 0), ("lost-asked", 1), ("lost-asked", 1), ("lost", 1)):
        name = f"{next(_numbers)}-{kind}"
        if lost:
            stage.sandbox.fault("drop_after_commit", path="/wallet/refunds", reference=name, nth=1)
        later = f"{name}-later"
        stage.sandbox.fault("throttle_429", reference=later, retry_after_s=100)
        turns = [step("blind.pay", "pay", reference=name)], [step("bank.debit", "later", reference=later)]
        expected[stage.send(*turns, deadline_s=300)] = name, ["debit", "refund"]
    for run in expected:
        stage.until_event(run, "ToolAttemptFailed")
    return expected


def settle(stage: Stage, status: str, expected: dict[UUID, tuple[str, list[str]]]) -> None:
    assert stage.ended(*expected, within_s=60) == [status] * len(expected)
    found = {name: sorted(stage.effects(name)) for name, _ in expected.values()}
    assert found == dict(expected.values())


def judge(stage: Stage, armed: dict[Struck, Armed], before: dict[str, int]) -> None:
    """Each fault has struck; the paused still sleep, and wake now; an error has ended no process."""
    for one, fault in armed.items():
        until(f"{one.role} struck by {one.spec}", lambda fault=fault: fault.fired)  # type: ignore[misc]
        pids = stage.fleet.pids(one.role)
        if one.action == "pause":
            assert any(map(is_frozen, pids.values())), f"nobody sleeps at {one.point}"
        if one.action == "error":
            assert pids.items() <= before.items(), f"a {one.role} did not survive {one.spec}"
    stage.wake_all()


@pytest.mark.parametrize("faults", rounds(FORWARD), ids=named)
def test_orders_survive(stage: Stage, faults: tuple[Struck, ...]) -> None:
    until("a whole fleet", stage.whole)
    before, armed = stage.fleet.pids(), strike(stage, faults)
    expected = forward(stage)
    settle(stage, "COMPLETED", expected)
    judge(stage, armed, before)


@pytest.mark.parametrize("faults", rounds(BACKWARD), ids=named)
def test_offsets_survive(stage: Stage, faults: tuple[Struck, ...]) -> None:
    expected = backward(stage)
    until("a whole fleet", stage.whole)
    before, armed = stage.fleet.pids(), strike(stage, faults)
    for run in expected:
        stage.cancel(run)
    settle(stage, "STOPPED", expected)
    judge(stage, armed, before)


def test_a_producer_may_be_lost_before_and_after_its_commit(stage: Stage, tmp_path: Path) -> None:
    """Six producers at once: no run before the COMMIT, exactly one after it; sent again it is that run."""

    def produce(key: str, fault: str = "") -> subprocess.Popen[str]:
        env = {**os.environ, **stage.fleet.env("producer"), "FENCEPOST_FAULT": fault}
        command = [sys.executable, "-c", PRODUCE, key, stage.tenant]
        return subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    lost = {
        (point, action): produce(f"{point}-{action}", f"{point}={action}")
        for point in PRODUCER
        for action in ACTIONS
    }
    found = "SELECT id FROM fencepost.runs WHERE tenant = %s AND run_key = %s"
    for (point, action), process in lost.items():
        if action == "pause":
            until("a frozen producer", lambda pid=process.pid: is_frozen(pid))  # type: ignore[misc]
        else:
            assert process.wait(30) == (-9 if action == "crash" else 1)
        run = stage.value(found, stage.tenant, f"{point}-{action}")
        assert (run is None) == (point == "enqueue.before_commit")
        again = produce(f"{point}-{action}")
        said, _ = again.communicate(timeout=30)
        assert said.split()[1] == str(run is None)
        assert run is None or said.split()[0] == str(run)
        stage.sent.append(UUID(said.split()[0]))
    for point in PRODUCER:
        process = lost[point, "pause"]
        process.send_signal(18)
        woken, _ = process.communicate(timeout=30)
        # Postgres has ended its transaction meanwhile; after the COMMIT it just goes on.
        assert (process.returncode, bool(woken)) == ((1, False) if point == PRODUCER[0] else (0, True))
    assert stage.ended() == ["COMPLETED"] * len(lost)


def test_every_point_has_been_struck(stage: Stage, request: pytest.FixtureRequest) -> None:
    ours = [item for item in request.session.items if item.path == request.path]
    if len(ours) < len(rounds(FORWARD)) + len(rounds(BACKWARD)) + 2:
        pytest.skip("not all rounds were asked for")
    seen = {path.name.split("=")[0] for path in (stage.folder / "once").glob("*/*.*.1")}
    points = {name.rpartition(".")[0].rpartition(".")[0] for name in seen}
    assert points | set(PRODUCER) == POINTS
